//! What stands in front of one remote lock: the local mutex, the listener, the way to the backend. One for each client
//! and name, shared by everything that is about this name.

use std::fmt;
use std::future::Future;
use std::num::NonZeroU64;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tracing::Instrument;

use crate::acquire::{LostUnseen, drive};
use crate::backend::{AcquireRequest, Mode, Wait};
use crate::client::ClientCore;
use crate::clock::{Clock, Moment, Sleep};
use crate::dispatcher::Lane;
use crate::error::{ErrorKind, LockError, Operation};
use crate::hold::reports::Event;
use crate::hold::{Hold, HoldCore, Loss, LossReason};
use crate::janitor::{self, Chore};
use crate::keeper::within;
use crate::listener::LockListener;
use crate::local::{Attempt, Entered, Exited, LocalMutex, Patience, Prospect, Settled, Start, Ticket};
use crate::log;
use crate::name::{LockName, PhysicalName};
use crate::owner::Owner;
use crate::signals::Signals;
use crate::sync::Mutex;

pub(crate) struct Front {
    id: u64,
    name: LockName,
    physical: PhysicalName,
    client: Arc<ClientCore>,
    pub(crate) local: LocalMutex<Owner, Arc<HoldCore>, Arc<AcquireRequest>>,
    listener: Mutex<Option<Arc<dyn LockListener>>>,
    lane: Arc<Lane>,
    /// The place in the server's queue that the last attempt lost, for the one that is made instead of it.
    lost_place: Mutex<Option<NonZeroU64>>,
    pub(crate) lost_unseen: Mutex<LostUnseen>,
}

impl Attempt for Arc<AcquireRequest> {
    type Failure = LockError;

    fn extend(&self, until: u64) {
        self.signals.extend(until);
    }

    fn outage(&self) -> Option<LockError> {
        self.signals.outage()
    }

    fn obstacle(&self) -> Option<LockError> {
        self.signals.obstacle()
    }
}

impl Front {
    pub(crate) fn new(id: u64, name: LockName, client: Arc<ClientCore>) -> Self {
        let physical = client.backend.capabilities().names.apply(&name);
        Self {
            id,
            name,
            physical,
            client,
            local: LocalMutex::new(),
            listener: Mutex::new(None),
            lane: Arc::default(),
            lost_place: Mutex::default(),
            lost_unseen: Mutex::default(),
        }
    }

    /// A number that no other front of this process has.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn name(&self) -> &LockName {
        &self.name
    }

    pub(crate) fn client(&self) -> &Arc<ClientCore> {
        &self.client
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.client.clock
    }

    pub(crate) fn set_listener(&self, listener: Option<Arc<dyn LockListener>>) {
        if listener.is_some() {
            crate::dispatcher::prepare();
        }
        let previous = std::mem::replace(&mut *self.listener.lock(), listener);
        drop(previous);
    }

    pub(crate) fn listener(&self) -> Option<Arc<dyn LockListener>> {
        self.listener.lock().clone()
    }

    /// Has the listener told, if there is one.
    pub(crate) fn announce(&self, event: Event<LossReason>, hold: &Arc<HoldCore>) {
        if let Some(listener) = self.listener() {
            self.lane.post(listener, event, Hold(Arc::clone(hold)));
        }
    }

    pub(crate) fn new_attempt(self: &Arc<Self>, patience: Patience) -> Arc<AcquireRequest> {
        let signals = Signals::with_patience(patience, Arc::downgrade(self));
        if let (Some(place), Patience::Until(_)) = (self.lost_place.lock().take(), patience) {
            signals.keep_place(place);
        }
        Arc::new(AcquireRequest {
            id: self.client.next_attempt(),
            name: self.name.clone(),
            physical: self.physical.clone(),
            mode: Mode::Exclusive,
            holder: Arc::clone(&self.client.holder),
            signals,
        })
    }

    pub(crate) fn keep_lost_place(&self, place: Option<NonZeroU64>) {
        *self.lost_place.lock() = place;
    }

    /// A grant has come to its waiter, or there was none.
    pub(crate) fn nothing_lost_unseen(&self) {
        *self.lost_unseen.lock() = LostUnseen::default();
    }

    /// Enters for `owner`: locally first, then remotely. `None` when it was not to be had in time.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        owner: Owner,
        wait: Wait,
    ) -> Result<Option<Hold>, LockError> {
        let patience = match wait {
            Wait::Try => Patience::Once,
            wait => Patience::Until(wait.deadline().as_nanoseconds()),
        };
        let (entered, start) = self.local.enter(owner, patience, |patience| self.new_attempt(patience));
        let settled = match entered {
            Entered::Reentered(hold) => {
                hold.report_acquired();
                return Ok(Some(Hold(hold)));
            }
            Entered::Refused => Settled::Refused,
            Entered::Failed(error) => Settled::Failed(error),
            Entered::Lost(reason) => {
                // The loss may have been found here before it was reported, and then the next in the queue is served.
                self.start_there(start);
                Settled::Lost(reason)
            }
            Entered::Waiting(ticket) => {
                let place = Place::new(self, ticket, patience);
                self.start_here(start);
                place.await
            }
        };
        match settled {
            Settled::Granted(hold) => {
                hold.report_acquired();
                Ok(Some(Hold(hold)))
            }
            Settled::Refused => Ok(None),
            Settled::Failed(error) => Err(self.about(error).during(Operation::Acquire)),
            Settled::Lost(reason) => Err(self.lost(Operation::Acquire, reason)),
        }
    }

    /// Ends one entry of `owner`, into the hold `of` if that is given. The first poll ends it; the rest goes on even if
    /// nobody waits for it.
    pub(crate) async fn release(
        self: &Arc<Self>,
        owner: Owner,
        of: Option<&Arc<HoldCore>>,
    ) -> Result<(), LockError> {
        let (exited, start) = self.local.exit(owner, of, |patience| self.new_attempt(patience));
        self.start_there(start);
        match exited {
            Exited::StillHeld => Ok(()),
            Exited::NotOwner => Err(self.not_owner(owner)),
            Exited::Lost(reason) => Err(self.lost(Operation::Release, reason)),
            Exited::Release(hold) => self.release_remotely(&hold).await,
        }
    }

    async fn release_remotely(self: &Arc<Self>, hold: &Arc<HoldCore>) -> Result<(), LockError> {
        let outcome = janitor::release(hold);
        let answer = std::future::poll_fn(|context| outcome.poll(context));
        if let Some(result) = within(self.clock(), janitor::patience(hold), answer).await {
            return result;
        }
        hold.finish_release(None);
        Err(janitor::unconfirmed(self))
    }

    /// The error, with the lock and the server that it is about.
    pub(crate) fn about(&self, error: LockError) -> LockError {
        error.on(&self.name).at(&self.client.server)
    }

    pub(crate) fn lost(&self, operation: Operation, reason: LossReason) -> LockError {
        self.about(LockError::lost(operation, &self.name, reason))
    }

    fn not_owner(&self, owner: Owner) -> LockError {
        LockError::new(ErrorKind::NotOwner, Operation::Release)
            .on(&self.name)
            .because(format!("{owner:?} has no entry"))
            .remedy("unlock in the task or scope that locked, once for each lock")
    }

    /// Ends one entry of `owner` into `hold` without waiting: at the end of a scope, or when a guard is dropped.
    pub(crate) fn leave_in_background(self: &Arc<Self>, owner: Owner, hold: &Hold) {
        let (exited, start) =
            self.local.exit_in_silence(owner, &hold.0, |patience| self.new_attempt(patience));
        self.start_there(start);
        if let Exited::Release(hold) = exited {
            drop(janitor::release(&hold));
        }
    }

    /// A release or a cancel has been answered: the next in the queue may try.
    pub(crate) fn cleared(self: &Arc<Self>) {
        let start = self.local.cleared(|patience| self.new_attempt(patience));
        if start.is_none() {
            // Whoever comes later has not waited, and takes its place at the end.
            self.keep_lost_place(None);
        }
        self.start_there(start);
    }

    /// The hold is lost, and says so already: frees the front, tells the listener, leaves nothing at the server.
    pub(crate) fn hold_lost(self: &Arc<Self>, hold: &Arc<HoldCore>, loss: Loss, chore: Chore) {
        let known = hold.report_lost(loss.reason);
        hold.end_watch();
        let start = self.local.lost(hold, &loss.reason, |patience| self.new_attempt(patience));
        janitor::clear_lost(hold, loss, known, chore);
        self.start_there(start);
    }

    /// Makes an attempt, its first poll on this thread.
    fn start_here(self: &Arc<Self>, start: Option<Start<Arc<AcquireRequest>>>) {
        if let Some(start) = start {
            self.client.engine.run(drive(Arc::clone(self), start).instrument(log::span(self)));
        }
    }

    /// Makes an attempt on the engine: whoever calls has nothing to do with it.
    pub(crate) fn start_there(self: &Arc<Self>, start: Option<Start<Arc<AcquireRequest>>>) {
        if let Some(start) = start {
            self.client.engine.spawn(drive(Arc::clone(self), start).instrument(log::span(self)));
        }
    }
}

impl fmt::Debug for Front {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Front").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        self.client.forget_front(&self.name);
    }
}

/// A place in the local queue.
///
/// Dropping it leaves the queue; a grant that was on its way to it goes to the next, or back to the server.
struct Place {
    front: Arc<Front>,
    /// `None` when the wait has been decided.
    ticket: Option<Ticket>,
    deadline: Option<Sleep>,
    /// Runs when the time is up and the server has not been heard of yet.
    first_word: Option<Sleep>,
    patience: Patience,
    since: Moment,
    /// Whether it was not decided at the first look.
    has_waited: bool,
}

/// However short a wait is, the server gets this long for its first answer, as it does when one tries once: an answer
/// that is on its way is no outage. One that is heard of ends a short wait in time.
const FIRST_WORD: Duration = Duration::from_secs(1);

impl Place {
    fn new(front: &Arc<Front>, ticket: Ticket, patience: Patience) -> Self {
        Self {
            front: Arc::clone(front),
            ticket: Some(ticket),
            deadline: None,
            first_word: None,
            patience,
            since: front.clock().now(),
            has_waited: false,
        }
    }

    /// Whether the time is up. One who tries once waits for the answer, whenever it comes.
    fn poll_deadline(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Patience::Until(until) = self.patience else {
            return Poll::Pending;
        };
        let clock = self.front.clock();
        let sleep = self.deadline.get_or_insert_with(|| clock.sleep_until(Moment::from_nanoseconds(until)));
        Pin::new(sleep).poll(context)
    }

    /// Whether the server has been heard of, or has had time enough.
    fn poll_first_word(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(ticket) = self.ticket else { return Poll::Ready(()) };
        let clock = self.front.clock();
        let asked_at = match self.front.local.prospect(ticket) {
            Prospect::None => return Poll::Ready(()),
            Prospect::Attempt(attempt) if attempt.signals.poll_contact(context).is_ready() => {
                return Poll::Ready(());
            }
            Prospect::Attempt(_) => self.since,
            // The holder before was one of this client until a moment ago.
            Prospect::Answer => clock.now(),
        };
        let until = asked_at.plus(FIRST_WORD);
        let sleep = self.first_word.get_or_insert_with(|| clock.sleep_until(until));
        Pin::new(sleep).poll(context)
    }
}

impl Future for Place {
    type Output = Settled<Arc<HoldCore>, LockError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(ticket) = self.ticket else {
            return Poll::Pending;
        };
        let settled = match self.front.local.poll(ticket, context) {
            Poll::Ready(settled) => settled,
            Poll::Pending => {
                if !std::mem::replace(&mut self.has_waited, true) {
                    log::waiting(&self.front);
                }
                if self.poll_deadline(context).is_pending() || self.poll_first_word(context).is_pending() {
                    return Poll::Pending;
                }
                let (settled, undo) = self.front.local.give_up(ticket, janitor::no_answer);
                self.front.undo(undo);
                settled
            }
        };
        self.ticket = None;
        match &settled {
            Settled::Granted(hold) => log::granted(hold, self.since),
            Settled::Refused => {
                log::not_granted(&self.front, self.since, &"another holder has it, or comes before");
            }
            Settled::Failed(error) => log::not_granted(&self.front, self.since, error),
            Settled::Lost(reason) => log::not_granted(&self.front, self.since, reason),
        }
        Poll::Ready(settled)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            let undo = self.front.local.leave(ticket);
            self.front.undo(undo);
        }
    }
}
