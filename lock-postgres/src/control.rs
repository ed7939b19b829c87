//! What the control connection sees of a session that waits.

use lock_sql::Row;

use crate::server::SessionId;

/// What the server says of a session that was sent to wait for a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seen {
    /// It waits for the lock, which another session holds.
    Waiting,
    /// It carries out its statement, and is not in the queue: it was not or is no longer, or the server is slow.
    Active,
    /// It does nothing: its statement is on the way, or its answer, or either was lost.
    Idle,
    /// It does not exist.
    Gone,
}

/// Reads what the rows say of it.
pub(crate) fn seen(session: SessionId, rows: &[Row]) -> Seen {
    let (pid, start) = (session.pid.to_string(), session.start.to_string());
    let row = rows.iter().find_map(|row| match row.as_slice() {
        [Some(found), Some(since), waits] if *found == pid && *since == start => Some(waits.as_deref()),
        _ => None,
    });
    match row {
        None => Seen::Gone,
        Some(Some("advisory")) => Seen::Waiting,
        Some(Some("active")) => Seen::Active,
        Some(_) => Seen::Idle,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_distinguished_from_a_later_one_of_the_same_process_id() {
        let text = |text: &str| Some(text.to_owned());
        let rows = [
            vec![text("7"), text("100"), text("advisory")],
            vec![text("8"), text("200"), text("idle")],
            vec![text("9"), text("300"), text("active")],
            vec![text("10"), text("400"), None],
        ];
        let session = |pid, start| SessionId { pid, start };
        assert_eq!(seen(session(7, 100), &rows), Seen::Waiting);
        assert_eq!(seen(session(8, 200), &rows), Seen::Idle);
        assert_eq!(seen(session(9, 300), &rows), Seen::Active);
        assert_eq!(seen(session(10, 400), &rows), Seen::Idle);
        assert_eq!(seen(session(8, 201), &rows), Seen::Gone);
        assert_eq!(seen(session(11, 200), &rows), Seen::Gone);
    }
}
