//! Waits until nothing is in the way of an attempt any more.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{AcquireRequest, LockError, Mode, Moment, Operation, Wait};
use lock_entries::{Failed, Outcome, Place, SHORT_HOLD, Told, Waiting, wait};
use tokio::sync::watch;
use zookeeper_client::{Error, StateWatcher};

use crate::backend::ZooKeeperEntries;
use crate::blocker::{Blocker, Next};
use crate::failure::Failure;
use crate::node_check::{is_fresh, is_there, verify_node};
use crate::node_claim::NodeClaim;
use crate::session::{Contact, News, Session, Watching};

/// When a waiter that will ask for its own nodes before its turn watches them all the same, to learn of their end earlier.
const FAR_BACK: Duration = Duration::from_millis(500);

/// An attempt with predecessors in the queue.
pub(crate) struct Waiter<'a> {
    backend: &'a ZooKeeperEntries,
    request: &'a AcquireRequest,
    claim: &'a Arc<NodeClaim>,
    /// The attempt's own nodes, the first of which stands for all of them.
    own_paths: Vec<String>,
    /// The watch over them; none as long as they are new.
    pub(crate) own: Option<Watching>,
    /// When they were last seen, if they are not watched.
    seen: Moment,
    /// Reports every change of contact, including a loss that is already over.
    states: StateWatcher,
    contact: watch::Receiver<Contact>,
    /// Whether contact was lost, and the client has not seen the own node since.
    was_away: bool,
}

/// A waiter, and what is in its way.
struct Blocked<'w, 'a, B> {
    waiter: &'w mut Waiter<'a>,
    before: B,
    /// The watch over what has to change next.
    next: Option<Watching>,
}

/// The event that ended a pause.
enum Woken {
    Own(News),
    /// The own node was not seen for a while, and is not yet watched.
    TimeToWatch,
    Next(News),
    ContactChanged,
    /// The core wants to know whether the node is still there.
    Asked,
    /// Nothing was heard for a long time.
    TimeToLook,
}

impl<'a> Waiter<'a> {
    pub(crate) fn new(
        backend: &'a ZooKeeperEntries,
        request: &'a AcquireRequest,
        claim: &'a Arc<NodeClaim>,
        own: &[String],
    ) -> Result<Self, LockError> {
        let session = claim.session();
        let Some(states) = session.state_watcher() else {
            return Err(session_over().explain(Operation::Acquire));
        };
        Ok(Self {
            backend,
            request,
            claim,
            own_paths: claim.paths_of(own),
            own: None,
            seen: session.clock().now(),
            states,
            contact: session.contact(),
            was_away: false,
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
    pub(crate) async fn wait(&mut self, before: impl Blocker) -> Result<Place, LockError> {
        let (request, session) = (self.request, Arc::clone(self.session()));
        wait(&mut Blocked { waiter: self, before, next: None }, request, session.clock()).await
    }

    /// Reports who holds the lock to an attempt that may end without it.
    fn name_holder(&self, first: Vec<String>) -> impl Future<Output = ()> + use<'a> {
        let (backend, request, claim) = (self.backend, self.request, self.claim);
        async move {
            if let Wait::Until(_) = request.wait() {
                // Without an answer that stays unknown.
                let _ = backend.name_holder(request, claim, first).await;
            }
        }
    }

    /// The own node's watch comes first: a waiter that has lost its place does not get the lock because another one left. The watch
    /// is set when the node was not seen for a while, so that a short wait costs no request for it.
    async fn woken(&mut self, next: &mut Watching, watch_at: Moment, look_at: Moment) -> Woken {
        let clock = self.session().clock();
        let attempt = self.request;
        let is_watched = self.own.is_some();
        tokio::select! {
            biased;
            told = watched(&mut self.own) => Woken::Own(told),
            told = next => Woken::Next(told),
            () = clock.sleep_until(watch_at), if !is_watched => Woken::TimeToWatch,
            // Ends with the session, which `self` keeps alive.
            _ = self.contact.changed() => Woken::ContactChanged,
            () = attempt.asked() => Woken::Asked,
            () = clock.sleep_until(look_at) => Woken::TimeToLook,
        }
    }

    /// Asks whether the node still exists, and notes whether the servers answer.
    async fn ask(&mut self) -> Result<Place, Failure> {
        match self.session().stat(self.own_path()).await {
            Ok(Some(_)) => {
                self.request.queued();
                Ok(Place::Kept)
            }
            Ok(None) => Ok(Place::Lost),
            Err(failure) if failure.outcome() == Outcome::EndsWithSession => Err(session_over()),
            Err(failure) => {
                self.request.unreachable(failure.explain(Operation::Acquire));
                Ok(Place::Kept)
            }
        }
    }

    /// Checks whether the own node and the watched one exist: servers report nothing about a node that the user may no longer read.
    async fn look_at_own_and_next(&mut self, before: &impl Blocker) -> Result<(Place, Place), Failure> {
        let next = before.watched_name().map(|name| self.claim.path_of(name));
        let paths: Vec<_> = self.own_paths.iter().cloned().chain(next).collect();
        let are_there = self.session().which_are_there(&paths).await?;
        let (own, next) = are_there.split_at(self.own_paths.len().min(are_there.len()));
        let place = |are_there: &[bool]| if are_there.contains(&false) { Place::Lost } else { Place::Kept };
        Ok((place(own), place(next)))
    }

    async fn look_at_contact(&mut self) -> Result<Place, Failure> {
        let contact = self.contact.borrow_and_update().clone();
        match contact {
            Contact::Good => self.ask().await,
            Contact::Lost(error) => {
                self.request.unreachable(error.during(Operation::Acquire));
                Ok(Place::Kept)
            }
            Contact::Over => Err(session_over()),
        }
    }

    async fn watch_own(&mut self) -> Result<Place, Failure> {
        // One that has reported something reports nothing more.
        self.own = None;
        match self.session().watch_all(&self.own_paths).await? {
            Some(node) if !Told::read(&node.data).is_broken() => {
                self.own = Some(node.watching);
                Ok(Place::Kept)
            }
            _ => Ok(Place::Lost),
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

    /// Called when no predecessor is left. Makes sure that the node exists and that the session lasts.
    ///
    /// The events of one connection arrive in the order in which things happened: if the node had gone first, its watch would have
    /// reported that. What happened without contact is reported in no particular order, so after a loss of contact the client asks
    /// for the node.
    async fn confirm(&mut self) -> Result<Place, Failure> {
        loop {
            self.was_away |= self.contact_was_lost().await;
            if self.was_away {
                if !is_there(self.session(), self.own_path()).await? {
                    return Ok(Place::Lost);
                }
                self.was_away = false;
            }
            let is_unwatched = self.own.is_none() && self.now() >= self.seen.plus(SHORT_HOLD);
            let told = tokio::select! {
                biased;
                told = watched(&mut self.own) => Some(told),
                () = std::future::ready(()) => is_unwatched.then_some(News::Changed),
            };
            let place = match told {
                Some(News::Deleted) => Place::Lost,
                Some(News::SessionOver) => return Err(session_over()),
                Some(News::Changed) => match self.watch_own().await? {
                    Place::Kept => continue,
                    Place::Lost => Place::Lost,
                },
                None if is_fresh(self.session()) => Place::Kept,
                None => match verify_node(self.session(), self.own_path()).await? {
                    Place::Kept => continue,
                    Place::Lost => Place::Lost,
                },
            };
            return Ok(place);
        }
    }
}

impl<B: Blocker> Waiting for Blocked<'_, '_, B> {
    type Failure = Failure;

    async fn look(&mut self) -> Result<Option<Place>, Failure> {
        let Self { waiter, before, next } = self;
        let first = match waiter.request.mode() {
            // Those in the queue hold none.
            Mode::Permits { .. } => Vec::new(),
            _ => before.first(),
        };
        let (looked, ()) = tokio::join!(before.watch_next(waiter.claim), waiter.name_holder(first));
        waiter.seen = before.saw_own().map_or(waiter.seen, |saw| saw.max(waiter.seen));
        match looked? {
            Next::Watched(watching) => {
                *next = Some(watching);
                Ok(None)
            }
            Next::OwnIsGone => Ok(Some(Place::Lost)),
            Next::None => waiter.confirm().await.map(Some),
        }
    }

    /// Waits until the watched predecessor has gone or changed.
    async fn until_changed(&mut self) -> Result<Place, Failure> {
        let Self { waiter, before, next } = self;
        let Some(mut next) = next.take() else { return Ok(Place::Kept) };
        let mut look_at = waiter.now().plus(waiter.session().timeout);
        let watch_at = waiter.seen.plus(if before.asks_for_own() { FAR_BACK } else { SHORT_HOLD });
        loop {
            let place = match waiter.woken(&mut next, watch_at, look_at).await {
                Woken::Own(News::Deleted) => Place::Lost,
                Woken::Own(News::SessionOver) | Woken::Next(News::SessionOver) => return Err(session_over()),
                Woken::Own(News::Changed) | Woken::TimeToWatch => waiter.watch_own().await?,
                Woken::Next(News::Changed) => return Ok(Place::Kept),
                Woken::Next(News::Deleted) => {
                    before.watched_is_gone();
                    return Ok(Place::Kept);
                }
                Woken::TimeToLook => {
                    look_at = waiter.now().plus(waiter.session().timeout);
                    match waiter.look_at_own_and_next(before).await? {
                        // It did not report its end, so it is looked at again.
                        (Place::Kept, Place::Lost) => return Ok(Place::Kept),
                        (own, _) => own,
                    }
                }
                Woken::ContactChanged => waiter.look_at_contact().await?,
                Woken::Asked => waiter.ask().await?,
            };
            if place == Place::Lost {
                return Ok(Place::Lost);
            }
        }
    }

    async fn in_contact(&mut self) -> Result<Place, LockError> {
        let contact = &mut self.waiter.contact;
        let usable = contact.wait_for(|contact| !matches!(contact, Contact::Lost(_))).await;
        Ok(if matches!(usable.as_deref(), Ok(Contact::Good)) { Place::Kept } else { Place::Lost })
    }
}

/// What the watch reports; pending for ever if there is none.
async fn watched(watching: &mut Option<Watching>) -> News {
    match watching {
        Some(watching) => watching.await,
        None => std::future::pending().await,
    }
}

fn session_over() -> Failure {
    Failure::Told(Error::SessionExpired)
}
