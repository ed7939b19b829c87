//! The options of the command line, and the extent of the measurements that follows from them.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use crate::contender::{Contender, Driving, Family, Target, Waits};
use crate::distlock;
use crate::runtimes::RuntimeKind;
use crate::scenario::Scenario;
use crate::subject::Subject;

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Workload {
    /// One client acquires and releases
    Cycle,
    /// Many clients contend for one lock
    #[value(name = "handoff", alias = "hand-off")]
    HandOff,
    /// Clients read and write, or take permits, beside each other
    Sharing,
    /// Many tasks of one client contend for one lock
    Tasks,
    /// The command runs a program under a lock
    Exec,
}

impl Workload {
    pub(crate) const ALL: [Self; 5] = [Self::Cycle, Self::HandOff, Self::Sharing, Self::Tasks, Self::Exec];
}

/// Where the work of distlock runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum EngineChoice {
    /// On a thread of its own, the default of distlock
    Own,
    /// On the caller's runtime
    Caller,
}

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The server; without it one is started on a free port and ended with the run
    #[arg(long, value_name = "URL", env = "LOCK_BENCH_URL", hide_env_values = true)]
    pub(crate) url: Option<String>,

    /// What to measure, if the server has it
    #[arg(
        long,
        value_name = "NAMES",
        value_enum,
        value_delimiter = ',',
        default_value = "cycle,handoff,sharing,tasks,exec"
    )]
    workload: Vec<Workload>,

    /// Which engines of distlock, and the raw commands that are driven in the same way
    #[arg(long, value_name = "NAMES", value_enum, value_delimiter = ',', default_value = "own,caller")]
    engine: Vec<EngineChoice>,

    /// Which runtimes everything but exec is measured on
    #[arg(
        long,
        value_name = "NAMES",
        value_enum,
        value_delimiter = ',',
        default_value = "current_thread,multi_thread"
    )]
    runtime: Vec<RuntimeKind>,

    /// Only these contenders, by their short names
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    contender: Vec<String>,

    /// How many clients hand on one lock [default: the server's, 2, 16 and 64]
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',')]
    clients: Vec<usize>,

    /// How often each contender has its turn [default: the server's, 3 to 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: Option<u16>,

    /// The lease of every lock [default: the server's, 10s to 30s]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    lease: Option<Duration>,

    /// Hand-off, sharing and tasks: how long a client keeps the lock
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration, default_value = "0s")]
    hold: Duration,

    /// Hand-off, sharing and tasks: how long a client pauses before it wants the lock again
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration, default_value = "0s")]
    think: Duration,

    /// Exec: the command distlock [default: the one beside lock-bench]
    #[arg(long, value_name = "FILE")]
    pub(crate) distlock: Option<PathBuf>,

    /// Less of everything, to see that it runs; the figures say little
    #[arg(long)]
    quick: bool,

    /// Writes all figures to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// Writes a page with plots to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}

/// What is measured, in how many rounds, and for how long.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) target: Target,
    pub(crate) workloads: Vec<Workload>,
    pub(crate) runtimes: Vec<RuntimeKind>,
    pub(crate) rounds: usize,
    pub(crate) lengths: Lengths,
    pub(crate) contenders: Vec<Contender>,
    clients: Vec<usize>,
    most_tasks: usize,
}

/// How long the turns are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lengths {
    /// Of one client. Short, and there are several in a round: the other load on the machine changes within a second, and
    /// should affect both sides of a ratio.
    pub(crate) cycle: Duration,
    pub(crate) cycles_in_a_round: usize,
    pub(crate) cycles_before: usize,
    /// A turn of many clients begins when every one has had the lock twice, or after this time.
    pub(crate) warm_up: Duration,
    pub(crate) turn: Duration,
    pub(crate) turn_for_a_client: Duration,
    pub(crate) hold: Duration,
    pub(crate) think: Duration,
    /// How often a command runs in a round.
    pub(crate) commands: usize,
}

impl Plan {
    pub(crate) fn new(subject: &Subject, url: String, options: &Options) -> Self {
        let (sizes, full) = (&subject.sizes, !options.quick);
        let lease = options.lease.unwrap_or(sizes.lease);
        let all = distlock::CONTENDERS.iter().chain(subject.contenders);
        let time =
            |full_length, quick_length| Duration::from_millis(if full { full_length } else { quick_length });
        let chosen = subject.workloads.iter().filter(|workload| options.workload.contains(workload));
        Self {
            target: Target { url, lease, lease_option: subject.lease_option },
            workloads: chosen.copied().collect(),
            runtimes: options.runtime.clone(),
            rounds: options.rounds.map_or(if full { sizes.rounds } else { 2 }, usize::from),
            lengths: Lengths {
                cycle: time(100, 40),
                cycles_in_a_round: if full { 4 } else { 1 },
                cycles_before: if full { 50 } else { 20 },
                warm_up: time(500, 100),
                turn: time(250, 60) + (options.hold + options.think) * 20,
                turn_for_a_client: if full { sizes.turn_for_a_client } else { Duration::ZERO },
                hold: options.hold,
                think: options.think,
                commands: if full { 50 } else { 3 },
            },
            contenders: all.filter(|contender| options.include(contender)).cloned().collect(),
            clients: if options.clients.is_empty() {
                sizes.clients.iter().copied().filter(|&clients| full || clients <= 16).collect()
            } else {
                options.clients.clone()
            },
            most_tasks: if full { 20_000 } else { 500 },
        }
    }

    /// What is measured, by which of the contenders.
    pub(crate) fn turns(&self, workload: Workload) -> Vec<(Contender, Scenario)> {
        let mut turns = Vec::new();
        for contender in &self.contenders {
            for scenario in self.scenarios(workload, contender) {
                turns.push((contender.clone(), scenario));
            }
        }
        turns
    }

    fn scenarios(&self, workload: Workload, contender: &Contender) -> Vec<Scenario> {
        match (workload, contender.waits) {
            (Workload::Cycle, Waits::ForTheLock | Waits::NotAtAll) => vec![Scenario::cycle()],
            (Workload::HandOff, Waits::NotAtAll) if contender.family == Family::Echo => {
                vec![Scenario::echo()]
            }
            (Workload::HandOff, Waits::ForTheLock) => {
                self.clients.iter().map(|&clients| Scenario::hand_off(clients)).collect()
            }
            (Workload::Sharing, Waits::ForTheLock) => {
                Scenario::sharing(self.clients.iter().copied().max().unwrap_or(1))
            }
            (Workload::Tasks, _) if contender.family == Family::Distlock => Scenario::tasks(self.most_tasks),
            _ => Vec::new(),
        }
    }
}

impl Options {
    fn include(&self, contender: &Contender) -> bool {
        let named = self.contender.is_empty() || self.contender.iter().any(|only| only == contender.id);
        let engine = match contender.driving {
            Driving::Caller => EngineChoice::Caller,
            Driving::OtherThread => EngineChoice::Own,
        };
        named && (contender.family == Family::Peer || self.engine.contains(&engine))
    }
}

/// The maximum time that all clients together add to a turn.
const LONGEST_FOR_ALL: Duration = Duration::from_secs(3);

impl Lengths {
    /// How long the measurement of a turn lasts.
    pub(crate) fn of(&self, scenario: &Scenario) -> Duration {
        let clients = if scenario.workload == Workload::Tasks { 0 } else { scenario.clients };
        let for_all = self.turn_for_a_client * u32::try_from(clients).unwrap_or(u32::MAX);
        self.turn + for_all.min(LONGEST_FOR_ALL)
    }
}
