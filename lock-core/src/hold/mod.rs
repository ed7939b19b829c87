//! A held lock: what its holder can ask of it, and how it ends.

pub(crate) mod reports;
pub(crate) mod state;

use std::fmt;
use std::future::{Future, poll_fn};
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::backend::{AnyLease, GroupId};
use crate::clock::{Alarm, AlarmHandle, Moment};
use crate::front::Front;
use crate::janitor::Chore;
use crate::local::Occupant;
use crate::log;
use crate::name::LockName;
use crate::sync::Mutex;
use crate::token::FencingToken;
use crate::validity::Validity;
use reports::{Event, Known, Reports};
use state::{Checked, HoldState, Phase, Renewed};

/// Why a hold was lost, as far as that is known: the reason is best effort, the loss is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum LossReason {
    /// It could not be renewed before its deadline, or reached the greatest length that the client allows.
    #[error("its lease expired")]
    Expired,
    /// What stood for it at the server was deleted.
    #[error("what stood for it was deleted")]
    Deleted,
    /// Someone else has it.
    #[error("someone else has taken it")]
    Taken,
    /// The session that it belonged to has ended.
    #[error("its session was closed")]
    SessionClosed,
    /// This program closed its own client while the lock was held; the server had no part in it.
    #[error("its client was closed while it was held")]
    ClientClosed,
    /// The connection that it belonged to is gone, and the lock with it.
    #[error("the connection that it belonged to is gone")]
    ConnectionLost,
    /// An operator took it away.
    #[error("it was broken by an operator")]
    Broken,
}

/// How a hold ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HoldEnd {
    /// Its owner released it.
    Released,
    /// It was lost.
    Lost(LossReason),
}

/// A held lock. Cheap to clone; every clone tells the same.
///
/// A hold does not keep the lock held: the [`LockGuard`](crate::LockGuard), or the owner who called `lock`, does.
#[derive(Clone)]
pub struct Hold(pub(crate) Arc<HoldCore>);

impl Hold {
    /// The lock.
    pub fn name(&self) -> &LockName {
        self.0.front.name()
    }

    /// The fencing token, on a backend that has them.
    pub fn token(&self) -> Option<FencingToken> {
        self.0.grant.token
    }

    /// Whether the lock is held now, by the clock: it has been neither lost nor released, and its deadline has not
    /// passed.
    ///
    /// Between this answer and whatever follows it the process may be paused for any length of time. Only the
    /// [fencing token](FencingToken) protects against that.
    pub fn is_valid(&self) -> bool {
        self.0.state.remaining(|| self.0.now()) > 0
    }

    /// How long the hold is valid if no renewal succeeds from now on; `None` where there is no lease, zero when it has
    /// ended.
    pub fn remaining(&self) -> Option<Duration> {
        match self.0.state.remaining(|| self.0.now()) {
            u64::MAX => None,
            nanoseconds => Some(Duration::from_nanos(nanoseconds)),
        }
    }

    /// How long ago the hold's last deadline passed, whatever has become of the hold; zero before it, and where there is none.
    ///
    /// After a loss, this is how late the loss was noticed, as by a process that was stopped meanwhile: what the holder has to do
    /// within the abort margin, it has to do in that much less.
    pub fn overdue(&self) -> Duration {
        // The clock first: a renewal may move the deadline meanwhile.
        let now = self.0.now();
        Duration::from_nanos(now.saturating_sub(self.0.state.last_deadline()))
    }

    /// How long ago the lock was granted.
    pub fn age(&self) -> Duration {
        self.0.front.clock().now().since(self.0.granted_at)
    }

    /// How the hold ended, if it has.
    pub fn end(&self) -> Option<HoldEnd> {
        ended(&self.0.state.phase())
    }

    /// Waits until the hold is lost, and tells why; `None` when it has been released instead, so that a task that waits for
    /// this ends with the hold. In a `select!`, `Some(reason) = hold.lost()` leaves a release aside.
    ///
    /// # Cancel safety
    /// May be dropped and called again at any time.
    pub fn lost(&self) -> impl Future<Output = Option<LossReason>> + Send + use<> {
        watch(&self.0, |phase| match ended(phase)? {
            HoldEnd::Lost(reason) => Some(Some(reason)),
            HoldEnd::Released => Some(None),
        })
    }

    /// Waits until the hold has ended, one way or the other.
    ///
    /// # Cancel safety
    /// May be dropped and called again at any time.
    pub fn ended(&self) -> impl Future<Output = HoldEnd> + Send + use<> {
        watch(&self.0, ended)
    }

    /// A descriptor that keeps the lock held for as long as any process has it open, on a backend that works that way:
    /// a child that inherits it keeps the lock even when this process is killed.
    #[cfg(unix)]
    pub fn descriptor(&self) -> Option<&Arc<std::os::fd::OwnedFd>> {
        self.0.grant.descriptor.as_ref()
    }
}

fn watch<T, W>(hold: &Arc<HoldCore>, wanted: W) -> impl Future<Output = T> + Send + use<T, W>
where
    W: Fn(&Phase<LossReason>) -> Option<T> + Send,
{
    let mut watcher = Watcher { hold: Arc::clone(hold), place: None };
    poll_fn(move |context| {
        let Watcher { hold, place } = &mut watcher;
        hold.state.poll(place, context, &wanted)
    })
}

fn ended(phase: &Phase<LossReason>) -> Option<HoldEnd> {
    match phase {
        Phase::Released => Some(HoldEnd::Released),
        Phase::Lost(reason) => Some(HoldEnd::Lost(*reason)),
        Phase::Standing | Phase::Releasing => None,
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, formatter)
    }
}

struct Watcher {
    hold: Arc<HoldCore>,
    place: Option<u64>,
}

impl Drop for Watcher {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            self.hold.state.unwatch(place);
        }
    }
}

/// What a hold is made of.
pub(crate) struct HoldCore {
    pub(crate) front: Arc<Front>,
    pub(crate) grant: Granted,
    pub(crate) granted_at: Moment,
    /// That no other hold of this process has.
    number: u64,
    state: HoldState<LossReason>,
    /// When the hold ends although it is renewed, if the client bounds it.
    longest: Moment,
    alarm: Mutex<Option<AlarmHandle>>,
    reports: Reports<LossReason>,
}

/// What the server gave, and what follows from it.
pub(crate) struct Granted {
    /// Until the work that ends the hold at the server takes it: what a user keeps of an ended hold keeps nothing there.
    pub(crate) lease: Mutex<Option<AnyLease>>,
    pub(crate) group: GroupId,
    pub(crate) token: Option<FencingToken>,
    /// Where the attempt stood in the server's queue, if it did.
    pub(crate) place: Option<NonZeroU64>,
    pub(crate) lasting: Lasting,
    #[cfg(unix)]
    pub(crate) descriptor: Option<Arc<std::os::fd::OwnedFd>>,
}

/// Who found that a hold is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Declared {
    /// The backend: the server does not have it any more.
    ByBackend,
    /// The core, in time for the holder to stop: the server may have it still.
    ByCore,
}

/// A loss, as it is found.
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

static NEXT_HOLD: AtomicU64 = AtomicU64::new(0);

impl HoldCore {
    pub(crate) fn new(front: Arc<Front>, grant: Granted) -> Arc<Self> {
        let granted_at = front.clock().now();
        let longest =
            front.client().settings.max_hold.map_or(Moment::FOREVER, |length| granted_at.plus(length));
        let deadline = match grant.lasting {
            Lasting::UntilReported => longest,
            Lasting::Leased { anchor, validity } => validity.deadline(anchor).min(longest),
        };
        let hold = Arc::new(Self {
            front,
            grant,
            granted_at,
            number: NEXT_HOLD.fetch_add(1, Ordering::Relaxed),
            state: HoldState::new(deadline.as_nanoseconds()),
            longest,
            alarm: Mutex::new(None),
            reports: Reports::new(),
        });
        hold.watch_deadline(deadline);
        hold
    }

    fn watch_deadline(self: &Arc<Self>, deadline: Moment) {
        if deadline != Moment::FOREVER {
            let alarm = Arc::new(Deadline(Arc::downgrade(self)));
            *self.alarm.lock() = Some(self.front.clock().schedule(deadline, alarm));
        }
    }

    fn now(&self) -> u64 {
        self.front.clock().now().as_nanoseconds()
    }

    /// A renewal that was sent at `anchor` has been acknowledged.
    pub(crate) fn renewed(self: &Arc<Self>, anchor: Moment) {
        let Lasting::Leased { validity, .. } = self.grant.lasting else {
            return self.declare_restored();
        };
        let deadline = validity.deadline(anchor).min(self.longest);
        if self.state.renew(deadline.as_nanoseconds(), || self.now()) == Renewed::Restored {
            log::restored(self);
            self.report_contact();
        }
    }

    pub(crate) fn declare_suspect(self: &Arc<Self>) {
        if self.state.suspect() {
            log::suspect(self);
            self.report_contact();
        }
    }

    pub(crate) fn declare_restored(self: &Arc<Self>) {
        if self.state.restore() {
            log::restored(self);
            self.report_contact();
        }
    }

    /// The backend has found the hold lost, unless it has ended or its release has begun.
    ///
    /// One that an operator has broken may still be there: it is the operator who takes it, and the holder gets the abort margin.
    pub(crate) fn declare_lost(self: &Arc<Self>, reason: LossReason) {
        let declared = if reason == LossReason::Broken { Declared::ByCore } else { Declared::ByBackend };
        self.lose(reason, declared);
    }

    /// The core takes the hold from its holder, who gets the abort margin to stop.
    pub(crate) fn revoke(self: &Arc<Self>, reason: LossReason) {
        self.lose(reason, Declared::ByCore);
    }

    fn lose(self: &Arc<Self>, reason: LossReason, declared: Declared) {
        // Counted before anybody is told: whoever is told and then waits for `idle` waits for the undoing as well.
        let chore = Chore::begin(&self.front);
        if self.state.lose(reason) {
            self.front.hold_lost(self, Loss { reason, declared }, chore);
        }
    }

    /// From when on the server has certainly ended the lease by itself, if it is not renewed; never, where what is left there
    /// does not end by itself.
    pub(crate) fn gone_by(&self) -> Moment {
        let ends_by_itself = self.front.client().backend.capabilities().leftovers_last.is_some();
        match self.grant.lasting {
            Lasting::Leased { validity, .. } if ends_by_itself => {
                Moment::from_nanoseconds(self.state.last_deadline()).plus(validity.length_at_most())
            }
            _ => Moment::FOREVER,
        }
    }

    /// The lease, unless the hold's end at the server has begun.
    pub(crate) fn lease(&self) -> Option<AnyLease> {
        self.grant.lease.lock().clone()
    }

    /// Hands the lease over to whoever ends the hold at the server; `None` when that is done already.
    pub(crate) fn take_lease(&self) -> Option<AnyLease> {
        self.grant.lease.lock().take()
    }

    pub(crate) fn is_standing(&self) -> bool {
        self.state.phase() == Phase::Standing
    }

    /// Until when the server may believe that this client holds the lock, if nothing renews it.
    pub(crate) fn deadline(&self) -> Option<Moment> {
        match self.grant.lasting {
            Lasting::UntilReported => None,
            Lasting::Leased { .. } => Some(Moment::from_nanoseconds(self.state.last_deadline())),
        }
    }

    /// The release has been answered, or is not waited for any longer.
    pub(crate) fn finish_release(self: &Arc<Self>, loss: Option<LossReason>) {
        if self.state.finish(loss) {
            log::released(self, loss);
            self.reports.ended(Event::Released, |event| self.front.announce(event, self));
        }
        self.end_watch();
    }

    pub(crate) fn end_watch(&self) {
        let alarm = self.alarm.lock().take();
        drop(alarm);
    }

    /// The owner has the hold in hand: reports the acquisition, once, and what came of the hold if that was quicker.
    pub(crate) fn report_acquired(self: &Arc<Self>) {
        self.front.nothing_lost_unseen();
        let has_ended =
            self.reports.acquired(|| self.state.contact(), |event| self.front.announce(event, self));
        if let (true, Phase::Lost(reason)) = (has_ended, self.state.phase()) {
            log::lost(self, reason, Known::Yes);
        }
    }

    /// Reports the loss to an owner who has the hold in hand.
    pub(crate) fn report_lost(self: &Arc<Self>, reason: LossReason) -> Known {
        self.reports.ended(Event::Abort(reason), |event| self.front.announce(event, self))
    }

    fn report_contact(self: &Arc<Self>) {
        self.reports.contact_changed(|| self.state.contact(), |event| self.front.announce(event, self));
    }
}

impl fmt::Debug for HoldCore {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Hold")
            .field("name", self.front.name())
            .field("token", &self.grant.token)
            .field("phase", &self.state.phase())
            .finish_non_exhaustive()
    }
}

/// Rings when the hold's deadline has come, as it was when the alarm was set: renewals do not touch the alarm, it looks
/// again instead.
struct Deadline(Weak<HoldCore>);

impl Alarm for Deadline {
    fn ring(&self, now: Moment) -> Option<Moment> {
        let hold = self.0.upgrade()?;
        // Counted before anybody is told, as in `lose`.
        let chore = Chore::begin(&hold.front);
        match hold.state.expire(now.max(hold.front.clock().now()).as_nanoseconds(), LossReason::Expired) {
            Checked::Until(deadline) => Some(Moment::from_nanoseconds(deadline)),
            Checked::Expired => {
                let loss = Loss { reason: LossReason::Expired, declared: Declared::ByCore };
                hold.front.hold_lost(&hold, loss, chore);
                None
            }
            Checked::Over => None,
        }
    }
}

impl Occupant for Arc<HoldCore> {
    type Loss = LossReason;

    fn number(&self) -> u64 {
        self.number
    }

    fn verify(&self) -> Result<(), LossReason> {
        self.state.verify(|| self.now(), LossReason::Expired)
    }

    fn begin_release(&self) -> Result<(), LossReason> {
        self.state.begin_release(|| self.now(), LossReason::Expired)
    }

    fn lost_unseen(&self) {
        self.front.keep_lost_place(self.grant.place);
        let reason = self.verify().err().unwrap_or(LossReason::Expired);
        self.front.lost_unseen.lock().add(self.number, reason);
    }
}
