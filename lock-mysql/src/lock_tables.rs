//! Asks the server for more than the connection of a holder. What it provides depends on its configuration, and on what this user
//! may read.
//!
//! * `MariaDB`'s plugin `metadata_lock_info` tells every user which connection has which lock, and for how long.
//! * `performance_schema` tells which connection has which lock if the instrument `wait/lock/metadata/sql/mdl` is on (as by default
//!   in `MySQL` 8), and what connections of other users wait for.
//!
//! The client asks both each time: an operator can switch them on and off while the server runs.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use lock_core::{LockError, LockName, Operation};

use crate::backend::MySqlBackend;
use crate::failure::Failure;
use crate::link::Name;
use crate::parts::Parts;
use crate::run::Run;
use crate::session::Row;
use crate::session_tag::SessionTag;
use crate::statement;

/// The locks of a connection, and for how long it has had each, if that is known.
pub(crate) struct Belongings(BTreeMap<String, Option<Duration>>);

impl Belongings {
    /// Looks for the locks of a connection that is known to have `name`. `None` if the server does not report them.
    pub(crate) async fn of(
        backend: &MySqlBackend,
        connection: u64,
        run: &Run,
        name: &Name,
        operation: Operation,
    ) -> Result<Option<Self>, LockError> {
        for statement in [
            statement::locks_by_plugin(connection, operation),
            statement::locks_by_schema(connection, operation),
        ] {
            let Some(rows) = told(backend, run, operation, statement).await? else { continue };
            let belongings: BTreeMap<_, _> = rows.iter().filter_map(belonging).collect();
            // A source that was switched on later lacks earlier locks, and does not say so.
            if belongings.contains_key(&**name) {
                return Ok(Some(Self(belongings)));
            }
        }
        Ok(None)
    }

    /// For how long the connection has held `name`.
    pub(crate) fn age_of(&self, name: &Name) -> Option<Duration> {
        self.0.get(&**name).copied().flatten()
    }

    /// The other locks that are users' locks. Those of clients with this prefix have the names that their users gave them, unless
    /// such a name was too long or too special for a server.
    pub(crate) fn others_than(&self, name: &Name, prefix: &str) -> Vec<LockName> {
        let others =
            self.0.keys().filter(|other| !SessionTag::is_lock(other)).map(|other| Parts::base_of(other));
        let others: BTreeSet<_> = others.filter(|other| *other != Parts::base_of(name)).collect();
        let plain = others.into_iter().map(|other| match other.split_once(':') {
            Some((before, rest)) if before == prefix => rest,
            _ => other,
        });
        plain.filter_map(|other| LockName::new(other).ok()).collect()
    }
}

fn belonging(row: &Row) -> Option<(String, Option<Duration>)> {
    let [name, milliseconds] = row.as_slice() else { return None };
    let milliseconds = milliseconds.as_deref().and_then(|text| text.parse().ok());
    Some((name.clone()?, milliseconds.map(Duration::from_millis)))
}

/// The waiters for the lock that `performance_schema` knows, in the form of the process list; empty if the user may not read it.
pub(crate) async fn waiters(backend: &MySqlBackend, run: &Run, parts: &Parts) -> Result<Vec<Row>, LockError> {
    let statement = statement::waiters_by_schema(parts);
    Ok(told(backend, run, Operation::Inspect, statement).await?.unwrap_or_default())
}

/// The answer; `None` if the server has no such table or does not let this user read it.
async fn told(
    backend: &MySqlBackend,
    run: &Run,
    operation: Operation,
    statement: String,
) -> Result<Option<Vec<Row>>, LockError> {
    match backend.control.ask_of(run, operation, statement).await {
        Ok(answer) => Ok(Some(answer.rows)),
        Err(failure @ Failure::Refused { .. }) if !failure.is_unknown_thread() => Ok(None),
        Err(failure) => Err(failure.into_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_called_as_their_users_call_them() {
        let row = |name: &str, time: Option<&str>| vec![Some(name.to_owned()), time.map(str::to_owned)];
        let rows = [
            row("locks:a/b", Some("1500")),
            row("locks:c", None),
            row("locks:x:y", None),
            row("locks:c|3", None),
            row("locks:a/b|3", None),
            row("d", None),
            row(&SessionTag::new(8).lock(), None),
        ];
        let belongings = Belongings(rows.iter().filter_map(belonging).collect());
        let name: Name = "locks:a/b".into();
        let others = |prefix: &str| {
            let others = belongings.others_than(&name, prefix);
            others.iter().map(|name| name.as_str().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(others("locks"), ["d", "c", "x:y"]);
        assert_eq!(others(""), ["d", "locks:c", "locks:x:y"]);
        assert_eq!(belongings.age_of(&name), Some(Duration::from_millis(1500)));
        assert_eq!(belongings.age_of(&"locks:c".into()), None);
    }
}
