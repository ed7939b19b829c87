//! Workers: clients that run in a process of their own, which a case can kill and stop. For a backend that is limited to
//! one process, they run on a thread of their own. Both execute the same commands.
//!
//! There is no separate program for this: the test program starts itself again, and [`requested`] recognises that. So a
//! backend outside of this repository gets processes without adding a binary.

mod contend;
mod host;
mod lock_use;
mod process;
mod protocol;
mod serve;

use std::collections::VecDeque;
use std::time::Duration;

use lock_core::{LockError, LossReason};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::{During, Failure, Outcome};
use host::Host;
use protocol::Patience;

pub(crate) use lock_use::LockUse;
pub(crate) use process::{requested, serve_process};
pub(crate) use protocol::{Command, Count, End, Report, Visit};
pub(crate) use serve::stamp;

/// A loss, as the worker's listener saw it.
#[derive(Debug, Clone)]
pub(crate) struct LossReport {
    pub(crate) reason: String,
    pub(crate) at: u64,
}

/// What a worker reports about its hold of a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) is_valid: bool,
    pub(crate) losses: usize,
}

/// Whether a worker has entered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entered {
    Inside,
    Refused,
}

/// A client that runs elsewhere. Dropping this ends it: a process by a signal that it cannot catch.
#[derive(Debug)]
pub(crate) struct Worker {
    label: String,
    host: Host,
    reports: UnboundedReceiver<Report>,
    /// Losses that were reported while the case waited for something else.
    losses: VecDeque<LossReport>,
    patience: Duration,
}

impl Worker {
    /// Starts a process, connected to `address`.
    pub(crate) async fn process(address: &str, label: &str, patience: Duration) -> Outcome<Self> {
        let (host, reports) = process::start(address, label).during("start a process")?;
        Self::ready(label, host, reports, patience).await
    }

    /// Starts a thread, with `client`.
    pub(crate) async fn thread(
        client: lock_core::LockClient,
        label: &str,
        patience: Duration,
    ) -> Outcome<Self> {
        let (host, reports) = serve::start_thread(client).during("start a thread")?;
        Self::ready(label, host, reports, patience).await
    }

    async fn ready(
        label: &str,
        host: Host,
        reports: UnboundedReceiver<Report>,
        patience: Duration,
    ) -> Outcome<Self> {
        let mut worker = Self { label: label.to_owned(), host, reports, losses: VecDeque::new(), patience };
        match worker.next("connect").await? {
            Report::Ready => Ok(worker),
            other => Err(worker.unexpected(&other)),
        }
    }

    /// Returns the label of its client.
    pub(crate) fn label(&self) -> &str {
        &self.label
    }

    /// Acquires the lock, however long it takes.
    pub(crate) async fn acquire(&mut self, name: &str) -> Outcome<Visit> {
        self.ask(name)?;
        self.granted(name).await
    }

    /// Begins to acquire, without waiting for the result.
    pub(crate) fn ask(&mut self, name: &str) -> Outcome {
        self.ask_for(name, Patience::Forever)
    }

    /// Begins to acquire within `patience`, without waiting for the result.
    pub(crate) fn ask_for(&mut self, name: &str, patience: Patience) -> Outcome {
        self.tell(&Command::Acquire { name: name.to_owned(), patience })
    }

    /// Waits for the grant of a lock that it began to acquire.
    pub(crate) async fn granted(&mut self, name: &str) -> Outcome<Visit> {
        let label = self.label.clone();
        self.answer(name).await?.ok_or_else(|| Failure::new(format!("{label} was refused the lock {name:?}")))
    }

    /// Waits for the result of an acquisition; returns `None` when it was refused.
    pub(crate) async fn answer(&mut self, name: &str) -> Outcome<Option<Visit>> {
        match self.next(&format!("the lock {name:?}")).await? {
            Report::Acquired(visit) => Ok(Some(visit)),
            Report::Refused => Ok(None),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Acquires within `duration`; returns `None` when it was refused.
    pub(crate) async fn try_acquire_for(&mut self, name: &str, duration: Duration) -> Outcome<Option<Visit>> {
        self.ask_for(name, Patience::within(duration))?;
        self.answer(name).await
    }

    /// Like `try_acquire_for`, for a situation in which another process may keep all others from asking the server. The
    /// error that this causes counts as a refusal.
    pub(crate) async fn try_acquire_past_a_block(
        &mut self,
        name: &str,
        duration: Duration,
    ) -> Outcome<Option<Visit>> {
        self.ask_for(name, Patience::within(duration))?;
        match self.next(&format!("the lock {name:?}")).await? {
            Report::Acquired(visit) => Ok(Some(visit)),
            Report::Refused => Ok(None),
            Report::Failed { kind, .. } if kind == "Unreachable" => Ok(None),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Releases what it acquired.
    pub(crate) async fn release(&mut self, name: &str) -> Outcome {
        self.tell(&Command::Release { name: name.to_owned() })?;
        match self.next("a release").await? {
            Report::Released => Ok(()),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Releases what it acquired, which must fail with `Lost`.
    pub(crate) async fn release_lost(&mut self, name: &str) -> Outcome {
        self.tell(&Command::Release { name: name.to_owned() })?;
        match self.next("a release").await? {
            Report::Failed { kind, .. } if kind == "Lost" => Ok(()),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Returns whether its hold is valid, and how many losses its listener has seen.
    pub(crate) async fn standing(&mut self, name: &str) -> Outcome<Standing> {
        self.tell(&Command::Look { name: name.to_owned() })?;
        match self.next("its standing").await? {
            Report::Standing { is_valid, losses } => Ok(Standing { is_valid, losses }),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Waits until its listener has seen a loss.
    pub(crate) async fn lost(&mut self) -> Outcome<LossReport> {
        loop {
            if let Some(loss) = self.losses.pop_front() {
                return Ok(loss);
            }
            match self.receive("a loss").await? {
                Report::Lost { reason, at } => self.losses.push_back(LossReport { reason, at }),
                Report::Progress => {}
                other => return Err(self.unexpected(&other)),
            }
        }
    }

    /// Begins to acquire and release `times` times. Each time it increments the number in `file`, unless that is
    /// `None`.
    pub(crate) fn cycle(&mut self, name: &str, file: Option<&std::path::Path>, times: u32) -> Outcome {
        self.tell(&Command::Cycle { name: name.to_owned(), file: file.map(std::path::Path::to_owned), times })
    }

    /// Waits for the end of [`Worker::cycle`].
    pub(crate) async fn history(&mut self) -> Outcome<Vec<Visit>> {
        match self.next("its history").await? {
            Report::History(visits) => Ok(visits),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Begins to enter, without waiting for the result.
    pub(crate) fn go_to(&mut self, name: &str, lock_use: LockUse) -> Outcome {
        self.tell(&Command::Enter { name: name.to_owned(), lock_use })
    }

    /// Waits until it is inside, or was refused.
    pub(crate) async fn entered(&mut self) -> Outcome<Entered> {
        match self.next("its entry").await? {
            Report::Inside => Ok(Entered::Inside),
            Report::Refused => Ok(Entered::Refused),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Enters.
    pub(crate) async fn enter(&mut self, name: &str, lock_use: LockUse) -> Outcome<Entered> {
        self.go_to(name, lock_use)?;
        self.entered().await
    }

    /// Leaves what it has entered.
    pub(crate) async fn leave(&mut self) -> Outcome {
        self.tell(&Command::Leave)?;
        match self.next("its leaving").await? {
            Report::Released => Ok(()),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Kills the process, and waits until it is gone.
    pub(crate) fn kill(&mut self) -> Outcome {
        self.host.kill().during(format_args!("kill {}", self.label))
    }

    /// Suspends the process.
    pub(crate) fn stop(&self) -> Outcome {
        self.host.stop().during(format_args!("stop {}", self.label))
    }

    /// Resumes a stopped process.
    pub(crate) fn resume(&self) -> Outcome {
        self.host.resume().during(format_args!("resume {}", self.label))
    }

    /// Returns its process id, if it has a process of its own.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.host.pid()
    }

    /// Ends it in an orderly way: its client is closed.
    pub(crate) async fn quit(mut self) -> Outcome {
        self.tell(&Command::Quit)?;
        match self.next("its end").await? {
            Report::Closed => Ok(()),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Returns the reports that have arrived and that the case has not waited for.
    pub(crate) fn told(&mut self) -> Vec<Report> {
        std::iter::from_fn(|| self.reports.try_recv().ok()).collect()
    }

    /// Returns the next report of a process that was killed; `None` when there are no more.
    pub(crate) async fn last_words(&mut self) -> Option<Report> {
        self.reports.recv().await
    }

    pub(crate) fn tell(&mut self, command: &Command) -> Outcome {
        self.host.tell(command).during(format_args!("tell {}", self.label))
    }

    /// Returns the next report that is neither a loss nor progress. Work that makes progress may take as long as it
    /// needs.
    async fn next(&mut self, of_what: &str) -> Outcome<Report> {
        loop {
            match self.receive(of_what).await? {
                Report::Lost { reason, at } => self.losses.push_back(LossReport { reason, at }),
                Report::Progress => {}
                other => return Ok(other),
            }
        }
    }

    async fn receive(&mut self, of_what: &str) -> Outcome<Report> {
        let label = &self.label;
        match tokio::time::timeout(self.patience, self.reports.recv()).await {
            Ok(Some(report)) => Ok(report),
            Ok(None) => Err(Failure::new(format!("{label} ended and has not told of {of_what}"))),
            Err(_) => {
                Err(Failure::new(format!("{label} has not told of {of_what} within {:?}", self.patience)))
            }
        }
    }

    pub(crate) fn unexpected(&self, report: &Report) -> Failure {
        Failure::new(format!("{} answered {report:?}", self.label))
    }
}

fn kind_of(error: &LockError) -> String {
    format!("{:?}", error.kind())
}

fn spell(reason: LossReason) -> String {
    format!("{reason:?}")
}
