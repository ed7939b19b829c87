//! What the project aims at, as ratios and counts of one run.

mod look;

use serde::Serialize;

use crate::contender::{Contender, Family};
use crate::results::Results;
use crate::runtimes::RuntimeKind;
use crate::subject::Subject;
use look::Look;

pub(crate) struct Aim {
    pub(crate) text: &'static str,
    pub(crate) measure: Measure,
    /// `None` for what is only told.
    pub(crate) at_most: Option<f64>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Measure {
    CycleBesideRaw,
    CycleBesidePlainRaw,
    /// That one of two contenders which is driven in the same way.
    CycleBesideNamed {
        caller: &'static str,
        other_thread: &'static str,
    },
    /// Driven in the same way.
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
    /// Of these kinds, where requests are counted apart.
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
    fn unit(self) -> &'static str {
        match self {
            Self::CycleBesideRaw
            | Self::CycleBesidePlainRaw
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
    /// There is no bound: it is only told.
    Told,
    /// It was to be measured and could not be.
    Unknown,
}

/// An aim, and what became of it for one engine on one runtime.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Judged {
    pub(crate) aim: &'static str,
    pub(crate) contender: &'static str,
    /// `None` where the runtime is not varied.
    pub(crate) runtime: Option<RuntimeKind>,
    pub(crate) value: Option<f64>,
    pub(crate) at_most: Option<f64>,
    pub(crate) unit: &'static str,
    pub(crate) verdict: Verdict,
    /// Between which values the middle half of the rounds lies, where there are rounds.
    pub(crate) range: Option<(f64, f64)>,
    pub(crate) detail: String,
}

/// Every aim that the workloads of this run can tell something about.
pub(crate) fn judge(subject: &Subject, contenders: &[&'static Contender], results: &Results) -> Vec<Judged> {
    let ours: Vec<_> =
        contenders.iter().copied().filter(|contender| contender.family == Family::Distlock).collect();
    let mut judged = Vec::new();
    for aim in subject.aims {
        for contender in &ours {
            let look = Look { subject, contenders, contender, results };
            judged.extend(look.judge(aim));
        }
    }
    judged
}
