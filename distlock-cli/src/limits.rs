//! Checks the limits of the system: open files, processes and memory.

use std::io;

use nix::errno::Errno;
use rustix::io::fcntl_dupfd_cloexec;

use crate::exit::{self, Failure};

/// What the user can do when a limit is reached.
pub(crate) const REMEDY: &str = "a limit of the system is reached: raise it with `ulimit -n` for open files or `ulimit -u` for processes, or free some";

/// How many descriptors distlock needs beside those it is started with: for the runtime and its signals, the backend, the
/// terminal, and the start of the child.
const DESCRIPTORS: i32 = 20;

/// Makes sure that there are enough descriptors before anything begins: the runtime and its signals panic if none is
/// free, and without enough of them no command could run under the lock.
pub(crate) fn check() -> Result<(), Failure> {
    // Standard input is open in any case: if it was closed, it was opened at the start. Usually the limit is far
    // away, and one call shows it: of the numbers below this one, at most two thirds are taken.
    if fcntl_dupfd_cloexec(io::stdin(), 3 * DESCRIPTORS).is_ok() {
        return Ok(());
    }
    let taken: io::Result<Vec<_>> =
        (0..DESCRIPTORS).map(|_| Ok(fcntl_dupfd_cloexec(io::stdin(), 0)?)).collect();
    taken.map(drop).map_err(|error| {
        Failure::new(exit::INTERNAL, format!("cannot open the files that distlock needs: {error} ({REMEDY})"))
    })
}

/// Whether an error means that a limit of the system is reached.
pub(crate) fn is_reached(error: &io::Error) -> bool {
    let number = error.raw_os_error().map(Errno::from_raw);
    matches!(number, Some(Errno::EMFILE | Errno::ENFILE | Errno::EAGAIN | Errno::ENOMEM))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_no_property_of_the_program() {
        for (number, reached) in [
            (Errno::EMFILE, true),
            (Errno::ENFILE, true),
            (Errno::EAGAIN, true),
            (Errno::ENOMEM, true),
            (Errno::EACCES, false),
            (Errno::ENOENT, false),
        ] {
            assert_eq!(is_reached(&number.into()), reached, "{number}");
        }
    }
}
