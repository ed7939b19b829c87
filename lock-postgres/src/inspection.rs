//! Inspects the holder and the waiters of a lock.
//!
//! The server knows which *session* holds a lock, and the name of the session's client: its process, host and label. A
//! waiter also describes itself in its statement, which its own user and administrators see.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU32;
use std::slice;

use lock_core::{
    FencingToken, HolderId, LockError, LockKind, LockName, Mode, NameRules, Operation, Participant,
};
use lock_kit::ClientRecord;
use lock_sql::{Answer, Dialect as _, Listed, Row, Waiter, moment, nonsense};

use crate::address::client_of;
use crate::dialect::{Client, Postgres};
use crate::key::Key;
use crate::permits::Part;
use crate::pg_locks;
use crate::server::SessionId;

/// The column that says how many keys after the first of a semaphore a lock is.
const KEY: usize = 8;

/// A session that holds the lock or waits for it.
pub(crate) struct Party {
    /// `None` if this user may not see when the session began.
    pub(crate) session: Option<SessionId>,
    pid: i32,
    pub(crate) is_holder: bool,
    /// Whether the table names the acquisition; otherwise its id is that of the session.
    pub(crate) is_recorded: bool,
    /// How many keys after the first of a semaphore its lock is.
    offset: u32,
    /// What it says of itself while it waits.
    waiter: Option<Waiter>,
    pub(crate) participant: Participant,
}

impl Party {
    fn read(row: &Row) -> Option<Self> {
        let [pid, granted, start, client, address, statement, since, mode, offset, record @ ..] =
            row.as_slice()
        else {
            return None;
        };
        let pid: i32 = pid.as_deref()?.parse().ok()?;
        let session =
            start.as_deref().and_then(|text| text.parse().ok()).map(|start| SessionId::new(pid, start));
        let id = session.map_or_else(|| format!("session {pid}"), |session| session.to_string());
        let is_holder = granted.as_deref()? == "true";
        let mut participant = Participant::new(HolderId::new(id));
        participant.host.clone_from(address);
        if let Some((pid, host, label)) = client.as_deref().and_then(client_of) {
            participant.host = Some(host.to_owned());
            participant.pid = Some(pid);
            participant.label = label.map(str::to_owned);
        }
        participant.mode = if mode.as_deref()? == "ShareLock" { Mode::Shared } else { Mode::Exclusive };
        participant.since = since.as_deref().and_then(|text| moment(text.parse().ok()?));
        let is_recorded = matches!(record, [Some(_), ..]);
        if let [Some(attempt), token, since, holder] = record {
            participant.id = HolderId::new(attempt);
            participant.token = token.as_deref().and_then(|token| token.parse().ok()).map(FencingToken::new);
            participant.since = since.as_deref().and_then(|text| moment(text.parse().ok()?));
            let holder = holder.as_deref().and_then(|text| serde_json::from_str::<ClientRecord>(text).ok());
            if let Some(holder) = holder {
                holder.describe(&mut participant);
            }
        }
        let waiter = statement.as_deref().and_then(Waiter::of_statement);
        let offset = offset.as_deref()?.parse().ok()?;
        let party = Self { session, pid, is_holder, is_recorded, offset, waiter, participant };
        Some(if is_holder { party } else { party.waits() })
    }

    /// Describes it as it describes itself while it waits.
    fn waits(mut self) -> Self {
        self.is_holder = false;
        if let Some(waiter) = self.waiter.take() {
            let since = self.participant.since;
            self.participant = waiter.participant();
            self.participant.since = since.or(self.participant.since);
        }
        self
    }
}

fn permits(take: u32, of: u32) -> Option<Mode> {
    Some(Mode::Permits { take: NonZeroU32::new(take)?, of: NonZeroU32::new(of)? })
}

/// Who has permits of a semaphore, and who waits for some, from what is said of each of its locks. The session that has the gate
/// and no permits is the first that waits.
fn of_semaphore(parties: Vec<Party>) -> Vec<Party> {
    let mut shares: HashMap<i32, (u32, Option<u32>)> = HashMap::new();
    for party in parties.iter().filter(|party| party.is_holder) {
        let (take, of) = shares.entry(party.pid).or_default();
        match Part::at(party.offset) {
            Part::Permit => *take += 1,
            Part::Number(number) => *of = Some(number),
            Part::Gate | Part::Other => {}
        }
    }
    let described = |mut party: Party| match (Part::at(party.offset), party.is_holder) {
        (Part::Gate, false) => Some(party),
        (Part::Gate, true) => {
            let waits = shares.get(&party.pid).is_none_or(|(_, of)| of.is_none());
            (waits && party.waiter.is_some()).then(|| party.waits())
        }
        (Part::Number(of), true) => {
            let (take, _) = shares.get(&party.pid)?;
            party.participant.mode = permits(*take, of)?;
            Some(party)
        }
        _ => None,
    };
    parties.into_iter().filter_map(described).collect()
}

/// One of the holders of the lock.
pub(crate) async fn holder(client: &Client, key: Key) -> Result<Option<Participant>, LockError> {
    let parties = parties(client, key, Operation::Acquire).await?;
    Ok(parties.into_iter().find(|party| party.is_holder).map(|party| party.participant))
}

pub(crate) async fn parties(
    client: &Client,
    key: Key,
    operation: Operation,
) -> Result<Vec<Party>, LockError> {
    // Another program may have locked the table, and nothing that is urgent may wait behind that.
    let dialect = &client.settings.dialect;
    let connection = if dialect.has_table() { &client.auxiliary } else { &client.control };
    let answer = connection.ask(operation, pg_locks::participants(key, dialect.fencing, operation)).await?;
    read(key, answer.rows).ok_or_else(|| nonsense(operation, "it does not say who holds the lock"))
}

fn read(key: Key, rows: Vec<Row>) -> Option<Vec<Party>> {
    let rows = pg_locks::with_record(rows);
    let parties = rows.iter().map(Party::read).collect::<Option<Vec<_>>>()?;
    Some(if key.kind() == LockKind::Semaphore { of_semaphore(parties) } else { parties })
}

/// Those that hold it, and those that wait for it.
pub(crate) fn in_two(parties: Vec<Party>) -> (Vec<Participant>, Vec<Participant>) {
    let (holders, waiters): (Vec<_>, Vec<_>) = parties.into_iter().partition(|party| party.is_holder);
    let participants = |parties: Vec<Party>| parties.into_iter().map(|party| party.participant).collect();
    (participants(holders), participants(waiters))
}

/// Reads what is said of [all](pg_locks::all) locks: one look at the server's table of locks is enough for all of them.
pub(crate) fn listed(dialect: &Postgres, answer: Answer, names: NameRules) -> Vec<Listed> {
    let mut found: BTreeMap<i64, Vec<Row>> = BTreeMap::new();
    let mut kept = Vec::new();
    for row in answer.rows {
        match row.get(KEY).map(|key| key.as_deref().and_then(|key| key.parse().ok())) {
            None => kept.push(row),
            Some(key) => found.entry(key.unwrap_or_default()).or_default().push(row),
        }
    }
    let read = |row: Row| {
        let [Some(name), Some(key), record @ ..] = row.as_slice() else { return None };
        let name = LockName::new(name).ok()?;
        let physical = names.apply(&name);
        let keys = [LockKind::Lock, LockKind::Semaphore].map(|kind| dialect.key(&name, &physical, kind));
        // Clients with another prefix have other keys.
        let key = keys.into_iter().flatten().find(|its| its.to_string() == *key)?;
        let mut rows = Vec::new();
        for (at, those) in found.range(key.range()) {
            let offset = Some((at - key.range().start()).to_string());
            rows.extend(
                those.iter().map(|row| [&row[..KEY], slice::from_ref(&offset), &row[KEY + 1..]].concat()),
            );
        }
        if key.kind() == LockKind::Lock && record.iter().all(Option::is_some) {
            rows.push(record.to_vec());
        }
        // What makes no sense is inspected by itself, and is an error there.
        let parties = self::read(key, rows);
        Some((name, key.kind(), parties.map(in_two)))
    };
    kept.into_iter().filter_map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn party(fields: [&str; 9]) -> Party {
        Party::read(&fields.map(|text| (!text.is_empty()).then(|| text.to_owned())).to_vec()).unwrap()
    }

    #[test]
    fn a_session_says_who_its_client_is() {
        let holder = party([
            "7",
            "true",
            "100",
            "distlock 4711@db-1 nightly",
            "10.0.0.1",
            "SELECT 1",
            "",
            "ExclusiveLock",
            "0",
        ]);
        assert!(holder.is_holder && holder.session == Some(SessionId::new(7, 100)));
        let Participant { host, pid, label, .. } = holder.participant;
        assert_eq!((host.as_deref(), pid, label.as_deref()), (Some("db-1"), Some(4711), Some("nightly")));
        let stranger = party(["8", "true", "", "psql", "10.0.0.2", "", "", "ShareLock", "0"]);
        assert_eq!(stranger.participant.mode, Mode::Shared);
        assert_eq!((stranger.session, stranger.participant.host.as_deref()), (None, Some("10.0.0.2")));
        assert_eq!(stranger.participant.id, HolderId::new("session 8"));
        let statement = r#"/*distlock acquire {"id":"ff","host":"h","pid":9,"since":7}*/SELECT"#;
        let waiter =
            party(["9", "false", "200", "", "", statement, "1000000", "ExclusiveLock", "0"]).participant;
        assert_eq!((waiter.id, waiter.pid), (HolderId::new("ff"), Some(9)));
        assert_eq!(waiter.since, moment(1_000_000));
    }
    #[test]
    fn the_locks_of_a_semaphore_say_who_has_how_many_permits() {
        let waits = r#"/*distlock acquire {"id":"ff","host":"h","pid":9,"mode":"4/5","since":7}*/SET"#;
        let lock = |pid, granted, statement, mode, offset| {
            party([pid, granted, "100", "distlock 1@h", "", statement, "", mode, offset])
        };
        let found = of_semaphore(vec![
            lock("7", "true", "", "ExclusiveLock", "256"),
            lock("7", "true", "", "ExclusiveLock", "258"),
            lock("7", "true", "", "ShareLock", "1"),
            lock("7", "true", "", "ShareLock", "517"),
            lock("8", "true", waits, "ExclusiveLock", "0"),
            lock("9", "false", waits, "ExclusiveLock", "0"),
        ]);
        let modes: Vec<_> =
            found.iter().map(|party| (party.pid, party.is_holder, party.participant.mode)).collect();
        let mode = |take, of| permits(take, of).unwrap();
        assert_eq!(modes, [(7, true, mode(2, 5)), (8, false, mode(4, 5)), (9, false, mode(4, 5))]);
    }
}
