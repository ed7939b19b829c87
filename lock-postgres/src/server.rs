//! Checks a server, and a new session of it, before the client keeps locks there.

use std::fmt;

use lock_core::{ErrorKind, LockError, Operation};
use lock_sql::{Row, comment, not_primary};

use crate::failure::shared_session;
use crate::session_tag::SessionTag;

/// The oldest version that ends silent sessions.
const OLDEST: u32 = 140_000;

/// The first version that may end long transactions, and a wait is one.
const LIMITS_TRANSACTIONS: u32 = 170_000;

/// Servers that speak the protocol and have no advisory locks, or others, by the words in their version texts.
const OTHERS: [&str; 7] =
    ["CockroachDB", "-YB-", "Redshift", "Greenplum", "Materialize", "RisingWave", "CrateDB"];

/// Identifies a session of the server: process ids are used again, but not in the same microsecond.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct SessionId {
    pub(crate) pid: i32,
    /// When the session began, in microseconds since the epoch.
    pub(crate) start: i64,
    /// The tag that it shows, if it is this client's and a pooler may give it to another one.
    pub(crate) shows: Option<SessionTag>,
}

impl SessionId {
    pub(crate) fn new(pid: i32, start: i64) -> Self {
        Self { pid, start, shows: None }
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "session {} since {}", self.pid, self.start)
    }
}

/// The SQL expression for the start of the sessions of a row of `pg_stat_get_activity`.
pub(crate) const START: &str = "(extract(epoch FROM backend_start)*1000000)::bigint";

/// The SQL expression for the entries in the table of locks.
const CAPACITY: &str = "(current_setting('max_locks_per_transaction')::bigint*(current_setting('max_connections')::bigint\
                      +current_setting('max_prepared_transactions')::bigint))";

/// Ends the wait of a client whose machine has closed its connection. Servers on other systems refuse the setting, or do without it.
const LOOK_FOR_CLIENT: &str = "CASE WHEN version() LIKE '%linux%' \
                               THEN set_config('client_connection_check_interval','500ms',false) END";

/// The description that a server gives of itself and of a new session.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    version_text: String,
    version: u32,
    is_standby: bool,
    has_tag: bool,
    lease_milliseconds: u64,
    pub(crate) id: SessionId,
    /// How many entries the server promises in its table of locks, for all of its users together.
    pub(crate) capacity: u64,
}

/// Asks for the facts, after these statements.
pub(crate) fn question(statements: &str, tag: SessionTag) -> String {
    let comment = comment(Operation::Connect);
    let is_here = tag.is_here();
    format!(
        "{comment}{statements}SELECT version(),current_setting('server_version_num'),pg_is_in_recovery()::text,{is_here}::text,\
         (extract(epoch FROM current_setting('idle_session_timeout',true)::interval)*1000)::bigint::text,\
         pg_backend_pid()::text,{START}::text,{CAPACITY}::text,{LOOK_FOR_CLIENT} FROM pg_stat_get_activity(pg_backend_pid())"
    )
}

impl Facts {
    /// Reads the answer to the [`question`].
    pub(crate) fn read(rows: &[Row]) -> Option<Self> {
        let [version_text, version, is_standby, has_tag, lease, pid, start, capacity, ..] =
            rows.last()?.as_slice()
        else {
            return None;
        };
        Some(Self {
            version_text: version_text.clone()?,
            version: version.as_deref()?.parse().ok()?,
            is_standby: is_standby.as_deref()? != "false",
            has_tag: has_tag.as_deref()? == "true",
            // Missing in old versions.
            lease_milliseconds: lease.as_deref().and_then(|text| text.parse().ok()).unwrap_or_default(),
            id: SessionId::new(pid.as_deref()?.parse().ok()?, start.as_deref()?.parse().ok()?),
            capacity: capacity.as_deref()?.parse().ok()?,
        })
    }

    /// Refuses a server or a session that cannot keep the guarantees.
    pub(crate) fn check(&self, lease_milliseconds: u64) -> Result<(), LockError> {
        let unsupported =
            |cause: String| LockError::new(ErrorKind::Unsupported, Operation::Connect).because(cause);
        if !self.version_text.starts_with("PostgreSQL ")
            || OTHERS.iter().any(|other| self.version_text.contains(other))
        {
            let text = &self.version_text;
            return Err(unsupported(format!(
                "the server is {text:?}, whose advisory locks are of another kind"
            ))
            .remedy("connect to PostgreSQL"));
        }
        if self.version < OLDEST {
            let text = &self.version_text;
            return Err(unsupported(format!("the server is {text:?}, which does not end silent sessions"))
                .remedy("use PostgreSQL 14 or newer"));
        }
        if !self.has_tag {
            return Err(shared_session(Operation::Connect));
        }
        if self.lease_milliseconds != lease_milliseconds {
            return Err(unsupported(
                "the session did not get its idle_session_timeout, which is the lease".to_owned(),
            )
            .remedy("look for what sets it at the server, or in a pooler"));
        }
        if self.is_standby {
            return Err(not_primary(Operation::Connect));
        }
        Ok(())
    }

    /// The statement for settings that older servers do not know.
    pub(crate) fn newer_settings(&self) -> Option<String> {
        let comment = comment(Operation::Connect);
        (self.version >= LIMITS_TRANSACTIONS).then(|| format!("{comment}SET transaction_timeout=0"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEBIAN: &str = "PostgreSQL 15.18 (Debian 15.18-0+deb12u1) on x86_64-pc-linux-gnu";

    fn facts(version_text: &str, version: &str, standby: &str, tag: &str, lease: &str) -> Facts {
        let row = [version_text, version, standby, tag, lease, "7", "1700000000250000", "6400"];
        Facts::read(&[row.map(|text| Some(text.to_owned())).to_vec()]).unwrap()
    }

    #[test]
    fn a_good_server_passes() {
        for (text, version) in
            [("PostgreSQL 14.0", "140000"), (DEBIAN, "150018"), ("PostgreSQL 18beta1", "180000")]
        {
            facts(text, version, "false", "true", "30000").check(30_000).unwrap();
        }
        let id = facts(DEBIAN, "150018", "false", "true", "30000").id;
        assert_eq!(id.to_string(), "session 7 since 1700000000250000");
        assert_eq!(facts(DEBIAN, "150018", "false", "true", "1").newer_settings(), None);
        let newer = facts("PostgreSQL 17.0", "170000", "false", "true", "1").newer_settings().unwrap();
        assert!(newer.contains("transaction_timeout=0"), "{newer}");
    }

    #[test]
    fn what_cannot_keep_the_promise_is_refused() {
        for (facts, part) in [
            (facts("PostgreSQL 13.9", "130009", "false", "true", "30000"), "14"),
            (facts("CockroachDB CCL v23.1", "130000", "false", "true", "30000"), "CockroachDB"),
            (facts("PostgreSQL 11.2-YB-2.20", "110002", "false", "true", "30000"), "another kind"),
            (facts(DEBIAN, "150018", "true", "true", "30000"), "standby"),
            (facts(DEBIAN, "150018", "false", "false", "30000"), "pooler=session"),
            (facts(DEBIAN, "150018", "false", "true", "0"), "idle_session_timeout"),
        ] {
            let text = facts.check(30_000).unwrap_err().to_string();
            assert!(text.contains(part), "{text}");
        }
    }
}
