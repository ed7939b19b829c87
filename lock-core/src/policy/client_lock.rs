//! A lock of a client: the local lock behind its mutex, and the way from it to the server. There is one for each client and name,
//! which all users of that name share.

use std::sync::{Arc, OnceLock, Weak};
use std::task::Wake;

use tokio::sync::watch;

use crate::policy::context::ClientContext;
use crate::policy::hold::state::Event;
use crate::policy::hold::{About, Hold, Home};
use crate::policy::local::{Effects, LocalLock, Number, Reply, Turn, Work};
use crate::runtime::{Clock, LockMetrics, Moment, Mutex, Pending, can_begin_here, wake_contained};
use crate::spi::{AcquireRequest, AnyLease, HoldOptions, LockKind, Mode, Report, Reports, Wait};
use crate::types::{
    HolderInfo, LockError, LockName, LossReason, Operation, Owner, Participant, PhysicalName,
};

pub(crate) struct ClientLock {
    name: LockName,
    physical: PhysicalName,
    /// What has the name.
    kind: LockKind,
    pub(super) client: Arc<ClientContext>,
    local: Mutex<LocalLock>,
    /// Wakes those who observe the holder, once there are any.
    changes: OnceLock<watch::Sender<()>>,
}

/// Where work begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Where {
    /// On this thread, which waits for it or has just finished what it follows from.
    Here,
    /// On the engine: it does not concern the caller, or must not hold it up.
    OnEngine,
}

impl ClientLock {
    pub(crate) fn new(name: LockName, kind: LockKind, client: Arc<ClientContext>) -> Self {
        let capabilities = client.backend.capabilities();
        Self {
            physical: capabilities.names.apply(&name),
            name,
            kind,
            client,
            local: Mutex::new(LocalLock::new()),
            changes: OnceLock::new(),
        }
    }

    pub(crate) fn name(&self) -> &LockName {
        &self.name
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.client.clock
    }

    /// Returns the address of the server.
    pub(crate) fn server(&self) -> &str {
        &self.client.server
    }

    /// Returns what the client tells the server about itself.
    pub(crate) fn holder(&self) -> &Arc<HolderInfo> {
        &self.client.options.holder
    }

    /// Returns a receiver that learns when the holder changes through this client.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changes.get_or_init(watch::Sender::default).subscribe()
    }

    /// The holder, or what the server shows of it, has changed. It wakes only tasks of this crate.
    pub(crate) fn changed(&self) {
        if let Some(changes) = self.changes.get() {
            changes.send_replace(());
        }
    }

    pub(crate) fn metrics_in(&self, mode: Mode) -> LockMetrics<'_> {
        self.client.metrics.of(&self.name, mode)
    }
}

/// Visits to the local lock.
impl ClientLock {
    /// Gives the local lock an input, and then does what follows from it.
    pub(super) fn turn<T>(
        self: &Arc<Self>,
        at: Where,
        input: impl FnOnce(&mut LocalLock, &mut Turn<'_>) -> T,
    ) -> T {
        let mut local = self.local.lock();
        // The clock is read while the mutex is locked: time does not go back from one visit to the next.
        let now = self.clock().now();
        let mut turn = Turn::new(self, now);
        local.pass_time(&mut turn);
        let output = input(&mut local, &mut turn);
        local.advance(&mut turn);
        local.set_alarm(self, now);
        drop(local);
        self.carry_out(&mut turn.effects, at);
        output
    }

    /// Looks at the local lock when no time has to pass for that.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&mut LocalLock) -> T) -> T {
        look(&mut self.local.lock())
    }

    /// Returns the hold of an owner and how often it has entered, unless a loss of the hold has been reported.
    pub(crate) fn entered(&self, owner: Owner, mode: Mode) -> Option<(Hold, u64)> {
        self.look(|local| local.entered(owner, mode))
    }

    /// Enters once more for `owner`, which already has `hold`. Returns whether it still has it.
    pub(crate) fn reenter(self: &Arc<Self>, owner: Owner, hold: &Hold) -> bool {
        self.turn(Where::OnEngine, |local, _| local.reenter(owner, hold))
    }

    /// Returns whether this client holds the lock in this mode.
    pub(crate) fn is_locked(&self, mode: Mode) -> bool {
        match mode {
            Mode::Exclusive => self.look(|local| local.is_locked()),
            _ => self.look(|local| local.sharers().any(|(_, hold)| hold.mode() == mode)),
        }
    }

    /// Returns what the backend keeps of the lease of a hold, unless the hold has ended.
    pub(crate) fn lease_of(&self, hold: &Hold) -> Option<AnyLease> {
        self.look(|local| local.lease(hold.grant().lease).map(|lease| Arc::clone(&lease.kept)))
    }

    fn carry_out(self: &Arc<Self>, effects: &mut Effects, at: Where) {
        // Before foreign code, which may take its time.
        effects.renewed.drain(|(group, woken)| self.client.begin_renewing(group, woken));
        // The drivers first: a waker may wait until what they undo is undone.
        effects.stop.drain(wake_contained);
        effects.wake.drain(wake_contained);
        effects.asked.drain(|attempt| attempt.ask());
        effects.unregister.drain(|(number, group)| self.client.held.remove(group, number));
        effects.dropped.drain(drop);
        effects.done.drain(Pending::done);
        effects.words.drain(drop);
        if !effects.ended.is_empty() {
            let mut ended = std::mem::take(&mut effects.ended);
            let mut report = move || ended.drain(|ended| ended.report());
            match at {
                Where::Here => report(),
                Where::OnEngine => drop(self.client.engine.spawn(async move { report() })),
            }
        }
        effects.work.drain(|work| self.begin(work, at));
    }

    fn begin(self: &Arc<Self>, work: Work, at: Where) {
        let at = if can_begin_here() { at } else { Where::OnEngine };
        match work {
            Work::Attempt(request, losses) => self.begin_attempt(&request, losses, at),
            Work::Release(release) => self.begin_release(release, at),
            Work::Downgrade(downgrade) => self.begin_downgrade(downgrade, at),
            Work::Clear(lost) => self.clear_lost(lost),
        }
    }

    /// A release, a cancel or a downgrade has been answered.
    pub(super) fn answered(self: &Arc<Self>, number: Number, reply: &Reply, at: Where) {
        self.turn(at, |local, turn| local.answered(turn, number, reply));
    }

    /// A lease is lost. Of one that is given back, only a reader that still stands by it is.
    pub(crate) fn lose(self: &Arc<Self>, number: Number, reason: LossReason) {
        self.turn(Where::OnEngine, |local, turn| local.lose(turn, number, reason));
    }

    /// The server has acknowledged a renewal that was sent at `anchor`.
    pub(super) fn renewed(self: &Arc<Self>, number: Number, anchor: Moment) {
        for hold in self.turn(Where::OnEngine, |local, _| local.renewed(number, anchor)) {
            hold.log_restored();
        }
    }

    /// Contact with the server is lost.
    pub(super) fn suspect(self: &Arc<Self>, number: Number) {
        for hold in self.turn(Where::OnEngine, |local, _| local.suspect(number)) {
            hold.log_suspect();
        }
    }

    /// Refuses all callers from now on, including those that already wait.
    pub(crate) fn close(self: &Arc<Self>, error: &LockError) {
        self.turn(Where::Here, |local, turn| local.close(turn, error));
    }
}

/// Rings when something in the local lock is due.
struct Bell(Weak<ClientLock>);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        if let Some(lock) = self.0.upgrade() {
            lock.turn(Where::OnEngine, |_, _| {});
        }
    }
}

impl LocalLock {
    /// Has the bell ring when something is due. A bell that is set rings at most once too early, so that it does not move with
    /// each lease.
    fn set_alarm(&mut self, lock: &Arc<ClientLock>, now: Moment) {
        // The second: the bell has rung.
        if self.due < self.alarm_at || self.alarm_at <= now && self.due != Moment::FOREVER {
            self.alarm_at = self.due;
            let bell = Arc::new(Bell(Arc::downgrade(lock)));
            self.alarm = Some(lock.clock().schedule(self.due, bell.into()));
        }
    }
}

/// What the local lock needs, while its mutex is locked: no I/O, and no foreign code.
impl ClientLock {
    /// Makes the request of a new attempt.
    pub(super) fn request(
        self: &Arc<Self>,
        number: Number,
        mode: Mode,
        wait: Wait,
        options: &Arc<HoldOptions>,
    ) -> AcquireRequest {
        let (names, reports) = ((self.name.clone(), self.physical.clone()), Arc::downgrade(self));
        AcquireRequest::of(
            (number, self.client.id_of(number)),
            names,
            mode,
            wait,
            Arc::clone(options),
            Some(reports),
        )
    }
}

impl Reports for ClientLock {
    fn report(self: Arc<Self>, attempt: Number, report: Report) {
        self.turn(Where::OnEngine, |local, turn| local.report(turn, attempt, report));
    }
}

/// What a hold needs of its lock.
impl Home for ClientLock {
    fn about(&self) -> About<'_> {
        let ClientContext { clock, server, metrics, .. } = &*self.client;
        About { name: &self.name, clock, server, metrics: Some(metrics) }
    }

    fn publish(&self, event: Event, hold: &Hold) {
        self.client.events.publish(event, hold);
        self.changed();
    }
}

/// Errors about the lock.
impl ClientLock {
    /// Adds the lock and the server to the error.
    pub(crate) fn about(&self, error: LockError) -> LockError {
        error.on(&self.name).of(self.kind).at(&self.client.server)
    }

    pub(crate) fn lost(&self, operation: Operation, reason: LossReason) -> LockError {
        self.about(LockError::lost(operation, &self.name, reason))
    }

    /// The error of a wait on these options that ended while another owner held the lock, or while a pause went on.
    pub(crate) fn busy(&self, options: &HoldOptions) -> LockError {
        let mut error = self.about(LockError::busy(&self.name));
        let (writer, named, sharer, pause_end) = self.look(|local| {
            let sharer = local.sharers().next().map(|(_, hold)| hold.clone());
            (
                local.holder().map(|(_, hold)| hold.clone()),
                local.last_holder.as_deref().cloned(),
                sharer,
                local.pause_end,
            )
        });
        let now = self.clock().now();
        if let Some(end) = pause_end.filter(|end| options.at_least.is_some() && *end > now) {
            error = error.paused_for(end.since(now));
        }
        let of_this_client = |hold: Hold| {
            let holder = hold.holder().unwrap_or_else(|| self.holder());
            Participant::new(hold.id()).with_mode(hold.mode()).with_info(holder)
        };
        if let Some(hold) = writer {
            return error.held_by(of_this_client(hold)).because("another owner of this client holds it");
        }
        match named.or_else(|| sharer.map(of_this_client)) {
            Some(holder) if self.holder().is_process_of(&holder) => error
                .held_by(holder)
                .because("another client of this process holds it, or another owner of this one"),
            Some(holder) => error.held_by(holder),
            None => error,
        }
    }
}
