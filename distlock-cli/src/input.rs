//! Waits for the end of standard input; its content does not matter.

use std::future::pending;
use std::io::{self, IsTerminal, Read};
use std::os::fd::AsFd;
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::sync::oneshot;

use crate::terminal::Terminal;

/// How long another process gets to read what the user typed for it.
const OTHERS_TURN: Duration = Duration::from_millis(200);

/// How standard input ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InputEnd {
    /// It was at its end when first read: it was not connected to anything that keeps it open.
    AtOnce,
    /// Another process had it open for a while.
    Later,
}

/// Waits until standard input is closed, and discards what arrives before.
///
/// # Cancel safety
/// A dropped future leaves a thread behind that continues to read.
pub(crate) async fn closes() -> InputEnd {
    let (sender, closed) = oneshot::channel();
    let reader = thread::Builder::new().name("standard input".to_owned()).spawn(move || {
        let _ = sender.send(read_to_end());
    });
    // Without a reader the lock is held until a signal arrives.
    match (reader, closed.await) {
        (Ok(_), Ok(end)) => end,
        _ => pending().await,
    }
}

fn read_to_end() -> InputEnd {
    let mut input = io::stdin().lock();
    let mut end = if is_readable(&input) { InputEnd::AtOnce } else { InputEnd::Later };
    let mut buffer = [0; 4096];
    loop {
        let mut ready = [PollFd::new(input.as_fd(), PollFlags::POLLIN)];
        match poll(&mut ready, PollTimeout::NONE) {
            // A process that reads from the terminal in the background is stopped, and could not renew its lock.
            Ok(_) if is_anothers_terminal() => {
                thread::sleep(OTHERS_TURN);
                continue;
            }
            Ok(_) => {}
            Err(Errno::EINTR) => continue,
            Err(_) => return end,
        }
        match input.read(&mut buffer) {
            Ok(0) => return end,
            Ok(_) => end = InputEnd::Later,
            // Another process may have taken what there was, from an input that does not block.
            Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {}
            Err(_) => return end,
        }
    }
}

fn is_readable(input: &impl AsFd) -> bool {
    let mut ready = [PollFd::new(input.as_fd(), PollFlags::POLLIN)];
    poll(&mut ready, PollTimeout::ZERO).is_ok_and(|count| count > 0)
}

fn is_anothers_terminal() -> bool {
    io::stdin().is_terminal() && Terminal::controlling().is_some_and(|terminal| !terminal.is_ours())
}
