//! The signals that the command listens to.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use nix::sys::signal::Signal;
use tokio::signal::unix::{self, SignalKind};

use crate::system;

/// Signals by which others end the command, or tell it something that is meant for the program it runs.
pub(crate) const FROM_OTHERS: [Signal; 6] =
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGUSR1, Signal::SIGUSR2];

/// Signals that stop and continue; listened to once there is a child that has to follow.
pub(crate) const JOB_CONTROL: [Signal; 2] = [Signal::SIGTSTP, Signal::SIGCONT];

/// Receives signals in place of their default actions.
#[derive(Debug)]
pub(crate) struct Signals(Vec<(Signal, unix::Signal)>);

impl Signals {
    /// Listens to `signals`, except to those that whoever started the command chose to ignore.
    pub(crate) fn listen(signals: &[Signal]) -> io::Result<Self> {
        let mut listening = Self(Vec::new());
        listening.listen_also(signals)?;
        Ok(listening)
    }

    /// Listens to more signals, with the same exception.
    pub(crate) fn listen_also(&mut self, signals: &[Signal]) -> io::Result<()> {
        for &signal in signals {
            if !system::is_ignored(signal) {
                self.0.push((signal, unix::signal(SignalKind::from_raw(signal as i32))?));
            }
        }
        Ok(())
    }

    /// Waits for the next signal.
    ///
    /// # Cancel safety
    /// A signal is either answered or left for the next call.
    pub(crate) async fn next(&mut self) -> Signal {
        poll_fn(|context| {
            for (signal, stream) in &mut self.0 {
                if stream.poll_recv(context).is_ready() {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await
    }
}
