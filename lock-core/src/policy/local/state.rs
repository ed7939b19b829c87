//! The state behind the local mutex, and its transitions. Each method leaves the state consistent, and none wakes a
//! task or calls other code: the caller does that after it has unlocked the mutex.

use super::admission_queue::{AdmissionQueue, Member};
use super::queue::{End, Queue, Time, Unclaimed, Waiter};
use super::unreported::Unreported;
use super::{Attempt, Attempted, Entered, EntryOwner, Exited, Occupant, Patience, Settled, Ticket, Undo};
use crate::runtime::waker::Wakers;

pub(super) struct State<O, H: Occupant, A: Attempt> {
    pub(super) occupancy: Occupancy<O, H, A>,
    /// The waiters.
    pub(super) queue: Queue<O, H::Options>,
    /// The requests that share the lock.
    pub(super) admissions: AdmissionQueue<A>,
    pub(super) unreported: Unreported<O, H, A::Failure>,
    pub(super) next_ticket: Ticket,
    pub(super) closed: Option<A::Failure>,
}

pub(super) enum Occupancy<O, H: Occupant, A: Attempt> {
    Free,
    Attempting {
        attempt: A,
        patience: Patience,
        confirmed: Confirmed,
    },
    Clearing {
        /// Set when the answer is overdue.
        overdue: Option<A::Failure>,
    },
    Held(Holder<O, H>),
}

/// Whether the server has confirmed that an attempt is queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Confirmed {
    NotYet,
    Yes,
}

pub(super) struct Holder<O, H: Occupant> {
    pub(super) owner: O,
    pub(super) hold: H,
    /// How many entries the owner has.
    pub(super) entries: u64,
    pub(super) observed: Observed,
    /// Waiters of the owner that the hold was granted to and that have not seen it yet. There is more than one if
    /// branches of one task wait for the same lock: the first grant is reentry for the others.
    pub(super) unclaimed: Unclaimed<O, H::Options>,
}

/// Whether the owner has ever received the hold. If so, the hold must not pass to another owner: its token has been
/// seen.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Observed {
    NotYet,
    Yes,
}

/// What a waiter that leaves leaves behind: what is to be undone, and the waiter itself.
type Left<O, H, A> = (Undo<H, A>, Option<Waiter<O, <H as Occupant>::Options>>);

impl<O: EntryOwner, H: Occupant, A: Attempt> State<O, H, A> {
    pub(super) fn new() -> Self {
        Self {
            occupancy: Occupancy::Free,
            queue: Queue::new(),
            admissions: AdmissionQueue::new(),
            unreported: Unreported::new(),
            next_ticket: 0,
            closed: None,
        }
    }

    pub(super) fn enter(
        &mut self,
        owner: O,
        patience: Patience,
        options: H::Options,
        wakers: &mut Wakers,
    ) -> Entered<H, A::Failure> {
        if let Some(failure) = &self.closed {
            return Entered::Settled(Settled::Failed(failure.clone()));
        }
        if let Some(loss) = self.unreported.take_tombstone(&owner, None) {
            return Entered::Settled(Settled::Lost(loss));
        }
        if let Some(settled) = self.reenter(owner, wakers) {
            return Entered::Settled(settled);
        }
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let end =
            self.queue.insert(ticket, Waiter { owner, patience, options, time: Time::Left, waker: None });
        if let (Occupancy::Attempting { attempt, patience: Patience::Until(_), .. }, Patience::Until(until)) =
            (&self.occupancy, patience)
            && end == End::New
        {
            attempt.extend(until);
        }
        Entered::Waiting(ticket)
    }

    fn reenter(&mut self, owner: O, wakers: &mut Wakers) -> Option<Settled<H, A::Failure>> {
        let holder = self.holder_if(owner)?;
        match holder.hold.verify() {
            Ok(()) => {
                holder.entries += 1;
                holder.observed = Observed::Yes;
                Some(Settled::Granted(holder.hold.clone()))
            }
            Err(loss) => {
                let observed = holder.observed;
                self.end_lost_hold(&loss, wakers);
                (observed == Observed::Yes).then_some(Settled::Lost(loss))
            }
        }
    }

    /// Refuses a waiter that tries once and would have to wait behind a local holder or waiter. Behind a release or
    /// another try that is on its way, it waits for the answer.
    pub(super) fn settle_if_hopeless(&mut self, ticket: Ticket) -> Entered<H, A::Failure> {
        let tries_once = self.queue.get(ticket).is_some_and(|waiter| waiter.patience == Patience::Once);
        let failure = match &self.occupancy {
            _ if !tries_once => return Entered::Waiting(ticket),
            Occupancy::Clearing { overdue: None }
            | Occupancy::Attempting { patience: Patience::Once, .. } => {
                return Entered::Waiting(ticket);
            }
            Occupancy::Clearing { overdue } => overdue.clone(),
            Occupancy::Attempting { attempt, .. } => attempt.outage(),
            Occupancy::Held(_) => None,
            // A waiter before it waits behind the admission queue.
            Occupancy::Free if self.head_waits_before(ticket) => None,
            Occupancy::Free => match self.admissions.ahead_of(ticket) {
                Some(Member::Clearing { overdue: Some(failure) }) => Some(failure.clone()),
                Some(Member::Request(request)) if request.patience != Patience::Once => {
                    request.attempt.outage()
                }
                _ => return Entered::Waiting(ticket),
            },
        };
        self.queue.take(ticket);
        Entered::Settled(failure.map_or(Settled::Refused, Settled::Failed))
    }

    /// Returns whether a waiter that does not try once comes before `ticket`.
    pub(super) fn head_waits_before(&self, ticket: Ticket) -> bool {
        let head = self.queue.head().filter(|head| *head < ticket);
        head.and_then(|head| self.queue.get(head)).is_some_and(|head| head.patience != Patience::Once)
    }

    pub(super) fn take_settled(&mut self, ticket: Ticket) -> Option<Settled<H, A::Failure>> {
        self.unreported.take_settled(ticket).or_else(|| self.claim(ticket).map(Settled::Granted))
    }

    fn claim(&mut self, ticket: Ticket) -> Option<H> {
        let Occupancy::Held(holder) = &mut self.occupancy else { return None };
        let waiter = holder.unclaimed.get_mut(ticket)?;
        if holder.observed == Observed::NotYet
            && waiter.patience != Patience::Once
            && holder.hold.verify().is_err()
        {
            // The report of the loss is on its way, and will make the waiter continue waiting.
            return None;
        }
        holder.unclaimed.take(ticket);
        holder.entries += 1;
        holder.observed = Observed::Yes;
        Some(holder.hold.clone())
    }

    /// Returns a waiter that has not seen the result of its wait.
    pub(super) fn waiter(&mut self, ticket: Ticket) -> Option<&mut Waiter<O, H::Options>> {
        let unclaimed = match &mut self.occupancy {
            Occupancy::Held(holder) => holder.unclaimed.get_mut(ticket),
            _ => None,
        };
        unclaimed.or_else(|| self.queue.get_mut(ticket))
    }

    pub(super) fn settle(&mut self, ticket: Ticket, settled: Settled<H, A::Failure>, wakers: &mut Wakers) {
        if let Some(waiter) = self.queue.take(ticket) {
            self.unreported.settle(ticket, settled);
            wakers.extend(waiter.waker);
        }
    }

    pub(super) fn head(&self) -> Option<Ticket> {
        self.queue.head()
    }

    /// Starts an attempt for the head of the queue, if nothing else goes on, and wakes those whose turn has come.
    pub(super) fn start_next(
        &mut self,
        make: impl FnOnce(Patience, &H::Options) -> A,
        wakers: &mut Wakers,
    ) -> Option<A> {
        let start = self.start_head(make, wakers);
        self.wake_admitted(wakers);
        start
    }

    fn start_head(
        &mut self,
        make: impl FnOnce(Patience, &H::Options) -> A,
        wakers: &mut Wakers,
    ) -> Option<A> {
        if !matches!(self.occupancy, Occupancy::Free)
            || self.admissions.ahead_of(self.queue.head()?).is_some()
        {
            return None;
        }
        let head = self.queue.head_mut()?;
        wakers.extend(head.waker_when_time_is_up());
        let options = head.options.clone();
        // The attempt lasts as long as the most patient waiter.
        let patience = match head.patience {
            Patience::Once => Patience::Once,
            Patience::Until(until) => Patience::Until(self.queue.latest_end().unwrap_or(until)),
        };
        let attempt = make(patience, &options);
        if patience != Patience::Once {
            self.settle_those_who_try_once(&Settled::Refused, wakers);
        }
        if self.admissions.has_members() {
            attempt.awaited();
        }
        self.occupancy =
            Occupancy::Attempting { attempt: attempt.clone(), patience, confirmed: Confirmed::NotYet };
        Some(attempt)
    }

    pub(super) fn settle_those_who_try_once(
        &mut self,
        settled: &Settled<H, A::Failure>,
        wakers: &mut Wakers,
    ) {
        for ticket in self.queue.tickets_of_those_who_try_once() {
            self.settle(ticket, settled.clone(), wakers);
        }
    }

    pub(super) fn attempted(&mut self, outcome: Attempted<H, A::Failure>, wakers: &mut Wakers) -> Undo<H, A> {
        if !matches!(self.occupancy, Occupancy::Attempting { .. }) {
            // The last waiter has left meanwhile, so no waiter wants a grant. Whatever else there is to undo is undone
            // in any case, which ends the clearing.
            if matches!(outcome, Attempted::Refused { .. }) {
                self.occupancy = Occupancy::Free;
            }
            return match outcome {
                Attempted::Granted(hold) => Undo::Hold(hold),
                _ => Undo::Nothing,
            };
        }
        let attempted = std::mem::replace(&mut self.occupancy, Occupancy::Free);
        let Some((ticket, patience)) = self.head_and_patience() else {
            return self.undo_unwanted(outcome);
        };
        // The result of an attempt that was to try once does not apply to a head that waits, which gets an attempt of
        // its own.
        let speaks_for_head = !matches!(attempted, Occupancy::Attempting { patience: Patience::Once, .. })
            || patience == Patience::Once;
        match outcome {
            Attempted::Granted(hold) => return self.granted(hold, ticket, patience, wakers),
            Attempted::Refused { by } if speaks_for_head && patience.is_over_by(by) => {
                self.settle(ticket, Settled::Refused, wakers);
            }
            Attempted::Refused { .. } => {}
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

    pub(super) fn head_and_patience(&self) -> Option<(Ticket, Patience)> {
        let ticket = self.queue.head()?;
        Some((ticket, self.queue.get(ticket)?.patience))
    }

    /// The waiter at the head gets a hold that no code has seen, if it is what it wants.
    pub(super) fn granted(
        &mut self,
        hold: H,
        ticket: Ticket,
        patience: Patience,
        wakers: &mut Wakers,
    ) -> Undo<H, A> {
        match hold.verify() {
            Ok(()) if !self.suits(&hold, ticket) => return self.undo_unwanted(Attempted::Granted(hold)),
            Ok(()) => self.give(ticket, hold, wakers),
            Err(loss) if patience == Patience::Once => self.settle(ticket, Settled::Lost(loss), wakers),
            // No waiter has seen it, and there is time for another attempt.
            Err(_) => hold.lost_unseen(),
        }
        Undo::Nothing
    }

    /// Handles an attempt that ended by itself after its waiters had left.
    pub(super) fn undo_unwanted(&mut self, outcome: Attempted<H, A::Failure>) -> Undo<H, A> {
        if matches!(outcome, Attempted::Refused { .. }) {
            return Undo::Nothing;
        }
        self.occupancy = Occupancy::Clearing { overdue: None };
        match outcome {
            Attempted::Granted(hold) => Undo::Hold(hold),
            _ => Undo::Nothing,
        }
    }

    /// Returns whether the waiter has asked for such a hold: the attempt may have been made for another one.
    fn suits(&self, hold: &H, ticket: Ticket) -> bool {
        self.queue.get(ticket).is_some_and(|waiter| hold.suits(&waiter.options))
    }

    /// Gives the hold to a waiter, and to all other waiters with the same owner.
    pub(super) fn give(&mut self, ticket: Ticket, hold: H, wakers: &mut Wakers) {
        let Some(owner) = self.queue.get(ticket).map(|waiter| waiter.owner) else {
            return;
        };
        let mut unclaimed = self.queue.take_all_of(owner);
        wakers.extend(unclaimed.wakers());
        self.occupancy =
            Occupancy::Held(Holder { owner, hold, entries: 0, observed: Observed::NotYet, unclaimed });
        self.settle_those_who_try_once(&Settled::Refused, wakers);
        // These waiters have waited for an answer from the server, and this is one.
        wakers.extend(self.queue.wakers_when_time_is_up());
    }

    /// Also returns the waiter, if there was one: its waker is dropped after the mutex is unlocked.
    pub(super) fn leave(&mut self, ticket: Ticket, wakers: &mut Wakers) -> Left<O, H, A> {
        if let Some(waiter) = self.queue.take(ticket) {
            // The attempt passes to the next waiter, unless that one would overtake others with it.
            let is_passed_on =
                self.queue.head().is_some_and(|next| !self.admissions.is_between(ticket, next));
            let undo = if is_passed_on { Undo::Nothing } else { self.abandon_attempt() };
            self.wake_admitted(wakers);
            return (undo, Some(waiter));
        }
        if self.unreported.take_settled(ticket).is_some() {
            return (Undo::Nothing, None);
        }
        let unclaimed = match &mut self.occupancy {
            Occupancy::Held(holder) => holder.unclaimed.take(ticket),
            _ => None,
        };
        let undo = if unclaimed.is_some() { self.pass_on(ticket, wakers) } else { Undo::Nothing };
        self.wake_admitted(wakers);
        (undo, unclaimed)
    }

    pub(super) fn abandon_attempt(&mut self) -> Undo<H, A> {
        let Occupancy::Attempting { attempt, .. } = &self.occupancy else {
            return Undo::Nothing;
        };
        let attempt = attempt.clone();
        self.occupancy = Occupancy::Clearing { overdue: None };
        Undo::Attempt(attempt)
    }

    /// Handles a grant whose waiter left before it saw it: no code has used the grant, so the next in the queue may
    /// have it.
    fn pass_on(&mut self, ticket: Ticket, wakers: &mut Wakers) -> Undo<H, A> {
        let Occupancy::Held(holder) = &mut self.occupancy else {
            return Undo::Nothing;
        };
        if !holder.unclaimed.is_empty() || holder.entries > 0 {
            return Undo::Nothing;
        }
        let hold = holder.hold.clone();
        let is_unseen = holder.observed == Observed::NotYet;
        if let Some(next) = self.head()
            && is_unseen
            && hold.verify().is_ok()
            && self.suits(&hold, next)
            && !self.admissions.is_between(ticket, next)
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

    pub(super) fn exit(&mut self, owner: O, of: Option<&H>, wakers: &mut Wakers) -> Exited<H> {
        let is_meant = |hold: &H| of.is_none_or(|of| hold.is_same(of));
        let holder = self.holder_if(owner).filter(|holder| holder.entries > 0 && is_meant(&holder.hold));
        let Some(holder) = holder else {
            return self.unreported.take_tombstone(&owner, of).map_or(Exited::NotOwner, Exited::Lost);
        };
        let is_last = holder.entries == 1 && holder.unclaimed.is_empty();
        let ended = if is_last { holder.hold.begin_release() } else { holder.hold.verify() };
        match ended {
            Err(loss) => {
                self.end_lost_hold(&loss, wakers);
                Exited::Lost(loss)
            }
            Ok(()) if is_last => {
                let (hold, reader) = (holder.hold.clone(), holder.hold.reader());
                let is_followed = reader.is_none() && self.is_followed(&hold);
                self.occupancy =
                    if is_followed { Occupancy::Free } else { Occupancy::Clearing { overdue: None } };
                match reader {
                    Some(reader) => Exited::Downgrade { hold, reader },
                    None => Exited::Release(hold),
                }
            }
            Ok(()) => {
                holder.entries -= 1;
                Exited::StillHeld
            }
        }
    }

    /// Returns whether an attempt leaves right behind the release of `hold`. One that tries once does not: the answer
    /// that the lock is held would be wrong if the release failed.
    fn is_followed(&self, hold: &H) -> bool {
        let Some((head, patience)) = self.head_and_patience() else { return false };
        patience != Patience::Once && self.admissions.ahead_of(head).is_none() && hold.may_be_followed()
    }

    /// Ends an entry without a caller: the tombstone of a loss stays for the owner's other entries.
    pub(super) fn exit_in_silence(&mut self, owner: O, of: &H, wakers: &mut Wakers) -> Exited<H> {
        let others = self.entries_into(owner, of).saturating_sub(1);
        let exited = self.exit(owner, Some(of), wakers);
        if let Exited::Lost(loss) = &exited {
            self.unreported.leave_tombstone(owner, of, others, loss.clone());
        }
        exited
    }

    /// Returns how many entries into this hold the owner has not ended, even if the hold is lost.
    fn entries_into(&self, owner: O, hold: &H) -> u64 {
        match &self.occupancy {
            Occupancy::Held(holder) if holder.owner == owner && holder.hold.is_same(hold) => holder.entries,
            _ => self.unreported.entries_into(&owner, hold),
        }
    }

    pub(super) fn holder_if(&mut self, owner: O) -> Option<&mut Holder<O, H>> {
        match &mut self.occupancy {
            Occupancy::Held(holder) if holder.owner == owner => Some(holder),
            _ => None,
        }
    }

    /// The owner itself has found the loss and gets it as its result now. There is no tombstone, and the later report
    /// of the loss finds nothing to do.
    fn end_lost_hold(&mut self, loss: &H::Loss, wakers: &mut Wakers) {
        let holder = std::mem::replace(&mut self.occupancy, Occupancy::Free);
        if let Occupancy::Held(holder) = holder {
            self.end_unclaimed(holder, loss, wakers);
        }
    }

    /// The hold is lost before all of its waiters have claimed it. If the owner had not seen it, its waiters continue to
    /// wait, each in its place; otherwise they get the loss as their result.
    fn end_unclaimed(&mut self, holder: Holder<O, H>, loss: &H::Loss, wakers: &mut Wakers) {
        for (ticket, waiter) in holder.unclaimed {
            let settled = match &self.closed {
                _ if holder.observed == Observed::Yes || waiter.patience == Patience::Once => {
                    Settled::Lost(loss.clone())
                }
                Some(failure) => Settled::Failed(failure.clone()),
                None => {
                    holder.hold.lost_unseen();
                    self.queue.insert(ticket, waiter);
                    continue;
                }
            };
            self.unreported.settle(ticket, settled);
            wakers.extend(waiter.waker);
        }
    }

    pub(super) fn lost(&mut self, hold: &H, loss: &H::Loss, wakers: &mut Wakers) {
        match std::mem::replace(&mut self.occupancy, Occupancy::Free) {
            Occupancy::Held(holder) if holder.hold.is_same(hold) => {
                self.unreported.leave_tombstone(holder.owner, hold, holder.entries, loss.clone());
                self.end_unclaimed(holder, loss, wakers);
            }
            other => self.occupancy = other,
        }
    }
}
