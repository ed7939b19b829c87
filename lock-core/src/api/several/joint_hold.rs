//! The hold of several locks: one object for their owner, which is lost when one of its parts is.

use std::sync::Arc;
use std::task::Waker;

use super::joint::Joints;
use super::part_loss::PartLossWatch;
use crate::api::hold::Hold;
use crate::policy::hold::state::{Event, Woken};
use crate::policy::hold::{Granted, GrantedId, HoldCore, Home, Observer};
use crate::runtime::clock::{Clock, Moment};
use crate::runtime::metrics::Metrics;
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
            lease: 0,
            id: GrantedId::Number,
            mode: Mode::Exclusive,
            token: None,
            options: None,
            may_be_followed: false,
            #[cfg(unix)]
            descriptor: None,
        };
        let home: Arc<Joints> = Arc::clone(joints);
        let own = parts.iter().map(|part| Arc::clone(&part.0)).collect();
        let hold = Hold(HoldCore::new(home, grant, own, Moment::FOREVER));
        let watches = parts.iter().map(|part| PartLossWatch::begin(part, &hold)).collect();
        Self { hold, _parts: watches }
    }
}

/// No server knows the hold, and its parts clean up after themselves.
impl Hold {
    /// All parts are released, or turn out to have been lost.
    pub(super) fn released(&self, loss: Option<LossReason>) {
        let mut woken = Woken::default();
        let known = self.0.finish(loss, None, &mut woken);
        woken.into_iter().for_each(Waker::wake);
        if let Some(known) = known {
            self.0.log_release(loss, known);
        }
    }
}

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
}
