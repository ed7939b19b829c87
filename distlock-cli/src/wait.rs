//! Getting the lock: waits for it, tells a person who has it meanwhile, and gives up at a signal.

use std::pin::pin;
use std::time::{Duration, Instant};

use distlock::{HolderId, LockClient, LockError, LockGuard, LockStatus, Owner, Wait};
use nix::sys::signal::Signal;
use tokio::time::sleep;

use crate::arguments::Waiting;
use crate::event::{Event, Level};
use crate::exit::Ending;
use crate::report::Report;
use crate::signals::Signals;
use crate::system::Reach;
use crate::terminal::Terminal;

/// What came of the wait.
#[derive(Debug)]
pub(crate) enum Waited {
    /// The lock is held.
    Acquired(LockGuard),
    /// It is not, and this is how the command ends.
    Ended(Ending),
}

/// One wait for a lock.
pub(crate) struct Attempt<'a> {
    pub(crate) locks: &'a LockClient,
    pub(crate) name: &'a str,
    pub(crate) waiting: &'a Waiting,
    /// When the command was started: the time it took to connect counts.
    pub(crate) begun: Instant,
    pub(crate) report: &'a Report,
}

/// How long nothing is said about who holds the lock.
const PATIENCE: Duration = Duration::from_millis(300);
/// How often it is looked whether somebody else holds it by now.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

impl Attempt<'_> {
    /// Waits for the lock.
    ///
    /// # Cancel safety
    /// Dropping it leaves nothing held or queued.
    pub(crate) async fn acquire(
        &self,
        lock: &dyn distlock::DistributedLock,
        signals: &mut Signals,
    ) -> Result<Waited, LockError> {
        let longest = self.waiting.longest();
        let wait = longest.map_or(Wait::Forever, |longest| {
            Wait::within(longest.saturating_sub(self.begun.elapsed()), lock.clock().now())
        });
        let acquired = {
            let mut acquiring = pin!(lock.acquire_as(Owner::new(), wait));
            tokio::select! {
                biased;
                acquired = &mut acquiring => acquired?,
                signal = signals.next() => return Ok(Waited::Ended(interrupted(signal))),
                () = self.tell_who_holds() => None,
            }
        };
        if let Some(guard) = acquired {
            self.report.event(self.name, &Event::Acquired { token: guard.hold().token() });
            return Ok(Waited::Acquired(guard));
        }
        let status = self.status(Level::Warning).await;
        let (holders, waiters) = status.map(|status| (status.holders, status.waiters)).unwrap_or_default();
        let event = Event::NotAcquired { holders: &holders, waiters: &waiters, waited: longest };
        self.report.event(self.name, &event);
        Ok(Waited::Ended(Ending::Code(self.waiting.conflict_exit_code)))
    }

    /// Says who holds the lock, now and whenever that changes. Never ends.
    async fn tell_who_holds(&self) {
        if !self.report.tells(Level::Progress) {
            return std::future::pending().await;
        }
        sleep(PATIENCE).await;
        let mut told: Option<Vec<HolderId>> = None;
        loop {
            let holders = self.status(Level::Progress).await.map(|status| status.holders).unwrap_or_default();
            let ids = holders.iter().map(|holder| holder.id.clone()).collect();
            // Between two holders there is none for a moment, which is not worth a line.
            if told.is_none() || (!holders.is_empty() && told.as_ref() != Some(&ids)) {
                self.report.event(self.name, &Event::Waiting { holders: &holders });
                told = Some(ids);
            }
            sleep(LOOK_AGAIN).await;
        }
    }

    /// Who holds the lock and who waits, if anybody is told at this level and the backend can tell.
    async fn status(&self, level: Level) -> Option<LockStatus> {
        if !self.report.tells(level) {
            return None;
        }
        self.locks.status(self.name).await.ok()
    }
}

/// How the command ends when a signal ends its wait.
pub(crate) fn interrupted(signal: Signal) -> Ending {
    let from_keyboard =
        signal == Signal::SIGINT && Terminal::controlling().is_some_and(|terminal| terminal.is_ours());
    if from_keyboard { Ending::Interrupted(Reach::Process) } else { Ending::Signal(signal) }
}
