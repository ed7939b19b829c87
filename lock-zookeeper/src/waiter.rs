//! Waits until nothing is in the way of an attempt any more.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{AcquireRequest, Backoff, LockError, Moment, Operation, Wait};
use tokio::sync::watch;
use zookeeper_client::{Error, StateWatcher};

use crate::backend::ZooKeeperBackend;
use crate::blocker::Blocker;
use crate::failure::{Failure, Outcome};
use crate::hold::SHORT_HOLD;
use crate::node_check::{NodeState, is_fresh, is_there, verify_node};
use crate::node_claim::NodeClaim;
use crate::queue::Next;
use crate::record::is_broken;
use crate::session::{Contact, Session, Told, Watching};

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// An attempt with predecessors in the queue.
pub(crate) struct Waiter<'a> {
    backend: &'a ZooKeeperBackend,
    request: &'a AcquireRequest,
    claim: &'a Arc<NodeClaim>,
    /// The attempt's own nodes, the first of which stands for all of them.
    own_paths: Vec<String>,
    /// The watch over them; none as long as they are new.
    pub(crate) own: Option<Watching>,
    /// The latest moment to watch the own node.
    watched_by: Moment,
    /// Reports every change of contact, including a loss that is already over.
    states: StateWatcher,
    contact: watch::Receiver<Contact>,
    backoff: Backoff,
}

/// The event that ended a pause.
enum Woken {
    Own(Told),
    /// The own node is no longer new, and not yet watched.
    TimeToWatch,
    Next(Told),
    ContactChanged,
    /// The core wants to know whether the node is still there.
    Asked,
    /// Nothing was heard for a long time.
    TimeToLook,
}

impl<'a> Waiter<'a> {
    pub(crate) fn new(
        backend: &'a ZooKeeperBackend,
        request: &'a AcquireRequest,
        claim: &'a Arc<NodeClaim>,
        own: &[String],
    ) -> Result<Self, LockError> {
        let session = claim.session();
        let Some(states) = session.state_watcher() else { return Err(session_over()) };
        Ok(Self {
            backend,
            request,
            claim,
            own_paths: claim.paths_of(own),
            own: None,
            watched_by: session.clock().now().plus(SHORT_HOLD),
            states,
            contact: session.contact(),
            backoff: new_backoff(),
        })
    }

    fn session(&self) -> &'a Arc<Session> {
        self.claim.session()
    }

    fn own_path(&self) -> &str {
        self.own_paths.first().map_or("", String::as_str)
    }

    fn now(&self) -> Moment {
        self.session().clock().now()
    }

    /// Waits until nothing is in the way any more and the nodes certainly exist.
    pub(crate) async fn wait(&mut self, mut before: Blocker) -> Result<NodeState, LockError> {
        loop {
            let first = before.first().map(str::to_owned);
            let (next, ()) = tokio::join!(before.watch_next(self.claim), self.name_holder(first));
            let node_state = match next {
                Ok(Next::Watched(watching)) => {
                    self.backoff = new_backoff();
                    self.request.queued();
                    self.until_next_moves(&mut before, watching).await?
                }
                Ok(Next::None) => match self.confirm(&mut before).await? {
                    Some(node_state) => return Ok(node_state),
                    None => NodeState::Kept,
                },
                Ok(Next::OwnIsGone) => NodeState::Lost,
                Err(failure) => {
                    self.recover(failure).await?;
                    NodeState::Kept
                }
            };
            if node_state == NodeState::Lost {
                return Ok(NodeState::Lost);
            }
        }
    }

    /// Reports who holds the lock to an attempt that may end without it.
    fn name_holder(&self, first: Option<String>) -> impl Future<Output = ()> + use<'a> {
        let (backend, request, claim) = (self.backend, self.request, self.claim);
        async move {
            if let Wait::Until(_) = request.wait() {
                backend.name_holder(request, claim, first.as_deref()).await;
            }
        }
    }

    /// Waits until the watched predecessor has gone or changed.
    async fn until_next_moves(
        &mut self,
        before: &mut Blocker,
        mut next: Watching,
    ) -> Result<NodeState, LockError> {
        let mut look_at = self.now().plus(self.session().timeout);
        loop {
            let node_state = match self.woken(&mut next, look_at).await {
                Woken::Own(Told::Deleted) => return Ok(NodeState::Lost),
                Woken::Own(Told::SessionOver) | Woken::Next(Told::SessionOver) => return Err(session_over()),
                Woken::Own(Told::Changed) | Woken::TimeToWatch => self.watch_own().await?,
                Woken::Next(Told::Changed) => return Ok(NodeState::Kept),
                Woken::Next(Told::Deleted) => {
                    before.watched_is_gone();
                    return Ok(NodeState::Kept);
                }
                Woken::TimeToLook => {
                    look_at = self.now().plus(self.session().timeout);
                    match self.look_at_own_and_next(before).await? {
                        // It did not report its end, so it is looked at again.
                        (NodeState::Kept, NodeState::Lost) => return Ok(NodeState::Kept),
                        (own, _) => own,
                    }
                }
                Woken::ContactChanged => self.look_at_contact().await?,
                Woken::Asked => self.ask().await?,
            };
            if node_state == NodeState::Lost {
                return Ok(NodeState::Lost);
            }
        }
    }

    /// The own node's watch comes first: a waiter that has lost its place does not get the lock because another one left. The watch
    /// is set when the node is no longer new, so that a short wait costs no request for it.
    async fn woken(&mut self, next: &mut Watching, look_at: Moment) -> Woken {
        let clock = self.session().clock();
        let attempt = self.request;
        let is_watched = self.own.is_some();
        tokio::select! {
            biased;
            told = watched(&mut self.own) => Woken::Own(told),
            told = next => Woken::Next(told),
            () = clock.sleep_until(self.watched_by), if !is_watched => Woken::TimeToWatch,
            // Ends with the session, which `self` keeps alive.
            _ = self.contact.changed() => Woken::ContactChanged,
            () = attempt.asked() => Woken::Asked,
            () = clock.sleep_until(look_at) => Woken::TimeToLook,
        }
    }

    /// Asks whether the node still exists, and notes whether the servers answer.
    async fn ask(&mut self) -> Result<NodeState, LockError> {
        match self.session().stat(self.own_path()).await {
            Ok(Some(_)) => {
                self.request.queued();
                Ok(NodeState::Kept)
            }
            Ok(None) => Ok(NodeState::Lost),
            Err(failure) if failure.outcome() == Outcome::EndsWithSession => Err(session_over()),
            Err(failure) => {
                self.request.unreachable(failure.explain(Operation::Acquire));
                Ok(NodeState::Kept)
            }
        }
    }

    /// Checks whether the own node and the watched one exist: servers report nothing about a node that the user may no longer read.
    async fn look_at_own_and_next(&mut self, before: &Blocker) -> Result<(NodeState, NodeState), LockError> {
        let next = before.watched_path(self.claim);
        let paths: Vec<_> = self.own_paths.iter().cloned().chain(next).collect();
        let node_state =
            |are_there: &[bool]| if are_there.contains(&false) { NodeState::Lost } else { NodeState::Kept };
        match self.session().which_are_there(&paths).await {
            Ok(are_there) => {
                let (own, next) = are_there.split_at(self.own_paths.len().min(are_there.len()));
                Ok((node_state(own), node_state(next)))
            }
            Err(failure) => self.recover(failure).await.map(|()| (NodeState::Kept, NodeState::Kept)),
        }
    }

    async fn look_at_contact(&mut self) -> Result<NodeState, LockError> {
        let contact = self.contact.borrow_and_update().clone();
        match contact {
            Contact::Good => self.ask().await,
            Contact::Lost(error) => {
                self.request.unreachable(error.during(Operation::Acquire));
                Ok(NodeState::Kept)
            }
            Contact::Over => Err(session_over()),
        }
    }

    async fn watch_own(&mut self) -> Result<NodeState, LockError> {
        loop {
            match self.session().watch_all(&self.own_paths).await {
                Ok(Some(node)) if is_broken(&node.data) => return Ok(NodeState::Lost),
                Ok(Some(node)) => {
                    self.own = Some(node.watching);
                    return Ok(NodeState::Kept);
                }
                Ok(None) => return Ok(NodeState::Lost),
                Err(failure) => self.recover(failure).await?,
            }
        }
    }

    /// After a failed request, waits until the next one may succeed. Returns an error for a failure that waiting cannot cure.
    async fn recover(&mut self, failure: Failure) -> Result<(), LockError> {
        let outcome = failure.outcome();
        let error = failure.explain(Operation::Acquire);
        if matches!(outcome, Outcome::EndsWithSession | Outcome::Refused) {
            return Err(error);
        }
        self.request.unreachable(error);
        let clock = self.session().clock();
        clock.sleep_until(clock.now().plus(self.backoff.next_pause())).await;
        let usable = self.contact.wait_for(|contact| !matches!(contact, Contact::Lost(_))).await;
        match usable.as_deref() {
            Ok(Contact::Over) | Err(_) => Err(session_over()),
            Ok(_) => Ok(()),
        }
    }

    /// Whether contact was lost since the last call, perhaps only for a moment.
    async fn contact_was_lost(&mut self) -> bool {
        let mut was_lost = false;
        loop {
            tokio::select! {
                biased;
                _ = self.states.changed() => was_lost = true,
                () = std::future::ready(()) => return was_lost,
            }
        }
    }

    async fn ask_for_own(&mut self) -> Result<bool, LockError> {
        loop {
            match is_there(self.session(), self.own_path()).await {
                Ok(is_there) => return Ok(is_there),
                Err(failure) => self.recover(failure).await?,
            }
        }
    }

    /// Called when no predecessor is left. Makes sure that the node exists and that the session lasts.
    ///
    /// The events of one connection arrive in the order in which things happened: if the node had gone first, its watch would have
    /// reported that. What happened without contact is reported in no particular order, so after a loss of contact the client asks
    /// for the node. Returns none if it also has to look for predecessors again.
    async fn confirm(&mut self, before: &mut Blocker) -> Result<Option<NodeState>, LockError> {
        loop {
            if self.contact_was_lost().await {
                if !self.ask_for_own().await? {
                    return Ok(Some(NodeState::Lost));
                }
                if before.contact_was_lost() {
                    return Ok(None);
                }
            }
            let is_unwatched = self.own.is_none() && self.now() >= self.watched_by;
            let told = tokio::select! {
                biased;
                told = watched(&mut self.own) => Some(told),
                () = std::future::ready(()) => is_unwatched.then_some(Told::Changed),
            };
            match told {
                Some(Told::Deleted) => return Ok(Some(NodeState::Lost)),
                Some(Told::SessionOver) => return Err(session_over()),
                Some(Told::Changed) if self.watch_own().await? == NodeState::Lost => {
                    return Ok(Some(NodeState::Lost));
                }
                Some(Told::Changed) => continue,
                None if is_fresh(self.session()) => return Ok(Some(NodeState::Kept)),
                None => {}
            }
            match verify_node(self.session(), self.own_path()).await {
                Ok(NodeState::Kept) => {}
                Ok(NodeState::Lost) => return Ok(Some(NodeState::Lost)),
                Err(failure) => self.recover(failure).await?,
            }
        }
    }
}

/// What the watch reports; pending for ever if there is none.
async fn watched(watching: &mut Option<Watching>) -> Told {
    match watching {
        Some(watching) => watching.await,
        None => std::future::pending().await,
    }
}

fn session_over() -> LockError {
    Failure::Told(Error::SessionExpired).explain(Operation::Acquire)
}

fn new_backoff() -> Backoff {
    Backoff::new(FIRST_PAUSE, LONGEST_PAUSE)
}
