//! Holds that belong to no client.

use std::sync::Arc;

use crate::policy::hold::reports::Event;
use crate::policy::hold::{Granted, GrantedId, HoldCore, Home, Lasting, Loss};
use crate::policy::local::Occupant;
use crate::runtime::clock::Clock;
use crate::runtime::pending::{Pending, PendingWork};
use crate::runtime::sync::Mutex;
use crate::spi::GroupId;
use crate::types::loss::LossReason;
use crate::types::name::LockName;
use crate::types::token::FencingToken;

/// The home of one hold, with no server and no listener.
struct Nowhere {
    name: LockName,
    server: Arc<str>,
    clock: Clock,
}

/// Creates a hold without a lease and without a client.
pub(crate) fn detached(name: LockName, token: Option<FencingToken>, clock: Clock) -> Arc<HoldCore> {
    let home = Arc::new(Nowhere { name, server: Arc::from(""), clock });
    let grant = Granted {
        id: GrantedId::Number,
        lease: Mutex::new(None),
        group: GroupId::new(0),
        token,
        place: None,
        lasting: Lasting::UntilReported,
        #[cfg(unix)]
        descriptor: None,
    };
    HoldCore::new(home, grant, None)
}

impl HoldCore {
    /// Releases a hold that has nothing at a server. Returns the reason if it has been lost.
    pub(crate) fn release_here(self: &Arc<Self>) -> Result<(), LossReason> {
        self.begin_release()?;
        self.finish_release(None);
        Ok(())
    }
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

    fn announce(&self, _: Event<LossReason>, _: &Arc<HoldCore>) {}

    fn hold_lost(self: Arc<Self>, hold: &Arc<HoldCore>, _: Loss, _: Pending) {
        hold.end_watch();
    }

    fn expect_undoing(&self) -> Pending {
        Arc::new(PendingWork::default()).begin()
    }

    fn seen(&self) {}

    fn lost_unseen(&self, _: &HoldCore, _: LossReason) {}
}
