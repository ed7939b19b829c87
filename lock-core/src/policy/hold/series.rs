//! Holds that follow each other on one lease: a client with `local_handoff` passes the lock from task to task.
//!
//! Each is a hold of its own, so that its end, its age, its listeners and its token are its own. The lease moves from one
//! to the next, and the attempt's handle reports a loss to the one that stands.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::policy::hold::{Granted, HoldCore, Lasting, Series};
use crate::policy::local::Occupant;
use crate::runtime::clock::Moment;
use crate::runtime::sync::Mutex;
use crate::spi::{HoldOptions, Reported};
use crate::types::loss::LossReason;
use crate::types::token::FencingToken;

/// How many renewal intervals of its lease a hold must have left to be passed on.
const INTERVALS_LEFT: u32 = 2;

impl HoldCore {
    /// Returns the hold that follows this one, whose release has begun, for a waiter with these options; `None` when the
    /// server is to have the lock.
    pub(crate) fn next_in_series(self: &Arc<Self>, options: &Arc<HoldOptions>) -> Option<Arc<Self>> {
        let grant = self.grant();
        let now = self.home.clock().now();
        let series = grant.series.as_ref().filter(|series| series.left > 0 && now < series.until)?;
        // The next owner would not learn that contact is lost.
        if !self.suits(options) || self.is_suspect() {
            return None;
        }
        // The release has begun, so no descriptor is handed out any more.
        #[cfg(unix)]
        if self.is_inherited.load(Ordering::SeqCst) {
            return None;
        }
        let lasting = match grant.lasting {
            Lasting::UntilReported => Lasting::UntilReported,
            Lasting::Leased { validity, .. } => {
                let anchor = Moment::from_nanoseconds(self.anchor.load(Ordering::Acquire));
                if validity.deadline(anchor).since(now) < validity.interval() * INTERVALS_LEFT {
                    return None;
                }
                Lasting::Leased { anchor, validity }
            }
        };
        let lease = self.take_lease()?;
        if let Some(passes) = &series.passes {
            passes.fetch_add(1, Ordering::AcqRel);
        }
        let next = Granted {
            id: grant.id.clone(),
            lease: Mutex::new(Some(lease)),
            group: grant.group,
            token: grant.token.map(|token| FencingToken::new(token.get() + 1)),
            options: grant.options.clone(),
            parts: Box::default(),
            place: None,
            mode: grant.mode,
            lasting,
            series: Some(Box::new(Series { left: series.left - 1, ..(**series).clone() })),
            #[cfg(unix)]
            descriptor: grant.descriptor.clone(),
        };
        Some(Self::new(Arc::clone(&self.home), next))
    }

    /// From now on the backend reports the loss of the lease to this hold. Returns a loss that it has reported before.
    pub(crate) fn take_reports(self: &Arc<Self>) -> Option<LossReason> {
        let series = self.grant().series.as_ref()?;
        let reported: Arc<dyn Reported> = Arc::clone(self) as Arc<dyn Reported>;
        series.attempt.bind(Arc::downgrade(&reported))
    }
}
