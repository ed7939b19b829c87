//! The entry of a client for one lock: the local mutex in front of it, and the connection to the server. There is one
//! entry for each client and name, which all users of that name share.

use std::fmt;
use std::num::NonZeroU64;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::watch;

use crate::policy::context::ClientContext;
use crate::policy::hold::{HoldCore, Observer};
use crate::policy::local::{Attempt, LocalMutex, Patience};
use crate::policy::log;
use crate::policy::lost_unseen::LostUnseen;
use crate::policy::metrics::Subject;
use crate::policy::shared_entries::{SharedEntries, Sharing};
use crate::runtime::clock::{Clock, Moment};
use crate::runtime::sync::Mutex;
use crate::spi::{AcquireRequest, AttemptHandle, HoldOptions, LockKind, Mode, Wait, Waiters};
use crate::types::capabilities::Pipelining;
use crate::types::error::{ErrorKind, LockError, Operation};
use crate::types::loss::LossReason;
use crate::types::name::{LockName, PhysicalName};
use crate::types::owner::Owner;
use crate::types::status::{HolderInfo, Participant};

pub(crate) struct Entry {
    pub(super) name: LockName,
    pub(super) physical: PhysicalName,
    /// What has the name.
    kind: LockKind,
    pub(super) mode: Mode,
    pub(super) pipelining: Pipelining,
    /// Set when this is the entry of one that shares the lock.
    pub(super) sharing: Option<Box<Sharing>>,
    pub(super) client: Arc<ClientContext>,
    pub(crate) local: LocalMutex<Owner, Arc<HoldCore>, Arc<AcquireRequest>>,
    pub(super) observer: Arc<dyn Observer>,
    /// Present once something of it was needed.
    seldom: OnceLock<Box<Seldom>>,
}

/// What most locks never need.
#[derive(Default)]
pub(super) struct Seldom {
    /// The entries of those that share the lock.
    pub(super) shared_entries: SharedEntries,
    pub(super) lost_unseen: LostUnseen,
    /// Who held the lock when the server last named the holder to the current attempt.
    last_holder: Mutex<Option<Participant>>,
    /// When the pause after an earlier hold ends, as the server has last said.
    pause_end: Mutex<Option<Moment>>,
    /// Wakes those who observe the holder, once there are any.
    changes: OnceLock<watch::Sender<()>>,
}

impl Entry {
    pub(crate) fn new(
        name: LockName,
        kind: LockKind,
        client: Arc<ClientContext>,
        observer: Arc<dyn Observer>,
    ) -> Self {
        Self { kind, ..Self::of(name, client, observer, Mode::Exclusive, None) }
    }

    pub(super) fn of(
        name: LockName,
        client: Arc<ClientContext>,
        observer: Arc<dyn Observer>,
        mode: Mode,
        sharing: Option<Box<Sharing>>,
    ) -> Self {
        Self {
            kind: mode.kind(),
            mode,
            sharing,
            pipelining: client.backend().capabilities().pipelining,
            physical: client.backend().capabilities().names.apply(&name),
            name,
            client,
            local: LocalMutex::new(),
            observer,
            seldom: OnceLock::new(),
        }
    }

    pub(crate) fn name(&self) -> &LockName {
        &self.name
    }

    pub(crate) fn clock(&self) -> &Clock {
        self.client.clock()
    }

    /// Returns the address of the server.
    pub(crate) fn server(&self) -> &str {
        self.client.server()
    }

    /// Returns what the client tells the server about itself.
    pub(crate) fn holder(&self) -> &Arc<HolderInfo> {
        &self.client.options.holder
    }

    /// Returns what a lock without options of its own asks for.
    pub(crate) fn options(&self) -> &Arc<HoldOptions> {
        &self.client.options
    }

    /// Returns a receiver that learns when the holder changes through this client.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.seldom().changes.get_or_init(watch::Sender::default).subscribe()
    }

    /// The holder, or what the server shows of it, has changed. It wakes only tasks of this crate.
    pub(crate) fn changed(&self) {
        if let Some(changes) = self.seldom.get().and_then(|seldom| seldom.changes.get()) {
            changes.send_replace(());
        }
    }

    /// Returns what the metrics of this lock are about.
    pub(super) fn counted_as(&self) -> Subject<'_> {
        Subject { name: &self.name, mode: self.mode }
    }

    pub(super) fn logged(&self) -> log::Lock<'_> {
        log::Lock { name: &self.name, server: self.client.server() }
    }

    pub(super) fn new_attempt(
        self: &Arc<Self>,
        patience: Patience,
        options: &Arc<HoldOptions>,
    ) -> Arc<AcquireRequest> {
        let seldom = self.seldom.get();
        if let Some(seldom) = seldom {
            *seldom.last_holder.lock() = None;
        }
        let waiters: std::sync::Weak<Self> = Arc::downgrade(self);
        let handle = AttemptHandle::for_waiters(patience.into(), waiters, self.clock().now());
        let place = seldom.and_then(|seldom| seldom.lost_unseen.take_place());
        if let (Some(place), Patience::Until(_)) = (place, patience) {
            handle.keep_place(place);
        }
        let request = Arc::new(AcquireRequest {
            id: self.client.attempts.next(),
            name: self.name.clone(),
            physical: self.physical.clone(),
            mode: self.mode,
            options: Arc::clone(options),
            handle,
        });
        self.request_admission(&request, patience);
        request
    }

    pub(super) fn seldom(&self) -> &Seldom {
        self.seldom.get_or_init(Box::default)
    }

    /// Returns who shares the lock through this client, if anyone has.
    pub(super) fn shared_entries(&self) -> Option<&SharedEntries> {
        self.seldom.get().map(|seldom| &seldom.shared_entries)
    }

    fn last_holder(&self) -> Option<Participant> {
        self.seldom.get()?.last_holder.lock().clone()
    }

    /// A grant has reached its waiter, or there was none.
    pub(super) fn end_row_of_losses(&self) {
        if let Some(seldom) = self.seldom.get() {
            seldom.lost_unseen.end_row();
        }
    }

    /// Sets the place that the next attempt starts from.
    pub(super) fn keep_place(&self, place: Option<NonZeroU64>) {
        if place.is_some() || self.seldom.get().is_some() {
            self.seldom().lost_unseen.keep_place(place);
        }
    }

    pub(super) fn pause_until(&self, end: Moment) {
        *self.seldom().pause_end.lock() = Some(end);
    }

    /// Returns when the pause after an earlier hold ends, if it is known to go on.
    pub(super) fn pause_end(&self) -> Option<Moment> {
        self.seldom.get()?.pause_end.lock().filter(|end| *end > self.clock().now())
    }

    pub(super) fn pause_after_losses(&self) -> Option<Duration> {
        let pause = self.seldom.get()?.lost_unseen.next_pause()?;
        self.logged().lost_unseen(pause.reason, pause.in_a_row);
        Some(pause.length)
    }

    /// Adds the lock and the server to the error.
    pub(crate) fn about(&self, error: LockError) -> LockError {
        error.on(&self.name).of(self.kind).at(self.client.server())
    }

    pub(crate) fn lost(&self, operation: Operation, reason: LossReason) -> LockError {
        self.about(LockError::lost(operation, &self.name, reason))
    }

    /// The error of a wait on these options that ended while another owner held the lock, or while a pause went on.
    pub(crate) fn busy(&self, options: &HoldOptions) -> LockError {
        let mut error = self.about(LockError::busy(&self.name));
        if let Some(end) = self.pause_end().filter(|_| options.at_least.is_some()) {
            error = error.paused_for(end.since(self.clock().now()));
        }
        let of_this_client = |hold: &Arc<HoldCore>| {
            let holder = hold.holder().unwrap_or_else(|| self.holder());
            Participant::new(hold.id()).with_info(holder)
        };
        if let Some((_, hold)) = self.local.holder() {
            return error.held_by(of_this_client(&hold)).because("another owner of this client holds it");
        }
        match self.last_holder().or_else(|| self.one_sharer()) {
            Some(holder) if self.holder().is_process_of(&holder) => error
                .held_by(holder)
                .because("another client of this process holds it, or another owner of this one"),
            Some(holder) => error.held_by(holder),
            None => error,
        }
    }

    pub(crate) fn not_owner(&self, owner: Owner) -> LockError {
        LockError::new(ErrorKind::NotOwner, Operation::Release)
            .on(&self.name)
            .of(self.kind)
            .because(format!("{owner:?} has no entry"))
            .remedy("unlock in the task or scope that locked, once for each lock")
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Entry").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Waiters for Entry {
    fn next_end(&self, moment: u64) -> Option<u64> {
        self.local.next_end(moment)
    }

    fn held_by(&self, holder: Participant) {
        if let Some(main) = self.main_entry() {
            main.held_by(holder.clone());
        }
        *self.seldom().last_holder.lock() = Some(holder);
    }

    fn queued(self: Arc<Self>, attempt: &AttemptHandle) {
        self.confirmed(attempt);
    }
}

impl Attempt for Arc<AcquireRequest> {
    type Failure = LockError;

    fn extend(&self, until: u64) {
        self.handle.extend(until);
    }

    fn awaited(&self) {
        self.handle.awaited();
    }

    fn outage(&self) -> Option<LockError> {
        self.handle.outage()
    }

    fn why_unknown(&self) -> Option<LockError> {
        self.handle.why_unknown()
    }
}

impl From<Wait> for Patience {
    fn from(wait: Wait) -> Self {
        match wait {
            Wait::Try => Self::Once,
            wait => Self::Until(wait.deadline().as_nanoseconds()),
        }
    }
}

impl From<Patience> for Wait {
    fn from(patience: Patience) -> Self {
        match patience {
            Patience::Once => Self::Try,
            Patience::Until(until) => match Moment::from_nanoseconds(until) {
                Moment::FOREVER => Self::Forever,
                moment => Self::Until(moment),
            },
        }
    }
}
