//! The local, reentrant FIFO mutex in front of the remote lock: one for each client and name.
//!
//! It is a state machine under one mutex and does no I/O: each call returns what the caller must do next. At any time,
//! at most one of these goes on for a name, and all other callers wait in the queue:
//!
//! ```text
//!            enter            granted               exit
//!   Free ──────────▶ Attempting ───────▶ Held ──────────────▶ Clearing ──▶ Free
//!     ▲                 │   ▲              │                     ▲
//!     └── refused ──────┘   └─ next head   └── lost ──▶ Free     │
//!                           │                                    │
//!                           └── failed, or the last waiter left ─┘
//! ```
//!
//! * *Attempting*: one attempt at the remote lock, for the waiter that is at the head of the queue **when it is
//!   granted**. A head that leaves passes the attempt on, and with it the place in the remote queue.
//! * *Clearing*: a release or a cancel has been sent, and the server has not answered it for the first time. No attempt
//!   starts meanwhile, so that a client never queues behind itself.
//! * Where a server keeps the order of requests, *Held* becomes *Attempting* at once: the attempt of a waiter leaves right
//!   behind the release, and its outcome is reported when the release has been answered. A try waits for that answer.
//! * A loss frees the mutex although its owner has not unlocked; a tombstone reports the loss to that owner, once,
//!   unless all of its entries end before that without a caller that could receive the report.
//! * Requests that share the lock (readers, and the permits of a semaphore) have an attempt each, beside this one. They
//!   wait in an [admission queue](admission_queue) with the exclusive waiters until the server has confirmed them.
//! * If a grant is lost before its waiter has seen it, no code has used it: the waiter returns to its place in the
//!   queue and another attempt is made. A waiter that tries once gets the loss as its result.
//!
//! The model checker in `tests/model.rs` explores these transitions together with the states of the hold.

mod admission;
mod admission_queue;
mod handoff;
mod queue;
mod state;
mod unreported;

use std::hash::Hash;
use std::task::{Context, Poll};

use crate::runtime::sync::Mutex;
use crate::runtime::waker::{Wakers, with_waker};
pub(crate) use admission_queue::{Admission, Order};
use admission_queue::{Member, Request, RequestState};
use queue::Unclaimed;
use state::{Holder, Observed, Occupancy, State};

/// What the mutex needs to know about a hold.
pub(crate) trait Occupant: Clone {
    /// Why a hold was lost.
    type Loss: Clone;

    /// What a waiter asks for beside the lock itself.
    type Options: Clone;

    /// Returns whether the hold is what a waiter with these options has asked for.
    fn suits(&self, options: &Self::Options) -> bool;

    /// Returns a number that no other hold has or ever had.
    fn number(&self) -> u64;

    /// Returns whether both are the same hold.
    fn is_same(&self, other: &Self) -> bool {
        self.number() == other.number()
    }

    /// Checks that the hold still stands.
    fn verify(&self) -> Result<(), Self::Loss>;

    /// Ends the hold on behalf of its owner: from here on it cannot be lost any more.
    fn begin_release(&self) -> Result<(), Self::Loss>;

    /// The hold was lost before its waiter saw it, and another attempt replaces it.
    fn lost_unseen(&self);

    /// Returns whether an attempt may be sent before the release of this hold has been answered.
    fn may_be_followed(&self) -> bool {
        false
    }

    /// The owner of this exclusive hold also reads, in a hold that is to outlast this one.
    fn attach_reader(&self, reader: &Self) {
        let _ = reader;
    }

    /// Returns the hold that is to outlast this one.
    fn reader(&self) -> Option<Self> {
        None
    }
}

/// What the mutex needs to know about an attempt.
pub(crate) trait Attempt: Clone {
    /// Why a wait failed.
    type Failure: Clone;

    /// Another waiter, which waits until then, also wants the attempt.
    fn extend(&self, until: u64);

    /// A request in the admission queue waits until the server has confirmed the attempt.
    fn awaited(&self) {}

    /// Returns the reason why a wait that ends now must not be reported as "held by another owner", if there is one.
    fn why_unknown(&self) -> Option<Self::Failure>;

    /// Like `why_unknown`, but only when it is known that the server is unreachable, not when that is merely possible.
    fn outage(&self) -> Option<Self::Failure>;
}

/// How long a waiter waits, in nanoseconds of the client's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Tries once.
    Once,
    /// Waits until then.
    Until(u64),
}

impl Patience {
    fn is_over_by(self, moment: u64) -> bool {
        match self {
            Self::Once => true,
            Self::Until(until) => until <= moment,
        }
    }
}

/// The owner of an entry, which the mutex compares.
pub(crate) trait EntryOwner: Copy + Eq + Hash {}

impl<O: Copy + Eq + Hash> EntryOwner for O {}

pub(crate) type Ticket = u64;

/// The local mutex. `O` is the owner, `H` the hold, `A` the attempt.
pub(crate) struct LocalMutex<O, H: Occupant, A: Attempt> {
    state: Mutex<State<O, H, A>>,
}
/// How a wait ended.
#[derive(Debug, Clone)]
pub(crate) enum Settled<H: Occupant, F> {
    Granted(H),
    Refused,
    Failed(F),
    Lost(H::Loss),
}

/// The result of [`LocalMutex::enter`].
pub(crate) enum Entered<H: Occupant, F> {
    /// The owner had the lock already, or the wait was over before it began.
    Settled(Settled<H, F>),
    Waiting(Ticket),
}

/// What can still decide a wait whose time is up.
pub(crate) enum Prospect<A> {
    /// Nothing: it has failed.
    None,
    /// The first answer to a release or a cancel, after which the client can ask the server.
    Answer,
    /// An attempt that is under way.
    Attempt(A),
}

/// The result of an attempt.
///
/// An attempt that failed, or is void, may have left something at the server: the caller undoes it and calls
/// [`LocalMutex::cleared`].
pub(crate) enum Attempted<H, F> {
    Granted(H),
    /// The lock could not be had by then, in nanoseconds of the client's clock; for a waiter that tries once,
    /// `u64::MAX`.
    Refused {
        by: u64,
    },
    Failed(F),
    /// The attempt had no result although there is time left: the waiters need another one.
    Void,
}

/// What the caller must undo after [`LocalMutex::attempted`] or [`LocalMutex::leave`]; [`LocalMutex::cleared`] follows.
#[must_use = "an unclaimed grant must be given back"]
pub(crate) enum Undo<H, A> {
    Nothing,
    /// Stop the attempt and undo it.
    Attempt(A),
    /// Release the hold.
    Hold(H),
}

/// The result of [`LocalMutex::exit`].
pub(crate) enum Exited<H: Occupant> {
    NotOwner,
    Lost(H::Loss),
    StillHeld,
    /// That was the last entry: release the hold, then call [`LocalMutex::cleared`]; or
    /// [hand it on](LocalMutex::hand_off) to one that takes its place. If an attempt comes with it, send that right
    /// behind the release instead.
    Release(H),
    /// That was the last entry, and the owner still reads: let `reader` have what `hold` has at the server, then call
    /// [`LocalMutex::cleared`].
    Downgrade {
        hold: H,
        reader: H,
    },
}
impl<O: EntryOwner, H: Occupant, A: Attempt> LocalMutex<O, H, A> {
    pub(crate) fn new() -> Self {
        Self { state: Mutex::new(State::new()) }
    }

    /// Enters for `owner`, reenters, or takes a place in the queue. An attempt that this method or another one returns
    /// is one that the caller must now make, and report with [`LocalMutex::attempted`]; no other caller makes it.
    pub(crate) fn enter(
        &self,
        owner: O,
        patience: Patience,
        options: H::Options,
        make: impl FnOnce(Patience, &H::Options) -> A,
    ) -> (Entered<H, A::Failure>, Option<A>) {
        let mut wakers = Wakers::default();
        let mut state = self.state.lock();
        let entered = state.enter(owner, patience, options, &mut wakers);
        let start = state.start_next(make, &mut wakers);
        let entered = match entered {
            // The attempt starts, or is refused, within this call: a waiter that tries once never waits behind another.
            Entered::Waiting(ticket) if start.is_none() => state.settle_if_hopeless(ticket),
            entered => entered,
        };
        drop(state);
        wakers.wake();
        (entered, start)
    }

    /// Enters once more for `owner`, which already has `hold`.
    pub(crate) fn reenter(&self, owner: O, hold: &H) -> Result<(), Option<H::Loss>> {
        let mut state = self.state.lock();
        match &mut state.occupancy {
            Occupancy::Held(holder) if holder.owner == owner && holder.hold.is_same(hold) => {
                holder.hold.verify().map_err(Some)?;
                holder.entries += 1;
                holder.observed = Observed::Yes;
                Ok(())
            }
            _ => Err(None),
        }
    }

    /// Checks whether the wait of `ticket` has been decided.
    pub(crate) fn poll(&self, ticket: Ticket, context: &mut Context<'_>) -> Poll<Settled<H, A::Failure>> {
        with_waker(context, |waker| {
            let mut state = self.state.lock();
            if let Some(settled) = state.take_settled(ticket) {
                return Poll::Ready(settled);
            }
            if let Some(waiter) = state.waiter(ticket) {
                std::mem::swap(&mut waiter.waker, waker);
            }
            Poll::Pending
        })
    }

    /// Ends the wait of `ticket` at its deadline. If its outcome has been decided by now, that counts; otherwise the
    /// wait is refused, or fails if the server has not confirmed that another client holds the lock. `no_answer` is the
    /// failure of a head behind a release or a cancel that has not been answered.
    pub(crate) fn give_up(
        &self,
        ticket: Ticket,
        no_answer: impl FnOnce() -> A::Failure,
    ) -> (Settled<H, A::Failure>, Undo<H, A>) {
        let mut wakers = Wakers::default();
        let mut state = self.state.lock();
        if let Some(settled) = state.take_settled(ticket) {
            return (settled, Undo::Nothing);
        }
        let failure = match &state.occupancy {
            Occupancy::Attempting { attempt, .. } => attempt.why_unknown(),
            Occupancy::Clearing { overdue: None } if state.head() == Some(ticket) => Some(no_answer()),
            Occupancy::Clearing { overdue } => overdue.clone(),
            Occupancy::Free => state.why_unknown_in_admission(ticket, no_answer),
            Occupancy::Held(_) => None,
        };
        let (undo, waiter) = state.leave(ticket, &mut wakers);
        drop(state);
        drop(waiter);
        wakers.wake();
        (failure.map_or(Settled::Refused, Settled::Failed), undo)
    }

    /// Returns what can still decide the wait of `ticket`, whose time is up. The waiter is woken when that changes.
    pub(crate) fn prospect(&self, ticket: Ticket) -> Prospect<A> {
        let mut state = self.state.lock();
        let is_head = state.head() == Some(ticket);
        state.queue.time_is_up(ticket);
        match &state.occupancy {
            Occupancy::Attempting { attempt, .. } => Prospect::Attempt(attempt.clone()),
            Occupancy::Clearing { overdue: None } if is_head => Prospect::Answer,
            Occupancy::Free => match state.admissions.ahead_of(ticket) {
                Some(Member::Request(Request { attempt, state: RequestState::Sent, .. })) => {
                    Prospect::Attempt(attempt.clone())
                }
                Some(Member::Clearing { overdue: None }) if is_head => Prospect::Answer,
                _ => Prospect::None,
            },
            _ => Prospect::None,
        }
    }

    /// Returns the next moment after `moment` at which a waiter stops waiting.
    pub(crate) fn next_end(&self, moment: u64) -> Option<u64> {
        self.state.lock().queue.next_end(moment)
    }

    /// Ends the wait of `ticket`, because its future was dropped.
    pub(crate) fn leave(&self, ticket: Ticket) -> Undo<H, A> {
        let mut wakers = Wakers::default();
        let (undo, waiter) = self.state.lock().leave(ticket, &mut wakers);
        drop(waiter);
        wakers.wake();
        undo
    }

    /// Reports the result of an attempt. Returns what no waiter wants, and the attempt that follows.
    pub(crate) fn attempted(
        &self,
        outcome: Attempted<H, A::Failure>,
        make: impl FnOnce(Patience, &H::Options) -> A,
    ) -> (Undo<H, A>, Option<A>) {
        let mut wakers = Wakers::default();
        let mut state = self.state.lock();
        let undo = state.attempted(outcome, &mut wakers);
        let start = state.start_next(make, &mut wakers);
        drop(state);
        wakers.wake();
        (undo, start)
    }

    /// Ends one entry of `owner`, which gets the result. With `of`, only an entry into that hold: the owner may have
    /// lost it and have another one by now.
    pub(crate) fn exit(
        &self,
        owner: O,
        of: Option<&H>,
        make: impl FnOnce(Patience, &H::Options) -> A,
    ) -> (Exited<H>, Option<A>) {
        self.end_entry(|state, wakers| state.exit(owner, of, wakers), make)
    }

    /// Like `exit`, for an entry that ends without a caller that could receive the result: the owner still learns of a
    /// loss when it ends its other entries.
    pub(crate) fn exit_in_silence(
        &self,
        owner: O,
        of: &H,
        make: impl FnOnce(Patience, &H::Options) -> A,
    ) -> (Exited<H>, Option<A>) {
        self.end_entry(|state, wakers| state.exit_in_silence(owner, of, wakers), make)
    }

    fn end_entry(
        &self,
        end: impl FnOnce(&mut State<O, H, A>, &mut Wakers) -> Exited<H>,
        make: impl FnOnce(Patience, &H::Options) -> A,
    ) -> (Exited<H>, Option<A>) {
        let mut wakers = Wakers::default();
        let mut state = self.state.lock();
        let exited = end(&mut state, &mut wakers);
        let start = state.start_next(make, &mut wakers);
        drop(state);
        wakers.wake();
        (exited, start)
    }

    /// Reports the first answer to a release or a cancel, whatever the answer is.
    #[must_use = "no other caller makes this attempt"]
    pub(crate) fn cleared(&self, make: impl FnOnce(Patience, &H::Options) -> A) -> Option<A> {
        let mut wakers = Wakers::default();
        let mut state = self.state.lock();
        if matches!(state.occupancy, Occupancy::Clearing { .. }) {
            state.occupancy = Occupancy::Free;
        }
        let start = state.start_next(make, &mut wakers);
        drop(state);
        wakers.wake();
        start
    }

    /// Reports that the answer to a release or a cancel is overdue: a wait that ends now ends with `failure`.
    ///
    /// Waiters that try once fail immediately.
    pub(crate) fn overdue(&self, failure: &A::Failure) {
        let mut wakers = Wakers::default();
        let mut state = self.state.lock();
        if let Occupancy::Clearing { overdue } = &mut state.occupancy {
            *overdue = Some(failure.clone());
            state.settle_those_who_try_once(&Settled::Failed(failure.clone()), &mut wakers);
            wakers.extend(state.queue.wakers_when_time_is_up());
        }
        drop(state);
        wakers.wake();
    }

    /// Reports that `hold` has been lost. The caller has changed the state of the hold before.
    #[must_use = "no other caller makes this attempt"]
    pub(crate) fn lost(
        &self,
        hold: &H,
        loss: &H::Loss,
        make: impl FnOnce(Patience, &H::Options) -> A,
    ) -> Option<A> {
        let mut wakers = Wakers::default();
        let mut state = self.state.lock();
        state.lost(hold, loss, &mut wakers);
        let start = state.start_next(make, &mut wakers);
        drop(state);
        wakers.wake();
        start
    }

    /// Refuses all callers from now on, including those that already wait.
    pub(crate) fn close(&self, failure: &A::Failure) -> Undo<H, A> {
        let mut wakers = Wakers::default();
        let mut state = self.state.lock();
        state.closed = Some(failure.clone());
        for ticket in state.queue.tickets() {
            state.settle(ticket, Settled::Failed(failure.clone()), &mut wakers);
        }
        let undo = state.abandon_attempt();
        drop(state);
        wakers.wake();
        undo
    }

    /// Returns why all callers are refused, if they are.
    pub(crate) fn closed(&self) -> Option<A::Failure> {
        self.state.lock().closed.clone()
    }

    /// Returns whether `owner` does not know yet that it has lost a hold.
    pub(crate) fn has_loss_for(&self, owner: O) -> bool {
        self.state.lock().unreported.has_tombstone_of(&owner)
    }

    /// Returns whether neither an owner, a waiter nor a request uses the lock, and no loss is to be reported.
    pub(crate) fn is_unused(&self) -> bool {
        let state = self.state.lock();
        matches!(state.occupancy, Occupancy::Free)
            && state.queue.is_empty()
            && state.admissions.is_empty()
            && state.unreported.is_empty()
    }

    /// Enters for `owner` with a hold that it has got elsewhere. Returns whether the lock was free for that.
    pub(crate) fn adopt(&self, owner: O, hold: H) -> bool {
        let mut state = self.state.lock();
        let is_free = matches!(state.occupancy, Occupancy::Free) && state.queue.is_empty();
        if is_free {
            let (observed, unclaimed) = (Observed::Yes, Unclaimed::default());
            state.occupancy = Occupancy::Held(Holder { owner, hold, entries: 1, observed, unclaimed });
        }
        is_free
    }

    /// Lets `owner` read while it has `hold`: the last exit lets `reader` outlast it. Returns whether it still has it.
    pub(crate) fn attach_reader(&self, owner: O, hold: &H, reader: &H) -> bool {
        let mut state = self.state.lock();
        let holder = state.holder_if(owner).filter(|holder| holder.entries > 0 && holder.hold.is_same(hold));
        let stands = holder.is_some_and(|holder| holder.hold.verify().is_ok());
        if stands {
            hold.attach_reader(reader);
        }
        stands
    }

    /// Returns the hold and the number of its owner's entries, if the owner is `owner`.
    pub(crate) fn held_by(&self, owner: O) -> Option<(H, u64)> {
        match &self.state.lock().occupancy {
            Occupancy::Held(holder) if holder.owner == owner && holder.entries > 0 => {
                Some((holder.hold.clone(), holder.entries))
            }
            _ => None,
        }
    }

    /// Returns whether `owner` waits, or has been granted the lock and has not seen that yet.
    pub(crate) fn is_asked_for_by(&self, owner: O) -> bool {
        let state = self.state.lock();
        let is_granted = match &state.occupancy {
            Occupancy::Held(holder) => holder.owner == owner && holder.entries == 0,
            _ => false,
        };
        is_granted || state.queue.has(&owner)
    }

    /// Returns the owner that holds the lock, and its hold.
    pub(crate) fn holder(&self) -> Option<(O, H)> {
        match &self.state.lock().occupancy {
            Occupancy::Held(holder) => Some((holder.owner, holder.hold.clone())),
            _ => None,
        }
    }
}
