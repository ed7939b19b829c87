//! Runs a command under a lock that is held, and releases the lock when the command has ended.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use distlock::{ErrorKind, Hold, LockError};

use crate::arguments::{OnDeath, OnLost, Supervision};
use crate::child::{self, Child};
use crate::connection::{self, Address};
use crate::contact::Contact;
use crate::event::{Event, Level};
use crate::exit::{self, Ending, Failure};
use crate::job::Job;
use crate::limits;
use crate::named::{Named, fencing_token};
use crate::report::Report;
use crate::run::{End, Loss, Run};
use crate::signals::{JOB_CONTROL, Signals};
use crate::system::{Foreground, ParentDeath, SetUp};
use crate::wait::not_waited_for;
use crate::witness::Witness;

/// A command to run under a lock.
pub(crate) struct UnderLock<'a> {
    /// What is held.
    pub(crate) named: Named<'a>,
    pub(crate) command: &'a [OsString],
    pub(crate) supervision: &'a Supervision,
    pub(crate) on_lost: OnLost,
    pub(crate) grace: Duration,
    pub(crate) address: &'a Address,
    pub(crate) report: &'a Report,
}

impl UnderLock<'_> {
    /// Runs the command until it has ended.
    ///
    /// Must be called on the main thread: the end of the calling thread ends the command.
    pub(crate) async fn run(
        &self,
        hold: &Hold,
        contact: Contact,
        signals: &mut Signals,
    ) -> Result<End, Failure> {
        signals.listen_also(&JOB_CONTROL).map_err(|error| Failure::of_system("receive signals", error))?;
        let job = Job::new();
        let Some(child) = self.start(hold, &job)? else {
            if let Some(reason) = hold.lost().await {
                self.report.event(self.named, &Event::Lost { reason });
            }
            self.report.note(Level::Error, "the command was not started");
            return Ok(End::Stopped);
        };
        self.report.event(self.named, &Event::Started { pid: child.pid().as_raw() });
        let run = Run {
            child,
            job,
            signals,
            contact,
            hold: hold.clone(),
            named: self.named,
            on_lost: self.on_lost,
            grace: self.grace,
            report: self.report,
            loss: Loss::None,
            is_asked_to_end: false,
        };
        run.until_the_end().await
    }

    /// Starts the command, unless the hold has ended since the grant: then `None`.
    fn start(&self, hold: &Hold, job: &Job) -> Result<Option<Child>, Failure> {
        let [program, arguments @ ..] = self.command else {
            return Err(Failure::new(
                exit::USAGE,
                "there is no command to run; write it after the lock's name",
            ));
        };
        let mut command = Command::new(program);
        command.args(arguments).env("DISTLOCK_NAME", self.named.name);
        match fencing_token(hold.token(), hold.mode()) {
            Some(token) => command.env("DISTLOCK_TOKEN", token.to_string()),
            None => command.env_remove("DISTLOCK_TOKEN"),
        };
        command.env_remove(connection::WITHHELD_VARIABLE);
        if !self.address.is_passed_on() {
            command.env_remove(connection::URL_VARIABLE);
            // A distlock in the command would use the locks of this machine, which exclude none of those at the server.
            if let Some(server) = self.address.shown() {
                command.env(connection::WITHHELD_VARIABLE, server);
            }
        }
        let parent_death = match self.supervision.on_death {
            OnDeath::Kill => ParentDeath::Kills,
            OnDeath::Ignore => ParentDeath::Ignored,
        };
        let others = child::all();
        let terminal = job.foreground_at_start();
        // Without a witness, every interrupt that ends the command counts as a key.
        let witness = terminal.and_then(|_| Witness::start().ok());
        let foreground = terminal.map(|terminal| Foreground {
            terminal: Arc::clone(terminal.descriptor()),
            witness: witness.as_ref().map(|witness| witness.line().clone()),
        });
        let set_up = SetUp::new(foreground, parent_death)
            .map_err(|error| Failure::of_system("prepare the command", error))?;
        // Open only until the command has started: a copy in this process would hold the lock after its release.
        let _inherited = self
            .inherited(hold)
            .map_err(|error| Failure::of_system("pass the lock's descriptor on", error))?;
        let spawn = || Child::spawn(&mut command, set_up, witness, others);
        while_held(hold, spawn).map_err(|error| not_started(&program.to_string_lossy(), &error))
    }

    fn inherited(&self, hold: &Hold) -> io::Result<Option<OwnedFd>> {
        match hold.descriptor() {
            Some(descriptor) if !self.supervision.close => child::inheritable(descriptor).map(Some),
            _ => Ok(None),
        }
    }

    /// Releases the lock by `releasing` after the command has ended. Returns how distlock ends, if not as the command did.
    pub(crate) async fn release(
        &self,
        hold: &Hold,
        releasing: impl Future<Output = Result<(), LockError>>,
        signals: &mut Signals,
    ) -> Option<Ending> {
        let already_lost = hold.end().is_some();
        // Even if the release is unconfirmed, the command ran under the lock.
        let unconfirmed = match signals.leaving(releasing).await {
            Some(Ok(())) => {
                self.report.event(self.named, &Event::Released);
                return None;
            }
            _ if already_lost => return None,
            Some(Err(error)) if error.kind() == ErrorKind::Lost => return self.lost_at_release(&error),
            Some(Err(error)) => error.to_string(),
            None => not_waited_for(self.named),
        };
        self.report.event(self.named, &Event::Unconfirmed { message: unconfirmed });
        None
    }

    /// Handles a loss from before the end of the command that was not known until now.
    fn lost_at_release(&self, error: &LockError) -> Option<Ending> {
        if let Some(reason) = error.loss() {
            self.report.event(self.named, &Event::Lost { reason });
        }
        (self.on_lost == OnLost::Terminate).then_some(Ending::Code(exit::LOST))
    }
}

fn not_started(program: &str, error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::NotFound => Failure::new(
            exit::NOT_FOUND,
            format!(
                "cannot run {program:?}: no such command (check the spelling, the PATH, and a script's first line)"
            ),
        ),
        _ if limits::is_reached(error) => {
            Failure::new(exit::INTERNAL, format!("cannot run {program:?}: {error} ({})", limits::REMEDY))
        }
        _ => Failure::new(
            exit::NOT_RUNNABLE,
            format!("cannot run {program:?}: {error} (check that it is executable)"),
        ),
    }
}

/// Starts something as long as the hold lasts. Nothing comes between the look and the start.
fn while_held<T>(hold: &Hold, start: impl FnOnce() -> io::Result<T>) -> io::Result<Option<T>> {
    if hold.is_valid() { start().map(Some) } else { Ok(None) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_command_whose_hold_is_over_is_not_started() {
        let folder = tempfile::tempdir().unwrap();
        let locks = distlock::connect(&format!("file:{}/locks", folder.path().display())).await.unwrap();
        let guard = locks.mutex("job").unwrap().acquire().await.unwrap();
        let start = || while_held(guard.hold(), || Ok(())).unwrap();
        assert!(start().is_some());
        locks.break_holder("job", &guard.hold().id()).await.unwrap();
        guard.lost().await.unwrap();
        assert!(start().is_none());
    }
}
