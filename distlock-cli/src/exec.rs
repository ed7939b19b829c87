//! `distlock exec`: runs a command while holding a lock.

use std::time::{Duration, Instant};

use distlock::LockClient;

use crate::arguments::{Common, Exec, OnLost};
use crate::connection::Address;
use crate::contact::Contact;
use crate::exit::{Ending, Failure};
use crate::report::Report;
use crate::run::End;
use crate::signals::Signals;
use crate::under_lock::UnderLock;
use crate::wait::{Attempt, Waited};

/// Waits for the lock, runs the command, releases the lock.
///
/// Must be called on the main thread: the end of the calling thread ends the command.
pub(crate) async fn run(common: &Common, exec: &Exec, report: &Report) -> Result<Ending, Failure> {
    let begun = Instant::now();
    let address = Address::find(common.url.as_deref())?;
    let grace = address.grace(&exec.supervision)?;
    let work = async |locks: &LockClient, signals: &mut Signals| {
        run_with(locks, exec, begun, grace, signals, report).await
    };
    address.work_with(exec.waiting.wait, margin(exec, grace), report, work).await
}

async fn run_with(
    locks: &LockClient,
    exec: &Exec,
    begun: Instant,
    grace: Duration,
    signals: &mut Signals,
    report: &Report,
) -> Result<Ending, Failure> {
    let lock = locks.mutex(&exec.name)?;
    let attempt = Attempt { locks, name: &exec.name, waiting: &exec.waiting, begun, report };
    let guard = match attempt.acquire(&*lock, signals).await? {
        Waited::Acquired(guard) => guard,
        Waited::Ended(ending) => return Ok(ending),
    };
    let under_lock = UnderLock {
        name: &exec.name,
        command: &exec.command,
        supervision: &exec.supervision,
        on_lost: exec.on_lost,
        grace,
        report,
    };
    let hold = guard.hold().clone();
    let end = under_lock.run(&hold, Contact::watch(locks, &*lock), signals).await;
    let released = under_lock.release(&hold, guard.release(), signals).await;
    end.map(End::ending).map(|ending| released.unwrap_or(ending))
}

/// How long before the end of the lease a loss must be known: the time that the command gets to stop.
fn margin(exec: &Exec, grace: Duration) -> Duration {
    match exec.on_lost {
        OnLost::Terminate => grace,
        OnLost::Ignore => Duration::ZERO,
    }
}
