//! The extent of the measurements: every workload is limited in count and in time.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::contender::{Contender, Driving, Family, Target};
use crate::runtimes::RuntimeKind;
use crate::subject::Subject;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Workload {
    /// One client acquires and releases
    Cycle,
    /// Many clients contend for one lock
    #[value(name = "handoff", alias = "hand-off")]
    HandOff,
    /// One client holds very many locks
    Many,
    /// Very many clients wait for one lock
    Waiting,
    /// Clients read and write, or take permits, beside each other
    Sharing,
    /// Many tasks of one client contend for one lock
    Tasks,
    /// The command runs a program under a lock
    Exec,
}

impl Workload {
    pub(crate) const AT_A_SERVER: &[Self] =
        &[Self::Cycle, Self::HandOff, Self::Many, Self::Waiting, Self::Sharing, Self::Tasks];
}

/// Where the work of distlock runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum EngineChoice {
    /// On a thread of its own, the default of distlock
    Own,
    /// On the caller's runtime
    Caller,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    Full,
    Quick,
}

/// What is measured, in how many rounds, and for how long.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Plan {
    #[serde(skip)]
    pub(crate) target: Target,
    #[serde(skip)]
    pub(crate) contenders: Vec<&'static Contender>,
    pub(crate) workloads: Vec<Workload>,
    pub(crate) runtimes: Vec<RuntimeKind>,
    pub(crate) rounds: usize,
    #[serde(rename = "lease_ms", with = "milliseconds")]
    pub(crate) lease: Duration,
    pub(crate) cycle: CyclePlan,
    pub(crate) hand_off: HandOffPlan,
    pub(crate) many: ManyPlan,
    pub(crate) waiting: WaitingPlan,
    /// Reports of earlier versions have none, nor the next.
    #[serde(default)]
    pub(crate) tasks: TasksPlan,
    #[serde(default)]
    pub(crate) exec: ExecPlan,
}

/// A contender's turn in one round ends at the first of its limits.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct CyclePlan {
    /// A turn here is short: the other load on the machine changes within a second, and should affect both sides of a
    /// ratio.
    pub(crate) turns_per_round: usize,
    pub(crate) warm_up: usize,
    pub(crate) most: usize,
    #[serde(rename = "turn_ms", with = "milliseconds")]
    pub(crate) turn: Duration,
    #[serde(rename = "echo_turn_ms", with = "milliseconds")]
    pub(crate) echo_turn: Duration,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct HandOffPlan {
    pub(crate) clients: Vec<usize>,
    /// The turn begins when every client has had the lock twice, or after this time.
    #[serde(rename = "warm_up_ms", with = "milliseconds")]
    pub(crate) warm_up: Duration,
    #[serde(rename = "turn_ms", with = "milliseconds")]
    pub(crate) turn: Duration,
    /// The time that each client adds to a turn, so that every client gets its share of the lock.
    #[serde(rename = "turn_for_a_client_ms", with = "milliseconds")]
    pub(crate) turn_for_a_client: Duration,
    #[serde(rename = "hold_ms", with = "milliseconds")]
    pub(crate) hold: Duration,
    #[serde(rename = "echo_turn_ms", with = "milliseconds")]
    pub(crate) echo_turn: Duration,
    #[serde(rename = "think_ms", with = "milliseconds")]
    pub(crate) think: Duration,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ManyPlan {
    pub(crate) holds: usize,
    #[serde(rename = "window_ms", with = "milliseconds")]
    pub(crate) window: Duration,
    #[serde(skip)]
    pub(crate) peers: Peers,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct WaitingPlan {
    pub(crate) waiters: usize,
    /// The time until waiters of distlock have reached a steady state.
    #[serde(rename = "settling_ms", with = "milliseconds")]
    pub(crate) settling: Duration,
    #[serde(rename = "window_ms", with = "milliseconds")]
    pub(crate) window: Duration,
    #[serde(skip)]
    pub(crate) peers: Peers,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct TasksPlan {
    pub(crate) tasks: Vec<usize>,
    #[serde(skip)]
    pub(crate) contenders: Vec<&'static Contender>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct ExecPlan {
    /// How often each command runs in a round.
    pub(crate) runs: usize,
    /// The command of distlock, unless it is the one beside this program.
    #[serde(skip)]
    pub(crate) distlock: Option<PathBuf>,
}

/// Whether a workload that takes long is run for the peers too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Peers {
    #[default]
    Included,
    LeftOut,
}

/// Durations in the report, as milliseconds.
mod milliseconds {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    use super::Duration;

    pub(super) fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(duration.as_secs_f64() * 1000.0)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        let milliseconds = f64::deserialize(deserializer)?;
        Duration::try_from_secs_f64(milliseconds / 1000.0).map_err(D::Error::custom)
    }
}

/// The extent that the command line asks for.
#[derive(Debug, Clone)]
pub(crate) struct Wishes {
    pub(crate) extent: Extent,
    pub(crate) workloads: Vec<Workload>,
    pub(crate) engines: Vec<EngineChoice>,
    pub(crate) runtimes: Vec<RuntimeKind>,
    pub(crate) only: Vec<String>,
    pub(crate) rounds: Option<usize>,
    pub(crate) lease: Option<Duration>,
    pub(crate) hold: Duration,
    pub(crate) think: Duration,
    pub(crate) distlock: Option<PathBuf>,
}

/// The location of the server that is measured.
#[derive(Debug)]
pub(crate) struct ServerAddress {
    pub(crate) url: String,
    /// The process of the server, if this program has started it.
    pub(crate) server_process: Option<u32>,
}

impl Plan {
    pub(crate) fn new(subject: &'static Subject, address: ServerAddress, wishes: &Wishes) -> Self {
        let full = wishes.extent == Extent::Full;
        let sizes = if full { &subject.full } else { &subject.quick };
        let lease = wishes.lease.unwrap_or(sizes.lease);
        let ServerAddress { url, server_process } = address;
        let target = Target { url, lease, renewals_in_a_lease: subject.renewals_in_a_lease, server_process };
        // Whole intervals, so that it does not matter at which point of an interval the window begins.
        let window = target.renewal_interval() * sizes.renewals_observed;
        let settling = target.renewal_interval() * sizes.renewals_until_settled;
        let peers = if full { Peers::Included } else { Peers::LeftOut };
        let time =
            |full_length, quick_length| Duration::from_millis(if full { full_length } else { quick_length });
        Self {
            contenders: subject.contenders.iter().filter(|contender| wishes.includes(contender)).collect(),
            workloads: subject
                .workloads
                .iter()
                .copied()
                .filter(|one| wishes.workloads.contains(one))
                .collect(),
            runtimes: wishes.runtimes.clone(),
            rounds: wishes.rounds.unwrap_or(sizes.rounds),
            lease,
            cycle: CyclePlan {
                turns_per_round: if full { 4 } else { 1 },
                warm_up: if full { 50 } else { 20 },
                most: 20_000,
                turn: time(100, 40),
                echo_turn: time(50, 20),
            },
            hand_off: HandOffPlan {
                clients: sizes.hand_off_clients.to_vec(),
                warm_up: time(500, 100),
                turn: time(250, 60) + (wishes.hold + wishes.think) * 20,
                turn_for_a_client: sizes.turn_for_a_client,
                hold: wishes.hold,
                echo_turn: time(50, 20),
                think: wishes.think,
            },
            many: ManyPlan { holds: sizes.holds, window, peers },
            waiting: WaitingPlan {
                waiters: sizes.waiters,
                settling,
                window: if full { window.max(Duration::from_secs(10)) } else { window },
                peers,
            },
            tasks: TasksPlan {
                tasks: if full { vec![64, 100, 20_000] } else { vec![64, 100, 500] },
                contenders: subject.tasks.iter().filter(|contender| wishes.includes(contender)).collect(),
            },
            exec: ExecPlan { runs: if full { 50 } else { 3 }, distlock: wishes.distlock.clone() },
            target,
        }
    }
}

/// One turn of hand-offs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HandOffTurn {
    pub(crate) clients: usize,
    pub(crate) warm_up: Duration,
    pub(crate) length: Duration,
    pub(crate) hold: Duration,
    pub(crate) think: Duration,
}

/// The maximum time that all clients together add to a turn of hand-offs.
const LONGEST_FOR_ALL: Duration = Duration::from_secs(3);

impl HandOffPlan {
    pub(crate) fn turn_of(&self, clients: usize) -> HandOffTurn {
        let for_all = self.turn_for_a_client * u32::try_from(clients).unwrap_or(u32::MAX);
        let Self { warm_up, hold, think, .. } = *self;
        HandOffTurn { clients, warm_up, length: self.turn + for_all.min(LONGEST_FOR_ALL), hold, think }
    }

    /// A turn of tasks of one client: not all of them need to get the lock.
    pub(crate) fn turn_of_tasks(&self, tasks: usize) -> HandOffTurn {
        HandOffTurn { length: self.turn, ..self.turn_of(tasks) }
    }
}

impl Wishes {
    fn includes(&self, contender: &Contender) -> bool {
        let named = self.only.is_empty() || self.only.iter().any(|only| only == contender.id);
        let engine = match contender.driving {
            Driving::Caller => EngineChoice::Caller,
            Driving::OtherThread => EngineChoice::Own,
        };
        named && (contender.family == Family::Peer || self.engines.contains(&engine))
    }
}
