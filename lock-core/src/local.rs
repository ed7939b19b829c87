//! The local reentrant FIFO mutex that stands in front of the remote lock: one for each client and name.
//!
//! It is a state machine under one mutex and does no I/O: each call answers what the caller must do next. At any time at
//! most one of these is going on for the name, and everybody else stands in the queue:
//!
//! ```text
//!            enter            granted               exit
//!   Free ──────────▶ Attempting ───────▶ Held ──────────────▶ Clearing ──▶ Free
//!     ▲                 │   ▲              │                     ▲
//!     └── refused, ─────┘   └─ next head   └── lost ──▶ Free     │
//!         failed            │                                    │
//!                           └── the last waiter left ────────────┘
//! ```
//!
//! * *Attempting*: one attempt at the remote lock, on behalf of whoever is at the head of the queue **when it is granted**.
//!   A head that leaves passes the attempt on, and with it the place in the remote queue.
//! * *Clearing*: a release or a cancel has been sent and not answered for the first time. Nobody starts an attempt
//!   meanwhile, so that a client never queues behind itself.
//! * A loss frees the mutex although its owner has not unlocked; a tombstone tells that owner so, once.
//!
//! The model checker in `tests/model.rs` explores these transitions together with the hold's own states.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::task::{Context, Poll, Waker};

use crate::sync::Mutex;

/// What the mutex needs to know of a hold.
pub(crate) trait Occupant: Clone {
    /// Why a hold was lost.
    type Loss: Clone;

    /// Whether both are the same hold.
    fn is_same(&self, other: &Self) -> bool;

    /// Answers whether the hold still stands.
    fn verify(&self) -> Result<(), Self::Loss>;

    /// Ends the hold by its owner's will: it cannot be lost any more from here on.
    fn begin_release(&self) -> Result<(), Self::Loss>;
}

/// What the mutex needs to know of an attempt.
pub(crate) trait Attempt: Clone {
    /// Why a wait failed.
    type Failure: Clone;

    /// The attempt is also wanted by someone who waits until then.
    fn extend(&self, until: u64);

    /// Why a wait that ends now must not be reported as "held by someone else", if it must not.
    fn obstacle(&self) -> Option<Self::Failure>;

    /// The same, when it is known that the server is away, and not just unknown whether it is.
    fn outage(&self) -> Option<Self::Failure>;
}

/// How long somebody waits, in nanoseconds of the client's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Tries once.
    Once,
    /// Waits until then.
    Until(u64),
}

/// Who owns an entry: what the mutex compares.
pub(crate) trait Holder: Copy + PartialEq {}

impl<O: Copy + PartialEq> Holder for O {}

pub(crate) type Ticket = u64;

/// The local mutex. `O` owns, `H` is held, `A` is attempted.
pub(crate) struct LocalMutex<O, H: Occupant, A: Attempt> {
    state: Mutex<State<O, H, A>>,
}

struct State<O, H: Occupant, A: Attempt> {
    occupancy: Occupancy<O, H, A>,
    /// Those who wait, by ticket: the lowest is the head.
    queue: BTreeMap<Ticket, Waiter<O>>,
    /// Those whose wait has been decided and who have not looked yet.
    settled: BTreeMap<Ticket, Settled<H, A::Failure>>,
    tombstones: VecDeque<(O, H::Loss)>,
    next_ticket: Ticket,
    closed: Option<A::Failure>,
}

enum Occupancy<O, H, A: Attempt> {
    Free,
    Attempting {
        attempt: A,
        patience: Patience,
    },
    Clearing {
        /// Set when the answer is overdue.
        overdue: Option<A::Failure>,
    },
    Held(Tenancy<O, H>),
}

struct Tenancy<O, H> {
    owner: O,
    hold: H,
    /// How often the owner has entered and not left.
    entries: u64,
    /// Waiters of the owner that the hold was granted to and who have not looked yet. More than one when branches of
    /// one task wait for the same lock: the first grant is reentry for the others.
    promised: BTreeSet<Ticket>,
}

struct Waiter<O> {
    owner: O,
    patience: Patience,
    time: Time,
    waker: Option<Waker>,
}

/// Whether a waiter still has time.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Time {
    Left,
    /// It only waits for a word from the server.
    Up,
}

/// How a wait ended.
#[derive(Debug, Clone)]
pub(crate) enum Settled<H: Occupant, F> {
    Granted(H),
    Refused,
    Failed(F),
    Lost(H::Loss),
}

/// An attempt that the caller must now make, and report with [`LocalMutex::attempted`].
#[must_use = "nobody else makes this attempt"]
#[derive(Debug)]
pub(crate) struct Start<A> {
    pub(crate) attempt: A,
    pub(crate) patience: Patience,
}

/// What came of [`LocalMutex::enter`].
pub(crate) enum Entered<H: Occupant, F> {
    Reentered(H),
    Waiting(Ticket),
    Refused,
    Failed(F),
    Lost(H::Loss),
}

/// What a wait whose time is up may still be decided by.
pub(crate) enum Prospect<A> {
    /// Nothing: it has failed.
    None,
    /// The first answer to a release or a cancel, after which the server can be asked.
    Answer,
    /// An attempt that is under way.
    Attempt(A),
}

/// What came of an attempt.
///
/// An attempt that failed, or is void, may have left something behind: the caller undoes it and reports
/// [`LocalMutex::cleared`].
pub(crate) enum Attempted<H, F> {
    Granted(H),
    Refused,
    Failed(F),
    /// It came to nothing although there is time left: whoever waits needs another.
    Void,
}

/// What the caller must undo after [`LocalMutex::attempted`] or [`LocalMutex::leave`]; [`LocalMutex::cleared`] follows.
#[must_use = "what nobody wants must be given back"]
pub(crate) enum Undo<H, A> {
    Nothing,
    /// Stop the attempt and undo it.
    Attempt(A),
    /// Release the hold.
    Hold(H),
}

/// What came of [`LocalMutex::exit`].
pub(crate) enum Exited<H: Occupant> {
    NotOwner,
    Lost(H::Loss),
    StillHeld,
    /// That was the last entry: release the hold, then call [`LocalMutex::cleared`].
    Release(H),
}

/// Tombstones of owners that never come back are forgotten beyond this many.
const MAX_TOMBSTONES: usize = 256;

impl<O: Holder, H: Occupant, A: Attempt> LocalMutex<O, H, A> {
    pub(crate) fn new() -> Self {
        Self {
            state: Mutex::new(State {
                occupancy: Occupancy::Free,
                queue: BTreeMap::new(),
                settled: BTreeMap::new(),
                tombstones: VecDeque::new(),
                next_ticket: 0,
                closed: None,
            }),
        }
    }

    /// Enters for `owner`, reenters, or takes a place in the queue.
    pub(crate) fn enter(
        &self,
        owner: O,
        patience: Patience,
        make: impl FnOnce(Patience) -> A,
    ) -> (Entered<H, A::Failure>, Option<Start<A>>) {
        let mut wakers = Vec::new();
        let mut state = self.state.lock();
        let entered = state.enter(owner, patience);
        let start = state.start_next(make, &mut wakers);
        let entered = match entered {
            // Started or refused in the same breath: whoever tries once does not stand behind somebody.
            Entered::Waiting(ticket) if start.is_none() => state.settle_if_hopeless(ticket),
            entered => entered,
        };
        drop(state);
        wake(wakers);
        (entered, start)
    }

    /// Enters once more for `owner`, who has `hold` in hand.
    pub(crate) fn reenter(&self, owner: O, hold: &H) -> Result<(), Option<H::Loss>> {
        let mut state = self.state.lock();
        match &mut state.occupancy {
            Occupancy::Held(tenancy) if tenancy.owner == owner && tenancy.hold.is_same(hold) => {
                tenancy.hold.verify().map_err(Some)?;
                tenancy.entries += 1;
                Ok(())
            }
            _ => Err(None),
        }
    }

    /// Looks whether the wait of `ticket` has been decided.
    pub(crate) fn poll(&self, ticket: Ticket, context: &mut Context<'_>) -> Poll<Settled<H, A::Failure>> {
        let mut state = self.state.lock();
        if let Some(settled) = state.take_settled(ticket) {
            return Poll::Ready(settled);
        }
        if let Some(waiter) = state.queue.get_mut(&ticket) {
            match &mut waiter.waker {
                Some(waker) => waker.clone_from(context.waker()),
                empty => *empty = Some(context.waker().clone()),
            }
        }
        Poll::Pending
    }

    /// Ends the wait of `ticket` at its deadline: what has been decided by now counts, else it is refused, or has failed
    /// when nobody has said that someone else holds the lock. `no_answer` is the failure of a head that stands behind a
    /// release or a cancel without an answer.
    pub(crate) fn give_up(
        &self,
        ticket: Ticket,
        no_answer: impl FnOnce() -> A::Failure,
    ) -> (Settled<H, A::Failure>, Undo<H, A>) {
        let mut state = self.state.lock();
        if let Some(settled) = state.take_settled(ticket) {
            return (settled, Undo::Nothing);
        }
        let obstacle = match &state.occupancy {
            Occupancy::Attempting { attempt, .. } => attempt.obstacle(),
            Occupancy::Clearing { overdue: None } if state.head() == Some(ticket) => Some(no_answer()),
            Occupancy::Clearing { overdue } => overdue.clone(),
            _ => None,
        };
        let undo = state.leave(ticket, &mut Vec::new());
        (obstacle.map_or(Settled::Refused, Settled::Failed), undo)
    }

    /// What the wait of `ticket`, whose time is up, may still be decided by. The waiter is woken when that changes.
    pub(crate) fn prospect(&self, ticket: Ticket) -> Prospect<A> {
        let mut state = self.state.lock();
        let is_head = state.head() == Some(ticket);
        if let Some(waiter) = state.queue.get_mut(&ticket) {
            waiter.time = Time::Up;
        }
        match &state.occupancy {
            Occupancy::Attempting { attempt, .. } => Prospect::Attempt(attempt.clone()),
            Occupancy::Clearing { overdue: None } if is_head => Prospect::Answer,
            _ => Prospect::None,
        }
    }

    /// Ends the wait of `ticket` because nobody looks at it any more.
    pub(crate) fn leave(&self, ticket: Ticket) -> Undo<H, A> {
        let mut wakers = Vec::new();
        let undo = self.state.lock().leave(ticket, &mut wakers);
        wake(wakers);
        undo
    }

    /// Reports what came of an attempt. Answers what nobody wants, and the attempt that follows.
    pub(crate) fn attempted(
        &self,
        outcome: Attempted<H, A::Failure>,
        make: impl FnOnce(Patience) -> A,
    ) -> (Undo<H, A>, Option<Start<A>>) {
        let mut wakers = Vec::new();
        let mut state = self.state.lock();
        let undo = state.attempted(outcome, &mut wakers);
        let start = state.start_next(make, &mut wakers);
        drop(state);
        wake(wakers);
        (undo, start)
    }

    /// Ends one entry of `owner`.
    pub(crate) fn exit(&self, owner: O, make: impl FnOnce(Patience) -> A) -> (Exited<H>, Option<Start<A>>) {
        let mut wakers = Vec::new();
        let mut state = self.state.lock();
        let exited = state.exit(owner);
        let start = state.start_next(make, &mut wakers);
        drop(state);
        wake(wakers);
        (exited, start)
    }

    /// Reports that a release or a cancel has been answered for the first time, whatever the answer.
    pub(crate) fn cleared(&self, make: impl FnOnce(Patience) -> A) -> Option<Start<A>> {
        let mut wakers = Vec::new();
        let mut state = self.state.lock();
        if matches!(state.occupancy, Occupancy::Clearing { .. }) {
            state.occupancy = Occupancy::Free;
        }
        let start = state.start_next(make, &mut wakers);
        drop(state);
        wake(wakers);
        start
    }

    /// Reports that the answer to a release or a cancel is overdue: a wait that ends now ends with `failure`.
    ///
    /// Those who try once are told so now.
    pub(crate) fn overdue(&self, failure: &A::Failure) {
        let mut wakers = Vec::new();
        let mut state = self.state.lock();
        if let Occupancy::Clearing { overdue } = &mut state.occupancy {
            *overdue = Some(failure.clone());
            state.settle_those_who_try_once(&Settled::Failed(failure.clone()), &mut wakers);
            wakers.extend(state.queue.values_mut().filter_map(Waiter::waker_when_time_is_up));
        }
        drop(state);
        wake(wakers);
    }

    /// Reports that `hold` has been lost. The caller has set the level before.
    pub(crate) fn lost(
        &self,
        hold: &H,
        loss: &H::Loss,
        make: impl FnOnce(Patience) -> A,
    ) -> Option<Start<A>> {
        let mut wakers = Vec::new();
        let mut state = self.state.lock();
        state.lost(hold, loss);
        let start = state.start_next(make, &mut wakers);
        drop(state);
        wake(wakers);
        start
    }

    /// Refuses everyone from now on, and everyone who waits.
    pub(crate) fn close(&self, failure: &A::Failure) -> Undo<H, A> {
        let mut wakers = Vec::new();
        let mut state = self.state.lock();
        state.closed = Some(failure.clone());
        let waiting: Vec<_> = state.queue.keys().copied().collect();
        for ticket in waiting {
            state.settle(ticket, Settled::Failed(failure.clone()), &mut wakers);
        }
        let undo = state.abandon_attempt();
        drop(state);
        wake(wakers);
        undo
    }

    /// The hold, and the number of its owner's entries, if `owner` has it.
    pub(crate) fn held_by(&self, owner: O) -> Option<(H, u64)> {
        match &self.state.lock().occupancy {
            Occupancy::Held(tenancy) if tenancy.owner == owner && tenancy.entries > 0 => {
                Some((tenancy.hold.clone(), tenancy.entries))
            }
            _ => None,
        }
    }

    /// The hold, whoever has it.
    pub(crate) fn held(&self) -> Option<H> {
        match &self.state.lock().occupancy {
            Occupancy::Held(tenancy) => Some(tenancy.hold.clone()),
            _ => None,
        }
    }
}

impl<O: Holder, H: Occupant, A: Attempt> State<O, H, A> {
    fn enter(&mut self, owner: O, patience: Patience) -> Entered<H, A::Failure> {
        if let Some(failure) = &self.closed {
            return Entered::Failed(failure.clone());
        }
        if let Some(loss) = self.take_tombstone(owner) {
            return Entered::Lost(loss);
        }
        if let Some(entered) = self.reenter(owner) {
            return entered;
        }
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        if let (Occupancy::Attempting { attempt, patience: Patience::Until(_) }, Patience::Until(until)) =
            (&self.occupancy, patience)
        {
            attempt.extend(until);
        }
        self.queue.insert(ticket, Waiter { owner, patience, time: Time::Left, waker: None });
        Entered::Waiting(ticket)
    }

    fn reenter(&mut self, owner: O) -> Option<Entered<H, A::Failure>> {
        let tenancy = self.tenancy_of(owner)?;
        match tenancy.hold.verify() {
            Ok(()) => {
                tenancy.entries += 1;
                Some(Entered::Reentered(tenancy.hold.clone()))
            }
            Err(loss) => {
                self.end_lost_tenancy(&loss);
                Some(Entered::Lost(loss))
            }
        }
    }

    /// One who tries once and would have to stand behind a local holder or waiter is refused at once. Behind a release or
    /// another try that is on its way, it waits for the answer.
    fn settle_if_hopeless(&mut self, ticket: Ticket) -> Entered<H, A::Failure> {
        let tries_once = self.queue.get(&ticket).is_some_and(|waiter| waiter.patience == Patience::Once);
        let obstacle = match &self.occupancy {
            _ if !tries_once => return Entered::Waiting(ticket),
            Occupancy::Clearing { overdue: None }
            | Occupancy::Free
            | Occupancy::Attempting { patience: Patience::Once, .. } => return Entered::Waiting(ticket),
            Occupancy::Clearing { overdue } => overdue.clone(),
            Occupancy::Attempting { attempt, .. } => attempt.outage(),
            Occupancy::Held(_) => None,
        };
        self.queue.remove(&ticket);
        obstacle.map_or(Entered::Refused, Entered::Failed)
    }

    fn take_settled(&mut self, ticket: Ticket) -> Option<Settled<H, A::Failure>> {
        let settled = self.settled.remove(&ticket)?;
        if let Occupancy::Held(tenancy) = &mut self.occupancy
            && tenancy.promised.remove(&ticket)
        {
            tenancy.entries += 1;
        }
        Some(settled)
    }

    fn take_tombstone(&mut self, owner: O) -> Option<H::Loss> {
        let position = self.tombstones.iter().position(|(of, _)| *of == owner)?;
        self.tombstones.remove(position).map(|(_, loss)| loss)
    }

    fn settle(&mut self, ticket: Ticket, settled: Settled<H, A::Failure>, wakers: &mut Vec<Waker>) {
        if let Some(waiter) = self.queue.remove(&ticket) {
            self.settled.insert(ticket, settled);
            wakers.extend(waiter.waker);
        }
    }

    fn head(&self) -> Option<Ticket> {
        self.queue.keys().next().copied()
    }

    /// Starts the attempt of whoever is at the head, if nothing else goes on.
    fn start_next(&mut self, make: impl FnOnce(Patience) -> A, wakers: &mut Vec<Waker>) -> Option<Start<A>> {
        if !matches!(self.occupancy, Occupancy::Free) {
            return None;
        }
        let mut head = self.queue.first_entry()?;
        let patience = head.get().patience;
        wakers.extend(head.get_mut().waker_when_time_is_up());
        let attempt = make(patience);
        if patience != Patience::Once {
            self.settle_those_who_try_once(&Settled::Refused, wakers);
            for waiter in self.queue.values() {
                if let Patience::Until(until) = waiter.patience {
                    attempt.extend(until);
                }
            }
        }
        self.occupancy = Occupancy::Attempting { attempt: attempt.clone(), patience };
        Some(Start { attempt, patience })
    }

    fn settle_those_who_try_once(&mut self, settled: &Settled<H, A::Failure>, wakers: &mut Vec<Waker>) {
        let trying: Vec<_> = self
            .queue
            .iter()
            .filter_map(|(ticket, waiter)| (waiter.patience == Patience::Once).then_some(*ticket))
            .collect();
        for ticket in trying {
            self.settle(ticket, settled.clone(), wakers);
        }
    }

    fn attempted(&mut self, outcome: Attempted<H, A::Failure>, wakers: &mut Vec<Waker>) -> Undo<H, A> {
        if !matches!(self.occupancy, Occupancy::Attempting { .. }) {
            // The last waiter left meanwhile, and what was granted is nobody's. What else there is to undo, is undone in
            // any case, which ends the clearing.
            if matches!(outcome, Attempted::Refused) {
                self.occupancy = Occupancy::Free;
            }
            return match outcome {
                Attempted::Granted(hold) => Undo::Hold(hold),
                _ => Undo::Nothing,
            };
        }
        let attempted = std::mem::replace(&mut self.occupancy, Occupancy::Free);
        let Some((ticket, patience)) =
            self.queue.first_key_value().map(|(ticket, head)| (*ticket, head.patience))
        else {
            return self.undo_unwanted(outcome);
        };
        // An attempt that was to try once says nothing about how it goes for a head that waits: that one gets its own.
        let speaks_for_head = !matches!(attempted, Occupancy::Attempting { patience: Patience::Once, .. })
            || patience == Patience::Once;
        match outcome {
            Attempted::Granted(hold) => match hold.verify() {
                Ok(()) => self.give(ticket, hold, wakers),
                Err(loss) if patience == Patience::Once => self.settle(ticket, Settled::Lost(loss), wakers),
                // Nobody has known of it, and there is time for another.
                Err(_) => {}
            },
            Attempted::Refused if speaks_for_head => self.settle(ticket, Settled::Refused, wakers),
            Attempted::Refused => {}
            Attempted::Failed(failure) => {
                self.occupancy = Occupancy::Clearing { overdue: None };
                if speaks_for_head {
                    self.settle(ticket, Settled::Failed(failure), wakers);
                }
            }
            Attempted::Void => self.occupancy = Occupancy::Clearing { overdue: None },
        }
        Undo::Nothing
    }

    /// An attempt that nobody waits for has ended by itself.
    fn undo_unwanted(&mut self, outcome: Attempted<H, A::Failure>) -> Undo<H, A> {
        if matches!(outcome, Attempted::Refused) {
            return Undo::Nothing;
        }
        self.occupancy = Occupancy::Clearing { overdue: None };
        match outcome {
            Attempted::Granted(hold) => Undo::Hold(hold),
            _ => Undo::Nothing,
        }
    }

    /// Gives the hold to a waiter, and to everyone who waits for the same owner.
    fn give(&mut self, ticket: Ticket, hold: H, wakers: &mut Vec<Waker>) {
        let Some(owner) = self.queue.get(&ticket).map(|waiter| waiter.owner) else {
            return;
        };
        let promised: BTreeSet<_> = self
            .queue
            .iter()
            .filter_map(|(ticket, waiter)| (waiter.owner == owner).then_some(*ticket))
            .collect();
        for ticket in &promised {
            self.settle(*ticket, Settled::Granted(hold.clone()), wakers);
        }
        self.occupancy = Occupancy::Held(Tenancy { owner, hold, entries: 0, promised });
        self.settle_those_who_try_once(&Settled::Refused, wakers);
    }

    fn leave(&mut self, ticket: Ticket, wakers: &mut Vec<Waker>) -> Undo<H, A> {
        if self.queue.remove(&ticket).is_some() {
            return if self.queue.is_empty() { self.abandon_attempt() } else { Undo::Nothing };
        }
        match self.settled.remove(&ticket) {
            Some(Settled::Granted(hold)) => self.pass_on(ticket, hold, wakers),
            _ => Undo::Nothing,
        }
    }

    fn abandon_attempt(&mut self) -> Undo<H, A> {
        let Occupancy::Attempting { attempt, .. } = &self.occupancy else {
            return Undo::Nothing;
        };
        let attempt = attempt.clone();
        self.occupancy = Occupancy::Clearing { overdue: None };
        Undo::Attempt(attempt)
    }

    /// A grant that its waiter did not live to see: nobody has known of it, so the next in the queue may have it.
    fn pass_on(&mut self, ticket: Ticket, hold: H, wakers: &mut Vec<Waker>) -> Undo<H, A> {
        let Occupancy::Held(tenancy) = &mut self.occupancy else {
            return Undo::Nothing;
        };
        if !tenancy.promised.remove(&ticket) || !tenancy.promised.is_empty() || tenancy.entries > 0 {
            return Undo::Nothing;
        }
        if let Some(next) = self.head()
            && hold.verify().is_ok()
        {
            self.give(next, hold, wakers);
            return Undo::Nothing;
        }
        match hold.begin_release() {
            Ok(()) => {
                self.occupancy = Occupancy::Clearing { overdue: None };
                Undo::Hold(hold)
            }
            // The report of its loss is on its way and frees the mutex.
            Err(_) => Undo::Nothing,
        }
    }

    fn exit(&mut self, owner: O) -> Exited<H> {
        let Some(tenancy) = self.tenancy_of(owner).filter(|tenancy| tenancy.entries > 0) else {
            return self.take_tombstone(owner).map_or(Exited::NotOwner, Exited::Lost);
        };
        let is_last = tenancy.entries == 1 && tenancy.promised.is_empty();
        let ended = if is_last { tenancy.hold.begin_release() } else { tenancy.hold.verify() };
        match ended {
            Err(loss) => {
                self.end_lost_tenancy(&loss);
                Exited::Lost(loss)
            }
            Ok(()) if is_last => {
                let hold = tenancy.hold.clone();
                self.occupancy = Occupancy::Clearing { overdue: None };
                Exited::Release(hold)
            }
            Ok(()) => {
                tenancy.entries -= 1;
                Exited::StillHeld
            }
        }
    }

    fn tenancy_of(&mut self, owner: O) -> Option<&mut Tenancy<O, H>> {
        match &mut self.occupancy {
            Occupancy::Held(tenancy) if tenancy.owner == owner => Some(tenancy),
            _ => None,
        }
    }

    /// The owner itself has found the loss, and is told here and now: no tombstone, and the report of the loss, when it
    /// comes, finds nothing to do.
    fn end_lost_tenancy(&mut self, loss: &H::Loss) {
        let tenancy = std::mem::replace(&mut self.occupancy, Occupancy::Free);
        if let Occupancy::Held(tenancy) = tenancy {
            self.break_promises(&tenancy.promised, loss);
        }
    }

    fn break_promises(&mut self, promised: &BTreeSet<Ticket>, loss: &H::Loss) {
        for ticket in promised {
            if let Some(settled) = self.settled.get_mut(ticket) {
                *settled = Settled::Lost(loss.clone());
            }
        }
    }

    fn lost(&mut self, hold: &H, loss: &H::Loss) {
        match std::mem::replace(&mut self.occupancy, Occupancy::Free) {
            Occupancy::Held(tenancy) if tenancy.hold.is_same(hold) => {
                self.break_promises(&tenancy.promised, loss);
                if tenancy.entries > 0 {
                    self.bury(tenancy.owner, loss.clone());
                }
            }
            other => self.occupancy = other,
        }
    }

    fn bury(&mut self, owner: O, loss: H::Loss) {
        if self.tombstones.len() == MAX_TOMBSTONES {
            self.tombstones.pop_front();
        }
        self.tombstones.push_back((owner, loss));
    }
}

impl<O> Waiter<O> {
    fn waker_when_time_is_up(&mut self) -> Option<Waker> {
        (self.time == Time::Up).then(|| self.waker.take()).flatten()
    }
}

fn wake(wakers: Vec<Waker>) {
    for waker in wakers {
        waker.wake();
    }
}
