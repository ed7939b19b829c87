//! One attempt to acquire a lock: granted at once, or after waiting in the queue.

use std::sync::Arc;

use lock_core::spi::random_bytes;
use lock_core::{AcquireRequest, ErrorKind, HolderId, LockError, Mode, Operation, Wait};
use lock_entries::{Claim, Claims, Failed, Granted, Place, Record};

use crate::backend::ZooKeeperEntries;
use crate::blocker::Blocker;
use crate::contender::ProtectionId;
use crate::failure::Failure;
use crate::node::{Made, token_of};
use crate::node_check::verify_node;
use crate::node_claim::NodeClaim;
use crate::queue::Predecessors;
use crate::session::{Watching, longest_path};
use crate::waiter::Waiter;

/// What an attempt has got; nothing when a node of it is gone, or a try has found another holder.
pub(crate) type Attempted = Result<Option<Granted<NodeClaim>>, LockError>;

pub(crate) struct Attempt<'a> {
    pub(crate) backend: &'a ZooKeeperEntries,
    pub(crate) request: &'a AcquireRequest,
    pub(crate) claims: &'a Claims<NodeClaim>,
}

impl Attempt<'_> {
    pub(crate) async fn make(self) -> Attempted {
        let claim = self.claim().await?;
        let data = Record::of(self.request, &self.backend.context)?.text()?;
        let made = self.backend.recipe.find_or_create(&claim, &data).await?;
        // What a free lock does not need is boxed: it would make the future several times as large.
        if self.request.wait() == Wait::Try {
            Box::pin(self.try_once(&claim, &made)).await
        } else if made.are_alone {
            self.backend.grant(&claim, &made, None).await
        } else {
            Box::pin(self.wait(&claim, &made)).await
        }
    }

    async fn try_once(&self, claim: &Arc<NodeClaim>, made: &Made) -> Attempted {
        if !made.are_alone {
            let before = self.look_before(claim, made).await?.ok_or_else(deleted_by_others)?;
            let naming = self.backend.name_holder(self.request, claim, before.first());
            if before.enters_beside_the_first() {
                // Only its value says whether it goes on reading.
                let held = naming.await.map_err(|failure| failure.explain(Operation::Acquire))?;
                if held != Some(Mode::Shared) {
                    step_back(self.request, claim).await;
                    return Ok(None);
                }
            } else if !before.is_empty() {
                // The read goes first: the servers answer it while they commit the removal.
                let _ = tokio::join!(naming, step_back(self.request, claim));
                return Ok(None);
            }
        }
        self.backend.grant(claim, made, None).await?.ok_or_else(deleted_by_others).map(Some)
    }

    async fn wait(&self, claim: &Arc<NodeClaim>, made: &Made) -> Attempted {
        // Before checking the others, so that the waiter misses no loss of contact from then on.
        let mut waiter = Waiter::new(self.backend, self.request, claim, &made.names)?;
        let Some(before) = self.look_before(claim, made).await? else { return Ok(None) };
        match waiter.wait(before).await? {
            Place::Kept => self.backend.grant(claim, made, waiter.own).await,
            Place::Lost => Ok(None),
        }
    }

    /// The claim of an earlier call for the same attempt, or a new one.
    async fn claim(&self) -> Result<Arc<NodeClaim>, LockError> {
        if let Some(claim) = self.claims.living(self.request.id()) {
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
        self.claims.add(self.request.id(), &claim);
        Ok(claim)
    }

    /// Lists the predecessors of the nodes once. None if a node is gone.
    async fn look_before(&self, claim: &NodeClaim, made: &Made) -> Result<Option<Predecessors>, LockError> {
        let accepted = self.backend.recipe.accepted;
        let found = match &made.children {
            Some(children) => Predecessors::of(claim, &made.names, children, accepted).await,
            None => Predecessors::find(claim, &made.names, accepted).await,
        };
        found.map_err(|failure| failure.explain(Operation::Acquire))
    }
}

/// Removes the nodes of an attempt that does not wait, so that they block no other client when the caller gets its answer.
pub(crate) async fn step_back(request: &AcquireRequest, claim: &NodeClaim) {
    if let Err(failure) = claim.remove().await {
        // The session continues to try.
        let error = failure.explain(Operation::Cancel);
        tracing::debug!(target: "distlock", lock = %request.name(), %error, "a node could not be removed yet");
    }
}

impl ZooKeeperEntries {
    /// Nothing is in the way of an attempt: makes sure that its session lasts. None if a node is gone. `watching` is the watch over
    /// its nodes, if there is one.
    pub(crate) async fn grant(
        &self,
        claim: &Arc<NodeClaim>,
        made: &Made,
        watching: Option<Watching>,
    ) -> Attempted {
        let session = claim.session();
        let path = || claim.path_of(made.first());
        let explained = |failure: Failure| failure.explain(Operation::Acquire);
        if verify_node(session, &path()).await.map_err(explained)? == Place::Lost {
            return Ok(None);
        }
        let token = match made.token {
            _ if !self.has_tokens() => None,
            Some(token) => Some(token),
            None => match session.stat(&path()).await.map_err(explained)? {
                Some(stat) => Some(token_of(stat.czxid)),
                None => return Ok(None),
            },
        };
        claim.become_hold(watching);
        Ok(Some(Granted { claim: Arc::clone(claim), name: HolderId::new(made.first()), token }))
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
