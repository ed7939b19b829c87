//! Receives the signals that distlock handles.

use std::future::poll_fn;
use std::io;
use std::task::Poll;
use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::signal::unix::{self, SignalKind};
use tokio::time::{Instant, sleep_until};

use crate::system::{self, Reach};

/// Signals by which other processes end distlock, or notify the program under the lock.
pub(crate) const FROM_OTHERS: [Signal; 6] =
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGUSR1, Signal::SIGUSR2];

/// Signals that stop and continue; handled once there is a child that has to follow.
pub(crate) const JOB_CONTROL: [Signal; 2] = [Signal::SIGTSTP, Signal::SIGCONT];

/// Signals that end a program, unless it handles them.
const ENDING: [Signal; 4] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT];

/// How long an orderly end may take after a signal asked for it.
const LEAVE_WITHIN: Duration = Duration::from_secs(2);

/// Receives signals in place of their default actions.
#[derive(Debug)]
pub(crate) struct Signals {
    streams: Vec<(Signal, unix::Signal)>,
    /// When a signal asked distlock to end.
    asked: Option<Instant>,
}

impl Signals {
    /// Listens to `signals`, except those that the parent process set to be ignored.
    pub(crate) fn listen(signals: &[Signal]) -> io::Result<Self> {
        let mut listening = Self { streams: Vec::new(), asked: None };
        listening.listen_also(signals)?;
        Ok(listening)
    }

    /// Listens to more signals, with the same exception. Those that it listens to already count once.
    pub(crate) fn listen_also(&mut self, signals: &[Signal]) -> io::Result<()> {
        for &signal in signals {
            let is_known = self.streams.iter().any(|(known, _)| *known == signal);
            if !is_known && !system::is_ignored(signal) {
                self.streams.push((signal, unix::signal(SignalKind::from_raw(signal as i32))?));
            }
        }
        Ok(())
    }

    /// Waits for the next signal.
    ///
    /// # Cancel safety
    /// A signal is either returned or left for the next call.
    pub(crate) async fn next(&mut self) -> Signal {
        poll_fn(|context| {
            for (signal, stream) in &mut self.streams {
                if stream.poll_recv(context).is_ready() {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Waits, while no command runs, for the next signal. Those of job control have their default effect.
    ///
    /// # Cancel safety
    /// A signal is either returned or left for the next call.
    pub(crate) async fn next_without_command(&mut self) -> Signal {
        loop {
            match self.next().await {
                Signal::SIGTSTP => {
                    // Fails only for signals that do not exist.
                    let _ = system::raise_default(Signal::SIGTSTP, Reach::Process);
                }
                Signal::SIGCONT => {}
                signal => return signal,
            }
        }
    }

    /// Notes that a signal ended the command's purpose: the remaining steps get little time from now on.
    pub(crate) fn ask_to_end(&mut self) {
        self.asked.get_or_insert_with(Instant::now);
    }

    /// Whether a signal ended the command's purpose.
    pub(crate) fn is_asked_to_end(&self) -> bool {
        self.asked.is_some()
    }

    /// Runs a step of an orderly end. Returns `None` if it takes too long: two seconds after a signal asked distlock to end,
    /// and at once when another one arrives.
    ///
    /// # Cancel safety
    /// The future may be dropped at any time, and the step with it.
    pub(crate) async fn leaving<T>(&mut self, step: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            done = step => Some(done),
            () = self.patience_ends() => None,
        }
    }

    async fn patience_ends(&mut self) {
        if self.asked.is_none() {
            self.next_that_ends().await;
        }
        let asked = *self.asked.get_or_insert_with(Instant::now);
        tokio::select! {
            () = sleep_until(asked + LEAVE_WITHIN) => {}
            () = self.next_that_ends() => {}
        }
    }

    /// Waits for a signal that ends distlock.
    ///
    /// # Cancel safety
    /// A signal is either received or left for the next call.
    pub(crate) async fn next_that_ends(&mut self) {
        while !ENDING.contains(&self.next().await) {}
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[tokio::test]
    async fn an_orderly_end_has_its_time_after_a_signal_and_none_after_another() {
        let mut signals = Signals::listen(&[Signal::SIGTERM]).expect("signals can be received");
        let now = Instant::now();
        signals.asked = now.checked_sub(LEAVE_WITHIN);
        assert_eq!(signals.leaving(async { 7 }).await, Some(7));
        assert_eq!(signals.leaving(pending::<()>()).await, None);

        signals.asked = Some(now + HOUR);
        nix::sys::signal::raise(Signal::SIGTERM).expect("it is received");
        assert_eq!(signals.leaving(pending::<()>()).await, None);
    }
}
