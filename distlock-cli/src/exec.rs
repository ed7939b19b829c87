//! `distlock exec`: runs a command while holding a lock.

use std::io;
use std::os::fd::OwnedFd;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use distlock::{ErrorKind, Hold, LockClient, LockError, LockGuard};

use crate::arguments::{Common, Exec, OnDeath, OnLost};
use crate::child::{self, Child};
use crate::connection::{self, Address};
use crate::contact::Contact;
use crate::event::Event;
use crate::exit::{self, Ending, Failure};
use crate::job::Job;
use crate::limits;
use crate::report::Report;
use crate::run::{Loss, Run};
use crate::signals::{FROM_OTHERS, JOB_CONTROL, Signals};
use crate::system::{Foreground, ParentDeath, SetUp};
use crate::wait::{Attempt, Waited, interrupted, not_waited_for};
use crate::witness::Witness;

/// The longest grace: thirty years, with which arithmetic on times does not overflow.
const LONGEST_GRACE: Duration = Duration::from_secs(30 * 365 * 24 * 60 * 60);

/// Waits for the lock, runs the command, releases the lock.
///
/// Must be called on the main thread: the end of the calling thread ends the command.
pub(crate) async fn run(common: &Common, exec: &Exec, report: &Report) -> Result<Ending, Failure> {
    let begun = Instant::now();
    let mut signals =
        Signals::listen(&FROM_OTHERS).map_err(|error| Failure::of_system("receive signals", error))?;
    let address = Address::find(common.url.as_deref())?;
    let grace = match exec.grace {
        Some(grace) => grace.min(LONGEST_GRACE),
        None => address.default_grace()?,
    };
    let locks = tokio::select! {
        locks = address.open_within(exec.waiting.wait, margin(exec, grace), report) => locks?,
        signal = signals.next() => return Ok(interrupted(signal)),
    };
    let ending = run_with(&locks, exec, begun, grace, &mut signals, report).await;
    let _ = signals.leaving(connection::close_after(&locks, &ending)).await;
    ending
}

async fn run_with(
    locks: &LockClient,
    exec: &Exec,
    begun: Instant,
    grace: Duration,
    signals: &mut Signals,
    report: &Report,
) -> Result<Ending, Failure> {
    let lock = locks.mutex(&exec.name)?;
    let attempt = Attempt { locks, name: &exec.name, waiting: &exec.waiting, begun, report };
    let guard = match attempt.acquire(&*lock, signals).await? {
        Waited::Acquired(guard) => guard,
        Waited::Ended(ending) => return Ok(ending),
    };
    let contact = Contact::watch(locks, &*lock);
    let ending = run_under(&guard, contact, signals, exec, grace, report).await;
    let released = release(guard, signals, exec, report).await;
    ending.map(|ending| released.unwrap_or(ending))
}

/// How long before the end of the lease a loss must be known: the time that the command gets to stop.
fn margin(exec: &Exec, grace: Duration) -> Duration {
    match exec.on_lost {
        OnLost::Terminate => grace,
        OnLost::Ignore => Duration::ZERO,
    }
}

async fn run_under(
    guard: &LockGuard,
    contact: Contact,
    signals: &mut Signals,
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
    let _inherited =
        inherited(exec, hold).map_err(|error| Failure::of_system("pass the lock's descriptor on", error))?;
    Child::spawn(&mut command, set_up, witness, others)
        .map_err(|error| not_started(&program.to_string_lossy(), &error))
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

/// Releases the lock after the command has ended. Returns how distlock ends, if not as the command did.
async fn release(guard: LockGuard, signals: &mut Signals, exec: &Exec, report: &Report) -> Option<Ending> {
    let already_lost = guard.hold().end().is_some();
    // Even if the release is unconfirmed, the command ran under the lock.
    let unconfirmed = match signals.leaving(guard.release()).await {
        Some(Ok(())) => {
            report.event(&exec.name, &Event::Released);
            return None;
        }
        _ if already_lost => return None,
        Some(Err(error)) if error.kind() == ErrorKind::Lost => return lost_at_release(&error, exec, report),
        Some(Err(error)) => error.to_string(),
        None => not_waited_for(&exec.name),
    };
    report.event(&exec.name, &Event::Unconfirmed { message: unconfirmed });
    None
}

/// Handles a loss from before the end of the command that was not known until now.
fn lost_at_release(error: &LockError, exec: &Exec, report: &Report) -> Option<Ending> {
    if let Some(reason) = error.loss() {
        report.event(&exec.name, &Event::Lost { reason });
    }
    (exec.on_lost == OnLost::Terminate).then_some(Ending::Code(exit::LOST))
}
