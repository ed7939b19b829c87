//! What the control connection finds out about waits and about connections that have ended.

use lock_core::{LockError, Operation};
use lock_sql::{Answer, Failure, Seen, Why};

use crate::dialect::Control;
use crate::inspection::id_of;
use crate::session::SessionId;
use crate::statement;

/// How often the client looks at a connection that reads before it ends that connection. `MySQL` 5.7 may miss the command to end a
/// connection that goes back to reading at that very moment, and would then keep its locks until the lease is over.
const LOOKS_BEFORE_THE_END: u32 = 4;

/// Reads the answer about a wait. If the run of the server in which it began is over, there is no waiter.
pub(crate) fn seen(asked: &SessionId, waiter: &SessionId, answer: &Answer) -> Seen {
    let mut numbers = answer.value().unwrap_or_default().split(' ').map(|number| number.parse::<u64>().ok());
    let (holder, tagged) = (numbers.next().flatten(), numbers.next().flatten());
    match holder {
        _ if !asked.run.is_same_as(&waiter.run) || tagged != Some(waiter.number) => Seen::Gone,
        None | Some(0) => Seen::Free,
        // It has the lock, or the gate, and its answer is on the way or it waits for what is behind that.
        Some(holder) if holder == waiter.number => Seen::Idle,
        Some(holder) => Seen::Held(id_of(holder, &waiter.run)),
    }
}

/// What the server shows of a connection that waits for a lock. It checks once a second whether the client is still there.
const WAITS: &str = "User lock";

/// Whether the server has put the statement of this connection into the queue of a lock.
pub(crate) async fn is_queued(control: &Control, id: &SessionId) -> Result<bool, LockError> {
    Ok(state_of(control, id, Operation::Acquire).await?.as_deref() == Some(WAITS))
}

/// Whether the server has anything of a connection that has ended on this side. Ends it, unless the server is reading: then it will
/// notice by itself that the client has gone, unless the network prevents that.
pub(crate) async fn remains(control: &Control, id: &SessionId, calls: u32) -> Result<bool, LockError> {
    let Some(state) = state_of(control, id, Operation::Cancel).await? else { return Ok(false) };
    if state == WAITS || calls >= LOOKS_BEFORE_THE_END {
        let end = statement::end(id.number, Operation::Cancel);
        control.ask_in_run_of(id, Operation::Cancel, end).await.map_err(Failure::into_error)?;
    }
    Ok(true)
}

/// What the server does on a connection, if it has it.
async fn state_of(
    control: &Control,
    id: &SessionId,
    operation: Operation,
) -> Result<Option<String>, LockError> {
    match control.ask_in_run_of(id, operation, statement::state_of(id.number, operation)).await {
        Ok(answer) => Ok(answer.rows.first().map(|_| answer.value().unwrap_or_default().to_owned())),
        Err(failure) if failure.why() == Some(Why::NoSession) => Ok(None),
        Err(failure) => Err(failure.into_error()),
    }
}
