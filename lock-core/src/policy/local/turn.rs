//! One visit to a local lock, and what is to be done after it.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use tokio::sync::Notify;

use super::claims::{Attempt, Lasting, Lease, Number, Sections, Word};
use crate::policy::client_lock::ClientLock;
use crate::policy::groups::HeldLease;
use crate::policy::hold::{EndedHold, Hold, HoldGrant, Home};
use crate::runtime::{Few, Moment, Outstanding, Pending};
use crate::spi::{AcquireRequest, AnyLease, Grant, GroupId};
use crate::types::{Capabilities, LockError, LossReason};

/// A visit to a local lock, while its mutex is locked: no I/O, and no foreign code.
pub(crate) struct Turn<'e> {
    pub(super) lock: &'e Arc<ClientLock>,
    pub(super) now: Moment,
    pub(crate) effects: Effects,
}

/// What is to be done when the mutex has been unlocked.
#[derive(Default)]
pub(crate) struct Effects {
    pub(crate) wake: Few<Waker>,
    /// The drivers of attempts that are not wanted any more.
    pub(crate) stop: Few<Waker>,
    pub(crate) dropped: Few<Waker>,
    pub(crate) done: Few<Pending>,
    /// Attempts of which the server is to confirm that it still has them.
    pub(crate) asked: Few<AcquireRequest>,
    /// The groups whose renewal is to begin, with what wakes its task: a runtime that has ended drops the task, which records a
    /// metric.
    pub(crate) renewed: Few<(GroupId, Arc<Notify>)>,
    /// Leases that are not renewed any more.
    pub(crate) unregister: Few<(Number, GroupId)>,
    /// The former words of a server, of which the errors may be a backend's.
    pub(crate) words: Few<Word>,
    pub(crate) ended: Few<EndedHold>,
    pub(crate) work: Few<Work>,
}

impl Effects {
    /// An attempt is out no longer.
    pub(super) fn forget(&mut self, attempt: Attempt) {
        self.dropped.extend(attempt.driver);
        self.words.push(attempt.word);
    }
}

/// Work at the server, in the order in which it is to begin.
pub(crate) enum Work {
    Attempt(AcquireRequest, Option<UnseenLosses>),
    Release(Release),
    Downgrade(Downgrade),
    Clear(LostLease),
}

/// So many grants were lost before their requests had seen them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UnseenLosses {
    /// The reason of the last loss.
    pub(crate) reason: LossReason,
    pub(crate) in_a_row: u32,
}

/// A lease that is given back.
pub(crate) struct Release {
    pub(crate) request: AcquireRequest,
    pub(crate) lease: AnyLease,
    pub(crate) gone_by: Moment,
    pub(crate) counted: Pending,
}

/// An exclusive lease that is to become a reader's.
pub(crate) struct Downgrade {
    pub(crate) number: Number,
    pub(crate) lease: AnyLease,
    pub(crate) shared: AcquireRequest,
    pub(crate) reader: Hold,
    pub(crate) gone_by: Moment,
    pub(crate) counted: Pending,
}

/// A lost lease, of which nothing is to be left at the server.
pub(crate) struct LostLease {
    pub(crate) release: Release,
    pub(crate) holds: Vec<EndedHold>,
    pub(crate) reason: LossReason,
    /// The owners that have not left yet.
    pub(crate) stopping: Arc<Outstanding>,
}

impl<'e> Turn<'e> {
    pub(crate) fn new(lock: &'e Arc<ClientLock>, now: Moment) -> Self {
        Self { lock, now, effects: Effects::default() }
    }

    pub(super) fn capabilities(&self) -> &Capabilities {
        self.lock.client.backend.capabilities()
    }

    /// Returns how long before the end of a wait the server is asked once more: the time for an answer, and a little more.
    pub(super) fn ahead(&self) -> Duration {
        self.capabilities().answers_within.map_or(Duration::ZERO, |longest| longest + longest / 2)
    }

    /// Counts work that is about to be handed over: a caller that learns of what led to it and then waits for `idle` also
    /// waits for the work.
    pub(super) fn counted(&self) -> Pending {
        self.lock.client.unconfirmed.begin()
    }

    /// Creates a hold that begins now and lasts until `deadline`, unless its lease is renewed or its options end it earlier.
    pub(super) fn hold(&self, granted: HoldGrant, deadline: Moment) -> Hold {
        Hold::new(Arc::clone(self.lock) as Arc<dyn Home>, granted, Box::default(), deadline)
    }

    /// Returns how many holds may follow on a grant.
    pub(super) fn sections_of(
        &self,
        request: &AcquireRequest,
        grant: &Grant<AnyLease>,
    ) -> Option<Box<Sections>> {
        let handoff = request.options().local_handoff?;
        let left = grant.sections.min(request.sections()).get() - 1;
        let until = self.now.plus(handoff.time);
        (left > 0).then(|| Box::new(Sections { left, until, passes: grant.passes.clone() }))
    }

    /// Has a lease renewed: for the first time at this moment, and then at this interval. Returns why its group is lost, if it is.
    pub(super) fn register(
        &mut self,
        number: Number,
        group: GroupId,
        lease: &AnyLease,
        renewal: Option<(Moment, Duration)>,
    ) -> Option<LossReason> {
        let held = HeldLease { lock: Arc::clone(self.lock), number, lease: Arc::clone(lease), renewal };
        let (woken, end) = self.lock.client.held.add(group, held);
        self.effects.renewed.extend(woken.map(|woken| (group, woken)));
        end
    }

    /// A lease is not renewed any more, and its owner does not hold it.
    pub(super) fn unregister(&mut self, number: Number, group: GroupId) {
        self.effects.unregister.push((number, group));
    }

    /// The moment by which the server has certainly ended a lease by itself, if it is not renewed; never, if the server does
    /// not end leftovers by itself.
    pub(super) fn gone_by(&self, lease: &Lease) -> Moment {
        match lease.lasting {
            Lasting::Leased { anchor, validity } if self.capabilities().leftovers_last.is_some() => {
                validity.deadline(anchor).plus(validity.length_at_most())
            }
            _ => Moment::FOREVER,
        }
    }

    /// The server has answered the release of a hold, or its owner does not wait for that any longer.
    pub(super) fn finish(&mut self, hold: &Hold, loss: Option<LossReason>, failure: Option<LockError>) {
        self.effects.ended.extend(hold.finish(loss, failure, &mut self.effects.wake));
    }
}
