//! Standard input, of which only its end matters.

use std::io::{self, IsTerminal, Read};
use std::os::fd::AsFd;
use std::thread;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use crate::terminal::Terminal;

/// Waits until standard input has been closed; what comes in before is thrown away.
///
/// # Cancel safety
/// Dropped, it leaves a thread behind that goes on reading.
pub(crate) async fn closes() {
    loop {
        if wait_for_foreground().await.is_err() {
            return std::future::pending().await;
        }
        match read_to_end_on_thread().await {
            Ended::Closed => return,
            Ended::Background => {}
        }
    }
}

/// Why the reader stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    /// There is nothing more to come.
    Closed,
    /// The terminal is another job's now; who reads from it in the background is stopped, and its lock with it.
    Background,
}

async fn wait_for_foreground() -> io::Result<()> {
    // A shell continues the job that it puts into the foreground.
    let mut continued = signal(SignalKind::from_raw(nix::libc::SIGCONT))?;
    while is_anothers_terminal() {
        continued.recv().await;
    }
    Ok(())
}

fn is_anothers_terminal() -> bool {
    io::stdin().is_terminal() && Terminal::controlling().is_some_and(|terminal| !terminal.is_ours())
}

async fn read_to_end_on_thread() -> Ended {
    let (sender, receiver) = oneshot::channel();
    let reader = thread::Builder::new().name("standard input".to_owned()).spawn(move || {
        let _ = sender.send(read_to_end());
    });
    match reader {
        Ok(_) => receiver.await.unwrap_or(Ended::Closed),
        // Without a reader the lock is held until a signal comes.
        Err(_) => std::future::pending().await,
    }
}

fn read_to_end() -> Ended {
    let mut input = io::stdin().lock();
    let mut buffer = [0; 4096];
    loop {
        let mut ready = [PollFd::new(input.as_fd(), PollFlags::POLLIN)];
        match poll(&mut ready, PollTimeout::NONE) {
            Ok(_) if is_anothers_terminal() => return Ended::Background,
            Ok(_) => {}
            Err(Errno::EINTR) => continue,
            Err(_) => return Ended::Closed,
        }
        match input.read(&mut buffer) {
            Ok(0) => return Ended::Closed,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return Ended::Closed,
        }
    }
}
