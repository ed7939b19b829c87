//! What an owner sees of a held lock: its token, its deadline, its events, and how it ends.
//!
//! The lease that it stands on is in the [local lock](super::local) of its lock, which alone ends the hold. One lease may serve
//! several holds: one after the other, or a writer and the same owner as a reader.

mod seen;
pub(crate) mod state;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::runtime::{Clock, Few, LockMetrics, Metrics, Moment};
use crate::spi::{AcquireRequest, HoldOptions};
use crate::types::{FencingToken, HoldEnd, HolderId, HolderInfo, LockError, LockName, LossReason, Owner};
use state::{Event, HoldState, Phase};

/// Receives the events of the holds of a lock. It runs no user code.
pub(crate) trait EventSink: Send + Sync {
    fn publish(&self, event: Event, hold: &Hold);
}

/// The lock that a hold belongs to.
pub(crate) trait Home: Send + Sync {
    fn about(&self) -> About<'_>;

    /// Queues an event for the listeners. It runs no user code.
    fn publish(&self, event: Event, hold: &Hold);
}

/// What a hold has to know of its lock.
pub(crate) struct About<'h> {
    pub(crate) name: &'h LockName,
    pub(crate) clock: &'h Clock,
    /// The address of the server, for the log.
    pub(crate) server: &'h str,
    /// The metrics of the client, if there is one. Recording runs foreign code.
    pub(crate) metrics: Option<&'h Metrics>,
}

/// A held lock. It is cheap to clone; all clones report the same state.
///
/// A hold does not keep the lock held: the [`LockGuard`](crate::LockGuard), or the owner who called `lock`, does.
#[derive(Clone)]
pub struct Hold(pub(crate) Arc<HoldCore>);

/// Two holds are equal when they are the same hold: of the same grant.
impl PartialEq for Hold {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Hold {}

pub(crate) struct HoldCore {
    home: Arc<dyn Home>,
    /// A number that no other hold of this process has.
    pub(crate) number: u64,
    first: HoldGrant,
    /// What replaced it, when a writer became a reader.
    later: OnceLock<Box<HoldGrant>>,
    /// The holds that this one consists of: it is valid only while all of them are. Empty for most holds.
    pub(crate) parts: Box<[Hold]>,
    granted_at: Moment,
    /// The task or thread that received the hold first.
    pub(crate) acquired_in: OnceLock<Owner>,
    pub(crate) state: HoldState,
    /// Why its release has no certain result.
    pub(crate) failure: OnceLock<LockError>,
    /// Receives the events, beside those of the client.
    events: OnceLock<Arc<dyn EventSink>>,
    /// Whether another process may have inherited the descriptor.
    is_inherited: AtomicBool,
}

/// What the server granted. Several locks together have nothing of it.
#[derive(Clone, Default)]
pub(crate) struct HoldGrant {
    /// The number of the lease.
    pub(crate) lease: u64,
    /// The attempt, or the one that is to make the lease of a writer that of this reader.
    pub(crate) request: Option<AcquireRequest>,
    /// The id under which the server shows the hold, if it is not that of the attempt.
    pub(crate) holder: Option<HolderId>,
    pub(crate) token: Option<FencingToken>,
    #[cfg(unix)]
    pub(crate) descriptor: Option<Arc<std::os::fd::OwnedFd>>,
}

impl HoldGrant {
    fn options(&self) -> Option<&HoldOptions> {
        self.request.as_ref().map(|request| &**request.options())
    }
}

static NEXT_HOLD: AtomicU64 = AtomicU64::new(0);

impl Hold {
    /// Creates a hold that begins now and lasts until `deadline`, unless its lease is renewed or its options end it earlier.
    pub(crate) fn new(home: Arc<dyn Home>, first: HoldGrant, parts: Box<[Self]>, deadline: Moment) -> Self {
        let granted_at = home.about().clock.now();
        let deadline = deadline.min(longest(&first, granted_at));
        Self(Arc::new(HoldCore {
            home,
            number: NEXT_HOLD.fetch_add(1, Ordering::Relaxed),
            first,
            later: OnceLock::new(),
            parts,
            granted_at,
            acquired_in: OnceLock::new(),
            state: HoldState::new(deadline.as_nanoseconds()),
            failure: OnceLock::new(),
            events: OnceLock::new(),
            is_inherited: AtomicBool::new(false),
        }))
    }

    /// Returns what the server granted last.
    pub(crate) fn grant(&self) -> &HoldGrant {
        self.0.later.get().map_or(&self.0.first, |later| later)
    }

    /// The server has granted this hold a lease of its own.
    pub(crate) fn granted_later(&self, grant: HoldGrant) {
        let _ = self.0.later.set(Box::new(grant));
    }

    /// Whether another process may have inherited the descriptor.
    pub(crate) fn is_inherited(&self) -> bool {
        self.0.is_inherited.load(Ordering::SeqCst)
    }

    /// What the client sent to the server about itself, at the grant; `None` without a server.
    pub(crate) fn holder(&self) -> Option<&Arc<HolderInfo>> {
        self.grant().options().map(|options| &options.holder)
    }

    /// How long the holder needs to stop after it learns of a loss.
    pub(crate) fn abort_margin(&self) -> Duration {
        self.grant().options().map_or(Duration::ZERO, |options| options.abort_margin)
    }

    /// Whether a body runs to its end when this hold is lost.
    pub(crate) fn finishes_body(&self) -> bool {
        self.grant().options().is_some_and(|options| options.finishes_body)
    }

    /// Has its events told to these, too, unless there are some. Call this before the acquisition is reported.
    pub(crate) fn also_tell(&self, events: &Arc<dyn EventSink>) {
        let _ = self.0.events.set(Arc::clone(events));
    }

    pub(crate) fn server(&self) -> &str {
        self.0.home.about().server
    }

    pub(crate) fn is_standing(&self) -> bool {
        self.0.state.phase() == Phase::Standing
    }

    /// Until when the hold is valid if its lease is not renewed; never, if nothing limits it.
    pub(crate) fn deadline(&self) -> Moment {
        Moment::from_nanoseconds(self.0.state.last_deadline())
    }

    fn now(&self) -> u64 {
        self.0.home.about().clock.now().as_nanoseconds()
    }
}

/// What the local lock, or several locks, do with a hold.
impl Hold {
    fn publish(&self, event: Event) {
        self.0.home.publish(event, self);
        if let Some(events) = self.0.events.get() {
            events.publish(event, self);
        }
    }

    /// The lease lasts until `deadline` now. Returns whether contact had been suspect.
    pub(crate) fn renew(&self, deadline: Moment) -> bool {
        let deadline = deadline.min(longest(&self.0.first, self.0.granted_at));
        self.0.state.renew(deadline.as_nanoseconds(), || self.now(), |event| self.publish(event))
    }

    /// Contact is lost. Returns whether that is new for a hold that stands.
    pub(crate) fn suspect(&self) -> bool {
        self.0.state.suspect(|event| self.publish(event))
    }

    /// Declares the hold lost, if it stands. Returns what is to be reported.
    pub(crate) fn lose(&self, reason: LossReason, woken: &mut Few<Waker>) -> Option<EndedHold> {
        let mut ended =
            EndedHold { hold: self.clone(), loss: Some(reason), was_known: false, was_released: false };
        self.0.state.lose(reason, |event| ended.publish(event), woken).then_some(ended)
    }

    /// The server has answered the release, or the owner does not wait for it any longer. Returns what is to be reported, if
    /// that has ended the hold now.
    pub(crate) fn finish(
        &self,
        loss: Option<LossReason>,
        failure: Option<LockError>,
        woken: &mut Few<Waker>,
    ) -> Option<EndedHold> {
        if let Some(failure) = failure {
            let _ = self.0.failure.set(failure);
        }
        let mut ended = EndedHold { hold: self.clone(), loss, was_known: false, was_released: true };
        self.0.state.finish(loss, |event| ended.publish(event), woken).then_some(ended)
    }

    /// The owner has received the hold: reports the acquisition, once, and the end of the hold if that came first.
    pub(crate) fn report_acquired(&self) {
        let mut loss = None;
        let is_new = self.0.state.acquired(|event| {
            self.publish(event);
            if let Event::Abort(reason) = event {
                loss = Some(reason);
            }
        });
        if !is_new {
            return;
        }
        if let Some(metrics) = self.metrics() {
            metrics.acquired();
            if self.is_term() {
                metrics.leads(1.0, 1);
            }
        }
        if loss.is_some() {
            EndedHold { hold: self.clone(), loss, was_known: true, was_released: false }.report();
        }
    }

    fn metrics(&self) -> Option<LockMetrics<'_>> {
        self.0.home.about().metrics.map(|metrics| metrics.of(self.name(), self.mode()))
    }

    fn is_term(&self) -> bool {
        self.grant().options().is_some_and(|options| options.is_term)
    }
}

/// A hold that has ended, for the log and the metrics.
pub(crate) struct EndedHold {
    hold: Hold,
    loss: Option<LossReason>,
    /// Whether its owner had received it.
    was_known: bool,
    was_released: bool,
}

impl EndedHold {
    fn publish(&mut self, event: Event) {
        self.was_known = true;
        self.hold.publish(event);
    }

    /// Runs foreign code, so no mutex is locked and the deadline thread does not call it.
    pub(crate) fn report(&self) {
        let Self { hold, loss, was_known, was_released } = self;
        match *loss {
            Some(reason) if !was_released => hold.log_lost(reason, *was_known),
            loss => hold.log_released(loss),
        }
        if *was_known && let Some(metrics) = hold.metrics() {
            metrics.ended(|| hold.held_for(), *loss);
            if hold.is_term() {
                metrics.leads(-1.0, 0);
            }
        }
    }
}

/// Watches a hold, until it has ended or this is dropped.
pub(crate) struct UntilEnded {
    hold: Hold,
    watcher: Option<u64>,
}

impl Future for UntilEnded {
    type Output = HoldEnd;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<HoldEnd> {
        let Self { hold, watcher } = &mut *self;
        hold.0.state.poll(watcher, context)
    }
}

impl Drop for UntilEnded {
    fn drop(&mut self) {
        if let Some(watcher) = self.watcher {
            self.hold.0.state.unwatch(watcher);
        }
    }
}

/// When the hold ends even if it is renewed, if its options limit it.
fn longest(grant: &HoldGrant, granted_at: Moment) -> Moment {
    let max_hold = grant.options().and_then(|options| options.max_hold);
    max_hold.map_or(Moment::FOREVER, |length| granted_at.plus(length))
}

impl fmt::Debug for Hold {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Hold")
            .field("name", self.name())
            .field("mode", &self.mode())
            .field("token", &self.grant().token)
            .field("phase", &self.0.state.phase())
            .finish_non_exhaustive()
    }
}
