//! The entries of those that share a lock: one for each owner and mode, because each of them has a grant of its own.
//!
//! The *main entry* of a lock has the exclusive owners, and the admission queue for all requests of the client. A *shared
//! entry* is a local mutex that only one owner enters, so that it enters again without the server.

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

/// The shared entries of a main entry.
#[derive(Default)]
pub(super) struct SharedEntries(Mutex<HashMap<(Owner, Mode), Arc<Entry>>>);

impl SharedEntries {
    fn all(&self) -> Vec<Arc<Entry>> {
        self.0.lock().values().cloned().collect()
    }
}

/// What makes an entry a shared one.
pub(super) struct Sharing {
    main: Arc<Entry>,
    owner: Owner,
    /// The place of its request in the admission queue, or of the release or cancel that the server has not answered.
    place: Mutex<Option<Ticket>>,
    /// How many callers are about to enter.
    visits: AtomicUsize,
}

impl Sharing {
    fn new(main: &Arc<Entry>, owner: Owner) -> Self {
        Self { main: Arc::clone(main), owner, place: Mutex::default(), visits: AtomicUsize::new(0) }
    }
}

/// A caller that is about to enter a shared entry. The shared entry stays until it is dropped.
struct Visit(Arc<Entry>);

impl Drop for Visit {
    fn drop(&mut self) {
        if let Some(sharing) = &self.0.sharing {
            sharing.visits.fetch_sub(1, Ordering::AcqRel);
        }
        self.0.retire();
    }
}

/// What an owner that shares a lock has: the shared entry that it entered, and the hold.
pub(crate) struct Shared {
    pub(crate) entry: Arc<Entry>,
    pub(crate) hold: Arc<HoldCore>,
}

/// The main entry's side.
impl Entry {
    /// Enters for `owner` in this mode, which is not exclusive.
    pub(crate) async fn acquire_shared(
        self: &Arc<Self>,
        mode: Mode,
        acquisition: &Acquisition,
        owner: Owner,
        wait: Wait,
    ) -> Result<Option<Shared>, LockError> {
        // Behind its own request for the exclusive side, this one would wait for itself. So it waits for that side, too, and
        // leaves it again.
        let exclusive = if mode == Mode::Shared && self.local.is_asked_for_by(owner) {
            let acquisition = Acquisition::new(Arc::clone(&acquisition.options));
            let Some(hold) = Box::pin(self.acquire(&acquisition, owner, wait)).await? else {
                return Ok(None);
            };
            Some(hold)
        } else {
            None
        };
        let reader = if mode == Mode::Shared { self.read_under_exclusive(owner) } else { None };
        if let Some(exclusive) = exclusive {
            self.leave_in_background(owner, &exclusive);
        }
        if let Some((entry, hold)) = reader {
            if let Some(observer) = &acquisition.observer {
                hold.observe_with(observer);
            }
            hold.report_acquired();
            return Ok(Some(Shared { entry, hold }));
        }
        let visit = self.visit(owner, mode);
        let hold = visit.0.acquire(acquisition, owner, wait).await?;
        Ok(hold.map(|hold| Shared { entry: Arc::clone(&visit.0), hold }))
    }

    fn visit(self: &Arc<Self>, owner: Owner, mode: Mode) -> Visit {
        let mut shared_entries = self.seldom().shared_entries.0.lock();
        let entry = shared_entries.entry((owner, mode)).or_insert_with(|| self.new_shared_entry(owner, mode));
        if let Some(sharing) = &entry.sharing {
            sharing.visits.fetch_add(1, Ordering::AcqRel);
        }
        Visit(Arc::clone(entry))
    }

    fn new_shared_entry(self: &Arc<Self>, owner: Owner, mode: Mode) -> Arc<Self> {
        let entry = Self::of(
            self.name.clone(),
            Arc::clone(&self.client),
            Arc::clone(&self.observer),
            mode,
            Some(Box::new(Sharing::new(self, owner))),
        );
        if let Some(error) = self.local.closed() {
            let _ = entry.local.close(&error);
        }
        Arc::new(entry)
    }

    /// Returns the shared entry of `owner`, if it uses one.
    pub(crate) fn shared_entry_of(&self, owner: Owner, mode: Mode) -> Option<Arc<Self>> {
        self.shared_entries()?.0.lock().get(&(owner, mode)).cloned()
    }

    /// Returns who shares the lock through this client.
    pub(crate) fn sharers(&self) -> Vec<(Owner, Arc<HoldCore>)> {
        let shared_entries = self.shared_entries().map(SharedEntries::all).unwrap_or_default();
        shared_entries.iter().filter_map(|entry| entry.local.holder()).collect()
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
        let mut entry = Arc::clone(&visit.0);
        let reader = loop {
            let home: Arc<Self> = Arc::clone(&entry);
            let reader = HoldCore::reader_under(home, &exclusive, self.client.attempts.next());
            if entry.local.adopt(owner, Arc::clone(&reader)) {
                break reader;
            }
            // Its last release is not answered yet: it goes on by itself.
            entry = self.new_shared_entry(owner, Mode::Shared);
            self.seldom().shared_entries.0.lock().insert((owner, Mode::Shared), Arc::clone(&entry));
        };
        if self.local.attach_reader(owner, &exclusive, &reader) {
            return Some((entry, reader));
        }
        // The exclusive hold has just ended.
        entry.leave_in_background(owner, &reader);
        None
    }

    /// Refuses an exclusive acquisition of an owner that reads: it would wait for itself.
    pub(super) fn refuse_upgrade(&self, owner: Owner) -> Result<(), LockError> {
        let reads = self
            .shared_entry_of(owner, Mode::Shared)
            .is_some_and(|entry| entry.local.held_by(owner).is_some() || entry.local.is_asked_for_by(owner));
        if !reads || self.local.held_by(owner).is_some() {
            return Ok(());
        }
        Err(self.no_upgrade())
    }

    /// The error of an owner that reads, or is about to, and asks for the write side.
    pub(crate) fn no_upgrade(&self) -> LockError {
        let error = LockError::new(ErrorKind::Deadlock, Operation::Acquire)
            .because("this owner holds the read lock, which cannot be upgraded")
            .remedy("release the read side first, or acquire the write side from the beginning");
        self.about(error)
    }

    /// Refuses all callers from now on, including those that already wait.
    pub(crate) fn close(self: &Arc<Self>, error: &LockError) {
        self.close_one(error);
        for entry in self.shared_entries().map(SharedEntries::all).unwrap_or_default() {
            entry.close_one(error);
        }
    }

    fn close_one(self: &Arc<Self>, error: &LockError) {
        let counted = self.client.cleanup.expect();
        self.undo(self.local.close(error), counted);
    }
}

/// The shared entry's side.
impl Entry {
    pub(super) fn main_entry(&self) -> Option<&Arc<Self>> {
        self.sharing.as_ref().map(|sharing| &sharing.main)
    }

    /// Gives a new request its place in the admission queue.
    pub(super) fn request_admission(&self, request: &Arc<AcquireRequest>, patience: Patience) {
        let Some(sharing) = &self.sharing else { return };
        let order = if self.mode == Mode::Shared { Order::BehindExclusive } else { Order::BehindAll };
        *sharing.place.lock() =
            Some(sharing.main.local.request_admission(Arc::clone(request), patience, order));
    }

    /// Returns the main entry and the place in its admission queue.
    pub(super) fn admission_ticket(&self) -> Option<(&Arc<Self>, Ticket)> {
        let sharing = self.sharing.as_ref()?;
        let place = *sharing.place.lock();
        Some((&sharing.main, place?))
    }

    /// The request has its outcome, and nothing of it is to be undone.
    pub(super) fn leave_admissions(&self) {
        if let Some(sharing) = &self.sharing {
            let place = sharing.place.lock().take();
            sharing.leave(place);
        }
    }

    /// A release or a cancel is on its way: later requests wait for the answer.
    pub(super) fn enqueue_clearing(&self) {
        let Some(sharing) = &self.sharing else { return };
        let mut place = sharing.place.lock();
        *place = Some(sharing.main.local.enqueue_clearing(*place));
    }

    /// The answer to a release or a cancel is overdue.
    pub(super) fn clearing_overdue(&self, error: &LockError) {
        if let Some((main, place)) = self.admission_ticket() {
            main.local.clearing_overdue(place, error);
        }
    }

    /// Calls `proceed` when the release or the cancel has been answered, and then leaves its place.
    pub(super) fn after_clearing<T>(&self, proceed: impl FnOnce() -> T) -> T {
        let Some(sharing) = &self.sharing else { return proceed() };
        let place = sharing.place.lock().take();
        let next = proceed();
        sharing.leave(place);
        next
    }

    /// The server has confirmed that an attempt is queued.
    pub(super) fn confirmed(self: &Arc<Self>, attempt: &AttemptHandle) {
        let is_it = |request: &Arc<AcquireRequest>| request.handle.is(attempt);
        let Some(sharing) = &self.sharing else { return self.local.attempt_confirmed(is_it) };
        if let (true, Some((main, place))) = (self.local.attempts(is_it), self.admission_ticket()) {
            let start =
                main.local.request_confirmed(place, |patience, options| main.new_attempt(patience, options));
            sharing.main.start_there(start);
        }
    }

    /// Forgets a shared entry that is not used any more.
    pub(super) fn retire(self: &Arc<Self>) {
        let Some(sharing) = &self.sharing else { return };
        let mut shared_entries = sharing.main.seldom().shared_entries.0.lock();
        let key = (sharing.owner, self.mode);
        let is_unused = sharing.visits.load(Ordering::Acquire) == 0
            && self.local.is_unused()
            && shared_entries.get(&key).is_some_and(|known| Arc::ptr_eq(known, self));
        let retired = if is_unused { shared_entries.remove(&key) } else { None };
        drop(shared_entries);
        drop(retired);
    }

    /// Returns this entry to those that wake it.
    pub(super) fn as_waiters(self: &Arc<Self>) -> Weak<Self> {
        Arc::downgrade(self)
    }
}

impl Sharing {
    fn leave(&self, place: Option<Ticket>) {
        let Some(place) = place else { return };
        let main = &self.main;
        let start =
            main.local.leave_admissions(place, |patience, options| main.new_attempt(patience, options));
        main.start_there(start);
    }
}
