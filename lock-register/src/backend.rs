//! The backend of a client, over any register.

use std::collections::HashMap;
use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lock_core::spi::{Mutex, within};
use lock_core::{
    AcquireRequest, AttemptId, Backend, BackendContext, Breaking, Broken, Capabilities, Downgraded, Failover,
    Fairness, Fencing, Grant, GroupId, HolderId, HolderInfo, InspectRequest, Inspection, LeaseState, Leasing,
    LockError, LockKind, LockStatus, Moment, NameRules, Operation, PermitLimits, PhysicalName, Reach,
    Released, Reserving, Updated,
};
use lock_kit::{LONGEST_LEASE, no_answer};

use crate::attempt::Attempt;
use crate::register::Register;
use crate::slot::{Edit, From, Slot, Store};

/// When a client knows more locks than this, it forgets those that it does not use.
const MOST_SLOTS: usize = 1000;

/// No request may take longer, whatever the lease is.
const LONGEST_REQUEST: Duration = Duration::from_secs(3);

/// How many requests a list of all objects may need.
const PAGES: u32 = 100;

/// How a client keeps its locks.
#[derive(Debug, Clone)]
pub struct RegisterOptions {
    /// How long a lock stays taken when no sign of life of its holder arrives; 30 s by default. Shorter ones cost more writes.
    pub lease: Duration,
    /// How often the next in line looks whether it is its turn; every 250 ms by default. Those behind look less often.
    pub poll: Duration,
}

impl Default for RegisterOptions {
    fn default() -> Self {
        Self { lease: Duration::from_secs(30), poll: Duration::from_millis(250) }
    }
}

impl RegisterOptions {
    /// How long a request may take: less than an interval between renewals.
    fn timeout(&self) -> Duration {
        LONGEST_REQUEST.min(self.lease * 3 / 16)
    }

    /// Returns what a backend of this name can do over a store that other machines reach, with these names.
    pub fn capabilities(&self, backend: &'static str, names: NameRules, shortest: Duration) -> Capabilities {
        Capabilities::new(backend, Reach::Network, names)
            .with_fencing(Fencing::Durable)
            .with_failover(Failover::KeepsHolds)
            .with_fairness(Fairness::Fifo)
            .with_polling(self.poll)
            .with_inspection(Inspection::HolderAndQueue)
            .with_breaking(Breaking::Supported)
            .with_describing()
            .with_leasing(Leasing::PerHold { shortest, longest: LONGEST_LEASE })
            .with_answers_within(self.timeout())
            .with_reserving(Reserving::AtMost(NonZeroU32::MAX))
            .with_shared()
            .with_permits(PermitLimits::NONE)
    }
}

/// The backend of one client: [its docs](crate) say how it works.
pub struct RegisterBackend<R: Register> {
    store: Arc<Store<R>>,
    context: BackendContext,
    options: RegisterOptions,
    capabilities: Capabilities,
    slots: Mutex<Slots<R>>,
    /// No two beats of a client are the same.
    beats: AtomicU64,
}

struct Slots<R: Register> {
    by_key: HashMap<String, Arc<Slot<R>>>,
    /// When so many are known, some may be forgotten.
    limit: usize,
    /// How many there were so far.
    count: u64,
}

/// What it takes to renew and release a hold.
#[derive(Debug)]
pub struct RegisterLease<R: Register> {
    slot: Arc<Slot<R>>,
    id: AttemptId,
}

impl<R: Register> RegisterLease<R> {
    pub(crate) fn new(slot: Arc<Slot<R>>, id: AttemptId) -> Self {
        Self { slot, id }
    }

    pub(crate) fn id(&self) -> AttemptId {
        self.id
    }

    #[cfg(test)]
    pub(crate) fn slot(&self) -> &Arc<Slot<R>> {
        &self.slot
    }
}

impl<R: Register> RegisterBackend<R> {
    /// Creates the backend of a client, with [capabilities](RegisterOptions::capabilities) that a store may restrict.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`](lock_core::ErrorKind::InvalidOption) when the lease is too short for the abort margin.
    pub fn new(
        register: R,
        context: BackendContext,
        options: RegisterOptions,
        capabilities: Capabilities,
    ) -> Result<Self, LockError> {
        context.check_lease(options.lease)?;
        let store = Store { register, clock: context.clock().clone(), timeout: options.timeout() };
        let slots = Slots { by_key: HashMap::new(), limit: MOST_SLOTS, count: 0 };
        Ok(Self {
            store: Arc::new(store),
            context,
            options,
            capabilities,
            slots: Mutex::new(slots),
            beats: AtomicU64::new(1),
        })
    }

    pub(crate) fn context(&self) -> &BackendContext {
        &self.context
    }

    pub(crate) fn options(&self) -> &RegisterOptions {
        &self.options
    }

    pub(crate) fn now(&self) -> Moment {
        self.context.clock().now()
    }

    pub(crate) fn next_beat(&self) -> u64 {
        self.beats.fetch_add(1, Ordering::Relaxed)
    }

    /// What this client knows of a lock. What it has seen of other clients it forgets only when there is much of it: that
    /// only makes it wait longer for a lease to end.
    pub(crate) fn slot(&self, name: &PhysicalName, kind: LockKind) -> Arc<Slot<R>> {
        let key = format!("{name}.{kind}");
        let mut slots = self.slots.lock();
        if let Some(slot) = slots.by_key.get(&key) {
            return Arc::clone(slot);
        }
        if slots.by_key.len() >= slots.limit {
            slots.by_key.retain(|_, slot| Arc::strong_count(slot) > 1 || slot.is_doubtful());
            slots.limit = MOST_SLOTS.max(slots.by_key.len() * 2);
        }
        slots.count += 1;
        let slot = Arc::new(Slot::new(&self.store, key.clone(), GroupId::new(slots.count)));
        slots.by_key.insert(key, Arc::clone(&slot));
        slot
    }
}

impl<R: Register> Backend for RegisterBackend<R> {
    type Lease = RegisterLease<R>;

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<Option<Grant<RegisterLease<R>>>, LockError> {
        Attempt::new(self, request)?.make().await
    }

    async fn cancel(&self, request: &AcquireRequest) -> Result<(), LockError> {
        let (slot, id) = (self.slot(request.physical(), request.mode().kind()), request.id().to_string());
        // The clean-up repeats a cancel for as long as the store is away: of an attempt that has read in vain, nothing is left.
        if !slot.has_entered(request.id()) {
            return Ok(());
        }
        let undo = slot.change(Operation::Cancel, From::Store, |state| match state.remove(&id) {
            Some(_) => Edit::Write(()),
            None => Edit::Certain(()),
        });
        undo.await?;
        slot.has_left(request.id());
        Ok(())
    }

    /// The group is a lock, and one write renews all holds of this client.
    async fn renew(
        &self,
        _: GroupId,
        leases: &[Arc<RegisterLease<R>>],
    ) -> Result<Vec<LeaseState>, LockError> {
        let Some(first) = leases.first() else { return Ok(Vec::new()) };
        let renew = first.slot.change(Operation::Renew, From::Memory, |state| {
            let beat = self.next_beat();
            let states: Vec<_> = leases
                .iter()
                .map(|lease| {
                    if state.holds(lease.id) {
                        state.beat(lease.id, beat);
                        LeaseState::Held
                    } else {
                        LeaseState::Lost(state.loss(lease.id))
                    }
                })
                .collect();
            if states.contains(&LeaseState::Held) { Edit::Write(states) } else { Edit::Keep(states) }
        });
        Ok(renew.await?.0)
    }

    async fn release(&self, lease: &RegisterLease<R>) -> Result<Released, LockError> {
        let id = lease.id.to_string();
        let release = lease.slot.change(Operation::Release, From::Memory, |state| match state.remove(&id) {
            Some(_) => Edit::Write(Released::Clean),
            None => Edit::Certain(Released::WasLost(state.loss(lease.id))),
        });
        let (released, _) = release.await?;
        lease.slot.has_left(lease.id);
        Ok(released)
    }

    async fn downgrade(
        &self,
        lease: &RegisterLease<R>,
        request: &AcquireRequest,
    ) -> Result<Downgraded<RegisterLease<R>>, LockError> {
        Attempt::new(self, request)?.downgrade(lease).await
    }

    async fn inspect(&self, request: &InspectRequest) -> Result<LockStatus, LockError> {
        let slot = self.slot(request.physical(), request.kind());
        let (state, _) = slot.look(Operation::Inspect).await?;
        let mut status = LockStatus::free(request.name().clone());
        status.name = state.name().unwrap_or(status.name);
        (status.holders, status.waiters) = state.participants();
        status.remaining = slot.remaining(&state);
        Ok(status)
    }

    /// Each lock that was ever used has an object.
    async fn list(&self) -> Result<Vec<InspectRequest>, LockError> {
        let clock = self.context.clock();
        let deadline = clock.now().plus(self.store.timeout * PAGES);
        let listed = within(clock, deadline, self.store.register.list()).await;
        let keys = listed.unwrap_or_else(|| Err(no_answer(Operation::Inspect)))?;
        let kinds = [LockKind::Lock, LockKind::Semaphore].map(|kind| (format!(".{kind}"), kind));
        let of_kind = |key: &str, (end, kind): &(String, LockKind)| {
            InspectRequest::found(key.strip_suffix(&**end)?, *kind).ok()
        };
        Ok(keys.iter().filter_map(|key| kinds.iter().find_map(|kind| of_kind(key, kind))).collect())
    }

    async fn break_holder(&self, request: &InspectRequest, holder: &HolderId) -> Result<Broken, LockError> {
        let slot = self.slot(request.physical(), request.kind());
        let (id, mut is_repeated) = (holder.as_str(), false);
        loop {
            let breaking = slot.change(Operation::Break, From::Store, |state| {
                if state.break_holder(id) {
                    Edit::Write(true)
                } else {
                    Edit::Keep(is_repeated && state.is_broken(id))
                }
            });
            match breaking.await {
                // It may have been carried out, which the object says.
                Err(error) if error.is_retryable() && !is_repeated => is_repeated = true,
                Ok((true, _)) => return Ok(Broken::taken_away()),
                Ok((false, _)) => return Ok(Broken::not_held()),
                Err(error) => return Err(error),
            }
        }
    }

    async fn update_holder(
        &self,
        lease: &RegisterLease<R>,
        holder: &HolderInfo,
    ) -> Result<Updated, LockError> {
        let update = lease.slot.change(Operation::Describe, From::Memory, |state| {
            if state.describe(lease.id, holder) {
                Edit::Write(Updated::Done)
            } else {
                Edit::Keep(Updated::Lost(state.loss(lease.id)))
            }
        });
        Ok(update.await?.0)
    }

    async fn ping(&self) -> Result<(), LockError> {
        self.store.read(Operation::Ping, "ping").await.map(drop)
    }
}

impl<R: Register> fmt::Debug for RegisterBackend<R> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("RegisterBackend").field("store", &self.store).finish_non_exhaustive()
    }
}
