//! Holds that belong to no client.

use std::sync::Arc;

use crate::policy::hold::reports::Event;
use crate::policy::hold::{Granted, GrantedId, HoldCore, Home, Lasting, Loss};
use crate::policy::metrics::Metrics;
use crate::runtime::clock::Clock;
use crate::runtime::pending::{Pending, PendingWork};
use crate::runtime::sync::Mutex;
use crate::spi::GroupId;
use crate::types::loss::LossReason;
use crate::types::mode::Mode;
use crate::types::name::LockName;
use crate::types::token::FencingToken;

/// The home of one hold, with no server.
struct Nowhere {
    name: LockName,
    server: Arc<str>,
    clock: Clock,
}

/// What a hold without a client is made of.
pub(crate) struct Detached {
    pub(crate) name: LockName,
    pub(crate) token: Option<FencingToken>,
    pub(crate) clock: Clock,
    pub(crate) parts: Box<[Arc<HoldCore>]>,
}

/// Creates a hold without a lease and without a client.
pub(crate) fn detached(detached: Detached) -> Arc<HoldCore> {
    let Detached { name, token, clock, parts } = detached;
    let home = Arc::new(Nowhere { name, server: Arc::from(""), clock });
    let grant = Granted {
        id: GrantedId::Number,
        lease: Mutex::new(None),
        group: GroupId::new(0),
        token,
        options: None,
        parts,
        place: None,
        mode: Mode::Exclusive,
        lasting: Lasting::UntilReported,
        series: None,
        #[cfg(unix)]
        descriptor: None,
    };
    HoldCore::new(home, grant)
}

impl Home for Nowhere {
    fn name(&self) -> &LockName {
        &self.name
    }

    fn clock(&self) -> &Clock {
        &self.clock
    }

    fn server(&self) -> &Arc<str> {
        &self.server
    }

    fn metrics(&self) -> Option<&Metrics> {
        None
    }

    fn publish(&self, event: Event<LossReason>, hold: &Arc<HoldCore>) {
        if let Some(observer) = hold.observer() {
            observer.publish(event, hold);
        }
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
