//! `distlock exec`: runs a command while holding a lock.

use std::future::pending;
use std::io;
use std::os::fd::OwnedFd;
use std::process::Command;
use std::time::{Duration, Instant};

use distlock::{ErrorKind, Hold, LockClient, LockError, LockGuard};
use nix::sys::signal::Signal;
use tokio::time::sleep_until;

use crate::arguments::{Common, Exec, OnDeath, OnLost};
use crate::child::{self, Change, Child};
use crate::connection::{self, Address};
use crate::contact::Contact;
use crate::event::Event;
use crate::exit::{self, Ending, Failure};
use crate::job::{AfterStop, Job};
use crate::limits;
use crate::report::Report;
use crate::signals::{FROM_OTHERS, JOB_CONTROL, Signals};
use crate::system::{self, ParentDeath};
use crate::terminal::Terminal;
use crate::wait::{Attempt, Waited, interrupted};

/// Waits for the lock, runs the command, releases the lock.
///
/// To be called on the main thread: the end of the calling thread ends the command.
pub(crate) async fn run(common: &Common, exec: &Exec, report: &Report) -> Result<Ending, Failure> {
    let begun = Instant::now();
    let mut signals =
        Signals::listen(&FROM_OTHERS).map_err(|error| Failure::of_system("receive signals", error))?;
    let address = Address::find(common.url.as_deref())?;
    let grace = match exec.grace {
        Some(grace) => grace,
        None => address.default_grace()?,
    };
    let locks = tokio::select! {
        locks = address.open(margin(exec, grace)) => locks?,
        signal = signals.next() => return Ok(interrupted(signal)),
    };
    let ending = run_with(&locks, exec, begun, grace, signals, report).await;
    connection::close(&locks).await;
    ending
}

async fn run_with(
    locks: &LockClient,
    exec: &Exec,
    begun: Instant,
    grace: Duration,
    mut signals: Signals,
    report: &Report,
) -> Result<Ending, Failure> {
    let lock = locks.lock(&exec.name)?;
    let attempt = Attempt { locks, name: &exec.name, waiting: &exec.waiting, begun, report };
    let guard = match attempt.acquire(&*lock, &mut signals).await? {
        Waited::Acquired(guard) => guard,
        Waited::Ended(ending) => return Ok(ending),
    };
    let contact = Contact::watch(locks, lock);
    let ending = run_under(&guard, contact, signals, exec, grace, report).await;
    let released = release(guard, exec, report).await;
    ending.map(|ending| released.unwrap_or(ending))
}

/// How long before the lease ends the loss has to be known: what the command gets to stop.
fn margin(exec: &Exec, grace: Duration) -> Duration {
    match exec.on_lost {
        OnLost::Terminate => grace,
        OnLost::Ignore => Duration::ZERO,
    }
}

async fn run_under(
    guard: &LockGuard,
    contact: Contact,
    mut signals: Signals,
    exec: &Exec,
    grace: Duration,
    report: &Report,
) -> Result<Ending, Failure> {
    signals.listen_also(&JOB_CONTROL).map_err(|error| Failure::of_system("receive signals", error))?;
    let job = Job::new();
    let child = start(exec, guard.hold(), &job)?;
    report.event(&exec.name, &Event::Started { pid: child.pid().as_raw() });
    let run = Run {
        child,
        job,
        signals,
        contact,
        hold: guard.hold().clone(),
        name: &exec.name,
        on_lost: exec.on_lost,
        grace,
        report,
        loss: Loss::None,
    };
    run.until_the_end().await
}

fn start(exec: &Exec, hold: &Hold, job: &Job) -> Result<Child, Failure> {
    let [program, arguments @ ..] = exec.command.as_slice() else {
        return Err(Failure::new(exit::USAGE, "there is no command to run; write it after the lock's name"));
    };
    let mut command = Command::new(program);
    command.args(arguments).env("DISTLOCK_NAME", &exec.name);
    match hold.token() {
        Some(token) => command.env("DISTLOCK_TOKEN", token.to_string()),
        None => command.env_remove("DISTLOCK_TOKEN"),
    };
    if connection::environment_has_secret() {
        command.env_remove(connection::URL_VARIABLE);
    }
    let parent_death = match exec.on_death {
        OnDeath::Kill => ParentDeath::Kills,
        OnDeath::Ignore => ParentDeath::Ignored,
    };
    let terminal = job.foreground_at_start().map(Terminal::descriptor).cloned();
    system::prepare(&mut command, terminal, parent_death)
        .map_err(|error| Failure::of_system("prepare the command", error))?;
    // Open across the start only: a copy that we kept would hold the lock after its release.
    let _inherited =
        inherited(exec, hold).map_err(|error| Failure::of_system("pass the lock's descriptor on", error))?;
    Child::spawn(&mut command).map_err(|error| not_started(&program.to_string_lossy(), &error))
}

fn inherited(exec: &Exec, hold: &Hold) -> io::Result<Option<OwnedFd>> {
    match hold.descriptor() {
        Some(descriptor) if !exec.close => child::inheritable(descriptor).map(Some),
        _ => Ok(None),
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
            format!("cannot run {program:?}: {error} (check that it is a program and may be executed)"),
        ),
    }
}

/// A command that runs under the lock.
struct Run<'a> {
    child: Child,
    job: Job,
    signals: Signals,
    contact: Contact,
    hold: Hold,
    name: &'a str,
    on_lost: OnLost,
    grace: Duration,
    report: &'a Report,
    loss: Loss,
}

/// What has been done about a loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loss {
    /// There is none.
    None,
    /// It was reported and the command runs on.
    Ignored,
    /// The command's group was told to end, and is killed at this moment.
    Terminating(tokio::time::Instant),
    /// It was killed.
    Killed(tokio::time::Instant),
}

/// What the run waits for.
enum Happening {
    Lost(distlock::LossReason),
    GraceOver,
    Child(Change),
    Signal(Signal),
    Contact(Event<'static>),
}

impl Run<'_> {
    async fn until_the_end(mut self) -> Result<Ending, Failure> {
        loop {
            match self.next().await? {
                Happening::Lost(reason) => self.lost(reason),
                Happening::GraceOver => self.kill(),
                Happening::Signal(signal) => self.pass_on(signal),
                Happening::Contact(event) => self.report.event(self.name, &event),
                Happening::Child(Change::Stopped(signal)) => self.stopped(signal),
                Happening::Child(Change::Exited(code)) => {
                    self.report.event(self.name, &Event::Exited { code });
                    return Ok(self.ended(Ending::Code(code)).await);
                }
                Happening::Child(Change::Killed(signal)) => {
                    self.report.event(self.name, &Event::Killed { signal });
                    return Ok(self.ended(Ending::Signal(signal)).await);
                }
            }
        }
    }

    async fn next(&mut self) -> Result<Happening, Failure> {
        let (state, hold) = (self.loss, &self.hold);
        let lost = async {
            match state {
                Loss::None => hold.lost().await,
                _ => None,
            }
        };
        let grace_over = async {
            match state {
                Loss::Terminating(kill_at) => sleep_until(kill_at).await,
                _ => pending().await,
            }
        };
        Ok(tokio::select! {
            biased;
            Some(reason) = lost => Happening::Lost(reason),
            () = grace_over => Happening::GraceOver,
            change = self.child.change() => {
                Happening::Child(change.map_err(|error| Failure::of_system("wait for the command", error))?)
            }
            signal = self.signals.next() => Happening::Signal(signal),
            event = self.contact.change() => Happening::Contact(event),
        })
    }

    fn lost(&mut self, reason: distlock::LossReason) {
        self.report.event(self.name, &Event::Lost { reason });
        match self.on_lost {
            OnLost::Ignore => self.loss = Loss::Ignored,
            OnLost::Terminate => {
                self.loss = Loss::Terminating(tokio::time::Instant::now() + self.grace);
                self.report.event(self.name, &Event::Terminating { signal: Signal::SIGTERM });
                self.child.signal_group(Signal::SIGTERM);
                // A stopped process receives nothing but SIGKILL until it is continued.
                self.child.signal_group(Signal::SIGCONT);
            }
        }
    }

    fn kill(&mut self) {
        self.loss = Loss::Killed(tokio::time::Instant::now());
        self.report.event(self.name, &Event::Terminating { signal: Signal::SIGKILL });
        self.child.signal_group(Signal::SIGKILL);
    }

    fn pass_on(&mut self, signal: Signal) {
        match signal {
            Signal::SIGTSTP => self.job.request_stop(&self.child),
            // Otherwise it tells that we were continued, with which the child has been continued already; by now it may have
            // been stopped again.
            Signal::SIGCONT if !self.job.has_left_child_stopped() => {}
            // These mean something to the program itself; its helpers would be ended by them.
            Signal::SIGUSR1 | Signal::SIGUSR2 => self.child.signal(signal),
            // Those that end the program must not leave its helpers behind, running without the lock.
            _ => self.child.signal_group(signal),
        }
    }

    fn stopped(&mut self, signal: Signal) {
        // We stop with the child, and nobody may have renewed the lease meanwhile.
        let after = self.job.child_stopped(&self.child, signal);
        let lost_meanwhile = self.on_lost == OnLost::Terminate && !self.hold.is_valid();
        if after == AfterStop::Continue && !lost_meanwhile {
            self.child.signal_group(Signal::SIGCONT);
        }
    }

    /// The child has ended. After a loss, the rest of its group has to as well.
    async fn ended(mut self, ending: Ending) -> Ending {
        let interrupted =
            self.job.child_ended(&self.child).filter(|_| ending == Ending::Signal(Signal::SIGINT));
        match self.loss {
            Loss::Terminating(kill_at) | Loss::Killed(kill_at) => {
                self.child.end_group(kill_at).await;
                Ending::Code(exit::LOST)
            }
            Loss::None | Loss::Ignored => interrupted.map_or(ending, Ending::Interrupted),
        }
    }
}

/// Releases the lock after the command has ended. Answers how distlock ends, if not as the command did.
async fn release(guard: LockGuard, exec: &Exec, report: &Report) -> Option<Ending> {
    let already_lost = guard.hold().end().is_some();
    match guard.release().await {
        Ok(()) => report.event(&exec.name, &Event::Released),
        Err(_) if already_lost => {}
        Err(error) if error.kind() == ErrorKind::Lost => return lost_at_release(&error, exec, report),
        // The command ran under the lock throughout; that the server keeps it a while longer does not change that.
        Err(error) => report.event(&exec.name, &Event::Unconfirmed { message: error.to_string() }),
    }
    None
}

/// The lock had been lost before the command ended, and nobody knew until now.
fn lost_at_release(error: &LockError, exec: &Exec, report: &Report) -> Option<Ending> {
    if let Some(reason) = error.loss() {
        report.event(&exec.name, &Event::Lost { reason });
    }
    (exec.on_lost == OnLost::Terminate).then_some(Ending::Code(exit::LOST))
}
