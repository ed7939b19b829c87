//! `distlock exec`: runs a command while holding a lock.

use std::time::{Duration, Instant};

use distlock::{LockClient, LockOptions};

use crate::arguments::{Common, Exec, OnLost};
use crate::connection::Address;
use crate::contact::Contact;
use crate::event::Event;
use crate::exit::{self, Ending, Failure};
use crate::report::Report;
use crate::run::End;
use crate::signals::Signals;
use crate::slot::{self, Slot};
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
    let attempt = Attempt { locks, name: &exec.name, waiting: &exec.waiting, begun, report };
    let (hold, releasing) = match acquire(exec, &attempt, signals).await? {
        Waited::Acquired(Slot::Taken(hold, releasing)) => (hold, releasing),
        Waited::Acquired(Slot::HasRun) => return Ok(skipped(exec, report)),
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
    let contact = Contact::watch(locks, &*locks.mutex(&exec.name)?);
    let end = under_lock.run(&hold, contact, signals).await;
    let released = under_lock.release(&hold, releasing, signals).await;
    end.map(End::ending).map(|ending| released.unwrap_or(ending))
}

async fn acquire(exec: &Exec, attempt: &Attempt<'_>, signals: &mut Signals) -> Result<Waited<Slot>, Failure> {
    let Some(slot) = &exec.once else {
        let lock = attempt.locks.mutex_with(&exec.name, options(exec))?;
        return Ok(match attempt.acquire(&*lock, signals).await? {
            Waited::Acquired(guard) => {
                Waited::Acquired(Slot::Taken(guard.hold().clone(), Box::pin(guard.release())))
            }
            Waited::Ended(ending) => Waited::Ended(ending),
        });
    };
    let once = attempt.locks.once(&exec.name, slot)?.keep(exec.keep);
    slot::take(once, attempt, signals).await
}

fn options(exec: &Exec) -> LockOptions {
    match exec.at_least {
        Some(shortest) => LockOptions::new().at_least(shortest),
        None => LockOptions::new(),
    }
}

fn skipped(exec: &Exec, report: &Report) -> Ending {
    if let Some(slot) = &exec.once {
        report.event(&exec.name, &Event::Skipped { slot });
    }
    Ending::Code(exit::SUCCESS)
}

/// How long before the end of the lease a loss must be known: the time that the command gets to stop.
fn margin(exec: &Exec, grace: Duration) -> Duration {
    match exec.on_lost {
        OnLost::Terminate => grace,
        OnLost::Ignore => Duration::ZERO,
    }
}
