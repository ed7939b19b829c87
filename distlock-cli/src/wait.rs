//! Acquires the lock: waits for it, reports its holder meanwhile, and gives up at a signal.

use std::convert::Infallible;
use std::future::pending;
use std::time::{Duration, Instant};

use distlock::status::{HolderId, HolderInfo, Participant};
use distlock::{ErrorKind, LockClient, LockError, LockGuard};
use nix::sys::signal::Signal;
use tokio::time::{sleep, timeout};

use crate::arguments::Waiting;
use crate::event::{Event, Level};
use crate::exit::{self, Ending, Failure};
use crate::named::Named;
use crate::report::Report;
use crate::signals::Signals;
use crate::system::Reach;
use crate::terminal::Terminal;

/// The result of the wait.
#[derive(Debug)]
pub(crate) enum Waited<T> {
    /// The lock is held.
    Acquired(T),
    /// The lock is not held, and this is how distlock ends.
    Ended(Ending),
}

impl<T> Waited<T> {
    pub(crate) fn map<U>(self, change: impl FnOnce(T) -> U) -> Waited<U> {
        match self {
            Self::Acquired(acquired) => Waited::Acquired(change(acquired)),
            Self::Ended(ending) => Waited::Ended(ending),
        }
    }
}

/// One wait for a lock.
pub(crate) struct Attempt<'a> {
    pub(crate) locks: &'a LockClient,
    pub(crate) named: Named<'a>,
    pub(crate) waiting: &'a Waiting,
    /// When the command was started: the time for connecting counts.
    pub(crate) begun: Instant,
    pub(crate) report: &'a Report,
}

/// How long to wait before saying who holds the lock, to a user at a terminal and to one who reads the output later.
const PATIENCE: Duration = Duration::from_millis(300);
const LONG_PATIENCE: Duration = Duration::from_secs(5);
/// How often to check whether another client holds it by now.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// How long the server may take to say why the lock could not be acquired.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// The same after a wait with a limit, which the user has set.
const ANSWER_SOON: Duration = Duration::from_secs(3);

impl Attempt<'_> {
    /// Waits for the lock.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing held or queued.
    pub(crate) async fn acquire(
        &self,
        lock: &dyn distlock::DistributedLock,
        signals: &mut Signals,
    ) -> Result<Waited<LockGuard>, Failure> {
        let acquiring = async {
            match self.remaining() {
                None => lock.acquire().await,
                Some(remaining) => lock.acquire_for(remaining).await,
            }
        };
        let waited = self.acquire_by(acquiring, signals).await?;
        if let Waited::Acquired(guard) = &waited {
            self.report.event(self.named, &Event::acquired(guard.hold()));
        }
        Ok(waited)
    }

    /// How much is left of the longest wait; `None` without one.
    pub(crate) fn remaining(&self) -> Option<Duration> {
        self.waiting.longest().map(|longest| longest.saturating_sub(self.begun.elapsed()))
    }

    /// Waits for the lock in this way of the caller's, which fails with [`ErrorKind::Busy`] when the wait is over.
    ///
    /// # Cancel safety
    /// That of `acquiring`.
    pub(crate) async fn acquire_by<T>(
        &self,
        acquiring: impl Future<Output = Result<T, LockError>>,
        signals: &mut Signals,
    ) -> Result<Waited<T>, Failure> {
        let busy = tokio::select! {
            biased;
            acquired = acquiring => match acquired {
                Err(error) if error.kind() == ErrorKind::Busy => error,
                acquired => return Ok(Waited::Acquired(acquired?)),
            },
            signal = signals.next_without_command() => {
                signals.ask_to_end();
                return Ok(Waited::Ended(interrupted(signal)));
            }
            never = self.tell_who_holds() => match never {},
        };
        tokio::select! {
            biased;
            ending = self.not_acquired(busy.pause()) => Ok(Waited::Ended(ending?)),
            signal = signals.next_without_command() => {
                signals.ask_to_end();
                Ok(Waited::Ended(interrupted(signal)))
            }
        }
    }

    /// Reports why the lock could not be acquired, perhaps because of a pause that goes on for so long.
    async fn not_acquired(&self, pause: Option<Duration>) -> Result<Ending, Failure> {
        let limit = if self.waiting.wait.is_some() { ANSWER_SOON } else { ANSWER_WITHIN };
        let answer = timeout(limit, self.named.status(self.locks)).await;
        if let Some(wait) = self.waiting.wait {
            // With `--no-wait` the server has just answered; during a longer wait it may have fallen silent.
            match &answer {
                Ok(Err(error)) if error.kind() == ErrorKind::Unreachable => {
                    return Err(self.outage(wait, &error.to_string()));
                }
                Err(_) => return Err(self.outage(wait, "it did not answer in time (check that it runs)")),
                Ok(_) => {}
            }
        }
        let (holders, waiters) = match answer {
            Ok(Ok(status)) => (status.holders, status.waiters),
            _ => Default::default(),
        };
        let waited = self.waiting.longest();
        let event = Event::NotAcquired { holders: &holders, waiters: &waiters, waited, pause };
        self.report.event(self.named, &event);
        Ok(Ending::Code(self.waiting.conflict_exit_code))
    }

    fn outage(&self, wait: Duration, cause: &str) -> Failure {
        let (named, wait) = (self.named, humantime::format_duration(wait));
        Failure::new(
            exit::UNREACHABLE,
            format!("could not acquire {named} within {wait}, and its server cannot be reached: {cause}"),
        )
    }

    /// Reports who holds the lock: on a terminal soon and at each change, elsewhere once, after a while. Never ends.
    async fn tell_who_holds(&self) -> Infallible {
        let Some((level, patience)) = patience(self.report) else { return pending().await };
        sleep(patience).await;
        let mut told: Option<Vec<HolderId>> = None;
        loop {
            let status = self.named.status(self.locks).await;
            let mut holders = status.map(|status| status.holders).unwrap_or_default();
            // It has the lock by now, and takes the slot.
            holders.retain(|holder| !is_this_process(holder));
            let ids = holders.iter().map(|holder| holder.id.clone()).collect();
            // Between two holders there is none for a moment, which is not worth a message.
            if told.is_none() || (!holders.is_empty() && told.as_ref() != Some(&ids)) {
                self.report.event_at(level, self.named, &Event::Waiting { holders: &holders });
                told = Some(ids);
            }
            if level == Level::Warning {
                return pending().await;
            }
            sleep(LOOK_AGAIN).await;
        }
    }
}

fn is_this_process(participant: &Participant) -> bool {
    let ours = HolderInfo::of_this_process();
    participant.pid == Some(ours.pid) && participant.host.as_ref() == Some(&ours.host)
}

/// How soon to say what distlock waits for, and with which importance; `None` for a user who does not want to know.
pub(crate) fn patience(report: &Report) -> Option<(Level, Duration)> {
    match (report.tells(Level::Progress), report.tells(Level::Warning)) {
        (true, _) => Some((Level::Progress, PATIENCE)),
        (_, true) => Some((Level::Warning, LONG_PATIENCE)),
        _ => None,
    }
}

/// How distlock ends when a signal ends its wait.
pub(crate) fn interrupted(signal: Signal) -> Ending {
    let from_keyboard =
        signal == Signal::SIGINT && Terminal::controlling().is_some_and(|terminal| terminal.is_ours());
    if from_keyboard { Ending::Interrupted(Reach::Process) } else { Ending::Signal(signal as i32) }
}

/// The message about a release that a signal has cut short.
pub(crate) fn not_waited_for(named: Named<'_>) -> String {
    format!(
        "cannot release {named}: a signal came before the server answered (the lease ends the hold at the latest)"
    )
}
