//! `distlock exec`: runs a command while holding a lock.

use std::time::{Duration, Instant};

use distlock::status::Mode;
use distlock::{LockClient, LockGuard, LockOptions, Once};

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
    let under_lock = UnderLock {
        named: Named::in_mode(&exec.name, mode),
        command: &exec.command,
        supervision: &exec.supervision,
        on_lost: exec.on_lost,
        grace,
        address: &address,
        report,
    };
    let work = async |locks: &LockClient, signals: &mut Signals| {
        run_with(locks, exec, mode, begun, &under_lock, signals).await
    };
    // A loss must be known so long before the end of the lease: the command gets that time to stop.
    let margin = if exec.on_lost == OnLost::Terminate { grace } else { Duration::ZERO };
    address.work_with(exec.waiting.longest(), margin, report, work).await
}

async fn run_with(
    locks: &LockClient,
    exec: &Exec,
    mode: Mode,
    begun: Instant,
    under_lock: &UnderLock<'_>,
    signals: &mut Signals,
) -> Result<Ending, Failure> {
    let UnderLock { named, report, .. } = *under_lock;
    let lock = named::open(locks, &exec.name, mode, options(exec))?;
    let attempt = Attempt { locks, named, waiting: &exec.waiting, begun, report };
    let once = exec.once.as_ref().map(|slot| slot_of(slot, exec, locks)).transpose()?;
    let waited = match &once {
        Some(once) => take(once, &attempt, signals).await?,
        None => attempt.acquire(&*lock, signals).await?.map(Some),
    };
    let guard = match waited {
        Waited::Acquired(Some(guard)) => guard,
        Waited::Acquired(None) => return Ok(skipped(exec, report)),
        Waited::Ended(ending) => return Ok(ending),
    };
    let hold = guard.hold().clone();
    let contact = Contact::watch(locks, &*lock);
    let end = under_lock.run(&hold, contact, signals).await;
    let recorded = match (&once, &end) {
        (Some(once), Ok(End::Ended(Ending::Code(exit::SUCCESS)))) if exec.retry_failed => {
            record(once, signals).await
        }
        _ => Ok(()),
    };
    let released = under_lock.release(&hold, guard.release(), signals).await;
    let ending = end?.ending();
    recorded?;
    Ok(released.unwrap_or(ending))
}

fn slot_of(slot: &str, exec: &Exec, locks: &LockClient) -> Result<Once, Failure> {
    let once = locks.once(&exec.name, slot)?.keep(exec.keep);
    Ok(if exec.retry_failed { once.retry_failed() } else { once })
}

/// Takes the slot of a command that has succeeded.
async fn record(once: &Once, signals: &mut Signals) -> Result<(), Failure> {
    let (code, cause) = match signals.leaving(once.succeeded()).await {
        Some(Ok(())) => return Ok(()),
        Some(Err(error)) => {
            let Failure { code, message } = Failure::from(error);
            (code, message)
        }
        None => (exit::INTERNAL, "a signal came before the server answered".to_owned()),
    };
    let message = format!("the command has succeeded, and may run again for its slot: {cause}");
    Err(Failure::new(code, message))
}

/// Waits for the lock and takes the slot; `None` if it has run before.
async fn take(
    once: &Once,
    attempt: &Attempt<'_>,
    signals: &mut Signals,
) -> Result<Waited<Option<LockGuard>>, Failure> {
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
    exec.at_least.map_or_else(LockOptions::new, |shortest| LockOptions::new().at_least(shortest))
}

fn skipped(exec: &Exec, report: &Report) -> Ending {
    if let Some(slot) = &exec.once {
        report.event(Named::lock(&exec.name), &Event::Skipped { slot });
    }
    Ending::Code(exec.skipped_exit_code)
}
