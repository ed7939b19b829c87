//! A case: its name, what it needs, and its code.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::{Failure, Outcome};
use lock_core::{Breaking, Capabilities, Fairness, Fencing, Inspection, Reach, Reserving};

use crate::harness::{Ability, Harness};
use crate::stage::Stage;

/// Something that a case requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Need {
    /// An ability of the harness.
    Ability(Ability),
    /// A backend that serves waiters in order.
    Order,
    /// A backend with fencing tokens.
    Tokens,
    /// A backend that shows at least which session of the server holds a lock.
    Sessions,
    /// A backend that shows who holds a lock, and who waits for it.
    Holder,
    /// A backend that names the locks of its server.
    Listing,
    /// A backend whose locks can be broken.
    Breaking,
    /// A backend that shows the value of a leader.
    Values,
    /// A backend that remembers slots beyond a hold.
    Remembering,
    /// A backend that reserves tokens, so that a client may have `local_handoff`.
    Reserving,
    /// A backend with leases.
    Lease,
    /// A backend with shared holders.
    Sharing,
    /// A backend with semaphores.
    Permits,
}

impl Need {
    /// Returns why the requirement is not met; `None` when it is.
    pub(crate) fn unmet(self, harness: &dyn Harness, capabilities: &Capabilities) -> Option<String> {
        let declared = |met: bool, what: &str| {
            (!met).then(|| format!("the backend's capabilities do not declare {what}"))
        };
        match self {
            Self::Ability(ability) => harness.lacks(ability).map(str::to_owned),
            Self::Order => {
                declared(capabilities.fairness == Fairness::Fifo, "that waiters are served in order")
            }
            Self::Tokens => declared(capabilities.fencing != Fencing::None, "fencing tokens"),
            Self::Sessions => declared(capabilities.inspection != Inspection::None, "inspection"),
            Self::Holder => {
                declared(capabilities.inspection >= Inspection::HolderAndOwnQueue, "inspection of the holder")
            }
            Self::Listing => declared(capabilities.listing, "that locks are listed"),
            Self::Breaking => declared(capabilities.breaking == Breaking::Supported, "breaking"),
            Self::Values => declared(capabilities.describing, "a leader's value"),
            Self::Remembering => declared(capabilities.remembering, "that slots are remembered"),
            Self::Reserving => {
                declared(matches!(capabilities.reserving, Reserving::AtMost(_)), "that tokens are reserved")
            }
            Self::Sharing => declared(capabilities.shared, "shared holders"),
            Self::Permits => declared(capabilities.permits.is_some(), "semaphores"),
            Self::Lease => harness.lease().is_none().then(|| "the backend has no lease".to_owned()),
        }
    }
}

impl fmt::Display for Need {
    /// Where a backend or its harness declares it.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let declared = match self {
            Self::Ability(ability) => return write!(formatter, "`Ability::{ability:?}`"),
            Self::Order => "with_fairness(Fairness::Fifo)",
            Self::Tokens => "with_fencing(…)",
            Self::Sessions => "with_inspection(…)",
            Self::Holder => "with_inspection(Inspection::Holder…)",
            Self::Listing => "with_listing()",
            Self::Breaking => "with_breaking(Breaking::Supported)",
            Self::Values => "with_describing()",
            Self::Remembering => "with_remembering()",
            Self::Reserving => "with_reserving(Reserving::AtMost(…))",
            Self::Sharing => "with_shared()",
            Self::Permits => "with_permits(…)",
            Self::Lease => "Harness::lease",
        };
        write!(formatter, "`{declared}`")
    }
}

/// Returns the declaration of a harness that contradicts these capabilities.
pub(crate) fn contradiction(harness: &dyn Harness, capabilities: &Capabilities) -> Option<Failure> {
    if let Some(ability) = Ability::ALL
        .into_iter()
        .find(|ability| harness.lacks(*ability).is_some_and(|reason| reason.trim().is_empty()))
    {
        return Some(Failure::new(format!("the harness lacks {ability:?} without a reason")));
    }
    let reaches_processes = capabilities.reach > Reach::Process;
    (reaches_processes && harness.lacks(Ability::SeparateProcesses).is_some()).then(|| {
        Failure::new(format!(
            "the backend reaches {:?}, so its harness must start separate processes",
            capabilities.reach
        ))
    })
}

pub(crate) type Running = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// One case of the suite.
#[derive(Clone, Copy)]
pub struct Case {
    pub(crate) name: &'static str,
    pub(crate) since: &'static str,
    pub(crate) needs: &'static [Need],
    pub(crate) run: fn(Arc<Stage>) -> Running,
}

impl Case {
    /// Returns the name of the case: the group, and what a backend that passes does.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the first part of the name.
    pub(crate) fn group(&self) -> &'static str {
        self.name.split("::").next().unwrap_or_default()
    }

    /// Returns the release of this crate that first had the case. A patch release adds none.
    pub fn since(&self) -> &'static str {
        self.since
    }

    /// Returns what the case requires.
    pub fn needs(&self) -> &'static [Need] {
        self.needs
    }

    /// Returns whether the case can see a difference that lies in these groups.
    pub(crate) fn sees(&self, groups: &[&str]) -> bool {
        groups.contains(&self.group())
    }

    /// Returns whether it disturbs the server itself.
    pub(crate) fn disturbs_the_server(&self) -> bool {
        [Ability::RestartServer, Ability::StopServer]
            .iter()
            .any(|ability| self.needs.contains(&Need::Ability(*ability)))
    }

    /// Returns how long the leases of its clients are.
    pub(crate) fn leases(&self) -> Leases {
        let is_about_them = |need: &Need| matches!(need, Need::Ability(_) | Need::Breaking | Need::Lease);
        if self.needs.contains(&Need::Ability(Ability::SeenDeaths)) {
            return Leases::Lasting;
        }
        if self.needs.iter().any(is_about_them) { Leases::Short } else { Leases::Lasting }
    }
}

/// How long the leases of a case's clients are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leases {
    /// Soon over, and soon renewed: the case disturbs the server or its clients, or takes a lock away, and waits until a
    /// client notices.
    Short,
    /// Longer than the case: no hold of it may end because the machine hangs for a while.
    Lasting,
}

/// Returns the first of these, of which there is at least one.
pub(crate) const fn first_of(releases: &[&'static str]) -> &'static str {
    releases[0]
}

impl fmt::Debug for Case {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Case")
            .field("name", &self.name)
            .field("since", &self.since)
            .field("needs", &self.needs)
            .finish_non_exhaustive()
    }
}

/// Makes the list of a group's cases from its functions: `cases!("group": function, function [Need, Need], …)`. A case that
/// the first release did not have says which one was the first with it: `function since "0.2" [Need]`.
macro_rules! cases {
    ($group:literal: $($function:ident $(since $since:literal)? $([$($need:expr),+])?),+ $(,)?) => {
        pub(super) const CASES: &[$crate::case::Case] = &[$($crate::case::Case {
            name: concat!($group, "::", stringify!($function)),
            since: $crate::case::first_of(&[$($since,)? "0.1"]),
            needs: &[$($($need),+)?],
            run: |stage| Box::pin(async move { $function(&stage).await }),
        }),+];
    };
}

pub(crate) use cases;
