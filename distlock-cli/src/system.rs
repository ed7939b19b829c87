//! The only module with unsafe code: what a child process does between `fork` and `exec`, and the actions of signals.
//!
//! Everything else in the command uses safe wrappers.
#![allow(unsafe_code)] // the audited module: each block says why it is sound

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::signal::{self, SaFlags, SigAction, SigHandler, SigSet, SigmaskHow, Signal};
use nix::unistd::{self, Pid};

use crate::witness::Line;

/// What happens to a child when its parent is killed and cannot pass on signals any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ParentDeath {
    /// The child is killed, if the system can do that.
    Kills,
    /// The child keeps running.
    Ignored,
}

/// Which processes a signal of this process to itself reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Only this process.
    Process,
    /// Its whole process group, as with a key pressed on the terminal.
    Group,
}

/// The foreground of a terminal, in which a child is to start.
pub(crate) struct Foreground {
    pub(crate) terminal: Arc<OwnedFd>,
    /// The witness, which has to be in the child's group before any key can reach it.
    pub(crate) witness: Option<Line>,
}

/// Makes `command` run in a process group of its own, with the signal mask of this process; in the foreground of a terminal, if
/// one is given; and with `parent_death` deciding what the parent's death does.
///
/// The parent's death means the end of the *thread* that calls `spawn`, so that must be the main thread.
pub(crate) fn prepare(
    command: &mut Command,
    foreground: Option<Foreground>,
    parent_death: ParentDeath,
) -> nix::Result<()> {
    let parent = unistd::getpid();
    let mask = SigSet::thread_get_mask()?;
    command.process_group(0);
    let set_up = move || -> io::Result<()> {
        if let Some(Foreground { terminal, witness }) = &foreground {
            if let Some(witness) = witness {
                witness.send_into(unistd::getpid());
            }
            enter_foreground(terminal)?;
        }
        if parent_death == ParentDeath::Kills {
            follow_into_death(parent)?;
        }
        signal::pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&mask), None)?;
        Ok(())
    };
    // SAFETY: the closure runs in the child of a process that may have other threads, so it must call nothing but
    // async-signal-safe functions. It calls getpid, send, read, tcsetpgrp, prctl, getppid and pthread_sigmask through
    // wrappers that add nothing; it reads two values and two descriptor numbers that it owns, takes no mutex and allocates
    // nothing (an `io::Error` made of an errno has no allocation).
    unsafe { command.pre_exec(set_up) };
    Ok(())
}

fn enter_foreground(terminal: &OwnedFd) -> nix::Result<()> {
    // A process in the background that changes the foreground is stopped by SIGTTOU, unless it blocks that signal.
    let mut background_output = SigSet::empty();
    background_output.add(Signal::SIGTTOU);
    signal::pthread_sigmask(SigmaskHow::SIG_BLOCK, Some(&background_output), None)?;
    unistd::tcsetpgrp(terminal, unistd::getpid())
}

#[cfg(target_os = "linux")]
fn follow_into_death(parent: Pid) -> nix::Result<()> {
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
    // A parent that died before the line above no longer sends a signal.
    if unistd::getppid() == parent { Ok(()) } else { Err(Errno::ESRCH) }
}

#[cfg(not(target_os = "linux"))]
fn follow_into_death(parent: Pid) -> nix::Result<()> {
    if unistd::getppid() == parent { Ok(()) } else { Err(Errno::ESRCH) }
}

/// Whether this process was started with `signal` ignored, as `nohup` does with SIGHUP.
pub(crate) fn is_ignored(signal: Signal) -> bool {
    let mut action = std::mem::MaybeUninit::uninit();
    // SAFETY: without a new action sigaction changes nothing; it writes the present action to the given place, which is read
    // only if the call reports success.
    let handler = unsafe {
        match nix::libc::sigaction(signal as i32, std::ptr::null(), action.as_mut_ptr()) {
            0 => action.assume_init().sa_sigaction,
            _ => return false,
        }
    };
    handler == nix::libc::SIG_IGN
}

/// Sends `signal` to this process or its group, and lets it have its default effect here: stop or end the process.
///
/// For a signal that stops, this returns when the process is continued.
pub(crate) fn raise_default(signal: Signal, reach: Reach) -> nix::Result<()> {
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: the default action is no function, so nothing can run in a signal handler's context.
    let previous = unsafe { signal::sigaction(signal, &default) }?;
    let target = match reach {
        Reach::Process => unistd::getpid(),
        Reach::Group => Pid::from_raw(0),
    };
    let sent = signal::kill(target, signal);
    // SAFETY: this restores the previous action; its handler was installed by the runtime, which keeps it.
    unsafe { signal::sigaction(signal, &previous) }?;
    sent
}
