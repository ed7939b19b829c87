//! `distlock elect`: runs a command wherever the leader of an election is.

use std::sync::Arc;
use std::time::{Duration, Instant};

use distlock::capabilities::Describing;
use distlock::spi::Backoff;
use distlock::{
    Capabilities, DistributedLock, Election, ErrorKind, Leadership, LockClient, LockError, LockStatus,
    Operation,
};
use tokio::time::{sleep, timeout};

use crate::arguments::{Common, Elect, OnLost};
use crate::connection::Address;
use crate::contact::Contact;
use crate::event::{Event, Level};
use crate::exit::{self, Ending, Failure};
use crate::report::Report;
use crate::run::End;
use crate::signals::Signals;
use crate::under_lock::UnderLock;
use crate::wait::{ANSWER_WITHIN, Attempt, Waited, interrupted};

/// Pauses before another campaign, as in the library's `Election::run`.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// How long the server may take for its first answer, even if the wait is shorter.
const FIRST_ANSWER: Duration = Duration::from_secs(1);

/// Campaigns, runs the command while it leads, ends it when the leadership is lost, and campaigns again.
///
/// Must be called on the main thread: the end of the calling thread ends the command.
pub(crate) async fn run(common: &Common, elect: &Elect, report: &Report) -> Result<Ending, Failure> {
    let begun = Instant::now();
    let address = Address::find(common.url.as_deref())?;
    let grace = address.grace(&elect.supervision)?;
    let work = async |locks: &LockClient, signals: &mut Signals| {
        Candidate::new(locks, elect, grace, report)?.until_the_end(begun, signals).await
    };
    address.work_with(elect.waiting.wait, grace, report, work).await
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
        report: &'a Report,
    ) -> Result<Self, Failure> {
        let candidate = Self {
            locks,
            elect,
            report,
            election: locks.election(&elect.name)?,
            lock: locks.mutex(&elect.name)?,
            under_lock: UnderLock {
                name: &elect.name,
                command: &elect.command,
                supervision: &elect.supervision,
                on_lost: OnLost::Terminate,
                grace,
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
        let attempt = Attempt { locks, name: &elect.name, waiting: &elect.waiting, begun, report };
        let campaigning = async {
            match attempt.remaining() {
                None => self.until_elected().await.map(Some),
                Some(remaining) => self.until_elected_within(remaining).await,
            }
        };
        let waited = attempt.acquire_by(campaigning, signals).await?;
        if let Waited::Acquired(leadership) = &waited {
            report.event(&elect.name, &Event::Acquired { token: leadership.term() });
        }
        Ok(waited)
    }

    /// Campaigns, and tries again after errors that may pass.
    async fn until_elected(&self) -> Result<Leadership, LockError> {
        let mut backoff = pauses();
        loop {
            match self.election.campaign(self.value()).await {
                Err(error) if error.is_retryable() || error.kind() == ErrorKind::Lost => {
                    self.report.note(Level::Detail, &format!("{error}; trying again"));
                    sleep(backoff.next_pause()).await;
                }
                campaigned => return campaigned,
            }
        }
    }

    async fn until_elected_within(&self, longest: Duration) -> Result<Option<Leadership>, LockError> {
        if !longest.is_zero()
            && let Ok(elected) = timeout(longest, self.until_elected()).await
        {
            return elected.map(Some);
        }
        match self.at_once().await {
            // The attempt says how long it has waited for the server.
            Err(error) if error.kind() == ErrorKind::Unreachable && self.elect.waiting.wait.is_some() => {
                Ok(None)
            }
            elected => elected,
        }
    }

    /// Leads if there is neither a leader nor another candidate.
    async fn at_once(&self) -> Result<Option<Leadership>, LockError> {
        let status = self.status().await?;
        if status.is_held() || !status.waiters.is_empty() {
            return Ok(None);
        }
        match timeout(FIRST_ANSWER, self.election.campaign(self.value())).await {
            Ok(elected) => elected.map(Some),
            // Another candidate was faster, or there is no contact, which is an error.
            Err(_) => self.status().await.map(|_| None),
        }
    }

    async fn status(&self) -> Result<LockStatus, LockError> {
        let answer = timeout(ANSWER_WITHIN, self.locks.status(&self.elect.name)).await;
        answer.unwrap_or_else(|_| {
            let silent = LockError::new(ErrorKind::Unreachable, Operation::Inspect);
            Err(silent.because("the server did not answer in time").remedy("check that it runs"))
        })
    }
}

fn check_value(value: &str, capabilities: &Capabilities) -> Result<(), Failure> {
    if value.is_empty() || capabilities.describing != Describing::Unsupported {
        return Ok(());
    }
    let message = format!(
        "the backend {:?} cannot show the value of a leader (leave --value out, or use another backend)",
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
        assert!(check_value("10.0.0.7:8080", &silent.with_describing(Describing::Supported)).is_ok());
    }
}
