//! What is known of an attempt's node, from before the first request on until nothing of it can be left.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lock_core::{AttemptId, LockError, Operation};

use crate::contender::{Contender, Mark};
use crate::leftover::Leftover;
use crate::session::{Seat, Session};
use crate::trouble::{Failure, Outcome};

/// How it stands with an attempt's node.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Node {
    /// Nothing has been sent.
    None,
    /// A request to create it has been sent, and what came of it is not known.
    Perhaps,
    /// It is there, unless somebody has removed it.
    Made(Contender),
    /// It is gone, and none will come.
    Gone,
}

/// One attempt in one session.
#[derive(Debug)]
pub(crate) struct Trace {
    leftover: Leftover,
    seat: Seat,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    node: Node,
    /// Whether a request may have been carried out twice.
    is_doubtful: bool,
}

impl Trace {
    pub(crate) fn new(directory: Arc<str>, mark: Mark, seat: Seat) -> Self {
        Self {
            leftover: Leftover { directory, mark },
            seat,
            state: Mutex::new(State { node: Node::None, is_doubtful: false }),
        }
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        self.seat.session()
    }

    /// The node has become a hold: it waits for no other any more.
    pub(crate) fn become_hold(&self) {
        self.seat.become_hold();
    }

    pub(crate) fn directory(&self) -> &Arc<str> {
        &self.leftover.directory
    }

    pub(crate) fn mark(&self) -> &Mark {
        &self.leftover.mark
    }

    /// The path of a node in the lock's directory.
    pub(crate) fn path_of(&self, name: &str) -> String {
        format!("{}/{name}", self.leftover.directory)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request to create the node is about to be sent.
    pub(crate) fn about_to_create(&self) {
        let mut state = self.state();
        state.is_doubtful |= state.node == Node::Perhaps;
        state.node = Node::Perhaps;
    }

    /// The last request has certainly created nothing.
    pub(crate) fn created_nothing(&self) {
        self.state().node = Node::None;
    }

    /// Something may have been carried out twice: who removes the node looks for others as well.
    pub(crate) fn doubt(&self) {
        self.state().is_doubtful = true;
    }

    /// The node is there.
    pub(crate) fn made(&self, node: Contender) {
        self.state().node = Node::Made(node);
    }

    /// Whether an earlier call has made a node, or perhaps has.
    pub(crate) fn has_left_something(&self) -> bool {
        matches!(self.state().node, Node::Perhaps | Node::Made(_))
    }

    pub(crate) fn node(&self) -> Option<Contender> {
        match &self.state().node {
            Node::Made(node) => Some(node.clone()),
            Node::None | Node::Perhaps | Node::Gone => None,
        }
    }

    /// Whoever keeps the trace keeps no place in its session from here on.
    fn gone(&self) {
        self.state().node = Node::Gone;
        self.seat.give_back();
    }

    /// Removes the node, once. Answers whether it was there.
    ///
    /// The name of a node has random bits in it: a request that arrives late removes nobody else's.
    pub(crate) async fn remove(&self) -> Result<bool, Failure> {
        let Some(node) = self.node() else {
            return Ok(false);
        };
        let was_there = self.session().delete(&self.path_of(&node.name)).await?;
        self.gone();
        if self.state().is_doubtful {
            self.session().leave(self.leftover.clone());
        }
        Ok(was_there)
    }

    /// Leaves the node to the session, which removes it when it may, or ends.
    pub(crate) fn leave(&self) {
        self.gone();
        self.session().leave(self.leftover.clone());
    }

    /// Makes sure that nothing is left, once. What the servers refuse is left to the session: nobody else is to wait for it for as long
    /// as the client lives.
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
            let state = self.state();
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
            Node::None | Node::Made(_) | Node::Perhaps => {
                self.leftover.sweep(session, Operation::Cancel).await
            }
        }
    }
}

impl Drop for Trace {
    /// What nobody has undone is left to the session.
    fn drop(&mut self) {
        let is_clean = {
            let state = self.state();
            matches!(state.node, Node::Gone) || (state.node == Node::None && !state.is_doubtful)
        };
        if !is_clean && !self.session().is_over() {
            self.leave();
        }
    }
}

/// The traces of all attempts of a client that have left any.
#[derive(Debug, Default)]
pub(crate) struct Traces(Mutex<HashMap<u128, Vec<Arc<Trace>>>>);

impl Traces {
    fn traces(&self) -> MutexGuard<'_, HashMap<u128, Vec<Arc<Trace>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, id: AttemptId, trace: &Arc<Trace>) {
        self.traces().entry(id.get()).or_default().push(Arc::clone(trace));
    }

    /// The trace of an earlier call for the same attempt, in a session that is not over.
    pub(crate) fn living(&self, id: AttemptId) -> Option<Arc<Trace>> {
        let traces = self.traces();
        traces.get(&id.get())?.iter().find(|trace| !trace.session().is_over()).cloned()
    }

    pub(crate) fn all(&self, id: AttemptId) -> Vec<Arc<Trace>> {
        self.traces().get(&id.get()).cloned().unwrap_or_default()
    }

    /// Lets go of an attempt's traces. What they have left is then removed by the session.
    pub(crate) fn forget(&self, id: AttemptId) {
        let forgotten = self.traces().remove(&id.get());
        // Outside of the mutex: the last of them tells its session.
        drop(forgotten);
    }
}
