//! Signals for child processes.

use std::io;
use std::process::Child;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};

/// Suspends the process, and waits until it has stopped: the signal is sent immediately and takes effect later.
///
/// # Errors
/// When it has ended.
pub fn stop(child: &Child) -> io::Result<()> {
    let process = Pid::from_child(child);
    rustix::process::kill_process(process, Signal::STOP)?;
    // One that has ended is not reaped here: its handle would go on to signal its id.
    let changes = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    match rustix::process::waitid(WaitId::Pid(process), changes)? {
        Some(status) if status.stopped() => Ok(()),
        _ => Err(io::Error::other("the process has ended instead of stopping")),
    }
}

/// Resumes a stopped process.
///
/// # Errors
/// When it has ended.
pub fn resume(child: &Child) -> io::Result<()> {
    Ok(rustix::process::kill_process(Pid::from_child(child), Signal::CONT)?)
}
