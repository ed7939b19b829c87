//! Drives a backend on behalf of the local queue: one attempt at a time, retried while somebody waits, undone when nobody
//! does.
//!
//! An attempt is stopped from outside when its last waiter has left. The future of the backend is then dropped, whatever
//! it was doing, and the janitor undoes the attempt. A grant that arrives when nobody waits is given back at once.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::backend::{AcquireRequest, AnyLease, Grant, Term, Wait};
use crate::engine::contained;
use crate::error::{ErrorKind, LockError, Operation};
use crate::front::Front;
use crate::hold::{Granted, HoldCore, Lasting, LossReason};
use crate::janitor::{self, Chore};
use crate::local::{Attempted, Occupant, Patience, Start, Undo};
use crate::log;
use crate::supervise::Backoff;
use crate::sync::Mutex;
use crate::validity::Validity;

type Outcome = Attempted<Arc<HoldCore>, LockError>;

const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Makes the attempt, and those that follow from it, until the queue needs none.
pub(crate) fn drive(
    front: Arc<Front>,
    start: Start<Arc<AcquireRequest>>,
) -> impl Future<Output = ()> + Send + 'static {
    // Made now and not at the first poll, which a runtime that has ended never makes.
    let mut unfinished = Unfinished { front, state: Progress::UnderWay };
    async move {
        let front = Arc::clone(&unfinished.front);
        let mut next = Some(start);
        while let Some(Start { attempt: request, patience }) = next {
            unfinished.is(Progress::UnderWay);
            let outcome = make_attempt(&front, &request, patience).await;
            if !matches!(outcome, Some(Attempted::Granted(_))) {
                front.nothing_lost_unseen();
            }
            unfinished.is(Progress::Answered);
            next = if let Some(outcome) = outcome {
                report(&front, &request, outcome)
            } else {
                janitor::cancel(&front, &request);
                None
            };
        }
    }
}

fn report(
    front: &Arc<Front>,
    request: &Arc<AcquireRequest>,
    outcome: Outcome,
) -> Option<Start<Arc<AcquireRequest>>> {
    let may_have_left_something = matches!(outcome, Attempted::Failed(_) | Attempted::Void);
    // Counted before anybody is told: whoever is told and then waits for `idle` waits for the undoing as well.
    let _counted = may_have_left_something.then(|| Chore::begin(front));
    if matches!(outcome, Attempted::Void) {
        front.keep_lost_place(request.signals.place());
    }
    let (undo, next) = front.local.attempted(outcome, |patience| front.new_attempt(patience));
    front.undo(undo);
    if may_have_left_something {
        janitor::cancel(front, request);
    } else {
        // If it was stopped too late to notice: what there was to undo has been handed over by now.
        drop(request.signals.take_chore());
    }
    next
}

/// Tells the queue when an attempt is dropped unfinished.
struct Unfinished {
    front: Arc<Front>,
    state: Progress,
}

#[derive(PartialEq)]
enum Progress {
    UnderWay,
    Answered,
}

impl Unfinished {
    fn is(&mut self, state: Progress) {
        self.state = state;
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if self.state == Progress::Answered {
            return;
        }
        let ended = LockError::new(ErrorKind::Closed, Operation::Acquire)
            .because("the runtime that the client's work runs on has ended");
        let _ = self.front.local.close(&ended);
    }
}

/// Makes one attempt until it has an outcome; `None` when it was stopped because nobody waits any more.
async fn make_attempt(
    front: &Arc<Front>,
    request: &Arc<AcquireRequest>,
    patience: Patience,
) -> Option<Outcome> {
    let client = front.client();
    if patience != Patience::Once {
        pause_after_losses(front, request).await?;
    }
    let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
    loop {
        let acquiring = contained(Operation::Acquire, client.backend.acquire(request));
        match until_stopped(request, acquiring).await? {
            Ok(Some(grant)) => return Some(hold_of(front, request, grant)),
            Ok(None) => return Some(refused(front, request)),
            Err(error) if error.is_retryable() && patience != Patience::Once => {
                tracing::debug!(target: "distlock", lock = %front.name(), %error, "an attempt failed and is repeated");
                request.signals.unreachable(error);
            }
            Err(error) => return Some(Attempted::Failed(error)),
        }
        let pause = client.clock.now().plus(backoff.next_pause());
        until_stopped(request, client.clock.sleep_until(pause)).await?;
    }
}

/// The backend has not got it: an answer when the time is up, else nothing that anyone could be told.
fn refused(front: &Front, request: &AcquireRequest) -> Outcome {
    let now = front.clock().now();
    match request.wait() {
        Wait::Try => Attempted::Refused { by: u64::MAX },
        Wait::Until(deadline) if now >= deadline => Attempted::Refused { by: now.as_nanoseconds() },
        Wait::Until(_) | Wait::Forever => Attempted::Void,
    }
}

/// Grants in a row that were lost before their waiter had them.
#[derive(Debug, Default)]
pub(crate) struct LostUnseen {
    in_a_row: u32,
    /// The number of the last of them.
    last: Option<u64>,
    /// Why, until the next attempt has paused for it.
    not_paused_for: Option<LossReason>,
    backoff: Option<Backoff>,
}

impl LostUnseen {
    /// The hold with this number is one of them. Several may have waited for it.
    pub(crate) fn add(&mut self, number: u64, reason: LossReason) {
        if self.last != Some(number) {
            self.last = Some(number);
            self.in_a_row = self.in_a_row.saturating_add(1);
            self.not_paused_for = Some(reason);
        }
    }

    /// Why the next attempt is to pause, and for how long: longer each time, as it may fare no better.
    fn next_pause(&mut self) -> Option<(LossReason, Duration)> {
        let reason = self.not_paused_for.take()?;
        let backoff = self.backoff.get_or_insert_with(|| Backoff::new(FIRST_PAUSE, LONGEST_PAUSE));
        Some((reason, backoff.next_pause()))
    }
}

/// Leaves the server in peace for a while when grants are lost before their waiters have them; `None` when it was stopped.
async fn pause_after_losses(front: &Front, request: &AcquireRequest) -> Option<()> {
    let (lost, in_a_row) = {
        let mut unseen = front.lost_unseen.lock();
        (unseen.next_pause(), unseen.in_a_row)
    };
    let Some((reason, pause)) = lost else { return Some(()) };
    log::lost_unseen(front, reason, in_a_row);
    until_stopped(request, front.clock().sleep_until(front.clock().now().plus(pause))).await
}

async fn until_stopped<T>(request: &AcquireRequest, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    poll_fn(|context| {
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(Some(output));
        }
        request.signals.poll_stopped(context).map(|()| None)
    })
    .await
}

/// Makes a hold of a grant, unless its lease is of no use or it has been lost already.
fn hold_of(front: &Arc<Front>, request: &Arc<AcquireRequest>, grant: Grant<AnyLease>) -> Outcome {
    let lasting = match grant.term {
        Term::UntilReported => Lasting::UntilReported,
        Term::Leased { anchor, length } => {
            match Validity::new(length, front.client().settings.abort_margin) {
                Ok(validity) => Lasting::Leased { anchor, validity },
                Err(error) => return Attempted::Failed(error),
            }
        }
    };
    let granted = Granted {
        lease: Mutex::new(Some(grant.lease)),
        group: grant.group,
        token: grant.token,
        place: request.signals.place(),
        lasting,
        #[cfg(unix)]
        descriptor: grant.descriptor,
    };
    let hold = HoldCore::new(Arc::clone(front), granted);
    front.client().keeper.register(&hold);
    let lost_before = request.signals.bind(&hold).or_else(|| front.client().keeper.end_of(hold.grant.group));
    if let Some(reason) = lost_before {
        hold.declare_lost(reason);
    }
    if !hold.is_standing() {
        // The loss may have come before the registration, and then found nothing to undo.
        front.client().keeper.unregister(&hold);
    }
    Attempted::Granted(hold)
}

impl Front {
    /// Gives back what nobody wants.
    pub(crate) fn undo(self: &Arc<Self>, undo: Undo<Arc<HoldCore>, Arc<AcquireRequest>>) {
        match undo {
            Undo::Nothing => {}
            Undo::Attempt(request) => request.signals.stop(Chore::begin(self)),
            Undo::Hold(hold) => {
                // If it is lost already, what follows finds nothing to release.
                let _ = hold.begin_release();
                drop(janitor::release(&hold));
            }
        }
    }
}
