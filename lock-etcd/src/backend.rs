//! A client of etcd as a store of entries: one short function for each operation.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lock_core::{
    AcquireRequest, BackendContext, Breaking, Capabilities, CharacterSet, Failover, Fairness, Fencing,
    FencingToken, GroupId, HolderId, Inspection, LeaseState, LockError, LossReason, Memo, Mode, NameRules,
    Operation, Participant, PermitLimits, Reach, Recall, Remembered, Reserving,
};
use lock_entries::{Claim, Claims, Entries, EntriesBackend, Failed, Granted, Told};

use crate::attempt::Attempt;
use crate::claim::KeyClaim;
use crate::failure::Failure;
use crate::line::Entry;
use crate::link::Link;
use crate::messages::Range;
use crate::options::EtcdOptions;

/// Other programs' locks are named by the part of the key up to the last slash, so no name contains one.
const NAMES: NameRules =
    NameRules::new(CharacterSet::of(|character| character != '/' && !character.is_control()), 512);

pub(crate) struct EtcdEntries {
    pub(crate) link: Arc<Link>,
    capabilities: Capabilities,
}

impl EtcdEntries {
    pub(crate) async fn connect(
        context: BackendContext,
        options: EtcdOptions,
    ) -> Result<EntriesBackend<Self>, LockError> {
        let capabilities = capabilities(&options, context.renewal_interval(options.lease)?);
        EntriesBackend::new(Self { link: Link::start(context, options).await?, capabilities })
    }

    /// The claim of an earlier call for the same attempt, or a new one.
    async fn claim(
        &self,
        request: &AcquireRequest,
        claims: &Claims<KeyClaim>,
    ) -> Result<Arc<KeyClaim>, LockError> {
        if let Some(claim) = claims.living(request.id()) {
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
        let claim = Arc::new(KeyClaim::new(Arc::clone(&self.link), session, directory, request.id()));
        // Before the first request: whatever becomes of it, the key can be found.
        claims.add(request.id(), &claim);
        Ok(claim)
    }
}

/// The one whose entry this is.
pub(crate) fn participant(entry: &Entry) -> Participant {
    let name = entry.key.rsplit('/').next().unwrap_or_default();
    let mut participant = Participant::new(HolderId::new(name))
        .with_mode(entry.told.mode())
        .with_token(Some(FencingToken::new(entry.place.unsigned_abs())));
    match &entry.told {
        Told::Ours(record) => record.clone().describe(&mut participant),
        Told::Newer => {}
        // The proposal of a candidate.
        Told::Foreign(value) => {
            participant.value = String::from_utf8(value.clone()).ok().filter(|value| !value.is_empty());
        }
    }
    participant
}

/// How long the servers may take for an answer is known from the options alone.
pub(crate) fn capabilities(options: &EtcdOptions, interval: Duration) -> Capabilities {
    Capabilities::new("etcd", Reach::Network, NAMES)
        .with_fencing(Fencing::Durable)
        .with_failover(Failover::KeepsHolds)
        .with_fairness(Fairness::Fifo)
        .with_inspection(Inspection::HolderAndQueue)
        .with_breaking(Breaking::Supported)
        .with_describing()
        .with_listing()
        .with_remembering()
        .with_reserving(Reserving::Refused(
            "they are the revisions of its store, which other clients get too",
        ))
        .with_answers_within(options.timeout_within(interval))
        .with_shared()
        .with_permits(PermitLimits::NONE)
}

impl Entries for EtcdEntries {
    type Claim = KeyClaim;

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn context(&self) -> &BackendContext {
        &self.link.context
    }

    async fn acquire(
        &self,
        request: &AcquireRequest,
        claims: &Claims<KeyClaim>,
    ) -> Result<Option<Granted<KeyClaim>>, LockError> {
        let claim = self.claim(request, claims).await?;
        Attempt { backend: self, request, claim }.make().await
    }

    async fn renew(&self, group: GroupId, claims: &[&KeyClaim]) -> Result<Vec<LeaseState>, LockError> {
        let state = match self.link.session_of(group) {
            None => match claims.first() {
                Some(claim) if !claim.is_over() => LeaseState::Unknown,
                _ => LeaseState::Lost(LossReason::SessionClosed),
            },
            Some(session) => match self.link.beat(&session).await {
                Ok(()) => LeaseState::Held,
                Err(Failure::LeaseOver) => LeaseState::Lost(LossReason::SessionClosed),
                Err(failure) => return Err(failure.explain(Operation::Renew)),
            },
        };
        Ok(vec![state; claims.len()])
    }

    async fn remember(&self, memo: &Memo, keep: Duration) -> Result<Remembered, LockError> {
        let remembered = self.remembered(memo, keep).await;
        remembered.map_err(|failure| failure.explain(Operation::Remember).on(memo.name()))
    }

    async fn recall(&self, memo: &Memo, recall: Recall) -> Result<Option<Duration>, LockError> {
        let recalled = self.recalled(memo, recall).await;
        recalled.map_err(|failure| failure.explain(Operation::Remember).on(memo.name()))
    }

    async fn ping(&self) -> Result<(), LockError> {
        let asking = async {
            self.link.soon().await?;
            // A read that a majority confirms.
            self.link.ask(Range::of(&self.link.options.sentinel())).await
        };
        asking.await.map(drop).map_err(|failure| failure.explain(Operation::Ping))
    }

    async fn close(&self) {
        self.link.close().await;
    }
}

impl fmt::Debug for EtcdEntries {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("EtcdEntries").finish_non_exhaustive()
    }
}
