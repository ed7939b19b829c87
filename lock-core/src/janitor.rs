//! Releases and cancels, again and again, until it is certain that nothing is left.
//!
//! Whoever releases a lock or gives up waiting hands the work over here and may go: the janitor goes on whether or not
//! the future that asked for it still lives. It repeats a call until the server has answered, or, where what is left at
//! the server ends by itself, until it has. When contact returns it does not wait for the end of its pause.
//!
//! It gives up when the client is closed, and a while after the client's last handle is gone: the end of the client ends its
//! connections and sessions, and what is left of a lease ends with that.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::sync::{Notify, watch};

use crate::backend::{AcquireRequest, AnyLease, Released};
use crate::client::ClientCore;
use crate::clock::{Clock, Moment};
use crate::engine::contained;
use crate::error::{ErrorKind, LockError, Operation};
use crate::front::Front;
use crate::hold::reports::Known;
use crate::hold::{Declared, HoldCore, Loss, LossReason};
use crate::keeper::{first_of, within};
use crate::log;
use crate::supervise::Backoff;
use crate::sync::Mutex;
use crate::validity::TIMER_SLIP;
use crate::waking::with_waker;

/// Counts what has been handed over and is not certain yet.
#[derive(Debug)]
pub(crate) struct Janitor {
    pending: AtomicUsize,
    finished: Notify,
    /// When the last of those whose holds the core has ended has to have stopped.
    stopped_by: Mutex<Option<Moment>>,
    contact: watch::Sender<Contact>,
    end: watch::Sender<End>,
}

#[derive(Debug, PartialEq)]
enum Contact {
    Good,
    Lost,
}

/// Whether the client comes to its end.
#[derive(Debug, Clone, Copy, PartialEq)]
enum End {
    /// It is in use.
    NotYet,
    /// No handle of it is left since then.
    Unused(Moment),
    /// It has been closed.
    Closed,
}

impl Default for Janitor {
    fn default() -> Self {
        Self {
            pending: AtomicUsize::new(0),
            finished: Notify::new(),
            stopped_by: Mutex::new(None),
            contact: watch::Sender::new(Contact::Good),
            end: watch::Sender::new(End::NotYet),
        }
    }
}

/// One thing that is not certain yet.
pub(crate) struct Chore(Arc<Front>);

impl Chore {
    pub(crate) fn begin(front: &Arc<Front>) -> Self {
        front.client().janitor.pending.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(front))
    }
}

impl Drop for Chore {
    fn drop(&mut self) {
        let janitor = &self.0.client().janitor;
        if janitor.pending.fetch_sub(1, Ordering::AcqRel) == 1 {
            janitor.finished.notify_waiters();
        }
    }
}

impl Janitor {
    /// Waits until everything that was handed over is certain.
    pub(crate) async fn idle(&self) {
        loop {
            let finished = self.finished.notified();
            if self.pending.load(Ordering::Acquire) == 0 {
                return;
            }
            finished.await;
        }
    }

    pub(crate) fn pending(&self) -> usize {
        self.pending.load(Ordering::Acquire)
    }

    /// When everybody whose hold was ended by the core has to have stopped, if there was such a hold.
    pub(crate) fn stopped_by(&self) -> Option<Moment> {
        *self.stopped_by.lock()
    }

    fn stops_by(&self, moment: Moment) {
        let mut stopped_by = self.stopped_by.lock();
        *stopped_by = (*stopped_by).max(Some(moment));
    }

    pub(crate) fn contact_lost(&self) {
        self.contact.send_if_modified(|contact| {
            *contact = Contact::Lost;
            // Nobody waits for that.
            false
        });
    }

    /// The last handle of the client is gone.
    pub(crate) fn unused(&self, since: Moment) {
        self.end.send_if_modified(|end| {
            let was_in_use = *end == End::NotYet;
            if was_in_use {
                *end = End::Unused(since);
            }
            was_in_use
        });
    }

    /// The backend is closed: nothing that is left can be done any more.
    pub(crate) fn closed(&self) {
        self.end.send_replace(End::Closed);
    }

    /// Waits until what has been begun now is to be given up.
    async fn gives_up(&self, client: &ClientCore) {
        let clock = &client.clock;
        let mut end = self.end.subscribe();
        let mut tried_until = clock.now().plus(TRIED_FOR);
        loop {
            let seen = *end.borrow_and_update();
            let until = match seen {
                End::NotYet => Moment::FOREVER,
                End::Unused(since) => tried_until.max(since.plus(TRIED_FOR)),
                End::Closed => return,
            };
            if within(clock, until, end.changed()).await.is_some() {
                continue;
            }
            if !client.keeper.holds_something() {
                return;
            }
            // As long as something is held, the client lives on.
            tried_until = clock.now().plus(TRIED_FOR);
        }
    }

    /// What pauses goes on at once.
    pub(crate) fn contact_returned(&self) {
        self.contact.send_if_modified(|contact| std::mem::replace(contact, Contact::Good) == Contact::Lost);
    }
}

/// The pauses between the requests of one chore.
struct Pauses<'a> {
    clock: &'a Clock,
    backoff: Backoff,
    /// Tells when contact has returned since the last pause.
    contact: watch::Receiver<Contact>,
    /// From when on the server has ended by itself what is to be undone.
    gone_by: Moment,
}

impl<'a> Pauses<'a> {
    fn new(client: &'a ClientCore, gone_by: Moment) -> Self {
        Self {
            clock: &client.clock,
            backoff: Backoff::new(FIRST_PAUSE, LONGEST_PAUSE),
            contact: client.janitor.contact.subscribe(),
            gone_by,
        }
    }

    /// Waits until it is time for another request; `None` when that is not needed any more.
    async fn next(&mut self) -> Option<()> {
        let due = self.clock.now().plus(self.backoff.next_pause()).min(self.gone_by);
        first_of(self.clock.sleep_until(due), self.contact.changed()).await;
        (self.clock.now() < self.gone_by).then_some(())
    }
}

/// What comes after the first answer to a chore, whatever it is; also when the chore is dropped unanswered, because the
/// runtime that it ran on has ended.
struct OnFirstAnswer(Option<Arc<Front>>);

impl OnFirstAnswer {
    /// Waits for an answer, and tells the front when it is overdue.
    async fn awaiting<T>(
        &self,
        front: &Front,
        answer: impl Future<Output = Result<T, LockError>>,
    ) -> Result<T, LockError> {
        if self.0.is_none() {
            return answer.await;
        }
        let mut answer = pin!(answer);
        let clock = front.clock();
        let overdue = clock.now().plus(OVERDUE);
        if let Some(answered) = within(clock, overdue, answer.as_mut()).await {
            return answered;
        }
        front.local.overdue(&no_answer());
        answer.await
    }

    fn answered(&mut self) {
        if let Some(front) = self.0.take() {
            front.cleared();
        }
    }
}

impl Drop for OnFirstAnswer {
    fn drop(&mut self) {
        self.answered();
    }
}

/// Releases a hold that its owner has ended. The front stays closed until the first answer.
pub(crate) fn release(hold: &Arc<HoldCore>) -> Arc<Outcome> {
    let outcome = Arc::new(Outcome::default());
    let front = &hold.front;
    front.client().keeper.unregister(hold);
    let chore = Chore::begin(front);
    let report = Report { hold: Arc::clone(hold), outcome: Arc::clone(&outcome), due: patience(hold) };
    let first_answer = OnFirstAnswer(Some(Arc::clone(front)));
    match hold.take_lease() {
        Some(lease) => {
            let leaving = Leaving { lease, hold: Arc::clone(hold), chore };
            let releasing = release_until_certain(leaving, Some(report), first_answer);
            front.client().engine.run(unless_given_up(Arc::clone(front), releasing));
        }
        // Its loss has been reported meanwhile, and that is being followed up.
        None => report.certain(Released::Clean, Sent::First),
    }
    outcome
}

/// Makes sure that nothing of a lost hold is left at the server.
///
/// Where the core has declared the loss, the server keeps the lock for the holder until the abort margin is over: nobody else
/// is to have it while the holder stops.
pub(crate) fn clear_lost(hold: &Arc<HoldCore>, loss: Loss, known: Known, chore: Chore) {
    let Loss { reason, declared } = loss;
    let front = Arc::clone(&hold.front);
    front.client().keeper.unregister(hold);
    let Some(lease) = hold.take_lease() else { return };
    let leaving = Leaving { lease, hold: Arc::clone(hold), chore };
    let nothing = OnFirstAnswer(None);
    let clock = front.clock().clone();
    let stopped_by = clock.now().plus(time_to_stop(front.client().settings.abort_margin));
    if declared == Declared::ByCore {
        front.client().janitor.stops_by(stopped_by);
    }
    let hold = Arc::clone(hold);
    let engine_of = Arc::clone(&front);
    engine_of.client().engine.spawn(async move {
        // Here, because whoever reports the loss may be the deadline thread, and a log may block.
        log::lost(&hold, reason, known);
        if declared == Declared::ByCore {
            clock.sleep_until(stopped_by).await;
        }
        unless_given_up(front, release_until_certain(leaving, None, nothing)).await;
    });
}

/// How long a holder has to stop that is told now. It may be told, and may stop, a little late.
fn time_to_stop(abort_margin: Duration) -> Duration {
    if abort_margin.is_zero() { abort_margin } else { abort_margin.saturating_add(TIMER_SLIP) }
}

/// Undoes an attempt that nobody waits for any more, or that has failed without a known outcome, and reopens the front at
/// the first answer.
pub(crate) fn cancel(front: &Arc<Front>, request: &Arc<AcquireRequest>) {
    let chore = request.signals.take_chore().unwrap_or_else(|| Chore::begin(front));
    let first_answer = OnFirstAnswer(Some(Arc::clone(front)));
    let cancelling = cancel_until_certain(chore, Arc::clone(request), first_answer);
    front.client().engine.run(unless_given_up(Arc::clone(front), cancelling));
}

/// How long a chore is tried for at least, from the end of the last handle of its client on.
const TRIED_FOR: Duration = Duration::from_secs(60);

/// Does a chore for as long as it can matter.
async fn unless_given_up(front: Arc<Front>, chore: impl Future<Output = ()>) {
    let client = front.client();
    let (mut chore, mut gives_up) = (pin!(chore), pin!(client.janitor.gives_up(client)));
    let is_done = poll_fn(|context| {
        if chore.as_mut().poll(context).is_ready() {
            return Poll::Ready(true);
        }
        gives_up.as_mut().poll(context).map(|()| false)
    });
    if !is_done.await {
        log::given_up(&front);
    }
}

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// From when on an answer is overdue, so that a wait that ends does not take the silence for another holder.
const OVERDUE: Duration = Duration::from_secs(1);

async fn cancel_until_certain(chore: Chore, request: Arc<AcquireRequest>, mut first_answer: OnFirstAnswer) {
    let front = &chore.0;
    let client = front.client();
    let leftovers_last = client.backend.capabilities().leftovers_last;
    let gone_by = leftovers_last.map_or(Moment::FOREVER, |longest| client.clock.now().plus(longest));
    let mut pauses = Pauses::new(client, gone_by);
    loop {
        let cancelling = contained(Operation::Cancel, client.backend.cancel(&request));
        let Err(error) = first_answer.awaiting(front, cancelling).await else { return };
        tracing::debug!(target: "distlock", lock = %front.name(), %error, "an attempt could not be undone yet");
        first_answer.answered();
        if pauses.next().await.is_none() {
            return;
        }
    }
}

/// A hold that has ended and may still be at the server. The lease is here and nowhere else, and goes with this.
struct Leaving {
    lease: AnyLease,
    hold: Arc<HoldCore>,
    chore: Chore,
}

async fn release_until_certain(
    leaving: Leaving,
    mut report: Option<Report>,
    mut first_answer: OnFirstAnswer,
) {
    let Leaving { lease, hold, chore } = leaving;
    let front = &chore.0;
    let client = front.client();
    let mut pauses = Pauses::new(client, hold.gone_by());
    let mut sent = Sent::First;
    loop {
        let releasing = contained(Operation::Release, client.backend.release(&lease));
        let answer = first_answer.awaiting(front, releasing);
        match report_when_due(&mut report, answer).await {
            Ok(released) => {
                drop(lease);
                if let Some(report) = report.take() {
                    report.certain(released, sent);
                }
                return;
            }
            Err(error) => {
                tracing::debug!(target: "distlock", lock = %front.name(), %error, "a release failed");
                report = report.and_then(|report| report.failed(error));
            }
        }
        first_answer.answered();
        sent = Sent::Again;
        if report_when_due(&mut report, pauses.next()).await.is_none() {
            return;
        }
    }
}

/// Which request of a release was answered.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sent {
    First,
    Again,
}

/// Tells the owner, and the hold, what came of a release.
struct Report {
    hold: Arc<HoldCore>,
    outcome: Arc<Outcome>,
    /// When it is told at the latest, certain or not.
    due: Moment,
}

/// Does a part of a release, and makes the report meanwhile if it is due: those who watch the hold do not wait for a server
/// that may never answer.
async fn report_when_due<T>(report: &mut Option<Report>, part: impl Future<Output = T>) -> T {
    let mut part = pin!(part);
    if let Some(Report { hold, due, .. }) = report {
        if let Some(done) = within(hold.front.clock(), *due, part.as_mut()).await {
            return done;
        }
        drop(report.take());
    }
    part.await
}

impl Report {
    fn certain(self, released: Released, sent: Sent) {
        // On a repeated request "not yours" means that an earlier one arrived.
        let loss = match released {
            Released::WasLost(reason) if sent == Sent::First => Some(reason),
            Released::Clean | Released::WasLost(_) => None,
        };
        self.hold.finish_release(loss);
        self.outcome.set(loss.map_or(Ok(()), |reason| Err(self.lost(reason))));
    }

    /// Goes on when the next request may fare better; else the owner is told now.
    fn failed(self, error: LockError) -> Option<Self> {
        if error.is_retryable() {
            return Some(self);
        }
        self.hold.finish_release(None);
        self.outcome.set(Err(self.hold.front.about(error).during(Operation::Release)));
        None
    }

    fn lost(&self, reason: LossReason) -> LockError {
        self.hold.front.lost(Operation::Release, reason)
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        self.hold.finish_release(None);
        self.outcome.set(Err(unconfirmed(&self.hold.front)));
    }
}

/// The failure of a wait behind a release or a cancel that is not answered.
pub(crate) fn no_answer() -> LockError {
    LockError::new(ErrorKind::Unreachable, Operation::Acquire)
        .because("the server has not answered the previous release")
        .remedy("check the server, or wait longer")
        .retryable()
}

/// A release whose outcome is not known.
pub(crate) fn unconfirmed(front: &Front) -> LockError {
    front
        .about(LockError::new(ErrorKind::Unconfirmed, Operation::Release))
        .because("the server has not answered in time")
        .remedy("the release is repeated in the background; the lease ends the hold at the latest")
}

/// What came of a release, once it is known.
#[derive(Debug, Default)]
pub(crate) struct Outcome(Mutex<OutcomeState>);

#[derive(Debug, Default)]
struct OutcomeState {
    result: Option<Result<(), LockError>>,
    waiting: Option<Waker>,
}

impl Outcome {
    /// The first one to tell decides.
    fn set(&self, result: Result<(), LockError>) {
        let waiting = {
            let mut state = self.0.lock();
            state.result.get_or_insert(result);
            std::mem::take(&mut state.waiting)
        };
        if let Some(waker) = waiting {
            waker.wake();
        }
    }

    pub(crate) fn poll(&self, context: &mut Context<'_>) -> Poll<Result<(), LockError>> {
        with_waker(context, |waker| {
            let mut state = self.0.lock();
            if let Some(result) = &state.result {
                return Poll::Ready(result.clone());
            }
            std::mem::swap(&mut state.waiting, waker);
            Poll::Pending
        })
    }
}

/// How long a release is waited for where no lease bounds it.
pub(crate) const RELEASE_TIMEOUT: Duration = Duration::from_secs(10);

/// When an owner stops waiting for its release.
pub(crate) fn patience(hold: &HoldCore) -> Moment {
    let bound = hold.front.client().clock.now().plus(RELEASE_TIMEOUT);
    hold.deadline().map_or(bound, |deadline| deadline.min(bound))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::waking::waker_with_an_end;

    #[test]
    fn a_waker_that_is_replaced_may_come_back_with_the_outcome() {
        let outcome = Arc::new(Outcome::default());
        let sets = Arc::clone(&outcome);
        let waker = waker_with_an_end(move || sets.set(Ok(())));
        assert!(outcome.poll(&mut Context::from_waker(&waker)).is_pending());
        drop(waker);
        assert!(outcome.poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert!(outcome.poll(&mut Context::from_waker(Waker::noop())).is_ready());
    }
}
