//! How distlock ends: the table of its exit codes.

use std::process;

use distlock::{ErrorKind, LockError};
use nix::sys::signal::Signal;

use crate::system::{self, Reach};

/// Success.
pub(crate) const SUCCESS: u8 = 0;
/// `doctor` has found nothing that fails, and something to know.
pub(crate) const WARNINGS: u8 = 1;
/// Bad usage, a bad URL or option, or something that the backend cannot do (`EX_USAGE`).
pub(crate) const USAGE: u8 = 64;
/// The backend cannot be reached (`EX_UNAVAILABLE`).
pub(crate) const UNREACHABLE: u8 = 69;
/// Any other error in distlock itself or at the server (`EX_SOFTWARE`).
pub(crate) const INTERNAL: u8 = 70;
/// The lock could not be acquired in time, or was not taken away (`EX_TEMPFAIL`).
pub(crate) const CONFLICT: u8 = 75;
/// The lock was lost, and the command that ran under it has ended (`EX_PROTOCOL`).
pub(crate) const LOST: u8 = 76;
/// Access was refused (`EX_NOPERM`).
pub(crate) const DENIED: u8 = 77;
/// The command exists but cannot be run, as in shells.
pub(crate) const NOT_RUNNABLE: u8 = 126;
/// The command was not found, as in shells.
pub(crate) const NOT_FOUND: u8 = 127;

/// The exit code for an error of the library.
fn code_of(kind: ErrorKind) -> u8 {
    match kind {
        ErrorKind::InvalidName | ErrorKind::InvalidOption | ErrorKind::Unsupported => USAGE,
        ErrorKind::Unreachable => UNREACHABLE,
        ErrorKind::Denied => DENIED,
        ErrorKind::Lost => LOST,
        ErrorKind::Busy => CONFLICT,
        _ => INTERNAL,
    }
}

/// How distlock ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// With an exit code.
    Code(u8),
    /// With 128 + the number of a signal.
    Signal(i32),
    /// By the signal of Ctrl-C itself, so that the shell knows that the user wants to end the whole loop or script. The shell
    /// still sees 128 + 2.
    Interrupted(Reach),
}

impl Ending {
    /// Ends the process.
    pub(crate) fn exit(self) -> ! {
        if let Self::Interrupted(reach) = self {
            // Returns only if the signal cannot end the process, such as the first one of a container.
            let _ = system::raise_default(Signal::SIGINT, reach);
        }
        process::exit(self.code().into())
    }

    /// The exit code that a shell sees.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => code_of_signal(signal),
            Self::Interrupted(_) => code_of_signal(Signal::SIGINT as i32),
        }
    }
}

fn code_of_signal(signal: i32) -> u8 {
    u8::try_from(signal).map_or(INTERNAL, |number| number.saturating_add(128))
}

/// Why distlock has not done what the user asked for.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The exit code.
    pub(crate) code: u8,
    /// What failed, why, and what to do next.
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// A refusal by the operating system.
    pub(crate) fn of_system(what: &str, error: impl std::fmt::Display) -> Self {
        Self::new(INTERNAL, format!("cannot {what}: {error}"))
    }
}

impl From<LockError> for Failure {
    fn from(error: LockError) -> Self {
        Self::new(code_of(error.kind()), error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_128_and_its_number() {
        assert_eq!(Ending::Signal(Signal::SIGTERM as i32).code(), 143);
        assert_eq!(Ending::Interrupted(Reach::Process).code(), 130);
    }

    #[test]
    fn each_kind_of_error_has_the_code_of_the_table() {
        let table = [
            (ErrorKind::InvalidName, 64),
            (ErrorKind::InvalidOption, 64),
            (ErrorKind::Unsupported, 64),
            (ErrorKind::Unreachable, 69),
            (ErrorKind::Unconfirmed, 70),
            (ErrorKind::Closed, 70),
            (ErrorKind::Server, 70),
            (ErrorKind::Internal, 70),
            (ErrorKind::NotOwner, 70),
            (ErrorKind::NoOwner, 70),
            (ErrorKind::Deadlock, 70),
            (ErrorKind::Busy, 75),
            (ErrorKind::Lost, 76),
            (ErrorKind::Denied, 77),
        ];
        for (kind, code) in table {
            assert_eq!(code_of(kind), code, "{kind:?}");
        }
    }
}
