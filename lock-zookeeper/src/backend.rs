//! A client of ZooKeeper as a store of entries: one short function for each operation.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lock_core::{
    AcquireRequest, BackendContext, Breaking, Capabilities, CharacterSet, Failover, Fairness, Fencing,
    GroupId, Inspection, LeaseState, LockError, LossReason, Memo, Mode, NameRules, Operation, PhysicalName,
    Reach, Recall, Remembered, Reserving,
};
use lock_entries::{Claims, Entries, EntriesBackend, Failed, Granted};
use zookeeper_client::Error;

use crate::attempt::Attempt;
use crate::contender::{Contender, number_of_permits};
use crate::failure::Failure;
use crate::node::Recipe;
use crate::node_claim::NodeClaim;
use crate::options::{TokenSource, ZooKeeperOptions};
use crate::permits::{LEASES, LIMITS, PermitsAttempt, first_taken};
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

#[derive(Debug)]
pub(crate) struct ZooKeeperEntries {
    pub(crate) context: BackendContext,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) recipe: Recipe,
    pub(crate) root: String,
    capabilities: Capabilities,
    /// The position of the hold whose node the next heartbeat checks.
    turn: AtomicUsize,
}

impl ZooKeeperEntries {
    pub(crate) async fn connect(
        context: BackendContext,
        options: ZooKeeperOptions,
    ) -> Result<EntriesBackend<Self>, LockError> {
        let recipe = Recipe { access: options.access, accepted: options.accepted };
        let root = options.root.clone();
        let capabilities = capabilities(&options, context.renewal_interval(term(options.session_timeout)));
        let sessions = Sessions::start(context.clone(), options).await?;
        EntriesBackend::new(Self { context, sessions, recipe, root, capabilities, turn: AtomicUsize::new(0) })
    }

    pub(crate) fn has_tokens(&self) -> bool {
        self.capabilities.fencing != Fencing::None
    }

    /// The directory of a lock.
    pub(crate) fn directory(&self, name: &PhysicalName) -> Arc<str> {
        [&self.root, "/", name.as_str()].concat().into()
    }

    /// Reports to an attempt who holds the lock, as the first of these nodes that exists says, and returns how it is held. Without any, the
    /// first permit that another one has taken says it. If none exists, that stays unknown.
    pub(crate) async fn name_holder(
        &self,
        request: &AcquireRequest,
        claim: &NodeClaim,
        mut first: Vec<String>,
    ) -> Result<Option<Mode>, Failure> {
        let mut directory = Arc::clone(claim.directory());
        if first.is_empty() && matches!(request.mode(), Mode::Permits { .. }) {
            directory = format!("{}/{LEASES}", self.directory(request.physical())).into();
            first.extend(first_taken(&claim.session().list(&directory).await?, claim));
        }
        if first.is_empty() {
            return Ok(None);
        }
        let mode = |name: &str| match request.mode() {
            Mode::Permits { of, .. } => Some(Mode::Permits {
                take: NonZeroU32::MIN,
                of: NonZeroU32::new(number_of_permits(name)?.1).unwrap_or(of),
            }),
            _ => Some(Contender::read(name, self.recipe.accepted)?.mode()),
        };
        let paths: Vec<_> = first.iter().map(|name| format!("{directory}/{name}")).collect();
        let found = claim.session().read(&paths).await?;
        let mut holders =
            first.iter().zip(&found).filter_map(|(name, found)| self.participant(name, mode(name)?, found));
        Ok(holders.next().map(|(holder, _)| {
            let mode = holder.mode;
            request.held_by(holder);
            mode
        }))
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
        .with_failover(Failover::KeepsHolds)
        .with_fairness(Fairness::Fifo)
        .with_inspection(Inspection::HolderAndQueue)
        .with_breaking(Breaking::Supported)
        .with_describing()
        .with_listing()
        .with_remembering()
        .with_reserving(reserving)
        .with_answers_within(request_timeout(options.session_timeout, interval))
        .with_shared()
        .with_permits(LIMITS)
}

impl Entries for ZooKeeperEntries {
    type Claim = NodeClaim;

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn context(&self) -> &BackendContext {
        &self.context
    }

    async fn acquire(
        &self,
        request: &AcquireRequest,
        claims: &Claims<NodeClaim>,
    ) -> Result<Option<Granted<NodeClaim>>, LockError> {
        match request.mode() {
            Mode::Permits { take, of } => {
                let (take, of) = (take.get(), of.get());
                Box::pin(PermitsAttempt { backend: self, request, claims, take, of }.make()).await
            }
            _ => Attempt { backend: self, request, claims }.make().await,
        }
    }

    async fn renew(&self, group: GroupId, claims: &[&NodeClaim]) -> Result<Vec<LeaseState>, LockError> {
        let Some(session) = self.sessions.of_group(group) else {
            return Ok(vec![LeaseState::Lost(LossReason::SessionClosed); claims.len()]);
        };
        let mut states = vec![None; claims.len()];
        // One heartbeat renews all holds. It checks the first node that exists, starting with a different one each time: the watch
        // of a node that the user may no longer read reports nothing.
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        for position in (0..claims.len()).map(|offset| (turn + offset) % claims.len()) {
            let path = claims[position].first_path();
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
                    note_the_gone(&session, claims, &mut states).await;
                }
                Err(failure) => return Err(failure.explain(Operation::Renew)),
            }
        }
        // No node exists, or all holds are being released.
        let lost = LeaseState::Lost(LossReason::Deleted);
        Ok(states.into_iter().map(|state| state.unwrap_or(lost)).collect())
    }

    async fn remember(&self, memo: &Memo, keep: Duration) -> Result<Remembered, LockError> {
        let session = self.sessions.any(Operation::Remember).await?;
        Slots { backend: self, session }.remember(memo, keep).await
    }

    async fn recall(&self, memo: &Memo, recall: Recall) -> Result<Option<Duration>, LockError> {
        let session = self.sessions.any(Operation::Remember).await?;
        let recalled = Slots { backend: self, session }.recall(memo, recall).await;
        recalled.map_err(|failure| failure.explain(Operation::Remember))
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

/// Looks at the nodes of several holds in one request, and notes those that are gone.
async fn note_the_gone(session: &Session, claims: &[&NodeClaim], states: &mut [Option<LeaseState>]) {
    // A hold without paths is being released.
    let paths = |claim: &&NodeClaim| claim.paths().unwrap_or_default();
    let of_holds = claims.iter().map(paths).enumerate();
    let all: Vec<_> =
        of_holds.flat_map(|(hold, paths)| paths.into_iter().map(move |path| (path, hold))).collect();
    for some in all.chunks(READ_TOGETHER) {
        let paths: Vec<_> = some.iter().map(|(path, _)| path.clone()).collect();
        let Ok(are_there) = session.which_are_there(&paths).await else { return };
        for ((_, hold), _) in some.iter().zip(are_there).filter(|(_, is_there)| !is_there) {
            states[*hold] = Some(LeaseState::Lost(LossReason::Deleted));
        }
    }
}
