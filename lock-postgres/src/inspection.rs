//! Inspects the holder and the waiters of a lock, and breaks holds.
//!
//! The server knows which *session* holds a lock, and the name of the session's client: its process, host and label. A
//! waiter also describes itself in its statement, which its own user and administrators see.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lock_core::spi::within;
use lock_core::{Broken, HolderId, InspectRequest, LockError, LockStatus, Operation, Others, Participant};

use crate::address::client_of;
use crate::backend::PostgresBackend;
use crate::failure::{no_answer, nonsense};
use crate::key::Key;
use crate::server::SessionId;
use crate::session::Row;
use crate::statement::{self, Waiter};

/// The pause between two checks whether a session has ended.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A session that holds the lock or waits for it.
struct Party {
    /// `None` if this user may not see when the session began.
    session: Option<SessionId>,
    is_holder: bool,
    participant: Participant,
}

impl Party {
    fn read(row: &Row) -> Option<Self> {
        let [pid, granted, start, client, address, statement, since] = row.as_slice() else { return None };
        let pid: i32 = pid.as_deref()?.parse().ok()?;
        let session =
            start.as_deref().and_then(|text| text.parse().ok()).map(|start| SessionId { pid, start });
        let id = session.map_or_else(|| format!("session {pid}"), |session| session.to_string());
        let is_holder = granted.as_deref()? == "true";
        let mut participant = Participant::new(HolderId::new(id));
        participant.host.clone_from(address);
        if let Some((pid, host, label)) = client.as_deref().and_then(client_of) {
            participant.host = Some(host.to_owned());
            participant.pid = Some(pid);
            participant.label = label.map(str::to_owned);
        }
        if !is_holder {
            if let Some(waiter) = statement.as_deref().and_then(Waiter::of_statement) {
                describe(&mut participant, waiter);
            }
            participant.since = since.as_deref().and_then(moment);
        }
        Some(Self { session, is_holder, participant })
    }
}

fn describe(participant: &mut Participant, waiter: Waiter) {
    participant.id = HolderId::new(&waiter.id);
    participant.host = Some(waiter.host);
    participant.pid = Some(waiter.pid);
    participant.label = waiter.label;
}

fn moment(microseconds: &str) -> Option<SystemTime> {
    UNIX_EPOCH.checked_add(Duration::from_micros(microseconds.parse().ok()?))
}

async fn parties(backend: &PostgresBackend, key: Key, operation: Operation) -> Result<Vec<Party>, LockError> {
    let answer = backend.control.ask(operation, statement::participants(key, operation)).await?;
    let parties: Option<Vec<_>> = answer.rows.iter().map(Party::read).collect();
    parties.ok_or_else(|| nonsense(operation, "it does not say who holds the lock"))
}

/// Time for several statements and for opening a connection.
async fn in_time<T>(
    backend: &PostgresBackend,
    operation: Operation,
    action: impl Future<Output = Result<T, LockError>>,
) -> Result<T, LockError> {
    let clock = backend.context.clock();
    let deadline = clock.now().plus(backend.settings.request_timeout * 4);
    within(clock, deadline, action).await.unwrap_or_else(|| Err(no_answer(operation)))
}

pub(crate) async fn inspect(
    backend: &PostgresBackend,
    request: &InspectRequest,
) -> Result<LockStatus, LockError> {
    let key = backend.key(request.name());
    let found = in_time(backend, Operation::Inspect, parties(backend, key, Operation::Inspect)).await?;
    let mut status = LockStatus::free(request.name().clone());
    let (holders, waiters): (Vec<_>, Vec<_>) = found.into_iter().partition(|party| party.is_holder);
    status.holders.extend(holders.into_iter().map(|party| party.participant));
    status.waiters.extend(waiters.into_iter().map(|party| party.participant));
    Ok(status)
}

pub(crate) async fn break_holder(
    backend: &PostgresBackend,
    request: &InspectRequest,
    holder: &HolderId,
) -> Result<Broken, LockError> {
    let key = backend.key(request.name());
    in_time(backend, Operation::Break, end_session_of(backend, key, holder)).await
}

async fn end_session_of(backend: &PostgresBackend, key: Key, holder: &HolderId) -> Result<Broken, LockError> {
    let found = parties(backend, key, Operation::Break).await?;
    let named = found.into_iter().find(|party| party.is_holder && party.participant.id == *holder);
    let Some(Party { session, .. }) = named else { return Ok(Broken::not_held()) };
    let session = session.ok_or_else(|| {
        LockError::new(lock_core::ErrorKind::Denied, Operation::Break)
            .because("the session belongs to another user, and this user may not see which session it is")
            .remedy("GRANT pg_signal_backend, pg_read_all_stats to this user, or break it as the other user")
    })?;
    let answer = backend.control.ask(Operation::Break, statement::others(key, session)).await?;
    let has_no_others = answer.value() == Some("0");
    let answer = backend.control.ask(Operation::Break, statement::end(session, Operation::Break)).await?;
    if answer.rows.is_empty() {
        // It has ended by itself meanwhile.
        return Ok(Broken::not_held());
    }
    freed(backend, key, session).await?;
    let mut broken = Broken::taken_away();
    // The server knows the keys of the others, and not their names.
    broken.others = if has_no_others { Others::Known } else { Others::Unknown };
    Ok(broken)
}

/// Waits until the session no longer holds the lock.
async fn freed(backend: &PostgresBackend, key: Key, session: SessionId) -> Result<(), LockError> {
    let clock = backend.context.clock();
    loop {
        let found = parties(backend, key, Operation::Break).await?;
        if !found.iter().any(|party| party.is_holder && party.session == Some(session)) {
            return Ok(());
        }
        clock.sleep_until(clock.now().plus(LOOK_EVERY)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn party(fields: [&str; 7]) -> Party {
        Party::read(&fields.map(|text| (!text.is_empty()).then(|| text.to_owned())).to_vec()).unwrap()
    }

    #[test]
    fn a_session_says_who_its_client_is() {
        let holder = party(["7", "true", "100", "distlock 4711@db-1 nightly", "10.0.0.1", "SELECT 1", ""]);
        assert!(holder.is_holder && holder.session == Some(SessionId { pid: 7, start: 100 }));
        let Participant { host, pid, label, .. } = holder.participant;
        assert_eq!((host.as_deref(), pid, label.as_deref()), (Some("db-1"), Some(4711), Some("nightly")));
        let stranger = party(["8", "true", "", "psql", "10.0.0.2", "", ""]);
        assert_eq!((stranger.session, stranger.participant.host.as_deref()), (None, Some("10.0.0.2")));
        assert_eq!(stranger.participant.id, HolderId::new("session 8"));
        let statement = r#"/*distlock acquire {"id":"ff","host":"h","pid":9}*/SELECT"#;
        let waiter = party(["9", "false", "200", "", "", statement, "1000000"]).participant;
        assert_eq!((waiter.id, waiter.pid), (HolderId::new("ff"), Some(9)));
        assert_eq!(waiter.since, UNIX_EPOCH.checked_add(Duration::from_secs(1)));
    }
}
