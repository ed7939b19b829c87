//! What the client knows about an attempt's nodes, from before the first request until certainly nothing is left.

use std::collections::BTreeMap;
use std::sync::Arc;

use lock_core::spi::Mutex;
use lock_core::{AttemptId, LockError, Operation};

use crate::contender::ProtectionId;
use crate::failure::{Failure, Outcome};
use crate::orphan::Orphan;
use crate::session::{Reservation, Session};

/// The names of nodes of one attempt. They are created and removed together; the first one stands for all of them.
pub(crate) type Names = Arc<[String]>;

/// The state of an attempt's nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Nodes {
    /// The client has not sent a request.
    None,
    /// The client has sent a request to create them, with an unknown outcome.
    Perhaps,
    /// They exist, unless another program has removed some.
    Made(Names),
    /// They are gone, and none will appear.
    Gone,
}

/// One attempt in one session.
#[derive(Debug)]
pub(crate) struct NodeClaim {
    orphan: Orphan,
    /// The names of the nodes that the attempt wants, without their numbers.
    wanted: Vec<String>,
    reservation: Reservation,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    nodes: Nodes,
    /// Whether a request may have been carried out twice.
    is_doubtful: bool,
}

impl NodeClaim {
    pub(crate) fn new(
        directory: Arc<str>,
        protection_id: ProtectionId,
        wanted: Vec<String>,
        reservation: Reservation,
    ) -> Self {
        Self {
            orphan: Orphan { directory, protection_id },
            wanted,
            reservation,
            state: Mutex::new(State { nodes: Nodes::None, is_doubtful: false }),
        }
    }

    /// The claim of nodes that replace those of this one in one transaction.
    pub(crate) fn successor(&self, protection_id: ProtectionId, wanted: Vec<String>) -> Self {
        Self::new(Arc::clone(self.directory()), protection_id, wanted, self.reservation.for_successor())
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        self.reservation.session()
    }

    /// The nodes have become a hold: they no longer wait for another one.
    pub(crate) fn become_hold(&self) {
        self.reservation.keep_at_most(self.wanted.len());
    }

    pub(crate) fn wanted(&self) -> &[String] {
        &self.wanted
    }

    pub(crate) fn directory(&self) -> &Arc<str> {
        &self.orphan.directory
    }

    pub(crate) fn protection_id(&self) -> &ProtectionId {
        &self.orphan.protection_id
    }

    /// The path of a node in the lock's directory.
    pub(crate) fn path_of(&self, name: &str) -> String {
        [self.directory(), "/", name].concat()
    }

    pub(crate) fn paths_of(&self, names: &[String]) -> Vec<String> {
        names.iter().map(|name| self.path_of(name)).collect()
    }

    /// The paths of the nodes; none if they are not there, or are being removed.
    pub(crate) fn paths(&self) -> Option<Vec<String>> {
        Some(self.paths_of(&self.names()?))
    }

    /// Records that the client is about to send a request to create the nodes.
    pub(crate) fn about_to_create(&self) {
        let mut state = self.state.lock();
        state.is_doubtful |= state.nodes == Nodes::Perhaps;
        state.nodes = Nodes::Perhaps;
    }

    /// Records that the last request has certainly created nothing.
    pub(crate) fn created_nothing(&self) {
        self.state.lock().nodes = Nodes::None;
    }

    /// Records that a request may have been carried out twice: the removal of the nodes then looks for others as well.
    pub(crate) fn doubt(&self) {
        self.state.lock().is_doubtful = true;
    }

    /// Records that the nodes exist.
    pub(crate) fn made(&self, names: Names) {
        self.state.lock().nodes = Nodes::Made(names);
    }

    /// Whether an earlier call has created nodes, or perhaps has.
    pub(crate) fn has_left_something(&self) -> bool {
        matches!(self.state.lock().nodes, Nodes::Perhaps | Nodes::Made(_))
    }

    pub(crate) fn names(&self) -> Option<Names> {
        match &self.state.lock().nodes {
            Nodes::Made(names) => Some(Arc::clone(names)),
            Nodes::None | Nodes::Perhaps | Nodes::Gone => None,
        }
    }

    /// The path of the first node.
    pub(crate) fn first_path(&self) -> Option<String> {
        Some(self.path_of(self.names()?.first()?))
    }

    /// Another transaction has removed the nodes. From here on the claim takes no space in its session, even if it is kept.
    pub(crate) fn gone(&self) {
        self.state.lock().nodes = Nodes::Gone;
        self.reservation.give_back();
    }

    /// Removes the nodes, once. Returns whether all of them existed.
    ///
    /// The name of a node contains random bits: a request that arrives late removes no other client's node.
    pub(crate) async fn remove(&self) -> Result<bool, Failure> {
        let Some(paths) = self.paths() else {
            return Ok(false);
        };
        let was_there = self.session().delete_all(&paths).await?;
        self.gone();
        if self.state.lock().is_doubtful {
            self.session().leave(self.orphan.clone());
        }
        Ok(was_there)
    }

    /// Removes the nodes, once, to create others with the same claim later.
    pub(crate) async fn take_back(&self) -> Result<(), Failure> {
        let Some(paths) = self.paths() else { return Ok(()) };
        self.session().delete_all(&paths).await?;
        self.created_nothing();
        Ok(())
    }

    /// Leaves the nodes to the session, which removes them as soon as the servers let it, or ends.
    pub(crate) fn leave(&self) {
        self.gone();
        self.session().leave(self.orphan.clone());
    }

    /// Makes sure that nothing is left, once. If the servers refuse the removal, the session takes over, so that other clients need
    /// not wait until this client ends.
    pub(crate) async fn undo(&self) -> Result<(), LockError> {
        let undone = self.try_to_undo().await;
        match &undone {
            Ok(()) => self.gone(),
            Err(error) if error.is_retryable() => {}
            Err(_) => self.leave(),
        }
        undone
    }

    async fn try_to_undo(&self) -> Result<(), LockError> {
        let session = self.session();
        let (nodes, is_doubtful) = {
            let state = self.state.lock();
            (state.nodes.clone(), state.is_doubtful)
        };
        match nodes {
            _ if session.is_over() => Ok(()),
            Nodes::Gone => Ok(()),
            Nodes::None if !is_doubtful => Ok(()),
            Nodes::Made(_) if !is_doubtful => {
                session.reach().await;
                match self.remove().await {
                    Ok(_) => Ok(()),
                    Err(failure) if failure.outcome() == Outcome::EndsWithSession => Ok(()),
                    Err(failure) => Err(failure.explain(Operation::Cancel)),
                }
            }
            Nodes::None | Nodes::Made(_) | Nodes::Perhaps => {
                self.orphan.sweep(session, Operation::Cancel).await
            }
        }
    }
}

impl Drop for NodeClaim {
    /// Leaves the rest to the session.
    fn drop(&mut self) {
        let is_clean = {
            let state = self.state.lock();
            matches!(state.nodes, Nodes::Gone) || (state.nodes == Nodes::None && !state.is_doubtful)
        };
        if !is_clean && !self.session().is_over() {
            self.leave();
        }
    }
}

/// The claims of a client's attempts that have left any.
#[derive(Debug, Default)]
pub(crate) struct NodeClaims(Mutex<BTreeMap<u128, Vec<Arc<NodeClaim>>>>);

impl NodeClaims {
    pub(crate) fn add(&self, id: AttemptId, claim: &Arc<NodeClaim>) {
        self.0.lock().entry(id.get()).or_default().push(Arc::clone(claim));
    }

    /// The claim of an earlier call for the same attempt, in a session that is not over.
    pub(crate) fn living(&self, id: AttemptId) -> Option<Arc<NodeClaim>> {
        let claims = self.0.lock();
        claims.get(&id.get())?.iter().find(|claim| !claim.session().is_over()).cloned()
    }

    pub(crate) fn all(&self, id: AttemptId) -> Vec<Arc<NodeClaim>> {
        self.0.lock().get(&id.get()).cloned().unwrap_or_default()
    }

    /// Drops an attempt's claims. The session then removes what they have left.
    pub(crate) fn forget(&self, id: AttemptId) {
        let forgotten = self.0.lock().remove(&id.get());
        // Outside of the mutex: dropping the last of them hands its orphans to its session.
        drop(forgotten);
    }
}
