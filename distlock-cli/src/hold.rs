//! `distlock hold`: holds a lock until standard input closes or a signal ends the hold.

use std::time::{Duration, Instant};

use distlock::status::Mode;
use distlock::{ErrorKind, LockClient, LockOptions, LossReason};
use nix::sys::signal::Signal;

use crate::arguments::{Common, Hold};
use crate::connection::Address;
use crate::contact::Contact;
use crate::event::{Event, Level};
use crate::exit::{self, Ending, Failure};
use crate::input::{self, InputEnd};
use crate::named::{self, Named};
use crate::report::Report;
use crate::signals::Signals;
use crate::wait::{Attempt, Waited, not_waited_for};

const LET_GO_AT_ONCE: &str =
    "standard input is closed, so the lock was released immediately; give it a pipe or a terminal";

/// Waits for the lock, holds it and releases it.
pub(crate) async fn run(common: &Common, hold: &Hold, report: &Report) -> Result<Ending, Failure> {
    let begun = Instant::now();
    let mode = hold.sharing.mode()?;
    let work = async |locks: &LockClient, signals: &mut Signals| {
        run_with(locks, hold, mode, begun, signals, report).await
    };
    Address::find(common)?.work_with(hold.waiting.longest(), Duration::ZERO, report, work).await
}

async fn run_with(
    locks: &LockClient,
    hold: &Hold,
    mode: Mode,
    begun: Instant,
    signals: &mut Signals,
    report: &Report,
) -> Result<Ending, Failure> {
    let named = Named::in_mode(&hold.name, mode);
    let lock = named::open(locks, &hold.name, mode, LockOptions::new())?;
    let attempt = Attempt { locks, named, waiting: &hold.waiting, begun, report };
    let guard = match attempt.acquire(&*lock, signals).await? {
        Waited::Acquired(guard) => guard,
        Waited::Ended(ending) => return Ok(ending),
    };
    let mut contact = Contact::watch(locks, &*lock);
    report.note(Level::Progress, &format!("holding {named} until Ctrl-D or Ctrl-C"));
    let mut input_closes = std::pin::pin!(input::closes());
    loop {
        tokio::select! {
            biased;
            Some(reason) = guard.lost() => return Ok(lost(named, reason, report)),
            event = contact.change() => report.event(named, &event),
            // These two have no meaning for a hold, and do not end it.
            signal = signals.next() => if !matches!(signal, Signal::SIGUSR1 | Signal::SIGUSR2) {
                signals.ask_to_end();
                break;
            },
            end = &mut input_closes => {
                if end == InputEnd::AtOnce {
                    report.note(Level::Warning, LET_GO_AT_ONCE);
                }
                break;
            }
        }
    }
    drop(contact);
    match signals.leaving(guard.release()).await {
        Some(Ok(())) => report.event(named, &Event::Released),
        None => return Err(Failure::new(exit::INTERNAL, not_waited_for(named))),
        Some(Err(error)) => match error.loss() {
            Some(reason) => return Ok(lost(named, reason, report)),
            None if error.kind() == ErrorKind::Lost => return Ok(Ending::Code(exit::LOST)),
            None => return Err(error.into()),
        },
    }
    Ok(Ending::Code(exit::SUCCESS))
}

fn lost(named: Named<'_>, reason: LossReason, report: &Report) -> Ending {
    report.event(named, &Event::Lost { reason });
    Ending::Code(exit::LOST)
}
