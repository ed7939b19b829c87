//! One attempt to acquire a lock: granted at once, or after waiting in the queue.

use std::sync::Arc;

use lock_core::spi::random_bytes;
use lock_core::{
    AcquireRequest, ErrorKind, FencingToken, Grant, HolderId, LockError, Mode, Operation, Term, Wait,
};

use crate::backend::ZooKeeperBackend;
use crate::blocker::Blocker;
use crate::contender::ProtectionId;
use crate::failure::Failure;
use crate::hold::Lease;
use crate::node::{Made, without_doubles};
use crate::node_check::{NodeState, is_fresh, verify_node};
use crate::node_claim::NodeClaim;
use crate::queue::Predecessors;
use crate::session::{Watching, longest_path};
use crate::waiter::Waiter;

pub(crate) struct Attempt<'a> {
    backend: &'a ZooKeeperBackend,
    request: &'a AcquireRequest,
}

impl<'a> Attempt<'a> {
    pub(crate) fn new(backend: &'a ZooKeeperBackend, request: &'a AcquireRequest) -> Self {
        Self { backend, request }
    }

    pub(crate) async fn make(self) -> Result<Option<Grant<Lease>>, LockError> {
        let claim = self.claim().await?;
        let (made, children) = self.nodes(&claim).await?;
        // What a free lock does not need is boxed: it would make the future several times as large.
        let granted = if self.request.wait() == Wait::Try {
            Box::pin(self.try_once(&claim, &made, children)).await?
        } else if made.are_alone {
            self.grant(&claim, &made, None).await?
        } else {
            Box::pin(self.wait(&claim, &made, children)).await?
        };
        if granted.is_none() {
            // The session removes what is left, because no caller asks for this attempt again.
            self.backend.claims.forget(self.request.id());
        }
        Ok(granted)
    }

    async fn try_once(
        &self,
        claim: &Arc<NodeClaim>,
        made: &Made,
        children: Option<Vec<String>>,
    ) -> Result<Option<Grant<Lease>>, LockError> {
        if !made.are_alone {
            let before = self.look_before(claim, made, children).await?.ok_or_else(deleted_by_others)?;
            if !before.is_empty() {
                // The read goes first: the servers answer it while they commit the removal.
                tokio::join!(
                    self.backend.name_holder(self.request, claim, before.first()),
                    self.step_back(claim)
                );
                return Ok(None);
            }
        }
        self.grant(claim, made, None).await?.ok_or_else(deleted_by_others).map(Some)
    }

    async fn wait(
        &self,
        claim: &Arc<NodeClaim>,
        made: &Made,
        children: Option<Vec<String>>,
    ) -> Result<Option<Grant<Lease>>, LockError> {
        // Before checking the others, so that the waiter misses no loss of contact from then on.
        let mut waiter = Waiter::new(self.backend, self.request, claim, &made.names)?;
        let Some(before) = self.look_before(claim, made, children).await? else { return Ok(None) };
        match waiter.wait(Blocker::Queue(before)).await? {
            NodeState::Kept => self.grant(claim, made, waiter.own).await,
            NodeState::Lost => Ok(None),
        }
    }

    /// The claim of an earlier call for the same attempt, or a new one.
    async fn claim(&self) -> Result<Arc<NodeClaim>, LockError> {
        if let Some(claim) = self.backend.claims.living(self.request.id()) {
            return Ok(claim);
        }
        let directory = self.backend.directory(self.request.physical());
        let protection_id = ProtectionId::of(random(Operation::Acquire)?);
        let wanted = match self.request.mode() {
            Mode::Shared => protection_id.shared(),
            _ => protection_id.exclusive(),
        };
        // Its own nodes, and the one that it waits for.
        let (longest, paths) = (longest_path(&directory, &wanted), wanted.len() + 1);
        let reservation = self.backend.sessions.reserve(longest, paths, Operation::Acquire).await?;
        let claim = Arc::new(NodeClaim::new(directory, protection_id, wanted, reservation));
        // Before the first request: whatever becomes of it, the nodes can be found.
        self.backend.claims.add(self.request.id(), &claim);
        Ok(claim)
    }

    /// The attempt's nodes: new ones, or those of an earlier call, which come with the names of all children.
    async fn nodes(&self, claim: &NodeClaim) -> Result<(Made, Option<Vec<String>>), LockError> {
        if claim.has_left_something()
            && let Some((made, children)) = self.backend.recipe.find(claim).await?
        {
            return Ok((made, Some(children)));
        }
        let data = self.backend.data_of(self.request.holder())?;
        Ok((self.backend.recipe.create(claim, &data).await?, None))
    }

    /// Lists the predecessors of the nodes once. None if a node is gone.
    async fn look_before(
        &self,
        claim: &NodeClaim,
        made: &Made,
        children: Option<Vec<String>>,
    ) -> Result<Option<Predecessors>, LockError> {
        let looking = async {
            let children = match children {
                Some(children) => children,
                None => claim.session().list(claim.directory()).await?,
            };
            let children = without_doubles(claim, &made.names, children).await?;
            Predecessors::of(claim, &made.names, &children, self.backend.recipe.accepted).await
        };
        looking.await.map_err(|failure: Failure| failure.explain(Operation::Acquire))
    }

    /// Removes the nodes of an attempt that does not wait, so that they block no other client when the caller gets its answer.
    async fn step_back(&self, claim: &NodeClaim) {
        if let Err(failure) = claim.remove().await {
            // The session continues to try.
            let error = failure.explain(Operation::Cancel);
            tracing::debug!(target: "distlock", lock = %self.request.name(), %error, "a node could not be removed yet");
        }
        self.backend.claims.forget(self.request.id());
    }

    pub(crate) async fn grant(
        &self,
        claim: &Arc<NodeClaim>,
        made: &Made,
        watching: Option<Watching>,
    ) -> Result<Option<Grant<Lease>>, LockError> {
        let session = claim.session();
        let path = || claim.path_of(made.first());
        let explained = |failure: Failure| failure.explain(Operation::Acquire);
        if !is_fresh(session) && verify_node(session, &path()).await.map_err(explained)? == NodeState::Lost {
            return Ok(None);
        }
        let token = match made.token {
            _ if !self.backend.has_tokens() => None,
            Some(number) => Some(number),
            None => match session.stat(&path()).await.map_err(explained)? {
                Some(stat) => Some(stat.czxid),
                None => return Ok(None),
            },
        };
        claim.become_hold();
        let lease = Lease::new(
            self.request.id(),
            Arc::clone(&self.backend.claims),
            Arc::clone(claim),
            token,
            self.request.clone(),
        );
        lease.keep_watch(self.backend, watching);
        let term = Term::Leased { anchor: session.anchor(), length: session.term() };
        let grant = Grant::new(lease, session.group, term).with_holder(HolderId::new(made.first()));
        Ok(Some(match token {
            Some(number) => grant.with_token(FencingToken::new(number.unsigned_abs())),
            None => grant,
        }))
    }
}

fn deleted_by_others() -> LockError {
    LockError::new(ErrorKind::Server, Operation::Acquire)
        .because("another client deleted the attempt's node")
        .remedy("find out who deletes nodes of locks, and try again")
        .retryable()
}

/// A number that no other attempt or slot has.
pub(crate) fn random(operation: Operation) -> Result<u128, LockError> {
    random_bytes(operation).map(u128::from_ne_bytes)
}
