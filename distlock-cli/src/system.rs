//! The only module with unsafe code: what a child process does between `fork` and `exec`, and the actions of signals.
//!
//! Everything else in the command uses safe wrappers.
//!
//! What the command costs to start counts. Something has to run in the child before it becomes another program: it asks to die with
//! its parent, and may enter the terminal's foreground. The standard library does that after a `fork`, whose copies are a seventh of
//! all page faults; `posix_spawn` has no place for the parent's death. So on Linux this module does what `posix_spawn` does inside: the
//! child uses the parent's memory, on a stack of its own, while the parent waits and all signals are blocked.
#![allow(unsafe_code, reason = "the audited module: each block says why it is sound")]

#[cfg(not(target_os = "linux"))]
use std::io;
use std::os::fd::OwnedFd;
#[cfg(not(target_os = "linux"))]
use std::process::Command;
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::signal::{self, SaFlags, SigAction, SigHandler, SigSet, SigmaskHow, Signal};
use nix::unistd::{self, Pid};

use crate::witness::WitnessConnection;

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
    pub(crate) witness: Option<WitnessConnection>,
}

/// What a child does before it becomes another program: it enters a process group of its own, and the foreground of a terminal,
/// if one is given; has the signal mask that this process had when this was made; and dies with its parent, if it is to.
///
/// The parent's death means the end of the *thread* that starts the child, so that must be the main thread.
pub(crate) struct SetUp {
    parent: Pid,
    mask: SigSet,
    foreground: Option<Foreground>,
    parent_death: ParentDeath,
}

impl SetUp {
    pub(crate) fn new(foreground: Option<Foreground>, parent_death: ParentDeath) -> nix::Result<Self> {
        Ok(Self { parent: unistd::getpid(), mask: SigSet::thread_get_mask()?, foreground, parent_death })
    }

    /// Runs in the child.
    ///
    /// Async-signal-safe: this calls setpgid, getpid, send, read, tcsetpgrp, prctl, getppid and `pthread_sigmask` through wrappers
    /// that add nothing, takes no mutex and allocates nothing.
    fn run(&self) -> nix::Result<()> {
        unistd::setpgid(Pid::from_raw(0), Pid::from_raw(0))?;
        if let Some(Foreground { terminal, witness }) = &self.foreground {
            if let Some(witness) = witness {
                witness.send_into(unistd::getpid());
            }
            enter_foreground(terminal)?;
        }
        if self.parent_death == ParentDeath::Kills {
            follow_into_death(self.parent)?;
        }
        signal::pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&self.mask), None)
    }
}

/// Starts `command` as a child, whose standard files are those of this process.
#[cfg(not(target_os = "linux"))]
pub(crate) fn start(command: &mut Command, set_up: SetUp) -> io::Result<Pid> {
    use std::os::unix::process::CommandExt;
    // SAFETY: the closure runs in the child of a process that may have other threads, and is async-signal-safe (an `io::Error`
    // made of an errno has no allocation).
    unsafe { command.pre_exec(move || Ok(set_up.run()?)) };
    let child = command.spawn()?;
    Ok(Pid::from_raw(i32::try_from(child.id()).map_err(io::Error::other)?))
}

#[cfg(target_os = "linux")]
pub(crate) use linux::start;

/// Starts a child without a copy of this process: it uses the memory of this one, which waits until the child has become another
/// program. That is what `posix_spawn` does too, but with `posix_spawn` the child cannot ask to die with its parent.
#[cfg(target_os = "linux")]
mod linux {
    use std::collections::BTreeMap;
    use std::env;
    use std::ffi::{CString, OsStr, c_int, c_void};
    use std::io;
    use std::os::unix::ffi::OsStrExt;
    use std::process::Command;
    use std::ptr;

    use nix::errno::Errno;
    use nix::libc::{self, c_char};
    use nix::sys::signal::{SigSet, SigmaskHow, Signal};
    use nix::unistd::Pid;
    use rustix::io::retry_on_intr;
    use rustix::process::{WaitOptions, waitpid};

    use super::SetUp;
    use crate::signals::{FROM_OTHERS, JOB_CONTROL};

    /// What has a handler beside the signals that distlock listens to: the end of a child, and what Rust sets at the start. Asking for
    /// the action of each signal that there is would take longer than all the rest of the child's work.
    const OF_RUST: [Signal; 4] = [Signal::SIGCHLD, Signal::SIGPIPE, Signal::SIGSEGV, Signal::SIGBUS];

    /// More than `execvpe` and `SetUp::run` need, apart from the list of arguments, which `execvpe` copies for a script without
    /// a first line that names its interpreter.
    const STACK: usize = 64 * 1024;

    /// What the child shares with its parent.
    struct Start<'a> {
        program: &'a CString,
        arguments: Vec<*const c_char>,
        environment: Vec<*const c_char>,
        set_up: SetUp,
        failure: Option<Errno>,
    }

    /// Starts `command` as a child, whose standard files are those of this process.
    pub(crate) fn start(command: &mut Command, set_up: SetUp) -> io::Result<Pid> {
        let program = CString::new(command.get_program().as_bytes())?;
        let arguments = command.get_args().map(|argument| CString::new(argument.as_bytes()));
        let arguments = arguments.collect::<Result<Vec<_>, _>>()?;
        let environment = environment(command)?;
        let mut start = Start {
            program: &program,
            arguments: pointers([&program].into_iter().chain(&arguments)),
            environment: pointers(&environment),
            set_up,
            failure: None,
        };
        // From here until the child is another program, a signal would run a handler of this process in the child.
        let mask = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
        let child = start.clone_and_wait();
        mask.thread_set_mask()?;
        let (child, failure) = (child?, start.failure);
        if let Some(failure) = failure {
            let ended = rustix::process::Pid::from_raw(child.as_raw());
            let _ = retry_on_intr(|| waitpid(ended, WaitOptions::empty()));
            return Err(failure.into());
        }
        Ok(child)
    }

    impl Start<'_> {
        /// Returns when the child has become another program, or has ended.
        fn clone_and_wait(&mut self) -> nix::Result<Pid> {
            let copied_arguments = self.arguments.len() * size_of::<*const c_char>();
            let mut stack: Vec<u128> = vec![0; (STACK + copied_arguments) / size_of::<u128>()];
            let top = stack.as_mut_ptr_range().end.cast::<c_void>();
            let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
            // SAFETY: the child runs `in_child` on a stack of its own, which is aligned for every processor, while CLONE_VFORK
            // keeps this thread from running, so that `self` and the stack stay as they are, and nothing else uses them. What
            // the child may do is said there.
            let pid = unsafe { libc::clone(in_child, top, flags, ptr::from_mut(self).cast()) };
            Errno::result(pid).map(Pid::from_raw)
        }

        fn run(&mut self) {
            reset_handlers();
            if let Err(failure) = self.set_up.run() {
                self.failure = Some(failure);
                return;
            }
            // SAFETY: the program and all elements of both lists point to strings that live as long as `self`, and each list
            // ends with a null pointer. The function returns only on failure.
            unsafe {
                libc::execvpe(self.program.as_ptr(), self.arguments.as_ptr(), self.environment.as_ptr());
            }
            self.failure = Some(Errno::last());
        }
    }

    /// Runs in the child, which shares all memory with its parent. Other threads of the parent go on, so this takes no mutex and
    /// allocates nothing, and no handler runs here: all signals are blocked, until all have the default action. It changes
    /// nothing of the memory but its stack, `errno`, and `failure`, which are the parent's, who waits.
    extern "C" fn in_child(start: *mut c_void) -> c_int {
        // SAFETY: `clone_and_wait` passes a pointer to a `Start` that nothing else uses until the child is another program.
        let start = unsafe { &mut *start.cast::<Start<'_>>() };
        start.run();
        1
    }

    /// Gives the signals that have a handler their default action, and SIGPIPE, which Rust ignores. The table of the parent stays
    /// as it is.
    fn reset_handlers() {
        for signal in FROM_OTHERS.into_iter().chain(JOB_CONTROL).chain(OF_RUST) {
            let mut action = std::mem::MaybeUninit::<libc::sigaction>::uninit();
            // SAFETY: without a new action sigaction only writes the present action to the given place, which is read only if
            // the call reports success; then it is complete, and the default action is set in it, which is no function.
            unsafe {
                if libc::sigaction(signal as c_int, ptr::null(), action.as_mut_ptr()) != 0 {
                    continue;
                }
                let mut action = action.assume_init();
                if action.sa_sigaction != libc::SIG_IGN || signal == Signal::SIGPIPE {
                    action.sa_sigaction = libc::SIG_DFL;
                    libc::sigaction(signal as c_int, &raw const action, ptr::null_mut());
                }
            }
        }
    }

    /// The environment of this process with the changes of `command`.
    fn environment(command: &Command) -> io::Result<Vec<CString>> {
        let mut variables: BTreeMap<_, _> = env::vars_os().collect();
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => variables.insert(name.to_owned(), value.to_owned()),
                None => variables.remove(name),
            };
        }
        let line = |(name, value): (&std::ffi::OsString, &std::ffi::OsString)| {
            let parts: [&OsStr; 3] = [name, OsStr::new("="), value];
            CString::new(parts.map(OsStr::as_bytes).concat())
        };
        Ok(variables.iter().map(line).collect::<Result<_, _>>()?)
    }

    /// The list as C has it, which ends with a null pointer.
    fn pointers<'a>(strings: impl IntoIterator<Item = &'a CString>) -> Vec<*const c_char> {
        strings.into_iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect()
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use crate::signals::Signals;

        #[tokio::test]
        async fn every_signal_with_a_handler_is_known() {
            let mut signals = Signals::listen(&FROM_OTHERS).unwrap();
            signals.listen_also(&JOB_CONTROL).unwrap();
            let _children = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::child()).unwrap();
            let known: Vec<_> = FROM_OTHERS.into_iter().chain(JOB_CONTROL).chain(OF_RUST).collect();
            for signal in Signal::iterator().filter(|signal| !known.contains(signal)) {
                let mut action = std::mem::MaybeUninit::<libc::sigaction>::uninit();
                // SAFETY: without a new action sigaction only writes the present one to the given place; it reports no failure for a
                // signal that exists.
                let action = unsafe {
                    assert_eq!(libc::sigaction(signal as c_int, ptr::null(), action.as_mut_ptr()), 0);
                    action.assume_init()
                };
                assert!([libc::SIG_DFL, libc::SIG_IGN].contains(&action.sa_sigaction), "{signal}");
            }
        }
    }
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
