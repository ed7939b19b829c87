//! Type erasure for backends and their leases.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::{
    AcquireRequest, Backend, Downgraded, Grant, GroupId, InspectRequest, LeaseState, Memo, Recall, Released,
    Remembered, Updated,
};
use crate::runtime::Metrics;
use crate::runtime::engine::contained;
use crate::types::{Broken, Capabilities, ErrorKind, HolderId, HolderInfo, LockError, LockStatus, Operation};

/// A lease of an erased type.
pub(crate) type AnyLease = Arc<dyn Any + Send + Sync>;

/// A backend whose lease type is erased. Its requests are counted, and a panic fails the one that it happens in.
#[async_trait]
pub(crate) trait AnyBackend: fmt::Debug + Send + Sync {
    fn capabilities(&self) -> &Capabilities;
    async fn acquire(&self, request: &AcquireRequest) -> Result<Option<Grant<AnyLease>>, LockError>;
    async fn cancel(&self, request: &AcquireRequest) -> Result<(), LockError>;
    async fn renew(&self, group: GroupId, leases: &[AnyLease]) -> Result<Vec<LeaseState>, LockError>;
    async fn release(&self, lease: &AnyLease) -> Result<Released, LockError>;
    async fn downgrade(
        &self,
        lease: &AnyLease,
        request: &AcquireRequest,
    ) -> Result<Downgraded<AnyLease>, LockError>;
    async fn inspect(&self, request: &InspectRequest) -> Result<LockStatus, LockError>;
    async fn list(&self) -> Result<Vec<InspectRequest>, LockError>;
    async fn break_holder(&self, request: &InspectRequest, holder: &HolderId) -> Result<Broken, LockError>;
    async fn update_holder(&self, lease: &AnyLease, holder: &HolderInfo) -> Result<Updated, LockError>;
    async fn remember(&self, memo: &Memo, keep: Duration) -> Result<Remembered, LockError>;
    async fn recall(&self, memo: &Memo, recall: Recall) -> Result<Option<Duration>, LockError>;
    async fn ping(&self) -> Result<(), LockError>;
    async fn close(&self);
}

/// Erases the lease type of a backend.
#[derive(Debug)]
pub(crate) struct Erased<B> {
    backend: B,
    /// Those of the backend, as the settings of the client leave them.
    capabilities: Capabilities,
    metrics: Metrics,
}

impl<B: Backend> Erased<B> {
    pub(crate) fn new(backend: B, capabilities: Capabilities, metrics: Metrics) -> Self {
        Self { backend, capabilities, metrics }
    }

    /// Completes a request to the backend, which is called inside of it. The call is pinned, because a future that is passed on takes its memory once more.
    async fn request<T>(
        &self,
        operation: Operation,
        call: Pin<&mut (impl Future<Output = Result<T, LockError>> + Send)>,
    ) -> Result<T, LockError> {
        let request = self.metrics.request(operation);
        let answer = contained(operation, call).await;
        request.answered(&answer);
        answer
    }

    fn recall(lease: &AnyLease) -> Result<&B::Lease, LockError> {
        lease.downcast_ref().ok_or_else(other_backend)
    }
}

#[async_trait]
impl<B: Backend> AnyBackend for Erased<B> {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<Option<Grant<AnyLease>>, LockError> {
        let call = pin!(async { Ok(self.backend.acquire(request).await?.map(Grant::erase)) });
        self.request(Operation::Acquire, call).await
    }

    async fn cancel(&self, request: &AcquireRequest) -> Result<(), LockError> {
        self.request(Operation::Cancel, pin!(async { self.backend.cancel(request).await })).await
    }

    async fn renew(&self, group: GroupId, leases: &[AnyLease]) -> Result<Vec<LeaseState>, LockError> {
        let recall = |lease: &AnyLease| Arc::clone(lease).downcast().map_err(|_| other_backend());
        let leases = leases.iter().map(recall).collect::<Result<Vec<_>, _>>()?;
        self.request(Operation::Renew, pin!(async { self.backend.renew(group, &leases).await })).await
    }

    async fn release(&self, lease: &AnyLease) -> Result<Released, LockError> {
        let call = pin!(async { self.backend.release(Self::recall(lease)?).await });
        self.request(Operation::Release, call).await
    }

    async fn downgrade(
        &self,
        lease: &AnyLease,
        request: &AcquireRequest,
    ) -> Result<Downgraded<AnyLease>, LockError> {
        let call = pin!(async {
            Ok(match self.backend.downgrade(Self::recall(lease)?, request).await? {
                Downgraded::Shared(grant) => Downgraded::Shared(grant.erase()),
                Downgraded::WasLost(reason) => Downgraded::WasLost(reason),
            })
        });
        self.request(Operation::Downgrade, call).await
    }

    async fn inspect(&self, request: &InspectRequest) -> Result<LockStatus, LockError> {
        self.request(Operation::Inspect, pin!(async { self.backend.inspect(request).await })).await
    }

    async fn list(&self) -> Result<Vec<InspectRequest>, LockError> {
        self.request(Operation::Inspect, pin!(async { self.backend.list().await })).await
    }

    async fn break_holder(&self, request: &InspectRequest, holder: &HolderId) -> Result<Broken, LockError> {
        self.request(Operation::Break, pin!(async { self.backend.break_holder(request, holder).await })).await
    }

    async fn update_holder(&self, lease: &AnyLease, holder: &HolderInfo) -> Result<Updated, LockError> {
        let call = pin!(async { self.backend.update_holder(Self::recall(lease)?, holder).await });
        self.request(Operation::Describe, call).await
    }

    async fn remember(&self, memo: &Memo, keep: Duration) -> Result<Remembered, LockError> {
        self.request(Operation::Remember, pin!(async { self.backend.remember(memo, keep).await })).await
    }

    async fn recall(&self, memo: &Memo, recall: Recall) -> Result<Option<Duration>, LockError> {
        self.request(Operation::Remember, pin!(async { self.backend.recall(memo, recall).await })).await
    }

    async fn ping(&self) -> Result<(), LockError> {
        self.request(Operation::Ping, pin!(async { self.backend.ping().await })).await
    }

    async fn close(&self) {
        let closing = pin!(async {
            self.backend.close().await;
            Ok(())
        });
        let _ = self.request(Operation::Close, closing).await;
    }
}

fn other_backend() -> LockError {
    LockError::new(ErrorKind::Internal, Operation::Renew).because("the lease belongs to another backend")
}
