//! The hold of several locks: one object for their owner, which is lost when one of its parts is.

use std::sync::Arc;

use super::joint::Joints;
use super::part_loss::PartLossWatch;
use crate::api::hold::Hold;
use crate::policy::hold::reports::Event;
use crate::policy::hold::{Granted, GrantedId, HoldCore, Home, Lasting, Loss, Observer};
use crate::policy::metrics::Metrics;
use crate::runtime::clock::Clock;
use crate::runtime::pending::{Pending, PendingWork};
use crate::runtime::sync::Mutex;
use crate::spi::GroupId;
use crate::types::loss::LossReason;
use crate::types::mode::Mode;
use crate::types::name::LockName;

/// The hold, which follows the losses of its parts as long as this exists.
pub(super) struct JointHold {
    pub(super) hold: Hold,
    _parts: Box<[PartLossWatch]>,
}

impl JointHold {
    /// Joins the holds of `parts`; the loss of any of them is from now on the loss of all.
    pub(super) fn of(joints: &Arc<Joints>, parts: &[Hold]) -> Self {
        let grant = Granted {
            id: GrantedId::Number,
            lease: Mutex::new(None),
            group: GroupId::new(0),
            token: None,
            options: None,
            parts: parts.iter().map(|part| Arc::clone(&part.0)).collect(),
            place: None,
            mode: Mode::Exclusive,
            lasting: Lasting::UntilReported,
            series: None,
            #[cfg(unix)]
            descriptor: None,
        };
        let home: Arc<Joints> = Arc::clone(joints);
        let hold = Hold(HoldCore::new(home, grant));
        let watches = parts.iter().map(|part| PartLossWatch::begin(part, &hold)).collect();
        Self { hold, _parts: watches }
    }
}

/// No server knows the hold, and its parts clean up after themselves.
impl Home for Joints {
    fn name(&self) -> &LockName {
        self.name()
    }

    fn clock(&self) -> &Clock {
        self.clock()
    }

    fn server(&self) -> &Arc<str> {
        &self.server
    }

    fn metrics(&self) -> Option<&Metrics> {
        None
    }

    fn publish(&self, event: Event<LossReason>, hold: &Arc<HoldCore>) {
        self.publisher.publish(event, hold);
    }

    fn hold_lost(self: Arc<Self>, hold: &Arc<HoldCore>, loss: Loss, _: Pending) {
        hold.report_lost(loss.reason);
        hold.end_watch();
    }

    fn expect_undoing(&self) -> Pending {
        Arc::new(PendingWork::default()).begin()
    }

    fn seen(&self) {}

    fn lost_unseen(&self, _: &HoldCore, _: LossReason) {}
}
