//! A subject: a kind of server that is measured. To add one, add a module beside the others and a row in `main`.

use std::process::Command;
use std::time::Duration;

use crate::aims::Aim;
use crate::contender::Contender;
use crate::failure::Outcome;
use crate::plan::Workload;

pub(crate) struct Subject {
    pub(crate) title: &'static str,
    /// What distlock is measured beside.
    pub(crate) contenders: &'static [Contender],
    pub(crate) workloads: &'static [Workload],
    pub(crate) aims: &'static [Aim],
    /// The name of the lease option in a URL of distlock; `None` without leases.
    pub(crate) lease_option: Option<&'static str>,
    pub(crate) sizes: Sizes,
    /// Starts a server that ends when the returned value is dropped.
    pub(crate) start: fn() -> Outcome<Box<dyn Server>>,
    /// The command that others use at such a server.
    pub(crate) command: Option<OtherCommand>,
}

/// A name, and the command that runs `true` under a lock of the server at this URL.
pub(crate) type OtherCommand = (&'static str, fn(&str) -> Outcome<Command>);

/// The extent of the measurements, unless the command line asks for another.
#[derive(Debug)]
pub(crate) struct Sizes {
    pub(crate) rounds: usize,
    pub(crate) lease: Duration,
    /// How many clients hand on one lock.
    pub(crate) clients: &'static [usize],
    /// The time that each client adds to a turn, so that every client gets its share of the lock.
    pub(crate) turn_for_a_client: Duration,
}

impl Sizes {
    pub(crate) const USUAL: Self = Self {
        rounds: 5,
        lease: Duration::from_secs(30),
        clients: &[2, 16, 64],
        turn_for_a_client: Duration::from_millis(7),
    };
}

/// A running server.
pub(crate) trait Server: Send {
    fn url(&self) -> String;
}
