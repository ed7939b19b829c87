//! A server that grants each request, for tests that look inside the core: those see another copy of the core than the
//! memory backend does.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use crate::api::builder::ClientBuilder;
use crate::api::client::LockClient;
use crate::runtime::Clock;
use crate::spi::{
    AcquireRequest, Backend, BackendContext, Grant, GroupId, LeaseState, Mutex, Released, Term,
};
use crate::types::{
    Capabilities, CharacterSet, FencingToken, LockError, LockName, LossReason, NameRules, Reach, Reserving,
};

/// What a client of the fake has.
#[derive(Debug, Clone, Default)]
pub(crate) struct Fake {
    lease: Option<Duration>,
    /// The attempt that has the last grant, if a test wants to know it.
    holder: Option<Arc<Mutex<Option<AcquireRequest>>>>,
}

impl Fake {
    /// One whose holder can lose its hold.
    pub(crate) fn with_losses() -> Self {
        Self { holder: Some(Arc::default()), ..Self::default() }
    }

    /// One whose replies come later than in the first poll, with a lease of this length.
    pub(crate) fn later_with_a_lease(length: Duration) -> Self {
        Self { lease: Some(length), ..Self::default() }
    }

    pub(crate) fn client(&self, builder: ClientBuilder) -> LockClient {
        let names = NameRules::new(CharacterSet::ANY, LockName::MAX_LENGTH);
        let capabilities = Capabilities::new("fake", Reach::Process, names);
        let capabilities = capabilities.with_reserving(Reserving::AtMost(NonZeroU32::MAX));
        let fake = self.clone();
        let make =
            |context: BackendContext| Ok(FakeBackend { fake, capabilities, clock: context.clock().clone() });
        builder.build(make).unwrap()
    }

    /// Reports a loss to the last holder.
    pub(crate) fn lose(&self, reason: LossReason) {
        let holder = self.holder.as_ref().unwrap().lock().take();
        holder.unwrap().lost(reason);
    }
}

#[derive(Debug)]
struct FakeBackend {
    fake: Fake,
    capabilities: Capabilities,
    clock: Clock,
}

impl FakeBackend {
    async fn reply(&self) {
        if self.fake.lease.is_some() {
            tokio::task::yield_now().await;
        }
    }
}

impl Backend for FakeBackend {
    type Lease = ();

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<Option<Grant<()>>, LockError> {
        let term = self.fake.lease.map_or(Term::UntilReported, |length| {
            let anchor = self.clock.now();
            Term::Leased { anchor, length }
        });
        self.reply().await;
        if let Some(holder) = &self.fake.holder {
            *holder.lock() = Some(request.clone());
        }
        let (token, sections) = (Some(FencingToken::new(1)), request.sections());
        Ok(Some(Grant { token, sections, ..Grant::new((), GroupId::new(0), term) }))
    }

    async fn cancel(&self, _: &AcquireRequest) -> Result<(), LockError> {
        Ok(())
    }

    async fn renew(&self, _: GroupId, leases: &[Arc<()>]) -> Result<Vec<LeaseState>, LockError> {
        Ok(vec![LeaseState::Held; leases.len()])
    }

    async fn release(&self, (): &()) -> Result<Released, LockError> {
        self.reply().await;
        Ok(Released::Clean)
    }

    async fn ping(&self) -> Result<(), LockError> {
        Ok(())
    }
}
