//! What comes of an attempt: a grant, for the request that it is for now, or something to undo.

use super::claims::{Claim, ClaimState, Ending, Lasting, Lease, Number, Seen};
use super::line::{At, Ticket};
use super::releasing::Reply;
use super::turn::Turn;
use super::{LocalLock, Outcome, Settled};
use crate::policy::hold::{Hold, HoldGrant};
use crate::runtime::{Moment, Pending};
use crate::spi::{AcquireRequest, AnyLease, Grant, Mode, Term, Validity, Wait};
use crate::types::{LockError, LossReason, Owner};

impl LocalLock {
    /// An attempt has ended. If something may be left of it at the server, the caller undoes it, and reports that with
    /// [`answered`](Self::answered). Returns what counts that until then, and a grant that came for it: a backend may leave what
    /// nothing refers to any more to its session, so it is kept until then.
    pub(crate) fn attempted(
        &mut self,
        turn: &mut Turn<'_>,
        number: Number,
        outcome: Outcome,
    ) -> Option<(Pending, Option<Grant<AnyLease>>)> {
        if !matches!(outcome, Outcome::Granted(_) | Outcome::Void) {
            self.lost_in_a_row = 0;
        }
        self.has_news = true;
        let claim = self.claims.get_mut(&number)?;
        let (ticket, loss, sent) = match &mut claim.state {
            ClaimState::Attempt(attempt) => (attempt.ticket, attempt.loss, attempt.since),
            // It was stopped meanwhile.
            ClaimState::Ending(ending) => {
                let counted = ending.counted.take()?;
                return match outcome {
                    Outcome::Refused => {
                        turn.effects.done.push(counted);
                        self.answered(turn, number, &Reply::Done);
                        None
                    }
                    Outcome::Granted(grant) => Some((counted, Some(grant))),
                    Outcome::Void | Outcome::Failed(_) => Some((counted, None)),
                };
            }
            ClaimState::Leased(_) => return None,
        };
        let request = claim.request.clone();
        match outcome {
            Outcome::Granted(grant) => match lasting_of(&request, grant.term) {
                Ok(lasting) => {
                    let group_end = self.granted(turn, number, ticket, lasting, grant);
                    if let Some(reason) = loss.or(group_end) {
                        self.lose(turn, number, reason);
                    } else if !self.answers.are_before(number) {
                        self.give(turn, ticket, number);
                    }
                    None
                }
                Err(error) => {
                    let counted = self.failed(turn, number, ticket, error);
                    Some((counted, Some(grant)))
                }
            },
            Outcome::Refused => {
                self.claims.remove(&number);
                self.is_out_no_longer(ticket, number);
                self.refused(turn, ticket, (request.wait(), sent));
                None
            }
            Outcome::Void => {
                let counted = self.undo_attempt(turn, ticket, number);
                if let Some(waiting) = self.line.set(ticket, At::Waits) {
                    waiting.place = request.place();
                }
                Some((counted, None))
            }
            Outcome::Failed(error) => Some((self.failed(turn, number, ticket, error), None)),
        }
    }

    /// The result of an attempt that was to try once does not apply to a request that waits and has inherited it, nor to one that has
    /// come since the attempt was sent: the lock may have become free in between.
    fn refused(&mut self, turn: &mut Turn<'_>, ticket: Ticket, (asked, sent): (Wait, Moment)) {
        let is_over = self.line.get(ticket).is_some_and(|request| match request.wait {
            _ if asked == Wait::Try && request.since > sent => false,
            Wait::Try => true,
            Wait::Until(end) => end <= turn.now,
            Wait::Forever => false,
        });
        if is_over {
            self.over(turn, ticket, Settled::Refused);
        } else {
            self.line.set(ticket, At::Waits);
        }
    }

    fn failed(&mut self, turn: &mut Turn<'_>, number: Number, ticket: Ticket, error: LockError) -> Pending {
        let was_a_try = self.claims.get(&number).is_some_and(|claim| claim.request.wait() == Wait::Try);
        let counted = self.undo_attempt(turn, ticket, number);
        if was_a_try && self.line.get(ticket).is_some_and(|request| !request.tries_once()) {
            self.line.set(ticket, At::Waits);
        } else {
            self.over(turn, ticket, Settled::Failed(error));
        }
        counted
    }

    /// An attempt is to be undone by its driver.
    fn undo_attempt(&mut self, turn: &mut Turn<'_>, ticket: Ticket, number: Number) -> Pending {
        self.is_out_no_longer(ticket, number);
        self.end(turn, number, Ending::sent_at(turn.now));
        turn.counted()
    }

    /// No request wants an attempt any more: its driver notices that, and undoes it.
    pub(super) fn stop(&mut self, turn: &mut Turn<'_>, ticket: Ticket, number: Number) {
        if let Some(attempt) = self.attempt(number) {
            turn.effects.stop.extend(attempt.driver.take());
        }
        self.is_out_no_longer(ticket, number);
        let counted = Some(turn.counted());
        self.end(turn, number, Ending { counted, ..Ending::sent_at(turn.now) });
    }

    /// The driver of an attempt waits until that is not wanted any more. Returns whether it still is.
    pub(crate) fn is_wanted(&mut self, number: Number, driver: &mut Option<std::task::Waker>) -> bool {
        let Some(attempt) = self.attempt(number) else { return false };
        std::mem::swap(&mut attempt.driver, driver);
        true
    }

    /// The driver undoes an attempt that is not wanted any more. Returns what counts that.
    pub(crate) fn take_counted(&mut self, number: Number) -> Option<Pending> {
        self.ending(number)?.counted.take()
    }

    fn is_out_no_longer(&mut self, ticket: Ticket, number: Number) {
        if self.attempting == Some(number) {
            self.attempting = None;
        }
        self.unplaced.remove(&ticket);
    }

    /// Keeps what an attempt has got. Returns why its group is lost, if it is.
    fn granted(
        &mut self,
        turn: &mut Turn<'_>,
        number: Number,
        ticket: Ticket,
        lasting: Lasting,
        grant: Grant<AnyLease>,
    ) -> Option<LossReason> {
        self.is_out_no_longer(ticket, number);
        let Claim { request, state } = self.claims.remove(&number)?;
        if let ClaimState::Attempt(attempt) = state {
            turn.effects.forget(attempt);
        }
        let sections = turn.sections_of(&request, &grant);
        let hold = turn.hold(hold_grant(&request, &grant), lasting.deadline());
        let lease = Lease { sections, ..Lease::new(grant, lasting, hold, Seen::NotYet(ticket)) };
        if request.mode() == Mode::Exclusive {
            self.exclusive = Some(number);
        }
        self.hold_lease(turn, request, lease)
    }

    /// Keeps a lease, and has it renewed. Returns why its group is lost, if it is.
    pub(super) fn hold_lease(
        &mut self,
        turn: &mut Turn<'_>,
        request: AcquireRequest,
        lease: Lease,
    ) -> Option<LossReason> {
        let number = request.number();
        self.look_by(lease.hold.deadline());
        let first_renewal = match lease.lasting {
            Lasting::UntilReported => None,
            Lasting::Leased { anchor, validity } => {
                Some((anchor.plus(validity.interval()), validity.interval()))
            }
        };
        let end = turn.register(number, lease.group, &lease.kept, first_renewal);
        self.claims.insert(number, Claim { request, state: ClaimState::Leased(lease) });
        end
    }

    /// A request may have its lease now, and so may the other branches of its owner.
    pub(super) fn give(&mut self, turn: &mut Turn<'_>, ticket: Ticket, number: Number) {
        let Some(request) = self.line.set(ticket, At::Granted(number)) else { return };
        turn.effects.wake.extend(request.waker.take());
        let (owner, mode) = (request.owner, request.mode);
        if self.line.count_of(owner, mode) > 1 {
            turn.effects.wake.extend(self.line.wakers_of(owner, mode));
        }
    }

    /// Returns the lease that an owner has been granted and has not seen.
    pub(super) fn granted_to(&self, owner: Owner, mode: Mode) -> Option<Number> {
        if self.line.count_of(owner, mode) == 0 {
            return None;
        }
        self.line.of(owner, mode).find_map(|(_, request)| match request.at {
            At::Granted(number) => Some(number),
            _ => None,
        })
    }

    /// An owner sees its lease: all of its branches that wait have entered, also the one that is being polled.
    pub(super) fn see(&mut self, turn: &mut Turn<'_>, (owner, mode): (Owner, Mode), number: Number) {
        let Some(lease) = self.lease(number) else { return };
        let Seen::NotYet(ticket) = lease.seen else { return };
        lease.seen = Seen::By(owner);
        let hold = lease.hold.clone();
        self.lost_in_a_row = 0;
        self.owners.enter(owner, mode, &hold, 1);
        self.over(turn, ticket, Settled::Granted(hold.clone()));
        if self.line.count_of(owner, mode) > 1 {
            self.enter_with_branches(turn, (owner, mode), &hold);
        }
    }

    /// The owner of a hold has entered: its branches that still wait enter with it.
    pub(super) fn enter_with_branches(
        &mut self,
        turn: &mut Turn<'_>,
        (owner, mode): (Owner, Mode),
        hold: &Hold,
    ) {
        if self.line.count_of(owner, mode) == 0 {
            return;
        }
        let branches = self.line.of(owner, mode).filter(|(_, request)| !matches!(request.at, At::Over(_)));
        for branch in branches.map(|(ticket, _)| ticket).collect::<Vec<_>>() {
            self.withdraw(turn, branch);
            self.over(turn, branch, Settled::Granted(hold.clone()));
            if let Some(entered) = self.owners.entered_mut(owner, mode, None) {
                entered.entries += 1;
            }
        }
    }
}

/// What an owner sees of a grant.
pub(super) fn hold_grant(request: &AcquireRequest, grant: &Grant<AnyLease>) -> HoldGrant {
    HoldGrant {
        lease: request.number(),
        request: Some(request.clone()),
        holder: grant.holder.clone(),
        token: grant.token,
        #[cfg(unix)]
        descriptor: grant.descriptor.clone(),
    }
}

pub(super) fn lasting_of(request: &AcquireRequest, term: Term) -> Result<Lasting, LockError> {
    Ok(match term {
        Term::UntilReported => Lasting::UntilReported,
        Term::Leased { anchor, length } => {
            Lasting::Leased { anchor, validity: Validity::new(length, request.options().abort_margin)? }
        }
    })
}
