//! What the control connection finds out about waits and about connections that have ended.

use lock_core::{LockError, Operation};
use lock_sql::{Answer, Failure, Why};

use crate::claim::Name;
use crate::dialect::Control;
use crate::session::SessionId;
use crate::statement;

/// How often the client looks at a connection that reads before it ends that connection. `MySQL` 5.7 may miss the command to end a
/// connection that goes back to reading at that very moment, and would then keep its locks until the lease is over.
const LOOKS_BEFORE_THE_END: u32 = 4;

/// What a check of a wait has found.
pub(crate) struct Seen {
    /// The connection that holds the lock, if any does.
    pub(crate) holder: Option<u64>,
    /// Whether the server has the session that waits.
    pub(crate) is_waiter_there: bool,
}

/// Reads the answer about these waits, in order. If the run of the server in which a wait began is over, there is neither holder nor
/// waiter.
pub(crate) fn seen(asked: &SessionId, waits: &[(Name, SessionId)], answer: &Answer) -> Vec<Seen> {
    let mut numbers = answer.value().unwrap_or_default().split(' ').map(|number| number.parse().ok());
    let mut number = || numbers.next().flatten();
    let seen = waits.iter().map(|(_, waiter)| {
        let (holder, tagged) = (number(), number());
        let is_of_run = asked.run.is_same_as(&waiter.run);
        Seen {
            holder: holder.filter(|holder| is_of_run && *holder != 0),
            is_waiter_there: is_of_run && tagged == Some(waiter.number),
        }
    });
    seen.collect()
}

/// What the server still has of a connection.
enum Remains {
    Nothing,
    /// It waits for a lock, and checks once a second whether the client is still there.
    Waiter,
    Reader,
}

/// Whether the server has put the statement of this connection into the queue of a lock.
pub(crate) async fn waits(control: &Control, id: &SessionId) -> Result<bool, LockError> {
    let settings = control.settings();
    let looking = look_at(control, id, Operation::Acquire);
    let remains = settings.in_time(settings.request_timeout, Operation::Acquire, looking).await?;
    Ok(matches!(remains, Remains::Waiter))
}

/// Whether the server has anything of a connection that has ended on this side. Ends it, unless the server is reading: then it will
/// notice by itself that the client has gone, unless the network prevents that.
pub(crate) async fn remains(control: &Control, id: &SessionId, calls: u32) -> Result<bool, LockError> {
    match look_at(control, id, Operation::Cancel).await? {
        Remains::Nothing => return Ok(false),
        Remains::Reader if calls < LOOKS_BEFORE_THE_END => {}
        Remains::Waiter | Remains::Reader => {
            let end = statement::end(id.number, Operation::Cancel);
            control.ask_in_run_of(id, Operation::Cancel, end).await.map_err(Failure::into_error)?;
        }
    }
    Ok(true)
}

async fn look_at(control: &Control, id: &SessionId, operation: Operation) -> Result<Remains, LockError> {
    match control.ask_in_run_of(id, operation, statement::state_of(id.number, operation)).await {
        Ok(answer) => Ok(match answer.rows.first() {
            None => Remains::Nothing,
            Some(_) if answer.value() == Some("User lock") => Remains::Waiter,
            Some(_) => Remains::Reader,
        }),
        Err(failure) if failure.why() == Some(Why::NoSession) => Ok(Remains::Nothing),
        Err(failure) => Err(failure.into_error()),
    }
}
