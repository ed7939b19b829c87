//! Acquires a lock: enters the local lock, and waits there for the outcome.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::policy::client_lock::{ClientLock, Where};
use crate::policy::hold::{EventSink, Hold};
use crate::policy::local::{Entered, Settled, Ticket};
use crate::policy::log::{self, Trace};
use crate::runtime::log::log;
use crate::runtime::{AbortOnDrop, Moment, OnDrop, WaitOutcome, with_waker};
use crate::spi::{HoldOptions, Mode, Wait};
use crate::types::{FencingToken, HolderInfo, LockError, Operation, Owner};

/// What a caller asks of a lock, each time that it acquires it.
#[derive(Clone)]
pub(crate) struct Acquisition {
    pub(crate) mode: Mode,
    pub(crate) options: Arc<HoldOptions>,
    /// Receives the events of the holds that it gets, beside those of the client.
    pub(crate) events: Option<Arc<dyn EventSink>>,
    pub(crate) around: Around,
}

/// Returns how a caller that waits for this holder waits for itself, if it does. It runs no user code.
pub(crate) type Around = fn(Owner, &Hold) -> Option<Itself>;

/// What a caller waits for, if that is itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Itself {
    /// An owner that the caller acts for: while it waits, no code runs that could release the lock.
    Owner,
    /// One that reads, while the caller wants to write: however long it waits, it waits for itself.
    Reader,
    /// A guard that was made in the same task. It may have moved to another one since.
    Task,
}

/// How long a caller waits for itself before the log says so.
const PATIENT_FOR: Duration = Duration::from_secs(1);

impl ClientLock {
    /// Enters for `owner`: locally first, then remotely. Returns `None` when the lock could not be had in time.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        acquisition: &Acquisition,
        owner: Owner,
        wait: Wait,
    ) -> Result<Option<Hold>, LockError> {
        let span = self.wait_span(acquisition.mode);
        let enter = || {
            let _inside = span.enter();
            self.turn(Where::Here, |local, turn| local.enter(turn, owner, wait, acquisition))
        };
        let mut writer = None;
        let settled = loop {
            match enter() {
                Entered::BehindItself => {
                    // So it waits for the write side, too, and leaves that again.
                    let exclusive =
                        Acquisition { mode: Mode::Exclusive, events: None, ..acquisition.clone() };
                    let acquiring = Box::pin(self.acquire(&exclusive, owner, wait));
                    let Some(hold) = acquiring.await? else { return Ok(None) };
                    writer = Some(OnDrop(move || self.leave_in_background(owner, &hold)));
                }
                Entered::Waiting { ticket, since } => {
                    let queued = QueuedWait::new(self, ticket, since, (owner, acquisition), span);
                    drop(writer.take());
                    break queued.await;
                }
                Entered::Settled(settled) => {
                    let outcome = WaitOutcome::from(&settled);
                    log::wait_ended(&span, outcome, settled.token(), || Duration::ZERO);
                    // A reentry is no wait.
                    if !matches!(settled, Settled::Granted(_)) {
                        self.metrics_in(acquisition.mode).waited(outcome, || Duration::ZERO);
                    }
                    break settled;
                }
            }
        };
        match settled {
            Settled::Granted(hold) => {
                if let Some(events) = &acquisition.events {
                    hold.also_tell(events);
                }
                hold.report_acquired();
                Ok(Some(hold))
            }
            Settled::Refused => Ok(None),
            Settled::Failed(error) => Err(self.about(error).during(Operation::Acquire)),
            Settled::Lost(reason) => Err(self.lost(Operation::Acquire, reason)),
        }
    }
}

impl Settled {
    fn token(&self) -> Option<FencingToken> {
        if let Self::Granted(hold) = self { hold.grant().token } else { None }
    }
}

impl From<&Settled> for WaitOutcome {
    fn from(settled: &Settled) -> Self {
        match settled {
            Settled::Granted(_) => Self::Acquired,
            Settled::Refused => Self::Busy,
            Settled::Failed(_) => Self::Failed,
            Settled::Lost(_) => Self::Lost,
        }
    }
}

impl ClientLock {
    /// Warns of a wait that goes on, unless the returned value is dropped before. Another task does that, because the waiter is
    /// only to be woken with the lock.
    fn warn_of_itself(&self) -> AbortOnDrop<()> {
        let end = self.clock().sleep_until(self.clock().now().plus(PATIENT_FOR));
        let name = self.name().clone();
        AbortOnDrop(self.client.engine.spawn(async move {
            end.await;
            log!(warn, lock = %name, "a task waits for a lock that it holds itself, under another owner");
        }))
    }
}

/// A place in the line.
///
/// Dropping it leaves the line; what was on its way to it goes to the next waiter, or back to the server.
struct QueuedWait {
    lock: Arc<ClientLock>,
    /// `None` when the wait has ended.
    ticket: Option<Ticket>,
    owner: Owner,
    mode: Mode,
    holder: Arc<HolderInfo>,
    around: Around,
    since: Moment,
    /// Whether the wait was still undecided at the first poll.
    has_waited: bool,
    warning: Option<AbortOnDrop<()>>,
    span: Trace,
}

impl QueuedWait {
    fn new(
        lock: &Arc<ClientLock>,
        ticket: Ticket,
        since: Moment,
        (owner, acquisition): (Owner, &Acquisition),
        span: Trace,
    ) -> Self {
        lock.metrics_in(acquisition.mode).waiters(1.0);
        Self {
            lock: Arc::clone(lock),
            ticket: Some(ticket),
            owner,
            mode: acquisition.mode,
            holder: Arc::clone(&acquisition.options.holder),
            around: acquisition.around,
            since,
            has_waited: false,
            warning: None,
            span,
        }
    }

    fn waited(&self) -> Duration {
        self.lock.clock().now().since(self.since)
    }

    fn log(&self, settled: &Settled) {
        let (lock, waited) = (&self.lock, || self.waited());
        let (outcome, token) = (WaitOutcome::from(settled), settled.token());
        lock.metrics_in(self.mode).waited(outcome, waited);
        log::wait_ended(&self.span, outcome, token, waited);
        match settled {
            Settled::Granted(_) => lock.log_granted(&self.holder, token, waited),
            Settled::Refused => lock.log_not_granted(waited, &"another holder has it, or comes before"),
            Settled::Failed(error) => lock.log_not_granted(waited, error),
            Settled::Lost(reason) => lock.log_not_granted(waited, reason),
        }
    }
}

impl Future for QueuedWait {
    type Output = Settled;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let wait = &mut *self;
        let Some(ticket) = wait.ticket else { return Poll::Pending };
        let _inside = wait.span.enter();
        let polled = with_waker(context, |waker| {
            wait.lock.turn(Where::OnEngine, |local, turn| local.poll(turn, ticket, waker))
        });
        let Poll::Ready(settled) = polled else {
            if !std::mem::replace(&mut wait.has_waited, true) {
                wait.lock.log_waiting(&wait.holder);
                let (owner, mode, around) = (wait.owner, wait.mode, wait.around);
                if wait.lock.look(|local| local.waits_for(owner, mode, around)).is_some() {
                    wait.warning = Some(wait.lock.warn_of_itself());
                }
            }
            return Poll::Pending;
        };
        wait.ticket = None;
        wait.warning = None;
        wait.log(&settled);
        Poll::Ready(settled)
    }
}

impl Drop for QueuedWait {
    fn drop(&mut self) {
        let metrics = self.lock.metrics_in(self.mode);
        if let Some(ticket) = self.ticket.take() {
            self.lock.turn(Where::Here, |local, turn| local.leave(turn, ticket));
            metrics.waited(WaitOutcome::Cancelled, || self.waited());
            log::wait_ended(&self.span, WaitOutcome::Cancelled, None, || self.waited());
        }
        metrics.waiters(-1.0);
    }
}
