//! The clean-up: releases and cancels that are repeated in the background until nothing is left at the server.
//!
//! A caller that releases a lock or gives up waiting hands the work over to the clean-up, which continues even if the
//! future that started it is dropped. The clean-up repeats a request until the server has answered it or, where the
//! server ends leftovers by itself, until that has happened. When contact returns, the clean-up does not wait for the
//! end of its pause.
//!
//! It gives up when the client is closed, and some time after the client's last handle was dropped: the end of the
//! client ends its connections and sessions, and what is left of a lease ends with those.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use crate::policy::client_end::ClientEnd;
use crate::policy::contact::{Contact, Return};
use crate::policy::groups::HeldGroups;
use crate::policy::hold::reports::Known;
use crate::policy::hold::{Declared, HoldCore, Loss};
use crate::policy::log;
use crate::policy::metrics::Request;
use crate::policy::remote::Remote;
use crate::runtime::clock::{Clock, Moment};
use crate::runtime::engine::{Parked, contained};
use crate::runtime::pending::{Pending, PendingWork};
use crate::runtime::race::{first_of, within};
use crate::runtime::sync::Mutex;
use crate::runtime::waker::with_waker;
use crate::spi::{AcquireRequest, AnyLease, Backoff, Released, TIMER_SLIP};
use crate::types::error::{ErrorKind, LockError, Operation};
use crate::types::name::LockName;

/// Waits for the first answer to a release or a cancel.
pub(crate) trait Successor: Send + Sync {
    /// The answer is overdue: a wait that ends now has failed.
    fn overdue(&self, error: &LockError);

    /// The answer has arrived, whatever it is, or never will.
    fn proceed(self: Arc<Self>, answer: Answer);
}

/// Whether the first answer to a release or a cancel has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    Arrived,
    /// The task was dropped: the runtime that it ran on may have ended, and any thread may have done it.
    Never,
}

/// The clean-up of one client.
pub(crate) struct Cleanup {
    remote: Arc<Remote>,
    contact: Arc<Contact>,
    pending: Arc<PendingWork>,
    /// When every holder whose hold the core has ended must have stopped.
    stopped_by: Mutex<Option<Moment>>,
    end: Arc<ClientEnd>,
}

impl Cleanup {
    pub(crate) fn new(remote: Arc<Remote>, contact: Arc<Contact>, held: Arc<HeldGroups>) -> Self {
        let end = Arc::new(ClientEnd::new(remote.clock.clone(), held));
        Self { remote, contact, pending: Arc::default(), stopped_by: Mutex::default(), end }
    }

    /// The last handle of the client was dropped.
    pub(crate) fn unused(&self) {
        self.end.unused();
    }

    /// The backend is closed: the remaining work can no longer be done.
    pub(crate) fn closed(&self) {
        self.end.closed();
    }

    /// Counts a piece of work that is about to be handed over.
    pub(crate) fn expect(&self) -> Pending {
        self.pending.begin()
    }

    /// Waits until all work that was handed over is confirmed.
    pub(crate) async fn idle(&self) {
        self.pending.finished().await;
    }

    /// Returns how many releases and cancels have ended with a runtime, without an answer.
    pub(crate) fn abandoned(&self) -> usize {
        self.pending.abandoned()
    }

    pub(crate) fn pending(&self) -> usize {
        self.pending.count()
    }

    /// When every holder whose hold the core has ended must have stopped, if there was such a hold.
    pub(crate) fn stopped_by(&self) -> Option<Moment> {
        *self.stopped_by.lock()
    }

    /// The moment at which an owner stops waiting for the release of this hold, which begins now.
    pub(super) fn answers_by(hold: &HoldCore, now: Moment) -> Moment {
        let bound = now.plus(RELEASE_TIMEOUT);
        hold.deadline().map_or(bound, |deadline| deadline.min(bound))
    }

    /// Releases a hold that its owner has ended, and that is not renewed any more. The successor continues at the first
    /// answer. `counted` is older than the end of the renewal: between the two, nothing would seem to be left to do.
    pub(crate) fn release(
        &self,
        hold: &Arc<HoldCore>,
        successor: Arc<dyn Successor>,
        counted: Pending,
    ) -> Arc<Outcome> {
        let now = self.remote.clock.now();
        let outcome = Arc::new(Outcome::new(Self::answers_by(hold, now)));
        let report = Report::new(hold, &outcome);
        let first_answer = FirstAnswer::to(successor, now);
        match hold.take_lease() {
            Some(lease) => {
                let releasing =
                    Releasing { lease, hold: Arc::clone(hold), first_answer, report: Some(report) };
                let task = self.task(hold.gone_by());
                let releasing = self.unless_given_up(hold.name(), counted, || releasing.until_certain(task));
                self.remote.engine.begin(&outcome, releasing);
            }
            // The loss of the hold has been reported meanwhile, and is being handled.
            None => report.certain(Released::Clean, Sent::First),
        }
        outcome
    }

    /// Removes what is left of a lost hold at the server.
    ///
    /// If the core has declared the loss, the server keeps the lock for the holder until the abort margin is over: no
    /// other client may have it while the holder stops.
    pub(crate) fn clear_lost(&self, hold: &Arc<HoldCore>, loss: Loss, known: Known, undoing: Pending) {
        let Loss { reason, declared } = loss;
        let Some(lease) = hold.take_lease() else {
            // It lived under another hold, which is lost as well.
            let hold = Arc::clone(hold);
            self.remote.engine.spawn(async move { hold.log_loss(reason, known) });
            return;
        };
        let releasing =
            Releasing { lease, hold: Arc::clone(hold), first_answer: FirstAnswer::to_nobody(), report: None };
        let task = self.task(hold.gone_by());
        let clock = self.remote.clock.clone();
        let stopped_by = clock.now().plus(time_to_stop(hold.abort_margin()));
        if declared == Declared::ByCore {
            let mut latest = self.stopped_by.lock();
            *latest = (*latest).max(Some(stopped_by));
        }
        let hold = Arc::clone(hold);
        let releasing = self.unless_given_up(hold.name(), undoing, || releasing.until_certain(task));
        self.remote.engine.spawn(async move {
            // Logged here, because the deadline thread may report the loss, and a logger may block.
            hold.log_loss(reason, known);
            if declared == Declared::ByCore {
                clock.sleep_until(stopped_by).await;
            }
            releasing.await;
        });
    }

    /// Undoes an attempt that no waiter wants any more, or that has failed with an unknown outcome. The successor
    /// continues at the first answer.
    pub(crate) fn cancel(&self, request: &Arc<AcquireRequest>, successor: Arc<dyn Successor>) {
        let leftovers_last = self.remote.backend.capabilities().leftovers_last;
        let leftovers_last = leftovers_last.map(|longest| longest.max(request.lease().unwrap_or_default()));
        let now = self.remote.clock.now();
        let gone_by = leftovers_last.map_or(Moment::FOREVER, |longest| now.plus(longest));
        let counted = request.handle.take_undoing().unwrap_or_else(|| self.expect());
        let task = self.task(gone_by);
        let first_answer = FirstAnswer::to(successor, now);
        let cancelled = Arc::clone(request);
        self.run(&request.name, counted, || cancel_until_certain(task, cancelled, first_answer));
    }

    /// Runs a task that the end of the client may cut short.
    pub(super) fn run<F>(&self, name: &LockName, counted: Pending, task: impl FnOnce() -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.remote.engine.run(self.unless_given_up(name, counted, task));
    }

    /// Runs a task for as long as it can make a difference. The task is made where it stays: a future that is passed on
    /// takes its memory once more.
    fn unless_given_up<F>(
        &self,
        name: &LockName,
        counted: Pending,
        task: impl FnOnce() -> F + Send + 'static,
    ) -> impl Future<Output = ()> + Send + 'static
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (end, name, server) = (Arc::clone(&self.end), name.clone(), Arc::clone(&self.remote.server));
        // Watched from now on and not from the first poll, because a runtime that has ended never polls.
        let unfinished = counted.until_done();
        async move {
            let is_done = {
                let (mut task, mut given_up) = (pin!(task()), None);
                poll_fn(|context| {
                    if task.as_mut().poll(context).is_ready() {
                        return Poll::Ready(true);
                    }
                    let given_up = given_up.get_or_insert_with(|| Box::pin(end.comes()));
                    given_up.as_mut().poll(context).map(|()| false)
                })
                .await
            };
            if !is_done {
                log::Lock { name: &name, server: &server }.given_up();
            }
            // After the task has ended: what it reports comes before the end of a close.
            unfinished.done();
        }
    }

    pub(super) fn task(&self, gone_by: Moment) -> Task {
        Task {
            remote: Arc::clone(&self.remote),
            pauses: Pauses {
                clock: self.remote.clock.clone(),
                backoff: Backoff::new(FIRST_PAUSE, LONGEST_PAUSE),
                contact: self.contact.watch(),
                gone_by,
            },
        }
    }
}

/// What every task of the clean-up has.
pub(super) struct Task {
    pub(super) remote: Arc<Remote>,
    pub(super) pauses: Pauses,
}

/// The pauses between the requests of one task.
pub(super) struct Pauses {
    clock: Clock,
    backoff: Backoff,
    contact: Return,
    /// The moment by which the server has ended by itself what is to be undone.
    gone_by: Moment,
}

impl Pauses {
    /// Waits until it is time for another request; returns `None` when none is needed any more.
    pub(super) async fn next(&mut self) -> Option<()> {
        let due = self.clock.now().plus(self.backoff.next_pause()).min(self.gone_by);
        first_of(self.clock.sleep_until(due), self.contact.noticed()).await;
        (self.clock.now() < self.gone_by).then_some(())
    }
}

/// The successor, which continues after the first answer. It also continues when the task is dropped without an answer,
/// because the runtime that it ran on has ended.
pub(super) struct FirstAnswer {
    successor: Option<Arc<dyn Successor>>,
    overdue: Moment,
}

impl FirstAnswer {
    /// The answer to a request that is sent now.
    pub(super) fn to(successor: Arc<dyn Successor>, now: Moment) -> Self {
        Self { successor: Some(successor), overdue: now.plus(OVERDUE) }
    }

    fn to_nobody() -> Self {
        Self { successor: None, overdue: Moment::FOREVER }
    }

    /// Waits for an answer, and tells the successor when it is overdue.
    pub(super) async fn awaiting<T>(
        &self,
        clock: &Clock,
        mut answer: Pin<&mut impl Future<Output = Result<T, LockError>>>,
    ) -> Result<T, LockError> {
        let Some(successor) = &self.successor else { return answer.await };
        if let Some(answered) = within(clock, self.overdue, answer.as_mut()).await {
            return answered;
        }
        successor.overdue(&no_answer());
        answer.await
    }

    pub(super) fn answered(&mut self) {
        if let Some(successor) = self.successor.take() {
            successor.proceed(Answer::Arrived);
        }
    }
}

impl Drop for FirstAnswer {
    fn drop(&mut self) {
        if let Some(successor) = self.successor.take() {
            successor.proceed(Answer::Never);
        }
    }
}

/// How long a holder that learns of the loss now has to stop. It may learn of it, and may stop, a little late.
pub(super) fn time_to_stop(abort_margin: Duration) -> Duration {
    if abort_margin.is_zero() { abort_margin } else { abort_margin.saturating_add(TIMER_SLIP) }
}

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// After this time an answer is overdue, so that a wait that ends does not take the silence for another holder.
const OVERDUE: Duration = Duration::from_secs(1);

async fn cancel_until_certain(task: Task, request: Arc<AcquireRequest>, mut first_answer: FirstAnswer) {
    let Task { remote, mut pauses } = task;
    loop {
        let answer = {
            let cancelling = pin!(contained(Operation::Cancel, remote.backend.cancel(&request)));
            first_answer.awaiting(&remote.clock, cancelling).await
        };
        remote.metrics.request(Request::Cancel, &answer);
        let Err(error) = answer else { return first_answer.answered() };
        let lock = log::Lock { name: &request.name, server: &remote.server };
        lock.repeated("an attempt could not be undone yet", &error);
        first_answer.answered();
        if pauses.next().await.is_none() {
            return;
        }
    }
}

/// A hold that has ended and may still exist at the server. This is the only owner of the lease, which is dropped with
/// it.
struct Releasing {
    lease: AnyLease,
    hold: Arc<HoldCore>,
    first_answer: FirstAnswer,
    report: Option<Report>,
}

impl Releasing {
    async fn until_certain(self, task: Task) {
        let Task { remote, mut pauses } = task;
        let Self { lease, hold, mut first_answer, mut report } = self;
        let mut sent = Sent::First;
        loop {
            let answer = {
                let releasing = pin!(contained(Operation::Release, remote.backend.release(&lease)));
                let answer = pin!(first_answer.awaiting(&remote.clock, releasing));
                report_when_due(&mut report, &remote.clock, answer).await
            };
            remote.metrics.request(Request::Release, &answer);
            match answer {
                Ok(released) => {
                    drop(lease);
                    if let Some(report) = report.take() {
                        report.certain(released, sent);
                    }
                    return first_answer.answered();
                }
                Err(error) => {
                    log::Lock { name: hold.name(), server: hold.server() }
                        .repeated("a release failed", &error);
                    report = report.and_then(|report| report.failed(error));
                }
            }
            first_answer.answered();
            sent = Sent::Again;
            if report_when_due(&mut report, &remote.clock, Box::pin(pauses.next()).as_mut()).await.is_none() {
                return;
            }
        }
    }
}

/// Which request of a release was answered.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Sent {
    First,
    Again,
}

/// Reports the result of a release to the owner and to the hold.
pub(super) struct Report {
    hold: Arc<HoldCore>,
    outcome: Arc<Outcome>,
    state: Making,
}

/// Whether a report has been made. One that is dropped before says that the outcome is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Making {
    Due,
    Made,
}

/// Runs a part of a release, and meanwhile makes the report if it is due: callers that watch the hold do not wait for a
/// server that may never answer.
pub(super) async fn report_when_due<T>(
    report: &mut Option<Report>,
    clock: &Clock,
    mut part: Pin<&mut impl Future<Output = T>>,
) -> T {
    if let Some(Report { outcome, .. }) = report {
        if let Some(done) = within(clock, outcome.due, part.as_mut()).await {
            return done;
        }
        drop(report.take());
    }
    part.await
}

impl Report {
    pub(super) fn new(hold: &Arc<HoldCore>, outcome: &Arc<Outcome>) -> Self {
        Self { hold: Arc::clone(hold), outcome: Arc::clone(outcome), state: Making::Due }
    }

    pub(super) fn certain(mut self, released: Released, sent: Sent) {
        // On a repeated request "not yours" means that an earlier one arrived.
        let loss = match released {
            Released::WasLost(reason) if sent == Sent::First => Some(reason),
            Released::Clean | Released::WasLost(_) => None,
        };
        self.state = Making::Made;
        self.hold.finish_release(loss);
        let error = |reason| self.about(LockError::lost(Operation::Release, self.hold.name(), reason));
        self.outcome.set(loss.map_or(Ok(()), |reason| Err(error(reason))));
    }

    /// Returns itself if the next request may succeed; otherwise reports the error to the owner now.
    pub(super) fn failed(mut self, error: LockError) -> Option<Self> {
        if error.is_retryable() {
            return Some(self);
        }
        self.state = Making::Made;
        self.hold.finish_release(None);
        self.outcome.set(Err(self.about(error).during(Operation::Release)));
        None
    }

    /// Adds the lock and the server to the error.
    fn about(&self, error: LockError) -> LockError {
        error.on(self.hold.name()).of(self.hold.grant().mode.kind()).at(self.hold.server())
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        if self.state == Making::Due {
            self.hold.finish_release(None);
            self.outcome.set(Err(self.about(unconfirmed())));
        }
    }
}

/// The error of a wait behind a release or a cancel that has not been answered.
pub(crate) fn no_answer() -> LockError {
    LockError::new(ErrorKind::Unreachable, Operation::Acquire)
        .because("the server has not answered the previous release")
        .remedy("check the server, or wait longer")
        .retryable()
}

/// The error of a release whose outcome is not known.
pub(crate) fn unconfirmed() -> LockError {
    LockError::new(ErrorKind::Unconfirmed, Operation::Release)
        .because("the server has not answered in time")
        .remedy("the release is repeated in the background; the lease ends the hold at the latest")
}

/// The result of a release, once it is known.
pub(crate) struct Outcome {
    /// The moment by which it is known, even if it is not certain then.
    pub(crate) due: Moment,
    state: Mutex<OutcomeState>,
    /// Where the release waits for its first reply.
    work: Parked,
}

impl AsRef<Parked> for Outcome {
    fn as_ref(&self) -> &Parked {
        &self.work
    }
}

impl Wake for Outcome {
    fn wake(self: Arc<Self>) {
        self.work.woken();
    }
}

#[derive(Debug, Default)]
struct OutcomeState {
    result: Option<Result<(), LockError>>,
    waiting: Option<Waker>,
}

impl Outcome {
    pub(super) fn new(due: Moment) -> Self {
        Self { due, state: Mutex::default(), work: Parked::default() }
    }

    /// Only the first call counts.
    fn set(&self, result: Result<(), LockError>) {
        let waiting = {
            let mut state = self.state.lock();
            state.result.get_or_insert(result);
            std::mem::take(&mut state.waiting)
        };
        if let Some(waker) = waiting {
            waker.wake();
        }
    }

    pub(crate) fn poll(&self, context: &mut Context<'_>) -> Poll<Result<(), LockError>> {
        with_waker(context, |waker| {
            let mut state = self.state.lock();
            if let Some(result) = &state.result {
                return Poll::Ready(result.clone());
            }
            std::mem::swap(&mut state.waiting, waker);
            Poll::Pending
        })
    }
}

/// How long an owner waits for a release at most, even if its lease is longer.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::waker::waker_with_an_end;

    #[test]
    fn a_waker_that_is_replaced_may_come_back_with_the_outcome() {
        let outcome = Arc::new(Outcome::new(Moment::FOREVER));
        let sets = Arc::clone(&outcome);
        let waker = waker_with_an_end(move || sets.set(Ok(())));
        assert!(outcome.poll(&mut Context::from_waker(&waker)).is_pending());
        drop(waker);
        assert!(outcome.poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert!(outcome.poll(&mut Context::from_waker(Waker::noop())).is_ready());
    }
}
