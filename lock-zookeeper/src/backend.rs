//! The `Backend` of the core for ZooKeeper: one short function for each operation.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use lock_core::{
    AcquireRequest, Backend, BackendContext, Breaking, Broken, Capabilities, CharacterSet, Describing,
    Fairness, Fencing, Grant, GroupId, HolderId, HolderInfo, InspectRequest, Inspection, LeaseState,
    LockError, LockStatus, LossReason, Memo, Moment, NameRules, Operation, Participant, PhysicalName, Reach,
    Released, Remembered, Remembering, Updated,
};
use zookeeper_client::{Error, MultiReadResult};

use crate::attempt::Attempt;
use crate::contender::Contender;
use crate::failure::{Failure, Outcome, nonsense};
use crate::hold::Lease;
use crate::memos::Slots;
use crate::node::Recipe;
use crate::node_claim::{NodeClaim, NodeClaims};
use crate::options::{TokenSource, ZooKeeperOptions};
use crate::queue::{in_order, refuse_strangers};
use crate::record::{broken, broken_unread, is_broken, participant, stops_within, text_of};
use crate::session::{Session, Told};
use crate::sessions::Sessions;

/// Whether a part of a path may contain this character. The servers' rule is about the 16-bit units of Java's strings.
pub(crate) fn is_accepted(character: char) -> bool {
    let has_one_unit = matches!(character, '\0'..='\u{d7ff}' | '\u{f900}'..='\u{ffef}');
    has_one_unit && !character.is_control() && character != '/'
}

pub(crate) const NAMES: NameRules = NameRules::new(CharacterSet::of(is_accepted), 512);

/// How many nodes one request reads.
const READ_TOGETHER: usize = 200;

/// How often the data of a node may change while a client replaces it.
const MOST_ROUNDS: usize = 8;

/// The pause before another check of a node that is about to go, after a failed one.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// How long a holder may take to learn that its hold is broken: longer than the time in which a new hold is not watched yet, even
/// on a busy machine.
const TOLD_BEFORE: Duration = Duration::from_secs(1);

pub(crate) struct ZooKeeperBackend {
    pub(crate) context: BackendContext,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) claims: Arc<NodeClaims>,
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
        let capabilities = capabilities(&options);
        let sessions = Sessions::start(context.clone(), options).await?;
        Ok(Self {
            context,
            sessions,
            claims: Arc::default(),
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
        format!("{}/{name}", self.root).into()
    }

    /// The contenders of a lock as the servers know them now, in the order of the queue.
    async fn contenders(&self, session: &Session, directory: &str) -> Result<Vec<Contender>, Failure> {
        session.catch_up(directory).await?;
        let children = session.list(directory).await?;
        let contenders = in_order(session, directory, &children, self.recipe.accepted).await?;
        refuse_strangers(contenders.first(), &children, self.recipe.accepted)?;
        Ok(contenders)
    }

    /// The holder whose node this is; none if the node is gone.
    pub(crate) fn holder(&self, contender: &Contender, found: &MultiReadResult) -> Option<Participant> {
        let node = match found {
            MultiReadResult::Data { data, stat } => Some((data.as_slice(), stat)),
            MultiReadResult::Error { err: Error::NoNode } => return None,
            // The user may not read it.
            _ => None,
        };
        let holder = participant(contender, node);
        Some(if self.has_tokens() { holder } else { holder.with_token(None) })
    }

    /// Reports to an attempt who holds the lock, as the first node of the queue says. Without an answer that stays unknown.
    pub(crate) async fn name_holder(&self, request: &AcquireRequest, claim: &NodeClaim, first: Option<&str>) {
        let Some(first) = first.and_then(|name| Contender::read(name, self.recipe.accepted)) else { return };
        let Ok(found) = claim.session().read(&[claim.path_of(&first.name)]).await else { return };
        if let Some(holder) = found.first().and_then(|found| self.holder(&first, found)) {
            request.attempt().held_by(holder);
        }
    }

    /// Repeats the heartbeat later if that will prove more than the last one did.
    fn repeat_when_worthwhile(&self, session: &Session) {
        let Some(moment) = session.worth_repeating_at() else { return };
        let (context, group) = (self.context.clone(), session.group);
        self.context.spawn(async move {
            context.clock().sleep_until(moment).await;
            context.group_restored(group);
        });
    }
}

pub(crate) fn capabilities(options: &ZooKeeperOptions) -> Capabilities {
    let fencing = match options.fencing {
        TokenSource::Czxid => Fencing::Durable,
        TokenSource::None => Fencing::None,
    };
    Capabilities::new("zookeeper", Reach::Network, NAMES)
        .with_fencing(fencing)
        .with_fairness(Fairness::Fifo)
        .with_inspection(Inspection::HolderAndQueue)
        .with_breaking(Breaking::Supported)
        .with_describing(Describing::Supported)
        .with_remembering(Remembering::Supported)
}

#[async_trait]
impl Backend for ZooKeeperBackend {
    type Lease = Lease;

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<Option<Grant<Lease>>, LockError> {
        Attempt::new(self, request).make().await
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
            let claim = &leases[position].claim;
            let Some(node) = claim.node().filter(|_| states[position].is_none()) else { continue };
            match session.beat(&claim.path_of(&node.name)).await {
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
        let node = lease.claim.node();
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
        if node.is_some_and(|node| node.is_worth_resetting()) {
            // A new directory makes the numbers start again. While clients wait, the servers refuse the deletion, which does no
            // harm.
            let _ = session.delete(lease.claim.directory()).await;
        }
        Ok(released)
    }

    async fn inspect(&self, request: &InspectRequest) -> Result<LockStatus, LockError> {
        let explained = |failure: Failure| failure.explain(Operation::Inspect).on(request.name());
        let session = self.sessions.any(Operation::Inspect).await?;
        let directory = self.directory(request.physical());
        let contenders = self.contenders(&session, &directory).await.map_err(explained)?;
        let mut status = LockStatus::free(request.name().clone());
        for contenders in contenders.chunks(READ_TOGETHER) {
            let paths: Vec<_> =
                contenders.iter().map(|contender| format!("{directory}/{}", contender.name)).collect();
            let found = session.read(&paths).await.map_err(explained)?;
            for (contender, found) in contenders.iter().zip(&found) {
                let Some(holder) = self.holder(contender, found) else { continue };
                if status.holders.is_empty() {
                    status.holders.push(holder);
                } else {
                    status.waiters.push(holder.with_token(None));
                }
            }
        }
        Ok(status)
    }

    async fn break_holder(&self, request: &InspectRequest, holder: &HolderId) -> Result<Broken, LockError> {
        let explained = |failure: Failure| failure.explain(Operation::Break).on(request.name());
        let session = self.sessions.any(Operation::Break).await?;
        let directory = self.directory(request.physical());
        let contenders = self.contenders(&session, &directory).await.map_err(explained)?;
        if contenders.first().is_none_or(|first| first.name != holder.as_str()) {
            return Ok(Broken::not_held());
        }
        let path = format!("{directory}/{}", holder.as_str());
        let mark = match session.read(std::slice::from_ref(&path)).await.map_err(explained)?.pop() {
            Some(MultiReadResult::Data { data, .. }) => broken(&data),
            Some(MultiReadResult::Error { err: Error::NoNode }) => return Ok(Broken::not_held()),
            // The user may not read the node, but can still mark it as broken for its holder.
            _ => broken_unread(),
        };
        match session.change(|writer| writer.add_set_data(&path, &mark, None)).await {
            Ok(_) => {
                // The holder learns of it, stops, and removes the node before another client can have the lock.
                let clock = self.context.clock();
                let stopped_by = clock.now().plus(TOLD_BEFORE.saturating_add(stops_within(&mark)));
                until_gone(&session, &path, stopped_by).await;
            }
            Err((_, failure)) if failure.is(&Error::NoNode) => return Ok(Broken::not_held()),
            // The user may not write to the node, but the right to delete it belongs to its directory.
            Err((_, failure)) if failure.is(&Error::NoAuth) => {}
            Err((_, failure)) => return Err(explained(failure)),
        }
        match session.delete(&path).await {
            Ok(_) => Ok(Broken::taken_away()),
            // A holder that has learned of it has already removed the node.
            Err(_) if session.stat(&path).await.is_ok_and(|stat| stat.is_none()) => Ok(Broken::taken_away()),
            Err(failure) => Err(explained(failure)),
        }
    }

    async fn update_holder(&self, lease: &Lease, holder: &HolderInfo) -> Result<Updated, LockError> {
        let text = text_of(holder, self.context.abort_margin())?;
        let session = lease.claim.session();
        for _ in 0..MOST_ROUNDS {
            let Some(node) = lease.claim.node() else { return Ok(Updated::Lost(LossReason::Deleted)) };
            match replace_data(session, &lease.claim.path_of(&node.name), &text).await {
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

/// Waits until a node is gone, but not beyond `give_up`.
async fn until_gone(session: &Session, path: &str, give_up: Moment) {
    let clock = session.clock();
    let gone = async {
        loop {
            match session.watch(path).await {
                Ok(Some(watched)) => {
                    if watched.watching.await == Told::Deleted {
                        return;
                    }
                }
                Ok(None) => return,
                // The next request reports the end of the session.
                Err(failure) if failure.outcome() == Outcome::EndsWithSession => return,
                Err(_) => clock.sleep_until(clock.now().plus(LOOK_AGAIN)).await,
            }
        }
    };
    tokio::select! {
        biased;
        () = gone => {}
        () = clock.sleep_until(give_up) => {}
    }
}

/// Looks at the nodes of several holds in one request, and notes those that are gone.
async fn note_the_gone(session: &Session, leases: &[Arc<Lease>], states: &mut [Option<LeaseState>]) {
    let paths = |leases: &[Arc<Lease>]| -> Vec<String> {
        let names = leases.iter().filter_map(|lease| Some(lease.claim.path_of(&lease.claim.node()?.name)));
        names.collect()
    };
    for (leases, states) in leases.chunks(READ_TOGETHER).zip(states.chunks_mut(READ_TOGETHER)) {
        let paths = paths(leases);
        if paths.len() < leases.len() {
            // One of them is being released: the next heartbeat checks again.
            continue;
        }
        let Ok(are_there) = session.which_are_there(&paths).await else { return };
        for (state, is_there) in states.iter_mut().zip(are_there) {
            if !is_there {
                *state = Some(LeaseState::Lost(LossReason::Deleted));
            }
        }
    }
}

impl fmt::Debug for ZooKeeperBackend {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ZooKeeperBackend").field("sessions", &self.sessions).finish_non_exhaustive()
    }
}
