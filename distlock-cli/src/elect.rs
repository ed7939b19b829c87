//! `distlock elect`: runs a command wherever the leader of an election is.

use std::sync::Arc;
use std::time::{Duration, Instant};

use distlock::capabilities::Capabilities;
use distlock::election::Leadership;
use distlock::spi::Backoff;
use distlock::{DistributedLock, Election, ErrorKind, LockClient, LockError, Operation};
use tokio::time::sleep;

use crate::arguments::{Common, Elect, OnLost};
use crate::connection::Address;
use crate::contact::Contact;
use crate::event::{Event, Level};
use crate::exit::{self, Ending, Failure};
use crate::named::Named;
use crate::report::Report;
use crate::run::End;
use crate::signals::Signals;
use crate::under_lock::UnderLock;
use crate::wait::{Attempt, Waited, interrupted};

/// Pauses before another campaign, as in the library's `Election::run`.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Campaigns, runs the command while it leads, ends it when the leadership is lost, and campaigns again.
///
/// Must be called on the main thread: the end of the calling thread ends the command.
pub(crate) async fn run(common: &Common, elect: &Elect, report: &Report) -> Result<Ending, Failure> {
    let begun = Instant::now();
    let address = Address::find(common)?;
    let grace = address.grace(&elect.supervision)?;
    let work = async |locks: &LockClient, signals: &mut Signals| {
        Candidate::new(locks, elect, grace, &address, report)?.until_the_end(begun, signals).await
    };
    address.work_with(elect.waiting.longest(), grace, report, work).await
}

/// A candidate of an election, and the command that it runs while it leads.
struct Candidate<'a> {
    locks: &'a LockClient,
    elect: &'a Elect,
    report: &'a Report,
    election: Election,
    /// The election's lock.
    lock: Arc<dyn DistributedLock>,
    under_lock: UnderLock<'a>,
}

impl<'a> Candidate<'a> {
    fn new(
        locks: &'a LockClient,
        elect: &'a Elect,
        grace: Duration,
        address: &'a Address,
        report: &'a Report,
    ) -> Result<Self, Failure> {
        let candidate = Self {
            locks,
            elect,
            report,
            election: locks.election(&elect.name)?,
            lock: locks.mutex(&elect.name)?,
            under_lock: UnderLock {
                named: Named::lock(&elect.name),
                command: &elect.command,
                supervision: &elect.supervision,
                on_lost: OnLost::Terminate,
                grace,
                address,
                report,
            },
        };
        check_value(candidate.value(), locks.capabilities())?;
        Ok(candidate)
    }

    fn value(&self) -> &'a str {
        self.elect.value.as_deref().unwrap_or_default()
    }

    /// Leads again and again until the command ends by itself, the wait is over, or a signal asks to end.
    async fn until_the_end(&self, mut begun: Instant, signals: &mut Signals) -> Result<Ending, Failure> {
        let mut backoff = pauses();
        loop {
            let leadership = match self.campaign(begun, signals).await? {
                Waited::Acquired(leadership) => leadership,
                Waited::Ended(ending) => return Ok(ending),
            };
            let hold = leadership.hold().clone();
            let contact = Contact::watch(self.locks, &*self.lock);
            let end = self.under_lock.run(&hold, contact, signals).await;
            let resigned = self.under_lock.release(&hold, leadership.resign(), signals).await;
            match end? {
                End::Stopped if !signals.is_asked_to_end() => {}
                end => return Ok(resigned.unwrap_or(end.ending())),
            }
            if hold.held_for() > LONGEST_PAUSE {
                backoff = pauses();
            }
            tokio::select! {
                () = sleep(backoff.next_pause()) => {}
                signal = signals.next_without_command() => return Ok(interrupted(signal)),
            }
            self.report.note(Level::Progress, &format!("standing for election {:?} again", self.elect.name));
            begun = Instant::now();
        }
    }

    async fn campaign(&self, begun: Instant, signals: &mut Signals) -> Result<Waited<Leadership>, Failure> {
        let Self { locks, elect, report, .. } = *self;
        let named = Named::lock(&elect.name);
        let attempt = Attempt { locks, named, waiting: &elect.waiting, begun, report };
        let waited = attempt.acquire_by(self.until_elected(&attempt), signals).await?;
        if let Waited::Acquired(leadership) = &waited {
            report.event(named, &Event::acquired(leadership.hold()));
        }
        Ok(waited)
    }

    /// Campaigns until the wait is over, and tries again after errors that may pass.
    async fn until_elected(&self, attempt: &Attempt<'_>) -> Result<Leadership, LockError> {
        let mut backoff = pauses();
        loop {
            let campaigned = match attempt.remaining() {
                None => self.election.campaign(self.value()).await,
                Some(remaining) => self.election.campaign_for(self.value(), remaining).await,
            };
            let error = match campaigned {
                Err(error) if may_pass(&error) => error,
                campaigned => return campaigned,
            };
            match attempt.remaining() {
                Some(Duration::ZERO) => return Err(self.at_the_end(error)),
                remaining => {
                    self.report.note(Level::Detail, &format!("{error}; trying again"));
                    sleep(backoff.next_pause().min(remaining.unwrap_or(Duration::MAX))).await;
                }
            }
        }
    }

    /// What an error means with which the wait ends: the attempt says how long it has waited for the server.
    fn at_the_end(&self, error: LockError) -> LockError {
        if error.kind() == ErrorKind::Unreachable && self.elect.waiting.wait.is_some() {
            return LockError::new(ErrorKind::Busy, Operation::Acquire);
        }
        error
    }
}

fn may_pass(error: &LockError) -> bool {
    error.kind() != ErrorKind::Busy && (error.is_retryable() || error.kind() == ErrorKind::Lost)
}

fn check_value(value: &str, capabilities: &Capabilities) -> Result<(), Failure> {
    if value.is_empty() || capabilities.describing {
        return Ok(());
    }
    let message = format!(
        "the backend {:?} cannot show the value of a leader (leave --value out, or choose what makes it show that: fencing=table in the URL, where the backend has that)",
        capabilities.backend
    );
    Err(Failure::new(exit::USAGE, message))
}

fn pauses() -> Backoff {
    Backoff::new(FIRST_PAUSE, LONGEST_PAUSE)
}

#[cfg(test)]
mod tests {
    use distlock::capabilities::Reach;
    use distlock::spi::{CharacterSet, NameRules};

    use super::*;

    #[test]
    fn a_value_that_the_backend_cannot_show_is_64() {
        let names = NameRules::new(CharacterSet::of(|_| true), 64);
        let silent = Capabilities::new("test", Reach::Network, names);
        let refusal = check_value("10.0.0.7:8080", &silent).unwrap_err();
        assert_eq!(refusal.code, exit::USAGE);
        assert!(refusal.message.contains("leave --value out"), "{}", refusal.message);
        assert!(check_value("", &silent).is_ok());
        assert!(check_value("10.0.0.7:8080", &silent.with_describing()).is_ok());
    }
}
