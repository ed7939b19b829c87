//! The controlling terminal, and the process group in its foreground.

use std::fs::OpenOptions;
use std::io::{self, IsTerminal};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;

use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::{self, SigSet, SigmaskHow, Signal};
use nix::unistd::{self, Pid};

/// The terminal that controls this process.
#[derive(Debug, Clone)]
pub(crate) struct Terminal(Arc<OwnedFd>);

impl Terminal {
    /// The controlling terminal, if there is one.
    pub(crate) fn controlling() -> Option<Self> {
        let device =
            OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOCTTY).open("/dev/tty").ok()?;
        Some(Self(Arc::new(device.into())))
    }

    pub(crate) fn descriptor(&self) -> &Arc<OwnedFd> {
        &self.0
    }

    /// Whether this process's group is in the foreground.
    pub(crate) fn is_ours(&self) -> bool {
        self.foreground() == Some(unistd::getpgrp())
    }

    /// Puts a process group into the foreground.
    pub(crate) fn give_to(&self, group: Pid) -> nix::Result<()> {
        let mut background_output = SigSet::empty();
        background_output.add(Signal::SIGTTOU);
        let previous = background_output.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
        let given = unistd::tcsetpgrp(&self.0, group);
        previous.thread_set_mask()?;
        given
    }

    /// Puts this process's group into the foreground in place of `group`, unless another group is there by now.
    pub(crate) fn take_back_from(&self, group: Pid) {
        let Some(foreground) = self.foreground() else {
            return;
        };
        if foreground == group || is_gone(foreground) {
            // The terminal may have been hung up; then there is no foreground to return to.
            let _ = self.give_to(unistd::getpgrp());
        }
    }

    fn foreground(&self) -> Option<Pid> {
        unistd::tcgetpgrp(&self.0).ok()
    }
}

/// Whether no process is left in `group`.
pub(crate) fn is_gone(group: Pid) -> bool {
    signal::killpg(group, None) == Err(Errno::ESRCH)
}

/// Whether a user both types to the command and reads its output on the terminal, as with a command that runs alone.
///
/// In a pipeline others use the terminal too, a pager for example.
pub(crate) fn is_interactive() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}
