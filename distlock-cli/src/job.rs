//! Job control: the child stops and continues as if the shell had started it directly.
//!
//! The shell knows only distlock's process group; the child has one of its own, so that it can be ended as a whole. When the
//! child stops, distlock's group stops in the same way, so that the shell notices. When the shell continues distlock, the child
//! gets the terminal back and is continued. A stopped distlock does not renew its lease, so all processes that run under one
//! stop as well, wherever they are.
//!
//! Without a terminal, distlock stays awake: there is no shell to notice, and a process that stops itself cannot rule out that
//! the signal that continues it came a moment earlier. It would then stay stopped and keep the lock.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::child::Child;
use crate::system::{self, Reach};
use crate::terminal::{self, Terminal};

/// The child's place on the terminal.
#[derive(Debug)]
pub(crate) struct Job {
    terminal: Option<Terminal>,
    ground: Ground,
    /// A request to stop came from outside the child.
    stop_requested: bool,
    /// The child was stopped, and another process must continue it.
    left_stopped: bool,
}

/// Whether the child's group is in the foreground.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ground {
    Foreground,
    Background,
}

/// What stops with the child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Following {
    /// distlock, and all descendants of the child.
    Everything,
    /// distlock alone.
    Us,
    /// Nothing: distlock has to stay awake to end the child.
    Nothing,
}

/// What to do after the child has stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AfterStop {
    /// Continue it.
    Continue,
    /// Leave it to the process that stopped the child to continue it.
    Leave,
}

impl Job {
    /// Determines the place of a child that is about to start.
    ///
    /// It is the foreground if distlock is there and the terminal is its standard input and output. In a pipeline other
    /// programs use the terminal as well; then the child gets it when it asks for it.
    pub(crate) fn new() -> Self {
        let terminal = Terminal::controlling();
        let ours = terminal.as_ref().is_some_and(Terminal::is_ours);
        let ground = if ours && terminal::is_interactive() { Ground::Foreground } else { Ground::Background };
        Self { terminal, ground, stop_requested: false, left_stopped: false }
    }

    /// The terminal, if the child is to start in its foreground.
    pub(crate) fn foreground_at_start(&self) -> Option<&Terminal> {
        self.terminal.as_ref().filter(|_| self.ground == Ground::Foreground)
    }

    /// Passes a request to stop on to the child; on a terminal, distlock follows when the child stops.
    pub(crate) fn request_stop(&mut self, child: &Child) {
        self.stop_requested = true;
        child.signal_group(Signal::SIGTSTP);
    }

    /// Takes back a request to stop: distlock was continued before the child has stopped. Returns whether there was one.
    pub(crate) fn take_back_stop(&mut self) -> bool {
        std::mem::take(&mut self.stop_requested)
    }

    /// Whether the child was left stopped the last time.
    pub(crate) fn has_left_child_stopped(&self) -> bool {
        self.left_stopped
    }

    /// Handles a child that `signal` has stopped. Returns when the child is to be continued or left alone.
    pub(crate) fn child_stopped(
        &mut self,
        child: &mut Child,
        signal: Signal,
        following: Following,
    ) -> AfterStop {
        let after = self.follow(child, signal, following);
        self.left_stopped = after == AfterStop::Leave;
        after
    }

    fn follow(&mut self, child: &mut Child, signal: Signal, following: Following) -> AfterStop {
        let wants_terminal = matches!(signal, Signal::SIGTTIN | Signal::SIGTTOU);
        if wants_terminal && self.give_terminal(child) {
            return AfterStop::Continue;
        }
        if following == Following::Nothing {
            // A child that does not get the terminal would ask for it endlessly.
            return if wants_terminal { AfterStop::Leave } else { AfterStop::Continue };
        }
        self.take_terminal_back(child);
        self.stop_requested = false;
        if self.terminal.is_none() {
            return AfterStop::Leave;
        }
        if following == Following::Everything {
            child.stop_rest();
        }
        let stopped_for = stop(mirrored(signal));
        let terminal_is_ours = self.give_terminal(child);
        if wants_terminal && !terminal_is_ours && stopped_for < SHORTEST_STOP {
            // No shell stops and continues distlock's group. The child would ask for the terminal endlessly.
            return AfterStop::Leave;
        }
        AfterStop::Continue
    }

    /// After the end of the child, gives the terminal back to distlock's own group. Returns which other processes a Ctrl-C that
    /// ended the child should have reached, if keys went to the child alone.
    pub(crate) fn child_ended(&mut self, child: &Child) -> Option<Reach> {
        let had_terminal = self.ground == Ground::Foreground;
        self.take_terminal_back(child);
        had_terminal.then_some(Reach::Group)
    }

    /// Puts the child into the foreground, if distlock's group is there now.
    fn give_terminal(&mut self, child: &mut Child) -> bool {
        let Some(terminal) = self.terminal.as_ref().filter(|terminal| terminal.is_ours()) else {
            return false;
        };
        let given = terminal.give_to(child.pid()).is_ok();
        if given {
            self.ground = Ground::Foreground;
            child.watch_for_interrupts();
        }
        given
    }

    fn take_terminal_back(&mut self, child: &Child) {
        if let (Some(terminal), Ground::Foreground) = (&self.terminal, self.ground) {
            terminal.take_back_from(child.pid());
            self.ground = Ground::Background;
        }
    }
}

/// A shorter stop did not happen: the system does not stop a group that no shell could continue.
const SHORTEST_STOP: Duration = Duration::from_millis(5);

/// Stops the group of this process, and returns how long it was stopped.
fn stop(signal: Signal) -> Duration {
    let begun = Instant::now();
    // This fails only for signals that do not exist.
    let _ = system::raise_default(signal, Reach::Group);
    begun.elapsed()
}

/// The signal by which distlock stops after `signal` stopped the child. SIGSTOP would stop even a group that no shell can
/// continue.
fn mirrored(signal: Signal) -> Signal {
    if signal == Signal::SIGSTOP { Signal::SIGTSTP } else { signal }
}
