//! A subject: a kind of server that is measured, with its contenders, its start, and its statistics. To add one, add a
//! module beside the others and a row in `main`.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use serde::Serialize;

use crate::aims::Aim;
use crate::contender::{Connecting, Contender, Echo, Target};
use crate::failure::Outcome;
use crate::plan::Workload;

pub(crate) struct Subject {
    /// The name on the command line.
    pub(crate) id: &'static str,
    pub(crate) title: &'static str,
    pub(crate) contenders: &'static [Contender],
    /// The contenders of the workload *tasks*.
    pub(crate) tasks: &'static [Contender],
    pub(crate) workloads: &'static [Workload],
    pub(crate) echoes: &'static [Echo],
    pub(crate) aims: &'static [Aim],
    /// Starts a server that ends when the returned value is dropped.
    pub(crate) start: fn() -> Outcome<Box<dyn Server>>,
    pub(crate) monitor: fn(Target) -> Connecting<Box<dyn ServerMonitor>>,
    /// How requests are counted if the server itself does not distinguish them.
    pub(crate) request_counter: Option<StartRequestCounter>,
    pub(crate) full: Sizes,
    pub(crate) quick: Sizes,
    /// How often distlock renews within a lease.
    pub(crate) renewals_in_a_lease: u32,
}

pub(crate) type StartRequestCounter = fn(&Target) -> Outcome<Box<dyn RequestCounter>>;

/// The extent of the measurements, unless the command line asks for another.
#[derive(Debug)]
pub(crate) struct Sizes {
    pub(crate) rounds: usize,
    pub(crate) lease: Duration,
    pub(crate) hand_off_clients: &'static [usize],
    /// The time that each client adds to a turn of hand-offs, so that every client gets its share of the lock.
    pub(crate) turn_for_a_client: Duration,
    pub(crate) holds: usize,
    pub(crate) waiters: usize,
    /// After this many renewal intervals, waiters have reached a steady state.
    pub(crate) renewals_until_settled: u32,
    /// For how many renewal intervals the cost of holds and waiters is observed.
    pub(crate) renewals_observed: u32,
}

/// A running server.
pub(crate) trait Server: Send {
    fn url(&self) -> String;

    fn process(&self) -> u32;
}

/// Observes the server from outside, over a connection that no contender uses.
#[async_trait]
pub(crate) trait ServerMonitor: Send {
    /// Returns name and version, for people.
    async fn describe(&mut self) -> Outcome<String>;

    async fn counters(&mut self) -> Outcome<Counters>;
}

/// A proxy in front of the server that counts every request by its kind. That takes time, so nothing is timed through
/// it.
pub(crate) trait RequestCounter: Send + Sync {
    fn url(&self) -> String;

    /// Returns how many requests of each kind have passed so far.
    fn requests(&self) -> BTreeMap<String, u64>;
}

/// What a server has done so far, without the requests of the monitor itself.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counters {
    pub(crate) commands: BTreeMap<String, Command>,
    pub(crate) connections: u64,
    /// Of the current threads.
    pub(crate) processor_seconds: f64,
    /// Including threads that have ended, but less precise; `None` if it is not needed or not known.
    pub(crate) coarse_processor_seconds: Option<f64>,
    /// The resident memory of the server; `None` if it is not known.
    pub(crate) resident_bytes: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub(crate) struct Command {
    pub(crate) calls: u64,
    /// The time that the server needed for them, in microseconds.
    pub(crate) microseconds: u64,
    pub(crate) sender: Sender,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Sender {
    /// Only clients send it.
    Client,
    /// A client or a script; the server does not distinguish them.
    #[default]
    Anyone,
}

/// The possible error of the less precise processor time, in seconds.
const COARSE: f64 = 0.03;

impl Counters {
    /// Returns what was done from `earlier` until now.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let difference = |(name, now): (&String, &Command)| {
            let before = earlier.commands.get(name).copied().unwrap_or_default();
            let calls = now.calls.saturating_sub(before.calls);
            let microseconds = now.microseconds.saturating_sub(before.microseconds);
            (calls > 0).then(|| (name.clone(), Command { calls, microseconds, ..*now }))
        };
        Self {
            commands: self.commands.iter().filter_map(difference).collect(),
            connections: self.connections.saturating_sub(earlier.connections),
            processor_seconds: self.processor_seconds_since(earlier),
            coarse_processor_seconds: None,
            resident_bytes: self
                .resident_bytes
                .zip(earlier.resident_bytes)
                .map(|(now, before)| now.saturating_sub(before)),
        }
    }

    /// The precise time, unless threads have ended meanwhile, which takes their time away from the count.
    fn processor_seconds_since(&self, earlier: &Self) -> f64 {
        let exact = self.processor_seconds - earlier.processor_seconds;
        let coarse = self.coarse_processor_seconds.zip(earlier.coarse_processor_seconds);
        match coarse.map(|(now, before)| now - before) {
            Some(coarse) if coarse - exact > COARSE => coarse,
            _ => exact.max(0.0),
        }
    }

    /// Returns what the server needed for that, in microseconds: for the commands of clients if it counts them,
    /// otherwise in total.
    pub(crate) fn microseconds(&self, own: &[&str]) -> f64 {
        if self.commands.values().all(|command| command.microseconds == 0) {
            return self.processor_seconds * 1e6;
        }
        #[expect(clippy::cast_precision_loss, reason = "a count of seconds of work")]
        let microseconds = self.sent_by_clients(own).microseconds as f64;
        microseconds
    }

    /// Returns the commands that clients sent: those that only clients send, and `own`.
    pub(crate) fn sent_by_clients(&self, own: &[&str]) -> Command {
        let sent = self
            .commands
            .iter()
            .filter(|(name, command)| command.sender == Sender::Client || own.contains(&name.as_str()));
        sent.fold(Command { sender: Sender::Client, ..Command::default() }, |sum, (_, command)| Command {
            calls: sum.calls + command.calls,
            microseconds: sum.microseconds + command.microseconds,
            ..sum
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(commands: &[(&str, u64, Sender)]) -> Counters {
        let command = |calls, sender| Command { calls, microseconds: calls * 2, sender };
        let commands =
            commands.iter().map(|&(name, calls, sender)| (name.to_owned(), command(calls, sender)));
        Counters { commands: commands.collect(), ..Counters::default() }
    }

    #[test]
    fn what_ended_threads_have_done_is_not_forgotten() {
        let at = |exact, coarse| Counters {
            processor_seconds: exact,
            coarse_processor_seconds: Some(coarse),
            ..Counters::default()
        };
        let done = |before: &Counters, after: &Counters| after.since(before).processor_seconds;
        assert!((done(&at(5.0, 7.0), &at(5.012, 7.02)) - 0.012).abs() < 1e-9);
        assert!((done(&at(5.0, 7.0), &at(3.0, 7.5)) - 0.5).abs() < 1e-9);
    }

    #[test]
    fn what_scripts_call_does_not_count_as_a_clients() {
        let before = counters(&[("evalsha", 1, Sender::Client), ("set", 5, Sender::Anyone)]);
        let after = counters(&[
            ("evalsha", 4, Sender::Client),
            ("set", 9, Sender::Anyone),
            ("get", 7, Sender::Anyone),
        ]);
        let done = after.since(&before);
        assert_eq!(done.sent_by_clients(&[]).calls, 3);
        assert_eq!(done.sent_by_clients(&["set"]).calls, 3 + 4);
        assert_eq!(done.sent_by_clients(&["set"]).microseconds, 2 * (3 + 4));
    }
}
