//! The inside of a held lock: its deadline, its lease, and how it ends.

mod reader;
pub(crate) mod reports;
mod series;
pub(crate) mod state;

use std::fmt;
use std::num::NonZeroU64;
#[cfg(unix)]
use std::sync::atomic::AtomicBool;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use crate::policy::local::Occupant;
use crate::policy::log;
use crate::policy::metrics::{Metrics, Subject};
use crate::runtime::clock::{Alarm, AlarmHandle, Clock, Moment};
use crate::runtime::pending::Pending;
use crate::runtime::sync::Mutex;
use crate::spi::{AnyLease, AttemptHandle, AttemptId, GroupId, HoldOptions, OnLoss, Reported, Validity};
use crate::types::loss::LossReason;
use crate::types::mode::Mode;
use crate::types::name::LockName;
use crate::types::owner::Owner;
use crate::types::status::{HolderId, HolderInfo};
use crate::types::token::FencingToken;
use reader::Both;
use reports::{Event, Known, Reports};
use state::{Checked, HoldState, Phase, Renewed};

/// Receives the events of the holds of a lock. It runs no user code.
pub(crate) trait Observer: Send + Sync {
    fn publish(&self, event: Event<LossReason>, hold: &Arc<HoldCore>);
}

/// What a hold belongs to: the entry of its lock.
pub(crate) trait Home: Send + Sync {
    fn name(&self) -> &LockName;

    fn clock(&self) -> &Clock;

    /// The address of the server, for the log.
    fn server(&self) -> &Arc<str>;

    /// The metrics of the client, if there is one. Recording runs foreign code.
    fn metrics(&self) -> Option<&Metrics>;

    /// Queues an event for the listeners. It runs no user code.
    fn publish(&self, event: Event<LossReason>, hold: &Arc<HoldCore>);

    /// Called after the hold has become lost, to free the mutex, inform the listener and clean up at the server.
    fn hold_lost(self: Arc<Self>, hold: &Arc<HoldCore>, loss: Loss, undoing: Pending);

    /// Counts the work that a loss leaves to be undone.
    fn expect_undoing(&self) -> Pending;

    /// A hold has been handed to its owner.
    fn seen(&self);

    /// The hold was lost before its waiter saw it, and another attempt replaces it.
    fn lost_unseen(&self, hold: &HoldCore, reason: LossReason);

    /// Whether an attempt may be sent before the release of a hold has been answered.
    fn pipelines(&self) -> bool {
        false
    }

    /// Whether the server ends a lease that is not renewed.
    fn leftovers_end(&self) -> bool {
        false
    }
}

pub(crate) struct HoldCore {
    home: Arc<dyn Home>,
    first_grant: Granted,
    /// Present if its owner has the lock both exclusively and shared.
    both: OnceLock<Box<Both>>,
    granted_at: Moment,
    /// The task or thread that received the hold first.
    acquired_in: OnceLock<Owner>,
    /// A number that no other hold of this process has.
    number: u64,
    state: HoldState<LossReason>,
    /// When the last request was sent that the server answered with a lease.
    anchor: AtomicU64,
    alarm: Mutex<Option<AlarmHandle>>,
    reports: Reports<LossReason>,
    /// Receives the events beside the observer of the client.
    observer: OnceLock<Arc<dyn Observer>>,
    /// Whether another process may have inherited the descriptor.
    #[cfg(unix)]
    is_inherited: AtomicBool,
}

/// What the server granted, and what follows from it.
pub(crate) struct Granted {
    pub(crate) id: GrantedId,
    /// Present until the work that ends the hold at the server takes it, so that a user who keeps an ended hold keeps
    /// nothing at the server.
    pub(crate) lease: Mutex<Option<AnyLease>>,
    pub(crate) group: GroupId,
    pub(crate) token: Option<FencingToken>,
    /// What the attempt asked for; `None` without a server.
    pub(crate) options: Option<Arc<HoldOptions>>,
    /// The holds that this one consists of: it is valid only while all of them are. Empty for most holds.
    pub(crate) parts: Box<[Arc<HoldCore>]>,
    /// The attempt's place in the server's queue, if it had one.
    pub(crate) place: Option<NonZeroU64>,
    pub(crate) mode: Mode,
    pub(crate) lasting: Lasting,
    /// How many holds may follow on the same lease; `None` for most holds.
    pub(crate) series: Option<Box<Series>>,
    #[cfg(unix)]
    pub(crate) descriptor: Option<Arc<std::os::fd::OwnedFd>>,
}

/// The holds that may follow on one, without the server.
#[derive(Clone)]
pub(crate) struct Series {
    /// How many tokens are left.
    pub(crate) left: u32,
    /// When the last of them may begin.
    pub(crate) until: Moment,
    /// Reports the loss of the one that stands.
    pub(crate) attempt: AttemptHandle,
    /// Counts the holds that have followed, for the backend.
    pub(crate) passes: Option<Arc<AtomicU32>>,
}

/// The id under which the server shows a hold.
#[derive(Clone)]
pub(crate) enum GrantedId {
    /// The same as the attempt's.
    Attempt(AttemptId),
    Given(HolderId),
    /// There is no server: the number of the hold.
    Number,
}

/// Which side found that a hold is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Declared {
    /// The backend: the server does not have the hold any more.
    ByBackend,
    /// The core, early enough for the holder to stop: the server may still have the hold.
    ByCore,
}

/// A loss and how it was found.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Loss {
    pub(crate) reason: LossReason,
    pub(crate) declared: Declared,
}

/// How long a hold lasts.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Lasting {
    UntilReported,
    Leased { anchor: Moment, validity: Validity },
}

impl Lasting {
    /// Returns the deadline without any renewal.
    fn deadline(&self) -> Moment {
        match self {
            Self::UntilReported => Moment::FOREVER,
            Self::Leased { anchor, validity } => validity.deadline(*anchor),
        }
    }
}

fn longest(grant: &Granted, granted_at: Moment) -> Moment {
    let max_hold = grant.options.as_ref().and_then(|options| options.max_hold);
    max_hold.map_or(Moment::FOREVER, |length| granted_at.plus(length))
}

static NEXT_HOLD: AtomicU64 = AtomicU64::new(0);

impl HoldCore {
    /// Creates a hold that begins now.
    pub(crate) fn new(home: Arc<dyn Home>, grant: Granted) -> Arc<Self> {
        Self::create(home, grant, None)
    }

    fn create(home: Arc<dyn Home>, grant: Granted, under: Option<Arc<HoldCore>>) -> Arc<Self> {
        let granted_at = home.clock().now();
        let anchor = match grant.lasting {
            Lasting::UntilReported => granted_at,
            Lasting::Leased { anchor, .. } => anchor,
        };
        let deadline = grant.lasting.deadline().min(longest(&grant, granted_at));
        let both = under.map(|under| Box::new(Both::under(under)));
        let hold = Arc::new(Self {
            home,
            first_grant: grant,
            both: both.map_or_else(OnceLock::new, OnceLock::from),
            granted_at,
            acquired_in: OnceLock::new(),
            number: NEXT_HOLD.fetch_add(1, Ordering::Relaxed),
            state: HoldState::new(deadline.as_nanoseconds()),
            anchor: AtomicU64::new(anchor.as_nanoseconds()),
            alarm: Mutex::new(None),
            reports: Reports::new(),
            observer: OnceLock::new(),
            #[cfg(unix)]
            is_inherited: AtomicBool::new(false),
        });
        hold.watch_deadline(deadline);
        hold
    }

    /// Returns what the server granted last.
    pub(crate) fn grant(&self) -> &Granted {
        self.both.get().and_then(|both| both.later_grant.get()).unwrap_or(&self.first_grant)
    }

    /// When the hold ends even if it is renewed, if its options limit it.
    fn longest(&self) -> Moment {
        longest(&self.first_grant, self.granted_at)
    }

    fn watch_deadline(self: &Arc<Self>, deadline: Moment) {
        if deadline != Moment::FOREVER {
            let alarm = Arc::new(Deadline(Arc::downgrade(self)));
            *self.alarm.lock() = Some(self.home.clock().schedule(deadline, alarm));
        }
    }

    /// Returns a number that no other hold of this process has.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn set_acquired_in(&self, task: Owner) {
        let _ = self.acquired_in.set(task);
    }

    pub(crate) fn acquired_in(&self) -> Option<Owner> {
        self.acquired_in.get().copied()
    }

    pub(crate) fn id(&self) -> HolderId {
        match &self.grant().id {
            GrantedId::Attempt(id) => HolderId::new(id.to_string()),
            GrantedId::Given(id) => id.clone(),
            GrantedId::Number => HolderId::new(self.number.to_string()),
        }
    }

    pub(crate) fn name(&self) -> &LockName {
        self.home.name()
    }

    /// Returns the descriptor that keeps the lock held, for another process to inherit. So no hold follows on this one from
    /// now on; and of one that has ended there is none if another may have followed, which has the same descriptor.
    #[cfg(unix)]
    pub(crate) fn descriptor(&self) -> Option<&Arc<std::os::fd::OwnedFd>> {
        let grant = self.grant();
        self.is_inherited.store(true, Ordering::SeqCst);
        grant.descriptor.as_ref().filter(|_| grant.series.is_none() || self.is_standing())
    }

    /// What the client sent to the server about itself, at the grant; `None` without a server.
    pub(crate) fn holder(&self) -> Option<&Arc<HolderInfo>> {
        self.grant().options.as_ref().map(|options| &options.holder)
    }

    /// How long the holder needs to stop after it learns of a loss.
    pub(crate) fn abort_margin(&self) -> Duration {
        self.grant().options.as_ref().map_or(Duration::ZERO, |options| options.abort_margin)
    }

    /// What becomes of a body when this hold is lost.
    pub(crate) fn on_loss(&self) -> OnLoss {
        self.grant().options.as_ref().map_or(OnLoss::DropBody, |options| options.on_loss)
    }

    /// Adds an observer, unless the hold has one. Call this before the acquisition is reported.
    pub(crate) fn observe_with(&self, observer: &Arc<dyn Observer>) {
        let _ = self.observer.set(Arc::clone(observer));
    }

    pub(crate) fn observer(&self) -> Option<&Arc<dyn Observer>> {
        self.observer.get()
    }

    pub(crate) fn server(&self) -> &Arc<str> {
        self.home.server()
    }

    pub(crate) fn phase(&self) -> Phase<LossReason> {
        self.state.phase()
    }

    pub(crate) fn is_standing(&self) -> bool {
        self.state.phase() == Phase::Standing
    }

    /// Returns how long the hold is valid without a renewal: `None` when nothing limits it, zero when it has ended.
    pub(crate) fn remaining(&self) -> Option<Duration> {
        let own = match self.state.remaining(|| self.now()) {
            u64::MAX => None,
            nanoseconds => Some(Duration::from_nanos(nanoseconds)),
        };
        let parts = self.grant().parts.iter().filter_map(|part| part.remaining());
        parts.chain(own).chain(self.left_under()).min()
    }

    /// Returns how long ago the last deadline passed, whatever has become of the hold.
    pub(crate) fn overdue(&self) -> Duration {
        // Read the clock first: a renewal may move the deadline meanwhile.
        let now = self.now();
        let own = Duration::from_nanos(now.saturating_sub(self.state.last_deadline()));
        self.grant().parts.iter().map(|part| part.overdue()).fold(own, Duration::max)
    }

    pub(crate) fn age(&self) -> Duration {
        self.home.clock().now().since(self.granted_at)
    }

    fn logged(&self) -> log::Held<'_> {
        log::Held { lock: log::Lock { name: self.name(), server: self.server() }, token: self.grant().token }
    }

    pub(crate) fn log_loss(&self, reason: LossReason, known: Known) {
        match known {
            Known::Yes => {
                self.logged().lost(reason, self.age());
                self.count_end(Some(reason));
            }
            Known::NotYet => self.logged().lost_before_known(reason),
        }
    }

    fn counted_as(&self) -> Subject<'_> {
        Subject { name: self.name(), mode: self.grant().mode }
    }

    /// Counts the end of a hold that its owner has received.
    fn count_end(&self, loss: Option<LossReason>) {
        if let Some(metrics) = self.home.metrics() {
            metrics.ended(self.counted_as(), || self.age(), loss);
        }
    }

    fn now(&self) -> u64 {
        self.home.clock().now().as_nanoseconds()
    }

    /// The server has acknowledged a renewal that was sent at `anchor`, on the client's `clock`.
    pub(crate) fn renewed(self: &Arc<Self>, anchor: Moment, clock: &Clock) {
        let Lasting::Leased { validity, .. } = self.grant().lasting else {
            return self.declare_restored();
        };
        self.anchor.fetch_max(anchor.as_nanoseconds(), Ordering::AcqRel);
        let deadline = validity.deadline(anchor).min(self.longest());
        let now = || clock.now().as_nanoseconds();
        if self.state.renew(deadline.as_nanoseconds(), now) == Renewed::Restored {
            self.logged().restored();
            self.report_contact();
        }
    }

    /// Returns whether contact was lost, also when the release had begun.
    pub(crate) fn is_suspect(&self) -> bool {
        self.state.is_suspect()
    }

    pub(crate) fn declare_suspect(self: &Arc<Self>) {
        if self.state.suspect() {
            self.logged().suspect(self.remaining());
            self.report_contact();
        }
    }

    pub(crate) fn declare_restored(self: &Arc<Self>) {
        if self.state.restore() {
            self.logged().restored();
            self.report_contact();
        }
    }

    /// The backend has found the hold lost. Does nothing if the hold has ended or its release has begun.
    ///
    /// A lock that an operator has broken may still exist at the server. The operator takes it away, and the holder
    /// gets the abort margin. A loss that is found after the deadline has come too late to be the reason.
    pub(crate) fn declare_lost(self: &Arc<Self>, reason: LossReason) {
        let declared = if reason == LossReason::Broken { Declared::ByCore } else { Declared::ByBackend };
        // A deadline that has passed does not move any more.
        let is_over = self.state.verify(|| self.now(), LossReason::Expired).is_err();
        self.lose(if is_over { LossReason::Expired } else { reason }, declared);
    }

    /// The core takes the hold away from its holder, who gets the abort margin to stop.
    pub(crate) fn revoke(self: &Arc<Self>, reason: LossReason) {
        self.lose(reason, Declared::ByCore);
    }

    fn lose(self: &Arc<Self>, reason: LossReason, declared: Declared) {
        // Counted before the loss is reported: a caller that learns of it and then waits for `idle` also waits for the
        // undo.
        let undoing = self.home.expect_undoing();
        if self.state.lose(reason) {
            Arc::clone(&self.home).hold_lost(self, Loss { reason, declared }, undoing);
        }
    }

    /// The moment by which the server has certainly ended the lease by itself, if it is not renewed; never, if the
    /// server does not end leftovers by itself.
    pub(crate) fn gone_by(&self) -> Moment {
        match self.grant().lasting {
            Lasting::Leased { validity, .. } if self.home.leftovers_end() => {
                Moment::from_nanoseconds(self.state.last_deadline()).plus(validity.length_at_most())
            }
            _ => Moment::FOREVER,
        }
    }

    /// Returns the lease, unless the work that ends the hold at the server has begun.
    pub(crate) fn lease(&self) -> Option<AnyLease> {
        self.grant().lease.lock().clone()
    }

    /// Hands the lease over to the work that ends the hold at the server; returns `None` if that has already happened.
    pub(crate) fn take_lease(&self) -> Option<AnyLease> {
        self.grant().lease.lock().take()
    }

    /// Until when the hold is valid if its lease is not renewed; `None` when there is no lease.
    pub(crate) fn deadline(&self) -> Option<Moment> {
        match self.grant().lasting {
            Lasting::UntilReported => None,
            Lasting::Leased { .. } => Some(Moment::from_nanoseconds(self.state.last_deadline())),
        }
    }

    /// Returns when the lease has to be renewed for the first time; never, if there is no lease.
    pub(crate) fn first_renewal(&self) -> Moment {
        match self.grant().lasting {
            Lasting::UntilReported => Moment::FOREVER,
            Lasting::Leased { anchor, validity } => anchor.plus(validity.interval()),
        }
    }

    /// Returns how long after a renewal the next one is due; `None` if there is no lease.
    pub(crate) fn renewal_interval(&self) -> Option<Duration> {
        match self.grant().lasting {
            Lasting::UntilReported => None,
            Lasting::Leased { validity, .. } => Some(validity.interval()),
        }
    }

    /// Waits for a phase for which `wanted` returns a value. `watcher` keeps the place between polls.
    pub(crate) fn poll<T>(
        &self,
        watcher: &mut Option<u64>,
        context: &mut Context<'_>,
        wanted: impl Fn(&Phase<LossReason>) -> Option<T>,
    ) -> Poll<T> {
        self.state.poll(watcher, context, wanted)
    }

    /// Removes a watcher that was dropped.
    pub(crate) fn unwatch(&self, watcher: u64) {
        self.state.unwatch(watcher);
    }

    /// The server has answered the release, or the owner does not wait for it any longer.
    pub(crate) fn finish_release(self: &Arc<Self>, loss: Option<LossReason>) {
        if self.state.finish(loss) {
            self.logged().released(loss, || self.age());
            let known = self.reports.ended(Event::Released, |event| self.home.publish(event, self));
            if known == Known::Yes {
                self.count_end(loss);
            }
        }
        self.end_watch();
    }

    /// Ends the alarm. A hold with a grant that nothing limits never had one.
    pub(crate) fn end_watch(&self) {
        let first = self.first_grant.lasting.deadline().min(self.longest());
        if first != Moment::FOREVER || self.both.get().is_some() {
            let alarm = self.alarm.lock().take();
            drop(alarm);
        }
    }

    /// The owner has received the hold: reports the acquisition, once, and the end of the hold if that came first.
    pub(crate) fn report_acquired(self: &Arc<Self>) {
        self.home.seen();
        let mut is_new = false;
        let has_ended = self.reports.acquired(
            || self.state.contact(),
            |event| {
                is_new |= event == Event::Acquired;
                self.home.publish(event, self);
            },
        );
        if let (true, Some(metrics)) = (is_new, self.home.metrics()) {
            metrics.acquired(self.counted_as());
        }
        if has_ended && let Phase::Lost(reason) = self.state.phase() {
            self.log_loss(reason, Known::Yes);
        }
    }

    /// Reports the loss to an owner that has received the hold.
    pub(crate) fn report_lost(self: &Arc<Self>, reason: LossReason) -> Known {
        self.reports.ended(Event::Abort(reason), |event| self.home.publish(event, self))
    }

    fn report_contact(self: &Arc<Self>) {
        self.reports.contact_changed(|| self.state.contact(), |event| self.home.publish(event, self));
    }
}

impl fmt::Debug for HoldCore {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Hold")
            .field("name", self.name())
            .field("mode", &self.grant().mode)
            .field("token", &self.grant().token)
            .field("phase", &self.state.phase())
            .finish_non_exhaustive()
    }
}

/// Rings at the hold's deadline as it was when the alarm was set. Renewals do not move the alarm; it checks the
/// deadline and rings again.
struct Deadline(Weak<HoldCore>);

impl Alarm for Deadline {
    fn ring(&self, now: Moment) -> Option<Moment> {
        let hold = self.0.upgrade()?;
        let deadline = Moment::from_nanoseconds(hold.state.last_deadline());
        if now < deadline {
            return Some(deadline);
        }
        // Counted before the loss is reported, as in `lose`.
        let undoing = hold.home.expect_undoing();
        match hold.state.expire(now.max(hold.home.clock().now()).as_nanoseconds(), LossReason::Expired) {
            Checked::Until(deadline) => Some(Moment::from_nanoseconds(deadline)),
            Checked::Expired => {
                let loss = Loss { reason: LossReason::Expired, declared: Declared::ByCore };
                Arc::clone(&hold.home).hold_lost(&hold, loss, undoing);
                None
            }
            Checked::Over => None,
        }
    }
}

impl Reported for HoldCore {
    fn lost(self: Arc<Self>, reason: LossReason) {
        match self.heir_of_the_lease().filter(|_| !self.is_standing()) {
            Some(reader) => reader.declare_lost(reason),
            None => self.declare_lost(reason),
        }
    }
}

impl Occupant for Arc<HoldCore> {
    type Loss = LossReason;
    type Options = Arc<HoldOptions>;

    fn suits(&self, options: &Arc<HoldOptions>) -> bool {
        self.grant().options.as_ref().is_some_and(|own| Arc::ptr_eq(own, options) || own == options)
    }

    fn number(&self) -> u64 {
        self.number
    }

    fn verify(&self) -> Result<(), LossReason> {
        self.state.verify(|| self.now(), LossReason::Expired)?;
        self.verify_under()
    }

    fn begin_release(&self) -> Result<(), LossReason> {
        self.state.begin_release(|| self.now(), LossReason::Expired)
    }

    fn lost_unseen(&self) {
        let reason = self.verify().err().unwrap_or(LossReason::Expired);
        self.home.lost_unseen(self, reason);
    }

    /// A hold of a series passes to the next waiter without the server.
    fn may_be_followed(&self) -> bool {
        self.grant().series.is_none() && self.home.pipelines()
    }

    fn attach_reader(&self, reader: &Self) {
        *self.both.get_or_init(Box::default).reader.lock() = Some(Arc::downgrade(reader));
    }

    fn reader(&self) -> Option<Self> {
        self.both.get()?.reader.lock().as_ref()?.upgrade().filter(|reader| reader.is_standing())
    }
}
