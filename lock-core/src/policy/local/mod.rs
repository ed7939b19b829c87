//! The machine of one lock: the requests of this client for it, and what the server may have of this client.
//!
//! It does no I/O and is behind one mutex. Each input first lets time pass, then changes the state, and then does whatever
//! has become possible: waits end, tries are answered, the next request is sent. What is to be done after the mutex has been
//! unlocked, it leaves in the [`Turn`].
//!
//! * **The line** ([`line`]) has the requests of all modes in the order of their arrival. A request stays until its caller
//!   has seen what became of it, or has left.
//! * **The claims** ([`claims`]) are what the server may have of us: attempts on their way, leases, and what is being undone.
//!   One attempt is for one request. Another exclusive request inherits the attempt of one that leaves.
//! * **One rule sends** ([`send_order`]): only the first request that is not sent is looked at. What may not go holds back all
//!   behind it, so no request of a client overtakes an earlier one that it could exclude, and none queues behind an own
//!   release. At most one exclusive attempt is out, and none beside an own exclusive lease.
//! * **Two rules end waits** ([`waiting`]): what is known when the time of a wait is up, and what a try must not wait for.
//! * **Leases** are [granted](granting), [lost](losing), [given back or handed on](releasing). One that no code has seen
//!   [passes](leaving) to the next request; if it is lost, its request waits again in its old place. A writer that
//!   [reads](reader_under_writer) keeps its lease as a reader.
//! * **Owners** ([`owners`]) stand above: an owner that has entered enters again without a request.

mod answers;
mod claims;
mod granting;
mod leaving;
mod line;
mod losing;
mod owners;
mod reader_under_writer;
mod releasing;
mod send_order;
mod turn;
mod waiting;

use std::collections::BTreeSet;
use std::task::{Poll, Waker};
use std::time::Duration;

use crate::policy::acquire::{Acquisition, Around, Itself};
use crate::policy::hold::Hold;
use crate::runtime::{AlarmHandle, FewByKey, Moment, NumberHashes};
use crate::spi::{AnyLease, Grant, Mode, Report, Wait};
use crate::types::{ErrorKind, LockError, LossReason, Operation, Owner, Participant};
use answers::Answers;
pub(crate) use claims::Number;
use claims::{Attempt, Claim, ClaimState, Ending, Lease, Seen, Word};
pub(crate) use line::Ticket;
use line::{At, Line, Request};
use owners::Owners;
pub(crate) use releasing::Reply;
pub(crate) use turn::{Downgrade, Effects, LostLease, Release, Turn, UnseenLosses, Work};

/// After this time an answer is overdue, so that a wait that ends does not take the silence for another holder. The server
/// gets the same for its first word on an attempt, however short the wait is.
const OVERDUE: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(crate) struct LocalLock {
    line: Line,
    claims: FewByKey<Number, Claim, NumberHashes>,
    /// The exclusive attempt that is out.
    attempting: Option<Number>,
    /// The exclusive lease, also while it becomes a shared one.
    exclusive: Option<Number>,
    /// The requests that share the lock and are out, and that the server has not confirmed.
    unplaced: BTreeSet<Ticket>,
    answers: Answers,
    owners: Owners,
    closed: Option<LockError>,
    /// Who held the lock when the server last named the holder to the current attempt.
    pub(super) last_holder: Option<Box<Participant>>,
    /// When the pause after an earlier hold ends, as the server has last said.
    pub(super) pause_end: Option<Moment>,
    /// Grants that were lost before their requests had seen them, one after the other: each of the attempts that follow pauses longer.
    lost_in_a_row: u32,
    /// The reason of the last such loss, until the next attempt.
    last_loss: Option<LossReason>,
    /// Nothing happens by itself before this moment.
    pub(super) due: Moment,
    pub(super) alarm: Option<AlarmHandle>,
    pub(super) alarm_at: Moment,
    /// Whether something may have become known to those whose time is up.
    has_news: bool,
    /// The server has been asked before the ends of waits until then.
    asked_until: Moment,
}

/// How a wait ended.
#[derive(Debug, Clone)]
pub(crate) enum Settled {
    Granted(Hold),
    Refused,
    Failed(LockError),
    Lost(LossReason),
}

/// The result of [`LocalLock::enter`].
pub(crate) enum Entered {
    /// The owner had the lock already, or there is nothing to wait for.
    Settled(Settled),
    Waiting {
        ticket: Ticket,
        since: Moment,
    },
    /// The owner waits for the write side, and behind that request a reader would wait for itself.
    BehindItself,
}

/// The result of [`LocalLock::exit`].
pub(crate) enum Exited {
    NotOwner,
    Lost(LossReason),
    StillHeld,
    /// That was the last entry: the hold ends when the server has answered.
    Ends(Hold),
}

/// How an attempt ended.
pub(crate) enum Outcome {
    Granted(Grant<AnyLease>),
    /// The lock could not be had, and nothing is left at the server.
    Refused,
    /// There was no result although there is time left: another attempt is needed.
    Void,
    Failed(LockError),
}

impl LocalLock {
    pub(crate) fn new() -> Self {
        Self { due: Moment::FOREVER, alarm_at: Moment::FOREVER, ..Self::default() }
    }

    /// Enters for an owner, enters again, or takes a place in the line.
    pub(crate) fn enter(
        &mut self,
        turn: &mut Turn<'_>,
        owner: Owner,
        wait: Wait,
        acquisition: &Acquisition,
    ) -> Entered {
        let mode = acquisition.mode;
        if let Some(error) = &self.closed {
            return Entered::Settled(Settled::Failed(error.clone()));
        }
        if let Some(lost) = self.owners.take_tombstone(owner, mode, None) {
            return Entered::Settled(Settled::Lost(lost.reason));
        }
        if let Some(number) = self.granted_to(owner, mode) {
            self.see(turn, (owner, mode), number);
        }
        if let Some(hold) =
            self.enter_again(owner, mode, None).or_else(|| self.read_under_lease(turn, owner, mode))
        {
            return Entered::Settled(Settled::Granted(hold));
        }
        if mode == Mode::Shared && self.asks_for(owner, Mode::Exclusive) {
            return Entered::BehindItself;
        }
        if mode == Mode::Exclusive
            && (self.owners.entered(owner, Mode::Shared).is_some() || self.asks_for(owner, Mode::Shared))
        {
            return Entered::Settled(Settled::Failed(upgrade()));
        }
        // An owner that shares what is shared need not wait.
        if mode == Mode::Exclusive || self.holder().is_some() {
            match self.waits_for(owner, mode, acquisition.around) {
                Some(Itself::Reader) => return Entered::Settled(Settled::Failed(upgrade())),
                Some(Itself::Owner) if wait == Wait::Forever => {
                    return Entered::Settled(Settled::Failed(deadlock()));
                }
                _ => {}
            }
        }
        let since = turn.now;
        let ticket = self.line.push(Request::new(owner, wait, acquisition, since));
        if let Wait::Until(end) = wait {
            self.look_by(end.minus(turn.ahead()));
        }
        self.advance(turn);
        self.confirm(turn, ticket);
        if wait == Wait::Try {
            self.review_try(turn, ticket);
        }
        match self.take_settled(turn, ticket) {
            Some(settled) => Entered::Settled(settled),
            None => Entered::Waiting { ticket, since },
        }
    }

    /// Returns what `owner` would wait for, if that is the caller itself.
    pub(crate) fn waits_for(&self, owner: Owner, mode: Mode, around: Around) -> Option<Itself> {
        // A grant of its own has just come.
        let look = |(holder, hold)| if holder == owner { None } else { around(holder, hold) };
        if let Some(writer) = self.holder() {
            return look(writer);
        }
        let found = || self.sharers().filter_map(look);
        if mode == Mode::Exclusive && found().any(|itself| itself == Itself::Owner) {
            return Some(Itself::Reader);
        }
        // What a caller shares with its own task, it may also get beside it.
        found().next().map(|_| Itself::Task)
    }

    fn enter_again(&mut self, owner: Owner, mode: Mode, of: Option<&Hold>) -> Option<Hold> {
        let entered = self.owners.entered_mut(owner, mode, of)?;
        entered.entries += 1;
        Some(entered.hold.clone())
    }

    /// Enters once more for `owner`, which already has `hold`.
    pub(crate) fn reenter(&mut self, owner: Owner, hold: &Hold) -> bool {
        self.enter_again(owner, hold.mode(), Some(hold)).is_some()
    }

    fn is_in(&self, owner: Owner, mode: Mode, hold: &Hold) -> bool {
        self.owners.entered(owner, mode).is_some_and(|entered| entered.hold == *hold)
    }

    /// Checks whether a wait has been decided.
    pub(crate) fn poll(
        &mut self,
        turn: &mut Turn<'_>,
        ticket: Ticket,
        waker: &mut Option<Waker>,
    ) -> Poll<Settled> {
        let Some(request) = self.line.get_mut(ticket) else { return Poll::Pending };
        let (owner, mode) = (request.owner, request.mode);
        turn.effects.dropped.extend(request.waker.take());
        let is_undecided = matches!(request.at, At::Waits | At::Sent(_));
        let granted = match request.at {
            At::Granted(number) => Some(number),
            _ => None,
        };
        let has_branches = is_undecided && self.line.count_of(owner, mode) > 1;
        let granted = if has_branches { self.granted_to(owner, mode) } else { granted };
        if let Some(number) = granted {
            self.see(turn, (owner, mode), number);
        }
        if let Some(settled) = self.take_settled(turn, ticket) {
            return Poll::Ready(settled);
        }
        if let Some(request) = self.line.get_mut(ticket) {
            request.waker = waker.take();
        }
        Poll::Pending
    }

    fn take_settled(&mut self, turn: &mut Turn<'_>, ticket: Ticket) -> Option<Settled> {
        if !matches!(self.line.get(ticket)?.at, At::Over(_)) {
            return None;
        }
        let Request { owner, mode, at, waker, .. } = self.line.take(ticket)?;
        turn.effects.dropped.extend(waker);
        let At::Over(settled) = at else { return None };
        match &settled {
            // The other branches of its owner have seen the hold, and this one learns of its loss.
            Settled::Granted(hold) if !self.is_in(owner, mode, hold) => {
                let loss = self.owners.leave_tombstone(turn, owner, mode, hold).or(hold.loss());
                Some(loss.map_or(settled, Settled::Lost))
            }
            _ => Some(settled),
        }
    }

    /// A backend reports on an attempt, or on the lease that it led to.
    pub(crate) fn report(&mut self, turn: &mut Turn<'_>, number: Number, report: Report) {
        if let Report::Lost(reason) = report {
            return self.lose(turn, number, reason);
        }
        if let Report::HeldBy(holder) = report {
            self.last_holder = Some(Box::new(holder));
            return;
        }
        let is_queued = matches!(report, Report::Queued);
        let Some(attempt) = self.attempt(number) else { return };
        let word = match report {
            Report::Unreachable(error) => Word::Unreachable(error),
            _ => Word::Busy,
        };
        turn.effects.words.push(std::mem::replace(&mut attempt.word, word));
        attempt.heard = turn.now;
        let ticket = attempt.ticket;
        if is_queued && !std::mem::replace(&mut attempt.is_placed, true) {
            self.unplaced.remove(&ticket);
        }
        self.has_news = true;
    }

    /// The client is closed, or its runtime has ended: refuses all requests from now on, also those in the line.
    pub(crate) fn close(&mut self, turn: &mut Turn<'_>, error: &LockError) {
        self.closed = Some(error.clone());
        for ticket in self.line.tickets() {
            let Some(request) = self.line.get(ticket) else { continue };
            match request.at {
                At::Waits => {}
                At::Sent(_) => self.withdraw(turn, ticket),
                At::Granted(_) | At::Over(_) => continue,
            }
            self.over(turn, ticket, Settled::Failed(error.clone()));
        }
    }

    /// Ends a wait.
    fn over(&mut self, turn: &mut Turn<'_>, ticket: Ticket, settled: Settled) {
        if let Some(request) = self.line.set(ticket, At::Over(settled)) {
            turn.effects.wake.extend(request.waker.take());
        }
    }
}

/// What others want to know.
impl LocalLock {
    pub(in crate::policy) fn lease(&mut self, number: Number) -> Option<&mut Lease> {
        match &mut self.claims.get_mut(&number)?.state {
            ClaimState::Leased(lease) => Some(lease),
            _ => None,
        }
    }

    fn attempt(&mut self, number: Number) -> Option<&mut Attempt> {
        match &mut self.claims.get_mut(&number)?.state {
            ClaimState::Attempt(attempt) => Some(attempt),
            _ => None,
        }
    }

    fn ending(&mut self, number: Number) -> Option<&mut Ending> {
        match &mut self.claims.get_mut(&number)?.state {
            ClaimState::Ending(ending) => Some(ending),
            _ => None,
        }
    }

    /// Returns the hold of an owner and how often it has entered.
    pub(crate) fn entered(&self, owner: Owner, mode: Mode) -> Option<(Hold, u64)> {
        self.owners.entered(owner, mode).map(|entered| (entered.hold.clone(), entered.entries))
    }

    /// Returns whether the owner waits, or has been granted the lock and has not seen that yet.
    pub(crate) fn asks_for(&self, owner: Owner, mode: Mode) -> bool {
        self.line.count_of(owner, mode) > 0
    }

    /// Returns the owner that holds the lock exclusively.
    pub(crate) fn holder(&self) -> Option<(Owner, &Hold)> {
        match self.claims.get(&self.exclusive?).map(|claim| &claim.state) {
            Some(ClaimState::Leased(Lease { seen: Seen::By(owner), hold, .. })) => Some((*owner, hold)),
            _ => None,
        }
    }

    /// Returns the owners that share the lock.
    pub(crate) fn sharers(&self) -> impl Iterator<Item = (Owner, &Hold)> {
        self.owners.sharers().map(|(owner, entered)| (owner, &entered.hold))
    }

    /// Returns whether the lock is held exclusively, or is on its way to a waiter.
    pub(crate) fn is_locked(&self) -> bool {
        self.exclusive.is_some_and(|number| {
            self.claims.get(&number).is_some_and(|claim| matches!(claim.state, ClaimState::Leased(_)))
        })
    }
}

/// The error of an owner that reads, or is about to, and asks for the write side.
fn upgrade() -> LockError {
    LockError::new(ErrorKind::Deadlock, Operation::Acquire)
        .because("this owner holds the read lock, which cannot be upgraded")
        .remedy("release the read side first, or acquire the write side from the beginning")
}

fn deadlock() -> LockError {
    LockError::new(ErrorKind::Deadlock, Operation::Acquire)
        .because("a guard has an owner of its own, and does not enter again")
        .remedy("call lock() or with_lock(), which enter again, or release the lock first")
}
