//! The entries of those that share a lock: one for each owner and mode, because each of them has a grant of its own.
//!
//! The entry of the lock itself, its *gate*, has the exclusive owners and the line in which all requests of the client
//! stand. The entry of one that shares is a *lane*: a local mutex that only its owner enters, so that it enters again
//! without the server.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use crate::policy::acquire::Acquisition;
use crate::policy::entry::Entry;
use crate::policy::hold::HoldCore;
use crate::policy::local::{Order, Patience, Ticket};
use crate::runtime::sync::Mutex;
use crate::spi::{AcquireRequest, AttemptHandle, Mode, Wait};
use crate::types::error::{ErrorKind, LockError, Operation};
use crate::types::owner::Owner;
use crate::types::status::Participant;

/// The lanes of a gate.
#[derive(Default)]
pub(super) struct Lanes(Mutex<HashMap<(Owner, Mode), Arc<Entry>>>);

/// What makes an entry a lane.
pub(super) struct Lane {
    gate: Arc<Entry>,
    owner: Owner,
    /// The place of its request in the line of the gate, or of the release or cancel that the server has not answered.
    place: Mutex<Option<Ticket>>,
    /// How many callers are about to enter.
    visits: AtomicUsize,
}

impl Lane {
    fn new(gate: &Arc<Entry>, owner: Owner) -> Self {
        Self { gate: Arc::clone(gate), owner, place: Mutex::default(), visits: AtomicUsize::new(0) }
    }
}

/// A caller that is about to enter a lane. The lane stays until it is dropped.
struct Visit(Arc<Entry>);

impl Drop for Visit {
    fn drop(&mut self) {
        if let Some(lane) = &self.0.lane {
            lane.visits.fetch_sub(1, Ordering::AcqRel);
        }
        self.0.retire();
    }
}

/// What an owner that shares a lock has: the lane that it entered, and the hold.
pub(crate) struct Shared {
    pub(crate) lane: Arc<Entry>,
    pub(crate) hold: Arc<HoldCore>,
}

/// The gate's side.
impl Entry {
    /// Enters for `owner` in this mode, which is not exclusive.
    pub(crate) async fn acquire_shared(
        self: &Arc<Self>,
        mode: Mode,
        acquisition: &Acquisition,
        owner: Owner,
        wait: Wait,
    ) -> Result<Option<Shared>, LockError> {
        if mode == Mode::Shared
            && let Some((lane, hold)) = self.read_under_exclusive(owner)
        {
            if let Some(observer) = &acquisition.observer {
                hold.observe_with(observer);
            }
            hold.report_acquired();
            return Ok(Some(Shared { lane, hold }));
        }
        let visit = self.visit(owner, mode);
        let hold = visit.0.acquire(acquisition, owner, wait).await?;
        Ok(hold.map(|hold| Shared { lane: Arc::clone(&visit.0), hold }))
    }

    fn visit(self: &Arc<Self>, owner: Owner, mode: Mode) -> Visit {
        let mut lanes = self.lanes.0.lock();
        let lane = lanes.entry((owner, mode)).or_insert_with(|| self.new_lane(owner, mode));
        if let Some(lane) = &lane.lane {
            lane.visits.fetch_add(1, Ordering::AcqRel);
        }
        Visit(Arc::clone(lane))
    }

    fn new_lane(self: &Arc<Self>, owner: Owner, mode: Mode) -> Arc<Self> {
        let lane = Self::of(
            self.name.clone(),
            Arc::clone(&self.client),
            Arc::clone(&self.observer),
            mode,
            Some(Lane::new(self, owner)),
        );
        if let Some(error) = self.local.closed() {
            let _ = lane.local.close(&error);
        }
        Arc::new(lane)
    }

    /// Returns the lane of `owner`, if it uses one.
    pub(crate) fn lane_of(&self, owner: Owner, mode: Mode) -> Option<Arc<Self>> {
        self.lanes.0.lock().get(&(owner, mode)).cloned()
    }

    /// Returns who shares the lock through this client.
    pub(crate) fn sharers(&self) -> Vec<(Owner, Arc<HoldCore>)> {
        let lanes: Vec<_> = self.lanes.0.lock().values().cloned().collect();
        lanes.iter().filter_map(|lane| lane.local.holder()).collect()
    }

    /// Returns one of those that share the lock through this client, as the server may show it.
    pub(super) fn one_sharer(&self) -> Option<Participant> {
        let (_, hold) = self.sharers().into_iter().next()?;
        let holder = hold.holder().unwrap_or_else(|| self.holder());
        Some(Participant::new(hold.id()).with_mode(hold.grant().mode).with_info(holder))
    }

    /// Lets the owner of the exclusive hold read, without the server; `None` when `owner` has no such hold, or reads
    /// already.
    fn read_under_exclusive(self: &Arc<Self>, owner: Owner) -> Option<(Arc<Self>, Arc<HoldCore>)> {
        let (exclusive, _) = self.local.held_by(owner)?;
        let visit = self.visit(owner, Mode::Shared);
        let has_to_learn = self.local.closed().is_some() || visit.0.local.has_loss_for(owner);
        if has_to_learn || visit.0.local.held_by(owner).is_some() {
            return None;
        }
        let mut lane = Arc::clone(&visit.0);
        let reader = loop {
            let home: Arc<Self> = Arc::clone(&lane);
            let reader = HoldCore::reader_under(home, &exclusive, self.client.attempts.next());
            if lane.local.adopt(owner, Arc::clone(&reader)) {
                break reader;
            }
            // Its last release is not answered yet: it goes on by itself.
            lane = self.new_lane(owner, Mode::Shared);
            self.lanes.0.lock().insert((owner, Mode::Shared), Arc::clone(&lane));
        };
        if self.local.shelter(owner, &exclusive, &reader) {
            return Some((lane, reader));
        }
        // The exclusive hold has just ended.
        lane.leave_in_background(owner, &reader);
        None
    }

    /// Refuses an exclusive acquisition of an owner that reads: it would wait for itself.
    pub(super) fn refuse_upgrade(&self, owner: Owner) -> Result<(), LockError> {
        let reads = self.lane_of(owner, Mode::Shared).is_some_and(|lane| lane.local.held_by(owner).is_some());
        if !reads || self.local.held_by(owner).is_some() {
            return Ok(());
        }
        let error = LockError::new(ErrorKind::Deadlock, Operation::Acquire)
            .because("this owner holds the read lock, which cannot be upgraded")
            .remedy("release the read side first, or acquire the write side from the beginning");
        Err(self.about(error))
    }

    /// Refuses all callers from now on, including those that already wait.
    pub(crate) fn close(self: &Arc<Self>, error: &LockError) {
        self.undo(self.local.close(error));
        let lanes: Vec<_> = self.lanes.0.lock().values().cloned().collect();
        for lane in lanes {
            lane.undo(lane.local.close(error));
        }
    }
}

/// The lane's side.
impl Entry {
    pub(super) fn gate(&self) -> Option<&Arc<Self>> {
        self.lane.as_ref().map(|lane| &lane.gate)
    }

    /// Gives a new request its place in the line.
    pub(super) fn line_up(&self, request: &Arc<AcquireRequest>, patience: Patience) {
        let Some(lane) = &self.lane else { return };
        let order = if self.mode == Mode::Shared { Order::BehindExclusive } else { Order::BehindAll };
        *lane.place.lock() = Some(lane.gate.local.line_up(Arc::clone(request), patience, order));
    }

    /// Returns the gate and the place in its line.
    pub(super) fn place_in_line(&self) -> Option<(&Arc<Self>, Ticket)> {
        let lane = self.lane.as_ref()?;
        let place = *lane.place.lock();
        Some((&lane.gate, place?))
    }

    /// The request has its outcome, and nothing of it is to be undone.
    pub(super) fn leave_line(&self) {
        if let Some(lane) = &self.lane {
            let place = lane.place.lock().take();
            lane.leave(place);
        }
    }

    /// A release or a cancel is on its way: later requests wait for the answer.
    pub(super) fn line_up_clearing(&self) {
        let Some(lane) = &self.lane else { return };
        let mut place = lane.place.lock();
        *place = Some(lane.gate.local.line_up_clearing(*place));
    }

    /// The answer to a release or a cancel is overdue.
    pub(super) fn overdue_in_line(&self, error: &LockError) {
        if let Some((gate, place)) = self.place_in_line() {
            gate.local.overdue_in_line(place, error);
        }
    }

    /// Calls `proceed` when the release or the cancel has been answered, and then leaves its place.
    pub(super) fn after_clearing<T>(&self, proceed: impl FnOnce() -> T) -> T {
        let Some(lane) = &self.lane else { return proceed() };
        let place = lane.place.lock().take();
        let next = proceed();
        lane.leave(place);
        next
    }

    /// The server has confirmed that an attempt is queued.
    pub(super) fn confirmed(self: &Arc<Self>, attempt: &AttemptHandle) {
        let is_it = |request: &Arc<AcquireRequest>| request.handle.is(attempt);
        let Some(lane) = &self.lane else { return self.local.attempt_confirmed(is_it) };
        if let (true, Some((gate, place))) = (self.local.attempts(is_it), self.place_in_line()) {
            let start =
                gate.local.request_confirmed(place, |patience, terms| gate.new_attempt(patience, terms));
            lane.gate.start_there(start);
        }
    }

    /// Forgets a lane that is not used any more.
    pub(super) fn retire(self: &Arc<Self>) {
        let Some(lane) = &self.lane else { return };
        let mut lanes = lane.gate.lanes.0.lock();
        let key = (lane.owner, self.mode);
        let is_unused = lane.visits.load(Ordering::Acquire) == 0
            && self.local.is_unused()
            && lanes.get(&key).is_some_and(|known| Arc::ptr_eq(known, self));
        let retired = if is_unused { lanes.remove(&key) } else { None };
        drop(lanes);
        drop(retired);
    }

    /// Returns this entry to those that wake it.
    pub(super) fn as_waiters(self: &Arc<Self>) -> Weak<Self> {
        Arc::downgrade(self)
    }
}

impl Lane {
    fn leave(&self, place: Option<Ticket>) {
        let Some(place) = place else { return };
        let gate = &self.gate;
        let start = gate.local.leave_line(place, |patience, terms| gate.new_attempt(patience, terms));
        gate.start_there(start);
    }
}
