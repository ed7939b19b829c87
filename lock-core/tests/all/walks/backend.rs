//! The backend of a client, which talks to the server through the network.

use std::num::NonZeroU32;
use std::sync::Arc;

use lock_core::{
    AcquireRequest, Backend, BackendContext, Capabilities, CharacterSet, Downgraded, ErrorKind, FencingToken,
    Grant, GroupId, LeaseState, LockError, LossReason, Mode, Moment, NameRules, Operation, PermitLimits,
    Reach, Released, Reserving, Term,
};

use super::network::{Answer, Id, LEASE, Network, Order, Request};

pub(crate) struct Remote {
    client: usize,
    network: Arc<Network>,
    capabilities: Capabilities,
}

impl std::fmt::Debug for Remote {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Remote").field("client", &self.client).finish_non_exhaustive()
    }
}

#[derive(Debug)]
pub(crate) struct Lease {
    id: Id,
    mode: Mode,
    token: u64,
}

impl Remote {
    pub(crate) fn new(client: usize, network: &Arc<Network>, context: BackendContext) -> Self {
        let mut capabilities =
            Capabilities::new("network", Reach::Network, NameRules::new(CharacterSet::ANY, 100))
                .with_shared()
                .with_permits(PermitLimits::NONE)
                .with_reserving(Reserving::AtMost(NonZeroU32::new(8).unwrap()));
        capabilities.pipelining = network.order == Order::Kept;
        network.state().opens(client, context);
        Self { client, network: Arc::clone(network), capabilities }
    }

    fn grant(request: &AcquireRequest, answer: &Answer) -> Option<Grant<Lease>> {
        let Answer::Granted { token, group, since } = *answer else { return None };
        let lease = Lease { id: request.id().get(), mode: request.mode(), token };
        let term = Term::Leased { anchor: since, length: LEASE };
        let (token, sections) = (Some(FencingToken::new(token)), request.sections());
        Some(Grant { token, sections, ..Grant::new(lease, GroupId::new(group), term) })
    }

    async fn ask(&self, operation: Operation, request: Request) -> Result<(Answer, Moment), LockError> {
        match self.network.ask(self.client, request).await {
            (Answer::Failed, _) => Err(LockError::new(ErrorKind::Unreachable, operation).retryable()),
            answered => Ok(answered),
        }
    }
}

impl Backend for Remote {
    type Lease = Lease;

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<Option<Grant<Lease>>, LockError> {
        let (id, mode) = (request.id().get(), request.mode());
        let tries = request.wait() == lock_core::Wait::Try;
        self.network.state().tells(id, request.clone());
        let (answer, _) = self.ask(Operation::Acquire, Request::Acquire { id, mode, tries }).await?;
        Ok(Self::grant(request, &answer))
    }

    async fn cancel(&self, request: &AcquireRequest) -> Result<(), LockError> {
        let cancel = Request::Cancel { id: request.id().get(), mode: request.mode() };
        self.ask(Operation::Cancel, cancel).await.map(drop)
    }

    async fn renew(&self, _: GroupId, leases: &[Arc<Lease>]) -> Result<Vec<LeaseState>, LockError> {
        let ids = leases.iter().map(|lease| lease.id).collect();
        let (answer, sent) = self.ask(Operation::Renew, Request::Renew { ids }).await?;
        let Answer::States(states) = answer else { return Ok(vec![LeaseState::Unknown; leases.len()]) };
        let state = |is_held| {
            if is_held { LeaseState::HeldFrom(sent) } else { LeaseState::Lost(LossReason::Expired) }
        };
        Ok(states.into_iter().map(state).collect())
    }

    async fn release(&self, lease: &Lease) -> Result<Released, LockError> {
        let release = Request::Release { id: lease.id, mode: lease.mode, token: lease.token };
        Ok(match self.ask(Operation::Release, release).await?.0 {
            Answer::WasLost => Released::WasLost(LossReason::Expired),
            _ => Released::Clean,
        })
    }

    async fn downgrade(
        &self,
        lease: &Lease,
        request: &AcquireRequest,
    ) -> Result<Downgraded<Lease>, LockError> {
        let id = request.id().get();
        self.network.state().tells(id, request.clone());
        let downgrade = Request::Downgrade { from: lease.id, id };
        let (answer, _) = self.ask(Operation::Downgrade, downgrade).await?;
        let lost = Downgraded::WasLost(LossReason::Expired);
        Ok(Self::grant(request, &answer).map_or(lost, Downgraded::Shared))
    }

    async fn ping(&self) -> Result<(), LockError> {
        Ok(())
    }
}
