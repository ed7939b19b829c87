//! Lines that are printed as something happens, until a signal ends that or the reader goes.

use std::future::pending;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::thread;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;

use crate::exit::{self, Ending, Failure};
use crate::signals::Signals;

/// Prints until a signal ends it, or until the reader of standard output has gone.
pub(crate) async fn until_unwanted(
    signals: &mut Signals,
    printing: impl Future<Output = Result<(), Failure>>,
) -> Result<Ending, Failure> {
    tokio::select! {
        biased;
        () = signals.next_that_ends() => signals.ask_to_end(),
        () = reader_goes() => {}
        printed = printing => printed?,
    }
    Ok(Ending::Code(exit::SUCCESS))
}

/// Waits until the reader of standard output has gone. A dropped future leaves a thread behind.
async fn reader_goes() {
    let (sender, gone) = oneshot::channel();
    let watching = thread::Builder::new().name("standard output".to_owned()).spawn(move || {
        let output = io::stdout();
        // Without an event to wait for, poll reports errors alone: that the other end is closed.
        let mut errors = [PollFd::new(output.as_fd(), PollFlags::empty())];
        while poll(&mut errors, PollTimeout::NONE) == Err(Errno::EINTR) {}
        let _ = sender.send(());
    });
    if watching.is_err() || gone.await.is_err() {
        pending::<()>().await;
    }
}

/// Writes on another thread: a full pipe must not keep a signal from ending this. Returns whether there is a reader.
pub(crate) async fn print(line: String) -> Result<bool, Failure> {
    let write = move || {
        let mut output = io::stdout();
        output.write_all(line.as_bytes()).and_then(|()| output.flush())
    };
    match spawn_blocking(write).await.map_err(io::Error::other).and_then(|written| written) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        written => written.map(|()| true).map_err(|error| Failure::of_system("write", error)),
    }
}
