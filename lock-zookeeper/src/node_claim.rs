//! What the client knows about an attempt's node, from before the first request until certainly nothing is left.

use std::collections::HashMap;
use std::sync::Arc;

use lock_core::spi::Mutex;
use lock_core::{AttemptId, LockError, Operation};

use crate::contender::{Contender, Mark};
use crate::failure::{Failure, Outcome};
use crate::orphan::Orphan;
use crate::session::{Seat, Session};

/// The state of an attempt's node.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Node {
    /// The client has not sent a request.
    None,
    /// The client has sent a request to create it, with an unknown outcome.
    Perhaps,
    /// It exists, unless another program has removed it.
    Made(Contender),
    /// It is gone, and none will appear.
    Gone,
}

/// One attempt in one session.
#[derive(Debug)]
pub(crate) struct NodeClaim {
    orphan: Orphan,
    seat: Seat,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    node: Node,
    /// Whether a request may have been carried out twice.
    is_doubtful: bool,
}

impl NodeClaim {
    pub(crate) fn new(directory: Arc<str>, mark: Mark, seat: Seat) -> Self {
        Self {
            orphan: Orphan { directory, mark },
            seat,
            state: Mutex::new(State { node: Node::None, is_doubtful: false }),
        }
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        self.seat.session()
    }

    /// The node has become a hold: it no longer waits for another one.
    pub(crate) fn become_hold(&self) {
        self.seat.become_hold();
    }

    pub(crate) fn directory(&self) -> &Arc<str> {
        &self.orphan.directory
    }

    pub(crate) fn mark(&self) -> &Mark {
        &self.orphan.mark
    }

    /// The path of a node in the lock's directory.
    pub(crate) fn path_of(&self, name: &str) -> String {
        format!("{}/{name}", self.orphan.directory)
    }

    /// Records that the client is about to send a request to create the node.
    pub(crate) fn about_to_create(&self) {
        let mut state = self.state.lock();
        state.is_doubtful |= state.node == Node::Perhaps;
        state.node = Node::Perhaps;
    }

    /// Records that the last request has certainly created nothing.
    pub(crate) fn created_nothing(&self) {
        self.state.lock().node = Node::None;
    }

    /// Records that a request may have been carried out twice: the removal of the node then looks for others as well.
    pub(crate) fn doubt(&self) {
        self.state.lock().is_doubtful = true;
    }

    /// Records that the node exists.
    pub(crate) fn made(&self, node: Contender) {
        self.state.lock().node = Node::Made(node);
    }

    /// Whether an earlier call has created a node, or perhaps has.
    pub(crate) fn has_left_something(&self) -> bool {
        matches!(self.state.lock().node, Node::Perhaps | Node::Made(_))
    }

    pub(crate) fn node(&self) -> Option<Contender> {
        match &self.state.lock().node {
            Node::Made(node) => Some(node.clone()),
            Node::None | Node::Perhaps | Node::Gone => None,
        }
    }

    /// From here on the claim takes no space in its session, even if it is kept.
    fn gone(&self) {
        self.state.lock().node = Node::Gone;
        self.seat.give_back();
    }

    /// Removes the node, once. Returns whether it existed.
    ///
    /// The name of a node contains random bits: a request that arrives late removes no other client's node.
    pub(crate) async fn remove(&self) -> Result<bool, Failure> {
        let Some(node) = self.node() else {
            return Ok(false);
        };
        let was_there = self.session().delete(&self.path_of(&node.name)).await?;
        self.gone();
        if self.state.lock().is_doubtful {
            self.session().leave(self.orphan.clone());
        }
        Ok(was_there)
    }

    /// Leaves the node to the session, which removes it as soon as the servers let it, or ends.
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
        let (node, is_doubtful) = {
            let state = self.state.lock();
            (state.node.clone(), state.is_doubtful)
        };
        match node {
            _ if session.is_over() => Ok(()),
            Node::Gone => Ok(()),
            Node::None if !is_doubtful => Ok(()),
            Node::Made(_) if !is_doubtful => {
                session.reach().await;
                match self.remove().await {
                    Ok(_) => Ok(()),
                    Err(failure) if failure.outcome() == Outcome::EndsWithSession => Ok(()),
                    Err(failure) => Err(failure.explain(Operation::Cancel)),
                }
            }
            Node::None | Node::Made(_) | Node::Perhaps => self.orphan.sweep(session, Operation::Cancel).await,
        }
    }
}

impl Drop for NodeClaim {
    /// Leaves the rest to the session.
    fn drop(&mut self) {
        let is_clean = {
            let state = self.state.lock();
            matches!(state.node, Node::Gone) || (state.node == Node::None && !state.is_doubtful)
        };
        if !is_clean && !self.session().is_over() {
            self.leave();
        }
    }
}

/// The claims of a client's attempts that have left any.
#[derive(Debug, Default)]
pub(crate) struct NodeClaims(Mutex<HashMap<u128, Vec<Arc<NodeClaim>>>>);

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
