//! The `Backend` of the core for ZooKeeper: one short function for each operation.

use std::borrow::Cow;
use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lock_core::{
    AcquireRequest, Backend, BackendContext, Breaking, Broken, Capabilities, CharacterSet, Downgraded,
    Fairness, Fencing, Grant, GroupId, HolderId, HolderInfo, InspectRequest, Inspection, LeaseState,
    LockError, LockKind, LockStatus, LossReason, Memo, Mode, NameRules, Operation, Participant, PhysicalName,
    Reach, Released, Remembered, Reserving, Updated,
};
use tokio::sync::mpsc;
use zookeeper_client::{Error, MultiReadResult};

use crate::attempt::Attempt;
use crate::contender::{Contender, is_worth_resetting, number_of_permits};
use crate::downgrade::downgrade;
use crate::failure::{Failure, Outcome, nonsense};
use crate::hold::{Lease, NewHold, watch_in_time};
use crate::node::Recipe;
use crate::node_claim::{NodeClaim, NodeClaims};
use crate::options::{TokenSource, ZooKeeperOptions};
use crate::permits::{LIMITS, PermitsAttempt};
use crate::record::{is_broken, participant, text_of, with_token};
use crate::session::{Session, term};
use crate::sessions::{Sessions, request_timeout};
use crate::slots::Slots;

/// Whether a part of a path may contain this character. The servers' rule is about the 16-bit units of Java's strings.
pub(crate) fn is_accepted(character: char) -> bool {
    let has_one_unit = matches!(character, '\0'..='\u{d7ff}' | '\u{f900}'..='\u{ffef}');
    has_one_unit && !character.is_control() && character != '/'
}

pub(crate) const NAMES: NameRules = NameRules::new(CharacterSet::of(is_accepted), 512);

/// How many nodes one request reads.
pub(crate) const READ_TOGETHER: usize = 200;

/// How often the data of a node may change while a client replaces it.
pub(crate) const MOST_ROUNDS: usize = 8;

pub(crate) struct ZooKeeperBackend {
    pub(crate) context: BackendContext,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) claims: Arc<NodeClaims>,
    /// The way to the task that watches holds.
    pub(crate) new_holds: mpsc::UnboundedSender<NewHold>,
    pub(crate) recipe: Recipe,
    /// What the client writes into its nodes: who it is.
    data: Box<[u8]>,
    pub(crate) root: String,
    capabilities: Capabilities,
    /// The position of the hold whose node the next heartbeat checks.
    turn: AtomicUsize,
}

impl ZooKeeperBackend {
    pub(crate) async fn connect(
        context: BackendContext,
        options: ZooKeeperOptions,
    ) -> Result<Self, LockError> {
        let data = text_of(context.holder(), context.abort_margin())?;
        let recipe = Recipe { access: options.access, accepted: options.accepted };
        let root = options.root.clone();
        let capabilities = capabilities(&options, context.renewal_interval(term(options.session_timeout)));
        let sessions = Sessions::start(context.clone(), options).await?;
        let (new_holds, received) = mpsc::unbounded_channel();
        context.spawn(watch_in_time(context.clone(), received));
        Ok(Self {
            context,
            sessions,
            claims: Arc::default(),
            new_holds,
            recipe,
            data,
            root,
            capabilities,
            turn: AtomicUsize::new(0),
        })
    }

    pub(crate) fn has_tokens(&self) -> bool {
        self.capabilities.fencing != Fencing::None
    }

    /// What the client writes into the node of an attempt.
    pub(crate) fn data_of(&self, holder: &Arc<HolderInfo>) -> Result<Cow<'_, [u8]>, LockError> {
        // Most attempts are described as their client is.
        if Arc::ptr_eq(holder, self.context.holder()) {
            return Ok(Cow::Borrowed(&self.data));
        }
        Ok(Cow::Owned(text_of(holder, self.context.abort_margin())?.into_vec()))
    }

    /// The directory of a lock.
    pub(crate) fn directory(&self, name: &PhysicalName) -> Arc<str> {
        [&self.root, "/", name.as_str()].concat().into()
    }

    /// The participant whose node this is; none if the node is gone.
    pub(crate) fn participant(&self, name: &str, mode: Mode, found: &MultiReadResult) -> Option<Participant> {
        let node = match found {
            MultiReadResult::Data { data, stat } => Some((data.as_slice(), stat)),
            MultiReadResult::Error { err: Error::NoNode } => return None,
            // The user may not read it.
            _ => None,
        };
        let participant = participant(name, mode, node);
        Some(if self.has_tokens() { participant } else { participant.with_token(None) })
    }

    /// Reports to an attempt who holds the lock, as the first node of the queue says, or as the first permit that is taken says.
    /// Without an answer that stays unknown.
    pub(crate) async fn name_holder(&self, request: &AcquireRequest, claim: &NodeClaim, first: Option<&str>) {
        let mode = |name: &str| match request.mode() {
            Mode::Permits { of, .. } => Some(Mode::Permits {
                take: NonZeroU32::MIN,
                of: NonZeroU32::new(number_of_permits(name)?.1).unwrap_or(of),
            }),
            _ => Some(Contender::read(name, self.recipe.accepted)?.mode()),
        };
        let Some((first, mode)) = first.and_then(|name| Some((name, mode(name)?))) else { return };
        let Ok(found) = claim.session().read(&[claim.path_of(first)]).await else { return };
        if let Some(holder) = found.first().and_then(|found| self.participant(first, mode, found)) {
            request.held_by(holder);
        }
    }

    /// Repeats the heartbeat later if that will prove more than the last one did.
    fn repeat_when_worthwhile(&self, session: &Session) {
        let Some(moment) = session.worth_repeating_at() else { return };
        let (context, group) = (self.context.clone(), session.group);
        self.context.spawn(async move {
            context.clock().sleep_until(moment).await;
            context.renew_now(group);
        });
    }
}

pub(crate) fn capabilities(
    options: &ZooKeeperOptions,
    interval: Result<Duration, LockError>,
) -> Capabilities {
    // A session without time to be renewed is refused when it is opened.
    let interval = interval.unwrap_or(options.session_timeout);
    let (fencing, reserving) = match options.fencing {
        TokenSource::Czxid => (
            Fencing::Durable,
            Reserving::Refused("they are the numbers of its transactions, which other clients get too"),
        ),
        TokenSource::None => (Fencing::None, Reserving::AtMost(NonZeroU32::MAX)),
    };
    Capabilities::new("zookeeper", Reach::Network, NAMES)
        .with_fencing(fencing)
        .with_fairness(Fairness::Fifo)
        .with_inspection(Inspection::HolderAndQueue)
        .with_breaking(Breaking::Supported)
        .with_describing()
        .with_remembering()
        .with_reserving(reserving)
        .with_answers_within(request_timeout(options.session_timeout, interval))
        .with_shared()
        .with_permits(LIMITS)
}

impl Backend for ZooKeeperBackend {
    type Lease = Lease;

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<Option<Grant<Lease>>, LockError> {
        match request.mode() {
            Mode::Permits { take, of } => {
                let attempt = PermitsAttempt { backend: self, request, take: take.get(), of: of.get() };
                Box::pin(attempt.make()).await
            }
            _ => Attempt::new(self, request).make().await,
        }
    }

    async fn cancel(&self, request: &AcquireRequest) -> Result<(), LockError> {
        for claim in self.claims.all(request.id()) {
            claim.undo().await?;
        }
        self.claims.forget(request.id());
        Ok(())
    }

    async fn renew(&self, group: GroupId, leases: &[Arc<Lease>]) -> Result<Vec<LeaseState>, LockError> {
        let Some(session) = self.sessions.of_group(group) else {
            return Ok(vec![LeaseState::Lost(LossReason::SessionClosed); leases.len()]);
        };
        let mut states = vec![None; leases.len()];
        // One heartbeat renews all holds. It checks the first node that exists, starting with a different one each time: the watch
        // of a node that the user may no longer read reports nothing.
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        for position in (0..leases.len()).map(|offset| (turn + offset) % leases.len()) {
            let path = leases[position].claim.first_path();
            let Some(path) = path.filter(|_| states[position].is_none()) else { continue };
            match session.beat(&path).await {
                Ok(()) => {
                    self.repeat_when_worthwhile(&session);
                    let held = LeaseState::HeldFrom(session.anchor());
                    return Ok(states.into_iter().map(|state| state.unwrap_or(held)).collect());
                }
                Err(failure) if failure.is(&Error::NoNode) => {
                    states[position] = Some(LeaseState::Lost(LossReason::Deleted));
                    // If one node was deleted, others may have been deleted too.
                    note_the_gone(&session, leases, &mut states).await;
                }
                Err(failure) => return Err(failure.explain(Operation::Renew)),
            }
        }
        // No node exists, or all holds are being released.
        let lost = LeaseState::Lost(LossReason::Deleted);
        Ok(states.into_iter().map(|state| state.unwrap_or(lost)).collect())
    }

    async fn release(&self, lease: &Lease) -> Result<Released, LockError> {
        lease.begin_release();
        let session = lease.claim.session();
        if session.is_over() {
            return Ok(Released::WasLost(LossReason::SessionClosed));
        }
        let names = lease.claim.names();
        session.reach().await;
        let released = match lease.claim.remove().await {
            Ok(true) => Released::Clean,
            Ok(false) => Released::WasLost(LossReason::Deleted),
            Err(failure) if failure.outcome() == Outcome::EndsWithSession => {
                Released::WasLost(LossReason::SessionClosed)
            }
            Err(failure) if failure.outcome() == Outcome::Refused => {
                // The caller may keep the lease; the node must not depend on that.
                lease.claim.leave();
                lease.forget();
                return Err(failure.explain(Operation::Release));
            }
            Err(failure) => return Err(failure.explain(Operation::Release)),
        };
        lease.forget();
        if names.is_some_and(|names| names.first().is_some_and(|name| is_worth_resetting(name))) {
            // A new directory makes the numbers start again. While clients wait, the servers refuse the deletion, which does no
            // harm.
            let _ = session.delete(lease.claim.directory()).await;
        }
        Ok(released)
    }

    async fn downgrade(
        &self,
        lease: &Lease,
        request: &AcquireRequest,
    ) -> Result<Downgraded<Lease>, LockError> {
        downgrade(self, lease, request).await
    }

    async fn inspect(&self, request: &InspectRequest) -> Result<LockStatus, LockError> {
        let session = self.sessions.any(Operation::Inspect).await?;
        let look = || async {
            match request.kind() {
                LockKind::Semaphore => self.status_of_permits(&session, request).await,
                _ => self.status_of(&session, request).await,
            }
        };
        session
            .patiently(look)
            .await
            .map_err(|failure| failure.explain(Operation::Inspect).on(request.name()))
    }

    async fn break_holder(&self, request: &InspectRequest, holder: &HolderId) -> Result<Broken, LockError> {
        let session = self.sessions.any(Operation::Break).await?;
        let broken = match request.kind() {
            LockKind::Semaphore => self.take_permits_from(&session, request, holder).await,
            _ => self.take_from(&session, request, holder).await,
        };
        broken.map_err(|failure| failure.explain(Operation::Break).on(request.name()))
    }

    async fn update_holder(&self, lease: &Lease, holder: &HolderInfo) -> Result<Updated, LockError> {
        let text = text_of(holder, self.context.abort_margin())?;
        let text = with_token(&text, lease.token);
        let session = lease.claim.session();
        for _ in 0..MOST_ROUNDS {
            let Some(path) = lease.claim.first_path() else { return Ok(Updated::Lost(LossReason::Deleted)) };
            match session.patiently(|| replace_data(session, &path, &text)).await {
                Ok(Replaced::Yes) => return Ok(Updated::Done),
                Ok(Replaced::Broken) => return Ok(Updated::Lost(LossReason::Broken)),
                Ok(Replaced::Changed) => {}
                Err(failure) if failure.is(&Error::NoNode) => return Ok(Updated::Lost(LossReason::Deleted)),
                Err(failure) if failure.outcome() == Outcome::EndsWithSession => {
                    return Ok(Updated::Lost(LossReason::SessionClosed));
                }
                Err(failure) => return Err(failure.explain(Operation::Describe)),
            }
        }
        Err(nonsense(Operation::Describe, "another program changes the node again and again"))
    }

    async fn remember(&self, memo: &Memo, keep: Duration) -> Result<Remembered, LockError> {
        let session = self.sessions.any(Operation::Remember).await?;
        Slots { backend: self, session }.remember(memo, keep).await
    }

    async fn ping(&self) -> Result<(), LockError> {
        let session = self.sessions.any(Operation::Ping).await?;
        // The answer comes by way of the leader.
        session.catch_up(&self.root).await.map_err(|failure| failure.explain(Operation::Ping))
    }

    async fn close(&self) {
        self.sessions.close().await;
    }
}

/// What became of a request to replace the data of a node.
enum Replaced {
    Yes,
    /// Another client has broken the hold. Its mark stays.
    Broken,
    /// Another client has written to the node in between.
    Changed,
}

/// Replaces the data of a hold's node, unless the hold is broken: the mark of a break must not be overwritten.
async fn replace_data(session: &Session, path: &str, text: &[u8]) -> Result<Replaced, Failure> {
    let found = session.read(std::slice::from_ref(&path.to_owned())).await?.pop();
    let version = match found {
        Some(MultiReadResult::Data { data, .. }) if is_broken(&data) => return Ok(Replaced::Broken),
        Some(MultiReadResult::Data { stat, .. }) => stat.version,
        Some(MultiReadResult::Error { err }) => return Err(Failure::Told(err)),
        _ => return Err(Failure::Told(Error::UnexpectedError("an unexpected result".to_owned()))),
    };
    match session.change(|writer| writer.add_set_data(path, text, Some(version))).await {
        Ok(_) => Ok(Replaced::Yes),
        Err((_, failure)) if failure.is(&Error::BadVersion) => Ok(Replaced::Changed),
        Err((_, failure)) => Err(failure),
    }
}

/// Looks at the nodes of several holds in one request, and notes those that are gone.
async fn note_the_gone(session: &Session, leases: &[Arc<Lease>], states: &mut [Option<LeaseState>]) {
    let mut paths = Vec::new();
    let mut holds = Vec::new();
    for (place, lease) in leases.iter().enumerate() {
        // A hold without names is being released.
        for name in lease.claim.names().iter().flat_map(|names| names.iter()) {
            paths.push(lease.claim.path_of(name));
            holds.push(place);
        }
    }
    for (paths, holds) in paths.chunks(READ_TOGETHER).zip(holds.chunks(READ_TOGETHER)) {
        let Ok(are_there) = session.which_are_there(paths).await else { return };
        for (place, is_there) in holds.iter().zip(are_there) {
            if !is_there {
                states[*place] = Some(LeaseState::Lost(LossReason::Deleted));
            }
        }
    }
}

impl fmt::Debug for ZooKeeperBackend {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ZooKeeperBackend").field("sessions", &self.sessions).finish_non_exhaustive()
    }
}
