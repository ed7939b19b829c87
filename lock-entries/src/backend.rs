//! The backend of a client, over any store of entries.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lock_core::{
    AcquireRequest, Backend, Broken, Capabilities, Downgraded, Grant, GroupId, HolderId, HolderInfo,
    InspectRequest, LeaseState, LockError, LockStatus, LossReason, Memo, Mode, Operation, Recall, Released,
    Remembered, Updated, Wait,
};
use tokio::sync::mpsc;

use crate::breaking::take_from;
use crate::claim::{Claim, Claims, Failed, Outcome, rewrite};
use crate::entries::{Entries, Granted};
use crate::hold::{EntryLease, NewHold, watch_in_time};
use crate::record::Record;

/// The backend of one client: [its docs](crate) say how it works.
pub struct EntriesBackend<S: Entries> {
    store: S,
    claims: Arc<Claims<S::Claim>>,
    /// The way to the task that watches holds.
    new_holds: mpsc::UnboundedSender<NewHold<S::Claim>>,
}

impl<S: Entries> EntriesBackend<S> {
    /// Creates the backend of a client of a store.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`](lock_core::ErrorKind::InvalidOption) for an abort margin that is too long to wait for.
    pub fn new(store: S) -> Result<Self, LockError> {
        let context = store.context().clone();
        Record::new(context.holder(), Mode::Exclusive, context.abort_margin())?;
        let (new_holds, received) = mpsc::unbounded_channel();
        context.spawn(watch_in_time(context.clone(), received));
        Ok(Self { store, claims: Arc::default(), new_holds })
    }

    fn grant(&self, request: &AcquireRequest, granted: Granted<S::Claim>) -> Grant<EntryLease<S::Claim>> {
        let (group, term) = (granted.claim.group(), granted.claim.term());
        let (holder, token) = (Some(granted.name.clone()), granted.token);
        let lease = EntryLease::new(request.clone(), granted, Arc::clone(&self.claims));
        // Sending fails only after the receiver has ended with the client.
        let _ = self.new_holds.send(lease.new_at(self.store.context().clock().now()));
        Grant { holder, token, ..Grant::new(lease, group, term) }
    }

    async fn status_of(&self, request: &InspectRequest) -> Result<LockStatus, S::Failure> {
        let (name, holders, waiters) = self.store.line(request).await?.told();
        let mut status = LockStatus::free(name.unwrap_or_else(|| request.name().clone()));
        (status.holders, status.waiters) = (holders, waiters);
        Ok(status)
    }
}

impl<S: Entries> Backend for EntriesBackend<S> {
    type Lease = EntryLease<S::Claim>;

    fn capabilities(&self) -> &Capabilities {
        self.store.capabilities()
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<Option<Grant<Self::Lease>>, LockError> {
        let granted = self.store.acquire(request, &self.claims).await?;
        if granted.is_none() && request.wait() == Wait::Try {
            // The core does not ask for this attempt again.
            self.claims.forget(request.id());
        }
        Ok(granted.map(|granted| self.grant(request, granted)))
    }

    async fn cancel(&self, request: &AcquireRequest) -> Result<(), LockError> {
        for claim in self.claims.all(request.id()) {
            claim.undo().await?;
        }
        self.claims.forget(request.id());
        Ok(())
    }

    async fn renew(&self, group: GroupId, leases: &[Arc<Self::Lease>]) -> Result<Vec<LeaseState>, LockError> {
        let claims: Vec<_> = leases.iter().map(|lease| &**lease.claim()).collect();
        self.store.renew(group, &claims).await
    }

    async fn release(&self, lease: &Self::Lease) -> Result<Released, LockError> {
        lease.begin_release();
        let claim = lease.claim();
        if claim.is_over() {
            return Ok(Released::WasLost(LossReason::SessionClosed));
        }
        let released = match claim.remove().await {
            Ok(true) => Released::Clean,
            Ok(false) => Released::WasLost(LossReason::Deleted),
            Err(failure) => match failure.outcome() {
                Outcome::EndsWithSession => Released::WasLost(LossReason::SessionClosed),
                outcome => {
                    if outcome == Outcome::Refused {
                        // The caller may keep the lease; the entry must not depend on that.
                        claim.leave();
                        lease.forget();
                    }
                    return Err(failure.explain(Operation::Release));
                }
            },
        };
        lease.forget();
        Ok(released)
    }

    async fn downgrade(
        &self,
        lease: &Self::Lease,
        request: &AcquireRequest,
    ) -> Result<Downgraded<Self::Lease>, LockError> {
        // The entry stays, with its place and so its token: none that waits behind it comes between.
        let granted = lease.granted();
        self.claims.add(request.id(), &granted.claim);
        let record = Record::of(request, self.store.context())?;
        if let Some(reason) = rewrite(Operation::Downgrade, &**lease.claim(), record).await? {
            self.claims.forget(request.id());
            return Ok(Downgraded::WasLost(reason));
        }
        Ok(Downgraded::Shared(self.grant(request, granted)))
    }

    async fn inspect(&self, request: &InspectRequest) -> Result<LockStatus, LockError> {
        let status = self.status_of(request).await;
        status.map_err(|failure| failure.explain(Operation::Inspect).on(request.name()))
    }

    async fn list(&self) -> Result<Vec<InspectRequest>, LockError> {
        self.store.list().await.map_err(|failure| failure.explain(Operation::Inspect))
    }

    async fn break_holder(&self, request: &InspectRequest, holder: &HolderId) -> Result<Broken, LockError> {
        take_from(&self.store, request, holder).await.map_err(|error| error.on(request.name()))
    }

    async fn update_holder(&self, lease: &Self::Lease, holder: &HolderInfo) -> Result<Updated, LockError> {
        let record = Record::of(lease.attempt(), self.store.context())?.shown_as(holder);
        let lost = rewrite(Operation::Describe, &**lease.claim(), record).await?;
        Ok(lost.map_or(Updated::Done, Updated::Lost))
    }

    async fn remember(&self, memo: &Memo, keep: Duration) -> Result<Remembered, LockError> {
        self.store.remember(memo, keep).await
    }

    async fn recall(&self, memo: &Memo, recall: Recall) -> Result<Option<Duration>, LockError> {
        self.store.recall(memo, recall).await
    }

    async fn ping(&self) -> Result<(), LockError> {
        self.store.ping().await
    }

    async fn close(&self) {
        self.store.close().await;
    }
}

impl<S: Entries> fmt::Debug for EntriesBackend<S> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("EntriesBackend").field("store", &self.store).finish_non_exhaustive()
    }
}
