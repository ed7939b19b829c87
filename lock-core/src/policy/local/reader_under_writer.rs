//! An owner that writes and reads: the reader stands by the writer's lease, and outlives the writer by a downgrade.

use std::sync::Arc;

use super::LocalLock;
use super::claims::{Claim, ClaimState, Ending, Lease, Number, Seen, Successor};
use super::granting::{hold_grant, lasting_of};
use super::releasing::Reply;
use super::turn::{Downgrade, Turn, Work};
use crate::policy::hold::{Hold, HoldGrant};
use crate::runtime::Moment;
use crate::spi::{AcquireRequest, AnyLease, Grant, Mode, Wait};
use crate::types::{LockError, LossReason, Owner};

impl LocalLock {
    /// Lets the owner of the exclusive hold read, without the server.
    pub(super) fn read_under_lease(&mut self, turn: &mut Turn<'_>, owner: Owner, mode: Mode) -> Option<Hold> {
        if mode != Mode::Shared || self.owners.entered(owner, Mode::Exclusive).is_none() {
            return None;
        }
        let number = self.exclusive?;
        let Claim { request, state: ClaimState::Leased(lease) } = self.claims.get_mut(&number)? else {
            return None;
        };
        let to = turn.lock.client.new_number();
        let granted = HoldGrant {
            lease: number,
            request: Some(turn.lock.request(to, Mode::Shared, Wait::Forever, request.options())),
            token: lease.hold.grant().token,
            ..HoldGrant::default()
        };
        let reader = turn.hold(granted, lease.hold.deadline());
        if lease.hold.0.state.is_suspect() {
            reader.suspect();
        }
        lease.reader = Some(reader.clone());
        self.owners.enter(owner, Mode::Shared, &reader, 1);
        self.enter_with_branches(turn, (owner, Mode::Shared), &reader);
        Some(reader)
    }

    /// Makes the lease of a writer that of the reader under it.
    pub(super) fn downgrade(
        &mut self,
        turn: &mut Turn<'_>,
        number: Number,
        hold: (Hold, Moment),
        successor: Successor,
    ) {
        let (counted, reader, group) = (turn.counted(), successor.reader.clone(), successor.group);
        let Some(shared) = reader.grant().request.clone() else { return };
        let ending = Ending { hold: Some(hold), successor: Some(successor), ..Ending::sent_at(turn.now) };
        let Some((_, lease)) = self.end(turn, number, ending) else { return };
        // Its owner still holds it, and it is not renewed.
        turn.register(number, group, &lease.kept, None);
        let gone_by = turn.gone_by(&lease);
        let downgrade = Downgrade { number, lease: lease.kept, shared, reader, gone_by, counted };
        turn.effects.work.push(Work::Downgrade(downgrade));
    }

    /// The server has made the lease of a writer that of the reader under it. Returns the lease if the reader has ended, or cannot
    /// keep it for this reason: the caller has to release it.
    pub(crate) fn downgraded(
        &mut self,
        turn: &mut Turn<'_>,
        number: Number,
        shared: &AcquireRequest,
        grant: Grant<AnyLease>,
    ) -> Option<(AnyLease, Option<LockError>)> {
        let writer = self.ending(number).and_then(|ending| ending.hold.take());
        let unwanted = self.lease_inherited(turn, number, shared, grant);
        // After that, so that the owner finds the reader's own token when the writer has ended.
        if let Some((writer, _)) = writer {
            turn.finish(&writer, None, None);
        }
        unwanted
    }

    fn lease_inherited(
        &mut self,
        turn: &mut Turn<'_>,
        number: Number,
        shared: &AcquireRequest,
        grant: Grant<AnyLease>,
    ) -> Option<(AnyLease, Option<LockError>)> {
        let Some(successor) = self.take_successor(turn, number) else {
            return Some((grant.lease, None));
        };
        let lasting = match lasting_of(shared, grant.term) {
            Ok(lasting) => lasting,
            Err(error) => {
                self.lose_successor(turn, successor, LossReason::Expired);
                return Some((grant.lease, Some(error)));
            }
        };
        let (Successor { reader, owner, .. }, to) = (successor, shared.number());
        reader.granted_later(hold_grant(shared, &grant));
        reader.renew(lasting.deadline());
        let lease = Lease::new(grant, lasting, reader, Seen::By(owner));
        let group_end = self.hold_lease(turn, shared.clone(), lease);
        self.answered(turn, number, &Reply::Done);
        if let Some(reason) = group_end {
            self.lose(turn, to, reason);
        }
        None
    }

    /// A reader whose lease is still that of the writer before is lost. The downgrade notices that, and is undone.
    pub(super) fn lose_reader(&mut self, turn: &mut Turn<'_>, number: Number, reason: LossReason) {
        if let Some(successor) = self.take_successor(turn, number) {
            self.lose_successor(turn, successor, reason);
        }
    }

    fn lose_successor(
        &mut self,
        turn: &mut Turn<'_>,
        Successor { reader, owner, .. }: Successor,
        reason: LossReason,
    ) {
        turn.effects.ended.extend(reader.lose(reason, &mut turn.effects.wake));
        self.owners.lose(owner, Mode::Shared, reason, &Arc::default());
    }

    /// The reader does not stand by the lease of the writer before any more.
    pub(super) fn take_successor(&mut self, turn: &mut Turn<'_>, number: Number) -> Option<Successor> {
        let successor = self.ending(number)?.successor.take()?;
        turn.unregister(number, successor.group);
        Some(successor)
    }

    /// Returns the number of the lease that is becoming this one.
    pub(super) fn downgraded_to(&mut self, number: Number) -> Option<Number> {
        let exclusive = self.exclusive?;
        let successor = self.ending(exclusive)?.successor.as_ref()?;
        let to = successor.reader.grant().request.as_ref()?.number();
        (to == number).then_some(exclusive)
    }
}
