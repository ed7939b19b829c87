//! The `Backend` of the core for etcd: one short function for each operation.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lock_core::{
    AcquireRequest, Backend, BackendContext, Breaking, Broken, Capabilities, CharacterSet, Downgraded,
    Fairness, Fencing, FencingToken, Grant, GroupId, HolderId, HolderInfo, InspectRequest, Inspection,
    LeaseState, LockError, LockStatus, LossReason, Memo, Mode, NameRules, Operation, Participant,
    PermitLimits, Reach, Released, Remembered, Reserving, Term, Updated,
};
use tokio::sync::mpsc;

use crate::attempt::{Attempt, entry_of};
use crate::claim::{Claim, Claims};
use crate::failure::{Failure, nonsense};
use crate::hold::{Lease, NewHold, watch_in_time};
use crate::inspection::replace;
use crate::line::Entry;
use crate::link::Link;
use crate::messages::Range;
use crate::options::EtcdOptions;
use crate::record::{Record, Told};

/// Other programs' locks are named by the part of the key up to the last slash, so no name contains one.
const NAMES: NameRules =
    NameRules::new(CharacterSet::of(|character| character != '/' && !character.is_control()), 512);

/// How often the value of a key may change while a client replaces it.
const MOST_ROUNDS: usize = 8;

pub(crate) struct EtcdBackend {
    pub(crate) link: Arc<Link>,
    pub(crate) claims: Arc<Claims>,
    /// The way to the task that watches holds.
    pub(crate) new_holds: mpsc::UnboundedSender<NewHold>,
    capabilities: Capabilities,
}

/// What became of a request to replace the value of a hold's key.
enum Replaced {
    Yes,
    Lost(LossReason),
}

impl EtcdBackend {
    pub(crate) async fn connect(context: BackendContext, options: EtcdOptions) -> Result<Self, LockError> {
        let capabilities = capabilities(&options, context.renewal_interval(options.lease)?);
        // An abort margin that is too long is refused here, and not by each attempt.
        Record::new(context.holder(), Mode::Exclusive, context.abort_margin())?;
        let (new_holds, received) = mpsc::unbounded_channel();
        context.spawn(watch_in_time(context.clone(), received));
        let link = Link::start(context, options).await?;
        Ok(Self { link, claims: Arc::default(), new_holds, capabilities })
    }

    /// The claim of an earlier call for the same attempt, or a new one.
    async fn claim(&self, request: &AcquireRequest) -> Result<Arc<Claim>, LockError> {
        if let Some(claim) = self.claims.of(request.id()).filter(|claim| !claim.session.is_over()) {
            return Ok(claim);
        }
        // Mostly there is contact.
        let found = match self.link.now() {
            Ok(found) => Ok(found),
            Err(_) => self.link.soon().await,
        };
        let (_, session) = found.map_err(|failure| failure.explain(Operation::Acquire))?;
        let is_semaphore = matches!(request.mode(), Mode::Permits { .. });
        let directory = self.link.options.directory(request.physical(), is_semaphore);
        let claim = Arc::new(Claim::new(Arc::clone(&self.link), session, directory, request.id()));
        // Before the first request: whatever becomes of it, the key can be found.
        self.claims.add(request.id(), &claim);
        Ok(claim)
    }

    /// Replaces the value of a hold's key, unless the hold is broken: the mark of a break must not be overwritten.
    async fn replace(
        &self,
        claim: &Claim,
        record: &Record,
        operation: Operation,
    ) -> Result<Replaced, LockError> {
        for _ in 0..MOST_ROUNDS {
            let Some(place) = claim.place() else { return Ok(Replaced::Lost(LossReason::Deleted)) };
            let txn = replace(&claim.key, claim.changed(), record.text()?);
            let answer = match self.link.ask(txn).await {
                Ok(answer) => answer,
                Err(Failure::LeaseOver) => return Ok(Replaced::Lost(LossReason::SessionClosed)),
                Err(failure) => return Err(failure.explain(operation)),
            };
            if answer.held {
                claim.has_changed(answer.revision());
                return Ok(Replaced::Yes);
            }
            let found = answer.range().found.pop().map(entry_of).filter(|found| found.place == place);
            let Some(found) = found else { return Ok(Replaced::Lost(LossReason::Deleted)) };
            if found.told.is_broken() {
                return Ok(Replaced::Lost(LossReason::Broken));
            }
            claim.has_changed(found.changed);
            // An earlier request has done it, and its answer was lost.
            if found.told == Told::Ours(record.clone()) {
                return Ok(Replaced::Yes);
            }
        }
        Err(nonsense(operation, "another program changes the key again and again"))
    }
}

/// The one whose entry this is.
pub(crate) fn participant(entry: &Entry) -> Participant {
    let name = entry.key.rsplit('/').next().unwrap_or_default();
    let mut participant = Participant::new(HolderId::new(name)).with_mode(entry.told.mode());
    match &entry.told {
        Told::Ours(record) => record.client.clone().describe(&mut participant),
        Told::Newer => {}
        // The proposal of a candidate.
        Told::Foreign(value) => {
            participant.value = String::from_utf8(value.clone()).ok().filter(|value| !value.is_empty());
        }
    }
    participant.with_token(Some(FencingToken::new(entry.place.unsigned_abs())))
}

/// How long the servers may take for an answer is known from the options alone.
pub(crate) fn capabilities(options: &EtcdOptions, interval: Duration) -> Capabilities {
    Capabilities::new("etcd", Reach::Network, NAMES)
        .with_fencing(Fencing::Durable)
        .with_fairness(Fairness::Fifo)
        .with_inspection(Inspection::HolderAndQueue)
        .with_breaking(Breaking::Supported)
        .with_describing()
        .with_remembering()
        .with_reserving(Reserving::Refused(
            "they are the revisions of its store, which other clients get too",
        ))
        .with_answers_within(options.timeout_within(interval))
        .with_shared()
        .with_permits(PermitLimits::NONE)
}

impl Backend for EtcdBackend {
    type Lease = Lease;

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<Option<Grant<Lease>>, LockError> {
        let claim = self.claim(request).await?;
        let granted = Attempt { backend: self, request, claim }.make().await?;
        if granted.is_none() && request.wait() == lock_core::Wait::Try {
            self.claims.forget(request.id());
        }
        Ok(granted)
    }

    async fn cancel(&self, request: &AcquireRequest) -> Result<(), LockError> {
        if let Some(claim) = self.claims.of(request.id()) {
            claim.undo().await?;
            self.claims.forget(request.id());
        }
        Ok(())
    }

    async fn renew(&self, group: GroupId, leases: &[Arc<Lease>]) -> Result<Vec<LeaseState>, LockError> {
        let state = match self.link.session_of(group) {
            None => match leases.first() {
                Some(lease) if !lease.claim.session.is_over() => LeaseState::Unknown,
                _ => LeaseState::Lost(LossReason::SessionClosed),
            },
            Some(session) => match self.link.beat(&session).await {
                Ok(()) => LeaseState::Held,
                Err(Failure::LeaseOver) => LeaseState::Lost(LossReason::SessionClosed),
                Err(failure) => return Err(failure.explain(Operation::Renew)),
            },
        };
        Ok(vec![state; leases.len()])
    }

    async fn release(&self, lease: &Lease) -> Result<Released, LockError> {
        lease.begin_release();
        if lease.claim.session.is_over() {
            return Ok(Released::WasLost(LossReason::SessionClosed));
        }
        let released = match lease.claim.remove().await {
            Ok(true) => Released::Clean,
            Ok(false) => Released::WasLost(LossReason::Deleted),
            Err(Failure::LeaseOver) => Released::WasLost(LossReason::SessionClosed),
            Err(failure) => return Err(failure.explain(Operation::Release)),
        };
        lease.forget();
        Ok(released)
    }

    async fn downgrade(
        &self,
        lease: &Lease,
        request: &AcquireRequest,
    ) -> Result<Downgraded<Lease>, LockError> {
        let claim = &lease.claim;
        self.claims.add(request.id(), claim);
        let record = Record::new(request.holder(), request.mode(), self.link.context.abort_margin())?;
        // The key stays, with its place and so its token: none that waits behind it comes between.
        let reason = match self.replace(claim, &record, Operation::Downgrade).await? {
            Replaced::Lost(reason) => reason,
            Replaced::Yes => {
                lease.begin_release();
                let session = &claim.session;
                let shared = Lease::new(self, request, Arc::clone(claim), claim.changed());
                let term = Term::Leased { anchor: session.anchor(), length: session.ttl };
                let grant = Grant::new(shared, session.group, term).with_holder(HolderId::new(claim.name()));
                let token = claim.place().unwrap_or_default().unsigned_abs();
                return Ok(Downgraded::Shared(grant.with_token(FencingToken::new(token))));
            }
        };
        self.claims.forget(request.id());
        Ok(Downgraded::WasLost(reason))
    }

    async fn inspect(&self, request: &InspectRequest) -> Result<LockStatus, LockError> {
        let status = self.status_of(request).await;
        status.map_err(|failure| failure.explain(Operation::Inspect).on(request.name()))
    }

    async fn break_holder(&self, request: &InspectRequest, holder: &HolderId) -> Result<Broken, LockError> {
        let broken = self.take_from(request, holder).await;
        broken.map_err(|failure| failure.explain(Operation::Break).on(request.name()))
    }

    async fn update_holder(&self, lease: &Lease, holder: &HolderInfo) -> Result<Updated, LockError> {
        let record = Record::new(holder, lease.mode, self.link.context.abort_margin())?;
        Ok(match self.replace(&lease.claim, &record, Operation::Describe).await? {
            Replaced::Yes => Updated::Done,
            Replaced::Lost(reason) => Updated::Lost(reason),
        })
    }

    async fn remember(&self, memo: &Memo, keep: Duration) -> Result<Remembered, LockError> {
        let remembered = self.remembered(memo, keep).await;
        remembered.map_err(|failure| failure.explain(Operation::Remember).on(memo.name()))
    }

    async fn ping(&self) -> Result<(), LockError> {
        let asking = async {
            self.link.soon().await?;
            // A read that a majority confirms.
            self.link.ask(Range { key: self.link.options.sentinel(), ..Range::default() }).await
        };
        asking.await.map(drop).map_err(|failure| failure.explain(Operation::Ping))
    }

    async fn close(&self) {
        self.link.close().await;
    }
}

impl fmt::Debug for EtcdBackend {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("EtcdBackend").field("claims", &self.claims).finish_non_exhaustive()
    }
}
