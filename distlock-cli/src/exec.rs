//! `distlock exec`: runs a command while holding a lock.

use std::time::{Duration, Instant};

use distlock::status::Mode;
use distlock::{LockClient, LockGuard, LockOptions};

use crate::arguments::{Common, Exec, OnLost};
use crate::connection::Address;
use crate::contact::Contact;
use crate::event::Event;
use crate::exit::{self, Ending, Failure};
use crate::named::{self, Named};
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
    let address = Address::find(common)?;
    let grace = address.grace(&exec.supervision)?;
    let mode = exec.sharing.mode()?;
    let work = async |locks: &LockClient, signals: &mut Signals| {
        run_with(locks, exec, mode, begun, grace, signals, report).await
    };
    address.work_with(exec.waiting.longest(), margin(exec, grace), report, work).await
}

async fn run_with(
    locks: &LockClient,
    exec: &Exec,
    mode: Mode,
    begun: Instant,
    grace: Duration,
    signals: &mut Signals,
    report: &Report,
) -> Result<Ending, Failure> {
    let named = Named::in_mode(&exec.name, mode);
    let lock = named::open(locks, &exec.name, mode, options(exec))?;
    let attempt = Attempt { locks, named, waiting: &exec.waiting, begun, report };
    let waited = match &exec.once {
        Some(slot) => take(slot, exec.keep, &attempt, signals).await?,
        None => attempt.acquire(&*lock, signals).await?.map(Some),
    };
    let guard = match waited {
        Waited::Acquired(Some(guard)) => guard,
        Waited::Acquired(None) => return Ok(skipped(exec, report)),
        Waited::Ended(ending) => return Ok(ending),
    };
    let under_lock = UnderLock {
        named,
        command: &exec.command,
        supervision: &exec.supervision,
        on_lost: exec.on_lost,
        grace,
        report,
    };
    let hold = guard.hold().clone();
    let contact = Contact::watch(locks, &*lock);
    let end = under_lock.run(&hold, contact, signals).await;
    let released = under_lock.release(&hold, guard.release(), signals).await;
    end.map(End::ending).map(|ending| released.unwrap_or(ending))
}

/// Waits for the lock and takes the slot; `None` if it has run before.
async fn take(
    slot: &str,
    keep: Duration,
    attempt: &Attempt<'_>,
    signals: &mut Signals,
) -> Result<Waited<Option<LockGuard>>, Failure> {
    let once = attempt.locks.once(attempt.named.name, slot)?.keep(keep);
    let taking = async {
        match attempt.remaining() {
            None => once.acquire().await,
            Some(remaining) => once.acquire_for(remaining).await,
        }
    };
    let waited = attempt.acquire_by(taking, signals).await?;
    if let Waited::Acquired(Some(guard)) = &waited {
        attempt.report.event(attempt.named, &Event::acquired(guard.hold()));
    }
    Ok(waited)
}

fn options(exec: &Exec) -> LockOptions {
    match exec.at_least {
        Some(shortest) => LockOptions::new().at_least(shortest),
        None => LockOptions::new(),
    }
}

fn skipped(exec: &Exec, report: &Report) -> Ending {
    if let Some(slot) = &exec.once {
        metrics::counter!("distlock_skipped_total").increment(1);
        report.event(Named::lock(&exec.name), &Event::Skipped { slot });
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
