//! Drives a backend for the local queue: makes one attempt at a time, retries while there are waiters, and undoes the
//! attempt when there are none.
//!
//! When its last waiter has left, an attempt is stopped from outside: the future of the backend is dropped, whatever it
//! was doing, and the clean-up undoes the attempt. A grant that arrives when no waiter is left is given back
//! immediately.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::oneshot;
use tracing::Instrument;

use crate::policy::cleanup::{Answer, Outcome as ReleaseOutcome, Successor};
use crate::policy::entry::Entry;
use crate::policy::hold::reports::Event;
use crate::policy::hold::{Granted, GrantedId, HoldCore, Home, Lasting, Loss, Series};
use crate::policy::local::{Admission, Attempted, Occupant, Undo};
use crate::policy::log;
use crate::policy::metrics::{Metrics, Request};
use crate::runtime::clock::Clock;
use crate::runtime::engine::{can_begin_here, contained};
use crate::runtime::pending::Pending;
use crate::runtime::sync::Mutex;
use crate::spi::{
    AcquireRequest, AnyLease, AttemptHandle, Backoff, Grant, Memo, Remembered, Term, Validity, Wait,
};
use crate::types::capabilities::Pipelining;
use crate::types::error::{ErrorKind, LockError, Operation};
use crate::types::loss::LossReason;
use crate::types::name::LockName;

type Outcome = Attempted<Arc<HoldCore>, LockError>;

const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Makes the attempt and those that follow from it, until the queue needs none. The outcome of the first is reported when
/// the release that it was sent behind has been answered.
pub(crate) fn drive(
    entry: Arc<Entry>,
    first: Arc<AcquireRequest>,
    mut release: Option<oneshot::Receiver<()>>,
) -> impl Future<Output = ()> + Send + 'static {
    // Created now and not at the first poll, because a runtime that has ended never polls.
    let mut unfinished = Unfinished { entry, state: Progress::UnderWay };
    async move {
        let entry = Arc::clone(&unfinished.entry);
        let begun = first.handle.clone();
        let mut next = Some(first);
        while let Some(request) = next {
            unfinished.is(Progress::UnderWay);
            let outcome = make_attempt(&entry, &request).await;
            if let Some(answered) = release.take() {
                // An error says the same: nothing is ever sent.
                let _ = answered.await;
            }
            match outcome {
                Some(Attempted::Granted(_) | Attempted::Refused { .. }) => entry.leave_admissions(),
                Some(Attempted::Failed(_) | Attempted::Void) | None => entry.enqueue_clearing(),
            }
            if !matches!(outcome, Some(Attempted::Granted(_))) {
                entry.end_row_of_losses();
            }
            unfinished.is(Progress::Answered);
            next = if let Some(outcome) = outcome {
                report(&entry, &request, outcome)
            } else {
                entry.cancel(&request);
                None
            };
            if next.is_some() {
                // It does not concern the caller.
                begun.continue_on_engine();
            }
        }
        entry.retire();
    }
}

fn report(
    entry: &Arc<Entry>,
    request: &Arc<AcquireRequest>,
    outcome: Outcome,
) -> Option<Arc<AcquireRequest>> {
    let may_have_left_something = matches!(outcome, Attempted::Failed(_) | Attempted::Void);
    // Counted before the outcome is reported: a caller that sees the outcome and then waits for `idle` also waits for
    // the undo.
    let _counted = entry.client.cleanup.expect();
    if matches!(outcome, Attempted::Void) {
        entry.keep_place(request.handle.place());
    }
    let (undo, next) =
        entry.local.attempted(outcome, |patience, options| entry.new_attempt(patience, options));
    entry.undo(undo, entry.client.cleanup.expect());
    if may_have_left_something {
        entry.cancel(request);
    } else {
        // The stop may have come too late to be noticed. By now the clean-up has whatever there was to undo.
        drop(request.handle.take_undoing());
    }
    next
}

/// Tells the queue when an attempt is dropped before it has finished.
struct Unfinished {
    entry: Arc<Entry>,
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
        if let Undo::Attempt(request) = self.entry.local.close(&ended) {
            // Its waker is the attempt itself.
            drop(request.handle.take_undoing());
        }
        // What it has left at the server, no task undoes.
        drop(self.entry.client.cleanup.expect().until_done());
    }
}

/// Makes one attempt until it has an outcome; returns `None` when it was stopped because there are no waiters any more.
async fn make_attempt(entry: &Arc<Entry>, request: &Arc<AcquireRequest>) -> Option<Outcome> {
    let (backend, clock) = (entry.client.backend(), entry.clock());
    let tries_once = request.wait() == Wait::Try;
    if let Err(outcome) = wait_for_turn(entry, request).await? {
        return Some(outcome);
    }
    if request.options.at_least.is_some()
        && let Some(end) = entry.pause_end()
    {
        request.handle.queued();
        if tries_once {
            return Some(Attempted::Refused { by: u64::MAX });
        }
        until_stopped(request, clock.sleep_until(end)).await?;
    }
    if !tries_once {
        pause_after_losses(entry, request).await?;
    }
    let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
    loop {
        let acquiring = contained(Operation::Acquire, backend.acquire(request));
        let answer = until_stopped(request, acquiring).await;
        entry.client.metrics().request(Request::Acquire, &answer);
        match answer? {
            Ok(Some(grant)) => {
                let outcome = match begin_pause(entry, request).await? {
                    Pause::None => return Some(hold_of(entry, request, grant)),
                    Pause::Goes => Attempted::Void,
                    Pause::Unknown(error) => Attempted::Failed(error),
                };
                // While the lease exists: a backend may leave what nothing refers to any more to its session. If it fails, the
                // clean-up repeats it.
                let _ = until_stopped(request, contained(Operation::Cancel, backend.cancel(request))).await?;
                drop(grant);
                return Some(outcome);
            }
            Ok(None) => return Some(refused(entry, request)),
            Err(error) if error.is_retryable() && !tries_once => {
                entry.logged().repeated("an attempt failed and is repeated", &error);
                request.handle.unreachable(error);
            }
            Err(error) => return Some(Attempted::Failed(error)),
        }
        let pause = clock.now().plus(backoff.next_pause());
        until_stopped(request, clock.sleep_until(pause)).await?;
    }
}

/// The pause that an earlier holder has asked for.
enum Pause {
    /// It is over, or there was none; that of this holder begins.
    None,
    /// It goes on: the grant is undone, and the next attempt waits for the end.
    Goes,
    /// The server has not said.
    Unknown(LockError),
}

/// Begins the pause of a grant, unless that of an earlier holder goes on; returns `None` when the attempt was stopped.
async fn begin_pause(entry: &Entry, request: &AcquireRequest) -> Option<Pause> {
    let Some(at_least) = request.options.at_least else { return Some(Pause::None) };
    let (backend, clock) = (entry.client.backend(), entry.clock());
    let memo = Memo::of_pause(entry.name().clone(), request.physical().clone());
    let remembering = contained(Operation::Remember, backend.remember(&memo, at_least));
    let answer = until_stopped(request, remembering).await;
    entry.client.metrics().request(Request::Remember, &answer);
    Some(match answer? {
        Ok(Remembered::Now) => Pause::None,
        Ok(Remembered::Already { remaining }) => {
            entry.pause_until(clock.now().plus(remaining));
            Pause::Goes
        }
        Err(error) if error.is_retryable() && request.wait() != Wait::Try => {
            entry.logged().repeated("an attempt failed and is repeated", &error);
            request.handle.unreachable(error);
            until_stopped(request, clock.sleep_until(clock.now().plus(LONGEST_PAUSE))).await?;
            Pause::Goes
        }
        Err(error) => Pause::Unknown(error),
    })
}

/// Waits until the requests of this client that come first are at the server; returns `None` when it was stopped.
async fn wait_for_turn(entry: &Entry, request: &AcquireRequest) -> Option<Result<(), Outcome>> {
    let Some((main, ticket)) = entry.admission_ticket() else { return Some(Ok(())) };
    let mut has_waited = false;
    let admission = poll_fn(|context| {
        let polled = main.local.poll_admission(ticket, context);
        if polled.is_pending() && !std::mem::replace(&mut has_waited, true) {
            request.handle.behind_another();
        }
        polled
    });
    let admission = until_stopped(request, admission).await?;
    Some(match admission {
        Admission::Admitted => {
            if has_waited {
                request.handle.sent();
            }
            Ok(())
        }
        Admission::Refused => Err(Attempted::Refused { by: u64::MAX }),
        Admission::Failed(error) => Err(Attempted::Failed(error)),
    })
}

/// The backend did not get the lock. That is an answer when the time is up; otherwise it says nothing to any waiter.
fn refused(entry: &Entry, request: &AcquireRequest) -> Outcome {
    let now = entry.clock().now();
    match request.wait() {
        Wait::Try => Attempted::Refused { by: u64::MAX },
        Wait::Until(deadline) if now >= deadline => Attempted::Refused { by: now.as_nanoseconds() },
        Wait::Until(_) | Wait::Forever => Attempted::Void,
    }
}

/// Pauses when grants are lost before their waiters have them, to spare the server; returns `None` when it was stopped.
async fn pause_after_losses(entry: &Entry, request: &AcquireRequest) -> Option<()> {
    let Some(pause) = entry.pause_after_losses() else { return Some(()) };
    until_stopped(request, entry.clock().sleep_until(entry.clock().now().plus(pause))).await
}

async fn until_stopped<T>(request: &AcquireRequest, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    poll_fn(|context| {
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(Some(output));
        }
        request.handle.poll_stopped(context).map(|()| None)
    })
    .await
}

/// Makes a hold from a grant, unless its lease is useless or the grant is already lost.
fn hold_of(entry: &Arc<Entry>, request: &Arc<AcquireRequest>, grant: Grant<AnyLease>) -> Outcome {
    let client = &entry.client;
    let granted = match entry.granted_of(request, grant) {
        Ok(granted) => granted,
        Err((_, error)) => return Attempted::Failed(error),
    };
    let home: Arc<Entry> = Arc::clone(entry);
    let hold = HoldCore::new(home, granted);
    let group_end = client.renewer.register(&hold);
    let reported: std::sync::Weak<HoldCore> = Arc::downgrade(&hold);
    let lost_before = request.handle.bind(reported).or(group_end);
    if let Some(reason) = lost_before {
        hold.declare_lost(reason);
    }
    if !hold.is_standing() {
        // The loss may have come before the registration, and then there was nothing to unregister.
        client.renewer.unregister(&hold);
    }
    Attempted::Granted(hold)
}

impl Entry {
    /// Returns what a grant means for a hold; or the lease, if it is useless.
    pub(super) fn granted_of(
        &self,
        request: &AcquireRequest,
        grant: Grant<AnyLease>,
    ) -> Result<Granted, (AnyLease, LockError)> {
        let lasting = match grant.term {
            Term::UntilReported => Lasting::UntilReported,
            Term::Leased { anchor, length } => match Validity::new(length, request.options.abort_margin) {
                Ok(validity) => Lasting::Leased { anchor, validity },
                Err(error) => return Err((grant.lease, error)),
            },
        };
        let series = self.series_of(request, &grant);
        Ok(Granted {
            id: grant.holder.map_or(GrantedId::Attempt(request.id), GrantedId::Given),
            lease: Mutex::new(Some(grant.lease)),
            group: grant.group,
            token: grant.token,
            options: Some(Arc::clone(&request.options)),
            parts: Box::default(),
            place: request.handle.place(),
            mode: request.mode,
            lasting,
            series,
            #[cfg(unix)]
            descriptor: grant.descriptor,
        })
    }

    /// Returns how many holds may follow on a grant.
    fn series_of(&self, request: &AcquireRequest, grant: &Grant<AnyLease>) -> Option<Box<Series>> {
        let handoff = request.options.local_handoff?;
        let left = grant.sections.min(request.sections()).get() - 1;
        (left > 0).then(|| {
            let until = self.clock().now().plus(handoff.time);
            Box::new(Series { left, until, attempt: request.handle.clone(), passes: grant.passes.clone() })
        })
    }

    /// Makes an attempt, with its first poll on this thread.
    pub(super) fn start_here(self: &Arc<Self>, start: Option<Arc<AcquireRequest>>) {
        if let Some(request) = start {
            self.begin_here(request, None);
        }
    }

    fn begin_here(self: &Arc<Self>, request: Arc<AcquireRequest>, release: Option<oneshot::Receiver<()>>) {
        let handle = request.handle.clone();
        let work = drive(Arc::clone(self), request, release).instrument(log::span(self.name()));
        handle.begin(self.client.engine(), work);
    }

    /// Ends a hold at the server, and makes the attempt that follows without waiting for the answer: both leave together.
    pub(super) fn give_back_before(
        self: &Arc<Self>,
        hold: &Arc<HoldCore>,
        start: Option<Arc<AcquireRequest>>,
    ) -> Arc<ReleaseOutcome> {
        let counted = self.client.cleanup.expect();
        let Some(request) = start else { return self.give_back(hold, counted) };
        self.client.renewer.unregister(hold);
        let (answered, answer) = oneshot::channel();
        let successor = SentBehind { attempt: request.handle.clone(), _answered: answered };
        let outcome = self.client.cleanup.release(hold, Arc::new(successor), counted);
        self.begin_here(request, Some(answer));
        outcome
    }

    /// Makes the attempt that follows the end of another one or of a hold, where that ended.
    fn start_next(self: &Arc<Self>, start: Option<Arc<AcquireRequest>>) {
        if can_begin_here() { self.start_here(start) } else { self.start_there(start) }
    }

    /// Makes an attempt on the engine, because it does not concern the caller.
    pub(super) fn start_there(self: &Arc<Self>, start: Option<Arc<AcquireRequest>>) {
        if let Some(request) = start {
            let work = drive(Arc::clone(self), request, None);
            self.client.engine().spawn(work.instrument(log::span(self.name())));
        }
    }

    /// Gives back what no waiter wants. `counted` is older than the last waiter's end.
    pub(crate) fn undo(self: &Arc<Self>, undo: Undo<Arc<HoldCore>, Arc<AcquireRequest>>, counted: Pending) {
        match undo {
            Undo::Nothing => {}
            Undo::Attempt(request) => request.handle.stop(counted),
            Undo::Hold(hold) => {
                // If it is already lost, there is nothing left to release.
                let _ = hold.begin_release();
                drop(self.give_back(&hold, counted));
            }
        }
    }

    /// Ends a hold at the server.
    fn give_back(self: &Arc<Self>, hold: &Arc<HoldCore>, counted: Pending) -> Arc<ReleaseOutcome> {
        self.client.renewer.unregister(hold);
        self.enqueue_clearing();
        let successor: Arc<Self> = Arc::clone(self);
        self.client.cleanup.release(hold, successor, counted)
    }

    fn cancel(self: &Arc<Self>, request: &Arc<AcquireRequest>) {
        let successor: Arc<Self> = Arc::clone(self);
        self.client.cleanup.cancel(request, successor);
    }
}

/// When a release or a cancel has been answered, the next in the queue may make its attempt.
impl Successor for Entry {
    fn overdue(&self, error: &LockError) {
        self.local.overdue(error);
        self.clearing_overdue(error);
    }

    fn proceed(self: Arc<Self>, answer: Answer) {
        let cleared = || self.local.cleared(|patience, options| self.new_attempt(patience, options));
        let start = self.after_clearing(cleared);
        if start.is_none() {
            // The waiter that the place belonged to is gone; a later one takes its place at the end.
            self.keep_place(None);
        }
        match answer {
            Answer::Arrived => self.start_next(start),
            Answer::Never => self.start_there(start),
        }
        self.retire();
    }
}

/// The attempt that was sent behind a release. Its outcome may be reported when this is dropped.
struct SentBehind {
    attempt: AttemptHandle,
    _answered: oneshot::Sender<()>,
}

impl Successor for SentBehind {
    fn overdue(&self, error: &LockError) {
        self.attempt.overdue(error);
    }

    fn proceed(self: Arc<Self>, _: Answer) {}
}

/// What a hold needs of its lock.
impl Home for Entry {
    fn name(&self) -> &LockName {
        self.name()
    }

    fn clock(&self) -> &Clock {
        self.clock()
    }

    fn server(&self) -> &Arc<str> {
        self.client.server()
    }

    fn metrics(&self) -> Option<&Metrics> {
        Some(self.client.metrics())
    }

    fn publish(&self, event: Event<LossReason>, hold: &Arc<HoldCore>) {
        self.observer.publish(event, hold);
        if let Some(observer) = hold.observer() {
            observer.publish(event, hold);
        }
        self.changed();
    }

    /// Frees the local mutex, calls the listener, and removes what is left at the server.
    fn hold_lost(self: Arc<Self>, hold: &Arc<HoldCore>, loss: Loss, undoing: Pending) {
        let known = hold.report_lost(loss.reason);
        hold.end_watch();
        let start =
            self.local.lost(hold, &loss.reason, |patience, options| self.new_attempt(patience, options));
        self.client.renewer.unregister(hold);
        self.client.cleanup.clear_lost(hold, loss, known, undoing);
        self.start_there(start);
        if let Some(reader) = hold.reader() {
            reader.share_loss(loss);
        }
        self.retire();
    }

    fn expect_undoing(&self) -> Pending {
        self.client.cleanup.expect()
    }

    fn seen(&self) {
        self.end_row_of_losses();
    }

    /// Those that share a lock have entries of their own, and wait for their admission until a release is answered.
    fn pipelines(&self) -> bool {
        self.sharing.is_none() && self.pipelining == Pipelining::Supported
    }

    fn leftovers_end(&self) -> bool {
        self.client.backend().capabilities().leftovers_last.is_some()
    }

    fn lost_unseen(&self, hold: &HoldCore, reason: LossReason) {
        self.seldom().lost_unseen.add(hold.number(), reason, hold.grant().place);
    }
}
