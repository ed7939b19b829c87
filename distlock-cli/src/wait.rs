//! Acquires the lock: waits for it, reports its holder meanwhile, and gives up at a signal.

use std::future::pending;
use std::pin::pin;
use std::time::{Duration, Instant};

use distlock::{ErrorKind, HolderId, LockClient, LockError, LockGuard, Owner, Wait};
use nix::sys::signal::Signal;
use tokio::time::{sleep, timeout};

use crate::arguments::Waiting;
use crate::event::{Event, Level};
use crate::exit::{self, Ending, Failure};
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

/// One wait for a lock.
pub(crate) struct Attempt<'a> {
    pub(crate) locks: &'a LockClient,
    pub(crate) name: &'a str,
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
pub(crate) const ANSWER_WITHIN: Duration = Duration::from_secs(2);

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
        let wait =
            self.remaining().map_or(Wait::Forever, |remaining| Wait::within(remaining, lock.clock().now()));
        let waited = self.acquire_by(lock.acquire_as(Owner::new(), wait), signals).await?;
        if let Waited::Acquired(guard) = &waited {
            self.report.event(self.name, &Event::Acquired { token: guard.hold().token() });
        }
        Ok(waited)
    }

    /// How much is left of the longest wait; `None` without one.
    pub(crate) fn remaining(&self) -> Option<Duration> {
        self.waiting.longest().map(|longest| longest.saturating_sub(self.begun.elapsed()))
    }

    /// Waits for the lock in this way of the caller's, which returns `None` when the wait is over.
    ///
    /// # Cancel safety
    /// That of `acquiring`.
    pub(crate) async fn acquire_by<T>(
        &self,
        acquiring: impl Future<Output = Result<Option<T>, LockError>>,
        signals: &mut Signals,
    ) -> Result<Waited<T>, Failure> {
        let acquired = {
            let mut acquiring = pin!(acquiring);
            tokio::select! {
                biased;
                acquired = &mut acquiring => acquired?,
                signal = signals.next_without_command() => {
                    signals.ask_to_end();
                    return Ok(Waited::Ended(interrupted(signal)));
                }
                () = self.tell_who_holds() => None,
            }
        };
        if let Some(acquired) = acquired {
            return Ok(Waited::Acquired(acquired));
        }
        tokio::select! {
            biased;
            ending = self.not_acquired() => Ok(Waited::Ended(ending?)),
            signal = signals.next_without_command() => {
                signals.ask_to_end();
                Ok(Waited::Ended(interrupted(signal)))
            }
        }
    }

    /// Reports why the lock could not be acquired.
    async fn not_acquired(&self) -> Result<Ending, Failure> {
        let answer = timeout(ANSWER_WITHIN, self.locks.status(self.name)).await;
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
        let event = Event::NotAcquired { holders: &holders, waiters: &waiters, waited };
        self.report.event(self.name, &event);
        Ok(Ending::Code(self.waiting.conflict_exit_code))
    }

    fn outage(&self, wait: Duration, cause: &str) -> Failure {
        let (name, wait) = (self.name, humantime::format_duration(wait));
        Failure::new(
            exit::UNREACHABLE,
            format!(
                "lock {name:?} could not be had within {wait}, and its server cannot be reached: {cause}"
            ),
        )
    }

    /// Reports who holds the lock: on a terminal soon and at each change, elsewhere once, after a while. Never ends.
    async fn tell_who_holds(&self) {
        let Some((level, patience)) = patience(self.report) else { return pending().await };
        sleep(patience).await;
        let mut told: Option<Vec<HolderId>> = None;
        loop {
            let status = self.locks.status(self.name).await;
            let holders = status.map(|status| status.holders).unwrap_or_default();
            let ids = holders.iter().map(|holder| holder.id.clone()).collect();
            // Between two holders there is none for a moment, which is not worth a message.
            if told.is_none() || (!holders.is_empty() && told.as_ref() != Some(&ids)) {
                self.report.event_at(level, self.name, &Event::Waiting { holders: &holders });
                told = Some(ids);
            }
            if level == Level::Warning {
                return pending().await;
            }
            sleep(LOOK_AGAIN).await;
        }
    }
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
    if from_keyboard { Ending::Interrupted(Reach::Process) } else { Ending::Signal(signal) }
}

/// The message about a release that a signal has cut short.
pub(crate) fn not_waited_for(name: &str) -> String {
    format!(
        "cannot release lock {name:?}: a signal came before the server answered (the lease ends the hold at the latest)"
    )
}
