//! The clean-up: releases and cancels that are repeated in the background until nothing is left at the server.
//!
//! A caller that releases a lock or gives up waiting hands the work over to the clean-up, which continues even if the
//! future that started it is dropped. The clean-up repeats a request until the server has answered it or, where the
//! server ends leftovers by itself, until that has happened. When contact returns, the clean-up does not wait for the
//! end of its pause.
//!
//! It gives up when the client is closed, and some time after the client's last handle was dropped: the end of the
//! client ends its connections and sessions, and what is left of a lease ends with those.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::policy::client_lock::{ClientLock, Where};
use crate::policy::hold::{EndedHold, Hold};
use crate::policy::local::{Downgrade, LostLease, Number, Release, Reply};
use crate::runtime::{Moment, Pending, race, within};
use crate::spi::{AcquireRequest, AnyLease, Backoff, Downgraded, Grant, Released, TIMER_SLIP};
use crate::types::{LockError, LossReason};

/// The work of the clean-up for one lock.
impl ClientLock {
    /// Begins work on an attempt, or on what is left of one.
    pub(super) fn start(
        &self,
        request: &AcquireRequest,
        at: Where,
        work: impl Future<Output = ()> + Send + 'static,
    ) {
        match at {
            Where::Here => request.begin(&self.client.engine, work),
            Where::OnEngine => drop(self.client.engine.spawn(work)),
        }
    }

    /// Gives a lease back. This is the only owner of the lease, which is dropped with it.
    pub(super) fn begin_release(self: &Arc<Self>, release: Release, at: Where) {
        let request = release.request.clone();
        self.start(&request, at, self.releasing(release));
    }

    fn releasing(self: &Arc<Self>, release: Release) -> impl Future<Output = ()> + Send + 'static {
        let Release { request, lease, gone_by, counted } = release;
        let mut undoing = self.undoing(request.number(), gone_by);
        self.unless_given_up(counted, || async move { undoing.release(&lease).await })
    }

    /// Undoes an attempt that no request wants any more, or that has failed with an unknown outcome, and a grant that has
    /// come for it.
    pub(super) fn cancel(
        self: &Arc<Self>,
        request: &AcquireRequest,
        grant: Option<Grant<AnyLease>>,
        counted: Pending,
    ) -> impl Future<Output = ()> + Send + 'static {
        let leftovers_last = self.client.backend.capabilities().leftovers_last;
        let longest = leftovers_last.map(|longest| longest.max(request.lease().unwrap_or_default()));
        let gone_by = longest.map_or(Moment::FOREVER, |longest| self.clock().now().plus(longest));
        let mut undoing = self.undoing(request.number(), gone_by);
        let request = request.clone();
        self.unless_given_up(counted, || async move {
            if undoing.cancel(&request).await.is_some() {
                undoing.reply(&Reply::Done);
            }
            drop(grant);
        })
    }

    /// Removes what is left of a lost lease at the server.
    ///
    /// Where the server may still have it, it stays there for the holder until that has left, or the abort margin is over: no other
    /// client may have it while the holder stops.
    pub(super) fn clear_lost(self: &Arc<Self>, lost: LostLease) {
        let LostLease { release, holds, reason, stopping } = lost;
        let abort_margin = release.request.options().abort_margin;
        // What the core ends early enough for the holder to stop, what an operator has broken, what the backend no longer renews.
        let may_exist = matches!(reason, LossReason::Expired | LossReason::Broken | LossReason::ClientClosed);
        let stops_by = may_exist.then(|| self.clock().now().plus(time_to_stop(abort_margin)));
        if let Some(stops_by) = stops_by {
            self.client.stops_by(stops_by);
        }
        let (releasing, clock) = (self.releasing(release), self.clock().clone());
        self.client.engine.spawn(async move {
            // Logged here, because the deadline thread may report the loss, and a logger may block.
            holds.iter().for_each(EndedHold::report);
            drop(holds);
            if let Some(stops_by) = stops_by {
                let _ = within(&clock, stops_by, stopping.all_done()).await;
            }
            releasing.await;
        });
    }

    /// Makes the lease of a writer that of the reader under it.
    pub(super) fn begin_downgrade(self: &Arc<Self>, downgrade: Downgrade, at: Where) {
        let Downgrade { number, lease, shared, reader, gone_by, counted } = downgrade;
        let undoing = self.undoing(number, gone_by);
        let request = shared.clone();
        let downgrading = self.unless_given_up(counted, || undoing.downgrade(lease, shared, reader));
        self.start(&request, at, downgrading);
    }

    fn undoing(self: &Arc<Self>, number: Number, gone_by: Moment) -> Undoing {
        Undoing { lock: Arc::clone(self), number, gone_by, is_certain: false }
    }

    /// Runs a task for as long as it can make a difference. The task is made where it stays: a future that is passed on
    /// takes its memory once more.
    fn unless_given_up<F>(
        self: &Arc<Self>,
        counted: Pending,
        task: impl FnOnce() -> F + Send + 'static,
    ) -> impl Future<Output = ()> + Send + 'static
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let lock = Arc::clone(self);
        // Watched from now on and not from the first poll, because a runtime that has ended never polls.
        let unfinished = counted.until_done();
        async move {
            // In a box, because most tasks are done before it is asked.
            let given_up = async { Box::pin(lock.client.gives_up()).await };
            if race(task(), given_up).await.is_err() {
                lock.log_given_up();
            }
            // After the task has ended: what it reports comes before the end of a close.
            unfinished.done();
        }
    }
}

/// Undoes something at the server, and passes the replies on to the local lock. If it is dropped before the outcome is certain,
/// there will be no answer: the runtime has ended, or the client, or the server has ended by itself what is to be undone.
struct Undoing {
    lock: Arc<ClientLock>,
    number: Number,
    /// The moment by which the server has ended by itself what is to be undone.
    gone_by: Moment,
    is_certain: bool,
}

impl Undoing {
    /// Repeats a request until its outcome is certain; returns `None` when that is not needed any more. The local lock learns of
    /// each failure.
    async fn until_certain<T, F>(&mut self, failed: &'static str, mut request: impl FnMut() -> F) -> Option<T>
    where
        F: Future<Output = Result<T, LockError>>,
    {
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        let client = Arc::clone(&self.lock.client);
        loop {
            // From before the request: it may have failed in contact that is lost and has returned meanwhile.
            let returned = client.held.contact.notified();
            match request().await {
                Ok(outcome) => return Some(outcome),
                Err(error) => {
                    self.lock.log_repeated(failed, &error);
                    self.reply(&Reply::Failed(error));
                }
            }
            let clock = &client.clock;
            let due = clock.now().plus(backoff.next_pause()).min(self.gone_by);
            // In a box, because most requests are answered at once.
            let _ = Box::pin(race(returned, clock.sleep_until(due))).await;
            if clock.now() >= self.gone_by {
                return None;
            }
        }
    }

    async fn release(&mut self, lease: &AnyLease) {
        if let Some(released) = self.released(lease).await {
            self.reply(&Reply::Released(released));
        }
    }

    /// Releases the lease of a reader that cannot keep it: no owner learns of its end.
    async fn give_back(&mut self, lease: &AnyLease) {
        if self.released(lease).await.is_some() {
            self.reply(&Reply::Done);
        }
    }

    async fn released(&mut self, lease: &AnyLease) -> Option<Released> {
        let client = Arc::clone(&self.lock.client);
        self.until_certain("a release failed", || client.backend.release(lease)).await
    }

    async fn cancel(&mut self, request: &AcquireRequest) -> Option<()> {
        let client = Arc::clone(&self.lock.client);
        let failed = "an attempt could not be undone yet";
        self.until_certain(failed, || client.backend.cancel(request)).await
    }

    async fn downgrade(mut self, lease: AnyLease, shared: AcquireRequest, reader: Hold) {
        let client = Arc::clone(&self.lock.client);
        let downgraded = self.until_certain("a downgrade failed", || async {
            // Neither lease is wanted.
            if !reader.is_standing() {
                return Ok(None);
            }
            client.backend.downgrade(&lease, &shared).await.map(Some)
        });
        let Some(unless_ended) = downgraded.await else { return };
        match unless_ended {
            None => {
                self.wait_for_the_holder(&reader).await;
                if self.cancel(&shared).await.is_some() {
                    self.give_back(&lease).await;
                }
            }
            Some(Downgraded::WasLost(reason)) => {
                self.reply(&Reply::Released(Released::WasLost(reason)));
                // What a break has marked may still be there, and stays until the holder has stopped.
                self.wait_for_the_holder(&reader).await;
                self.released(&lease).await;
            }
            Some(Downgraded::Shared(grant)) => {
                drop(lease);
                let number = self.number;
                let unwanted =
                    self.lock.turn(Where::Here, |local, turn| local.downgraded(turn, number, &shared, grant));
                let Some((lease, error)) = unwanted else {
                    self.is_certain = true;
                    return;
                };
                if let Some(error) = &error {
                    self.lock.log_repeated("a reader cannot keep its lease", error);
                }
                self.wait_for_the_holder(&reader).await;
                self.give_back(&lease).await;
            }
        }
    }

    /// Waits until a holder that has learned of its loss has stopped.
    async fn wait_for_the_holder(&self, reader: &Hold) {
        if reader.loss().is_some() {
            let clock = self.lock.clock();
            clock.sleep_until(clock.now().plus(time_to_stop(reader.abort_margin()))).await;
        }
    }

    fn reply(&mut self, reply: &Reply) {
        self.is_certain = !matches!(reply, Reply::Failed(_));
        self.lock.answered(self.number, reply, Where::Here);
    }
}

impl Drop for Undoing {
    fn drop(&mut self) {
        if !self.is_certain {
            self.lock.answered(self.number, &Reply::Never, Where::OnEngine);
        }
    }
}

/// How long a holder that learns of the loss now has to stop. It may learn of it, and may stop, a little late.
fn time_to_stop(abort_margin: Duration) -> Duration {
    if abort_margin.is_zero() { abort_margin } else { abort_margin.saturating_add(TIMER_SLIP) }
}

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
