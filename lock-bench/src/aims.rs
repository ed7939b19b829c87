//! The performance aims of the project, as ratios and counts of one run.

mod exec;
mod finder;
mod sharing;
mod tasks;

use serde::Serialize;

use crate::contender::{Contender, Driving, Family};
use crate::results::Results;
use crate::runtimes::RuntimeKind;
use crate::subject::Subject;
pub(crate) use finder::{Finder, middle_half};

pub(crate) struct Aim {
    pub(crate) text: &'static str,
    pub(crate) measure: Measure,
    /// `None` for a value that is only reported.
    pub(crate) at_most: Option<f64>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Measure {
    CycleBesideRaw,
    CycleBesidePlainRaw,
    /// Only of the engine that is driven in this way, and compared with raw commands that are, too.
    CycleOfEngineBesideRaw {
        engine: Driving,
    },
    /// Of another contender on the caller's runtime, for the engine that is there, too.
    CycleOfNamedBesideRaw {
        named: &'static str,
    },
    /// The server's time, not that of the client.
    ServerTimeBesideRaw,
    /// The contender with that name that is driven in the same way.
    CycleBesideNamed {
        caller: &'static str,
        other_thread: &'static str,
    },
    /// Compared with raw commands that are driven in the same way.
    HandOffBesideRaw {
        clients: usize,
    },
    HandOffBesideEcho {
        clients: usize,
    },
    HandOffBesidePlainEcho {
        clients: usize,
    },
    HandOffBesidePeer {
        clients: usize,
        peer: &'static str,
    },
    HandOffGrowth {
        clients: usize,
        beside: usize,
    },
    Fairness {
        clients: usize,
    },
    CommandsPerSection {
        clients: usize,
    },
    /// The requests of these kinds, if requests are counted separately.
    RequestsPerSection {
        clients: usize,
        kinds: &'static [&'static str],
    },
    HoldingConnections,
    BytesPerHold,
    RenewalShare,
    /// For all holds of a client together.
    RequestsPerRenewal,
    RequestsPerConnectionAndRenewal,
    CommandsPerWaiter,
    ConnectionsPerWaiter,
    ServerBytesPerWaiter,
    WaitingShare,
}

impl Measure {
    pub(crate) fn unit(self) -> &'static str {
        match self {
            Self::CycleBesideRaw
            | Self::CycleBesidePlainRaw
            | Self::CycleOfEngineBesideRaw { .. }
            | Self::CycleOfNamedBesideRaw { .. }
            | Self::ServerTimeBesideRaw
            | Self::CycleBesideNamed { .. }
            | Self::HandOffBesideRaw { .. }
            | Self::HandOffBesideEcho { .. }
            | Self::HandOffBesidePlainEcho { .. }
            | Self::HandOffBesidePeer { .. }
            | Self::HandOffGrowth { .. }
            | Self::Fairness { .. } => "×",
            Self::CommandsPerSection { .. }
            | Self::RequestsPerSection { .. }
            | Self::RequestsPerRenewal
            | Self::RequestsPerConnectionAndRenewal
            | Self::CommandsPerWaiter
            | Self::ConnectionsPerWaiter
            | Self::HoldingConnections => "",
            Self::BytesPerHold | Self::ServerBytesPerWaiter => "B",
            Self::RenewalShare | Self::WaitingShare => "%",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    Met,
    Missed,
    /// There is no limit: the value is only reported.
    Told,
    /// The value should have been measured and could not be.
    Unknown,
}

impl Verdict {
    fn of(value: Option<f64>, at_most: Option<f64>) -> Self {
        match (value, at_most) {
            (None, _) => Self::Unknown,
            (Some(_), None) => Self::Told,
            (Some(value), Some(bound)) if value <= bound => Self::Met,
            (Some(_), Some(_)) => Self::Missed,
        }
    }
}

/// An aim, and the result for one engine on one runtime.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Judged {
    pub(crate) aim: &'static str,
    pub(crate) contender: &'static str,
    /// `None` if the runtime is not varied.
    pub(crate) runtime: Option<RuntimeKind>,
    pub(crate) value: Option<f64>,
    pub(crate) at_most: Option<f64>,
    pub(crate) unit: &'static str,
    pub(crate) verdict: Verdict,
    /// The range of the middle half of the rounds, if there are rounds.
    pub(crate) range: Option<(f64, f64)>,
    pub(crate) detail: String,
}

/// Judges every aim that the workloads of this run measure.
pub(crate) fn judge(subject: &Subject, contenders: &[&'static Contender], results: &Results) -> Vec<Judged> {
    let ours: Vec<_> =
        contenders.iter().copied().filter(|contender| contender.family == Family::Distlock).collect();
    let mut judged = Vec::new();
    for aim in subject.aims {
        for contender in &ours {
            let finder = Finder { subject, contenders, contender, results };
            judged.extend(finder.judge(aim));
        }
    }
    judged.extend(ours.iter().flat_map(|contender| sharing::judge(contender, contenders, &results.sharing)));
    judged.extend(tasks::judge(subject, &results.tasks));
    judged.extend(exec::judge(&results.exec));
    judged
}
