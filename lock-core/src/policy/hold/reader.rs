//! A shared hold under an exclusive one: the owner of the write side also reads. It lives by the lease of the exclusive
//! hold, and outlives it when the server has granted it one of its own.

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use super::state::Phase;
use super::{Granted, GrantedId, HoldCore, Home, Lasting, Loss};
use crate::runtime::clock::Moment;
use crate::runtime::sync::Mutex;
use crate::spi::{AttemptId, Mode};
use crate::types::loss::LossReason;

/// What a hold has if its owner has the lock both exclusively and shared.
#[derive(Default)]
pub(super) struct Both {
    /// The exclusive hold that this one lives under.
    under: Mutex<Option<Arc<HoldCore>>>,
    /// The shared hold that lives under this one.
    pub(super) reader: Mutex<Option<Weak<HoldCore>>>,
    /// What the server granted later, when the exclusive hold became a shared one.
    pub(super) later_grant: OnceLock<Granted>,
}

impl Both {
    pub(super) fn under(exclusive: Arc<HoldCore>) -> Self {
        Self { under: Mutex::new(Some(exclusive)), ..Self::default() }
    }
}

impl HoldCore {
    /// Creates the hold of a reader under `exclusive`, without I/O.
    pub(crate) fn reader_under(home: Arc<dyn Home>, exclusive: &Arc<Self>, id: AttemptId) -> Arc<Self> {
        let above = exclusive.grant();
        let grant = Granted {
            id: GrantedId::Attempt(id),
            lease: Mutex::new(None),
            group: above.group,
            token: above.token,
            options: above.options.clone(),
            parts: Box::default(),
            place: None,
            mode: Mode::Shared,
            lasting: Lasting::UntilReported,
            series: None,
            #[cfg(unix)]
            descriptor: None,
        };
        Self::create(home, grant, Some(Arc::clone(exclusive)))
    }

    fn above(&self) -> Option<Arc<Self>> {
        self.both.get()?.under.lock().clone()
    }

    /// Returns how long the exclusive hold above leaves, even if its release has begun: the server still has its lease.
    pub(super) fn left_under(&self) -> Option<Duration> {
        let above = self.above()?;
        match (above.state.phase(), above.state.last_deadline()) {
            (Phase::Lost(_), _) => Some(Duration::ZERO),
            (_, u64::MAX) => None,
            (_, deadline) => Some(Duration::from_nanos(deadline.saturating_sub(self.now()))),
        }
    }

    pub(super) fn verify_under(&self) -> Result<(), LossReason> {
        let Some(above) = self.above() else { return Ok(()) };
        match above.state.phase() {
            Phase::Lost(reason) => Err(reason),
            _ if above.state.last_deadline() <= self.now() => Err(LossReason::Expired),
            _ => Ok(()),
        }
    }

    /// The exclusive hold above ends, and its lease is to become this hold's: until then it lasts as long as that.
    pub(crate) fn outlive(self: &Arc<Self>, exclusive: &Self) {
        let deadline = exclusive.state.last_deadline();
        self.state.limit(deadline);
        self.watch_deadline(Moment::from_nanoseconds(deadline).min(self.longest()));
        if let Some(both) = self.both.get() {
            let above = both.under.lock().take();
            drop(above);
        }
    }

    /// Returns the reader that outlives this hold, as long as it has no lease of its own: the loss of this lease is its loss.
    pub(super) fn heir_of_the_lease(&self) -> Option<Arc<Self>> {
        let reader = self.both.get()?.reader.lock().as_ref()?.upgrade()?;
        let has_own = reader.both.get().is_some_and(|both| both.later_grant.get().is_some());
        (!has_own).then_some(reader)
    }

    /// The server has granted this hold a lease of its own.
    pub(crate) fn has_own(self: &Arc<Self>, grant: Granted) {
        let deadline = grant.lasting.deadline().min(self.longest());
        let _ = self.both.get_or_init(Box::default).later_grant.set(grant);
        let _ = self.state.renew(deadline.as_nanoseconds(), || self.now());
    }

    /// The exclusive hold above is lost, and this one with it.
    pub(crate) fn share_loss(self: &Arc<Self>, loss: Loss) {
        self.lose(loss.reason, loss.declared);
    }
}
