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
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::policy::client_end::ClientEnd;
use crate::policy::contact::{Contact, Return};
use crate::policy::entry::{Entry, Place};
use crate::policy::groups::HeldGroups;
use crate::policy::hold::HoldCore;
use crate::policy::hold::state::Phase;
use crate::policy::local::{Declared, Downgrade, EndedHold, LostLease, Number, Release, Reply};
use crate::policy::log;
use crate::policy::remote::Remote;
use crate::runtime::clock::Moment;
use crate::runtime::pending::{Pending, PendingWork};
use crate::runtime::race::first_of;
use crate::runtime::sync::Mutex;
use crate::spi::{AcquireRequest, AnyLease, Backoff, Downgraded, Grant, Released, TIMER_SLIP};
use crate::types::name::LockName;

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

    fn repeating(&self, gone_by: Moment) -> Repeating {
        Repeating {
            remote: Arc::clone(&self.remote),
            backoff: Backoff::new(FIRST_PAUSE, LONGEST_PAUSE),
            contact: self.contact.watch(),
            gone_by,
        }
    }

    /// Returns when a holder that learns of its loss now has stopped, and notes that.
    fn stops_by(&self, abort_margin: Duration) -> Moment {
        let stops_by = self.remote.clock.now().plus(time_to_stop(abort_margin));
        let mut latest = self.stopped_by.lock();
        *latest = (*latest).max(Some(stops_by));
        stops_by
    }

    /// The moment by which nothing is left of an attempt that is not undone.
    fn attempt_gone_by(&self, request: &AcquireRequest) -> Moment {
        let leftovers_last = self.remote.backend.capabilities().leftovers_last;
        let longest = leftovers_last.map(|longest| longest.max(request.lease().unwrap_or_default()));
        longest.map_or(Moment::FOREVER, |longest| self.remote.clock.now().plus(longest))
    }
}

/// The work of the clean-up for one lock.
impl Entry {
    /// Gives a lease back. This is the only owner of the lease, which is dropped with it.
    pub(super) fn begin_release(self: &Arc<Self>, release: Release, place: Place) {
        let Release { request, lease, gone_by, counted } = release;
        let cleanup = &self.client.cleanup;
        let mut replies = Replies::to(self, request.attempt().number());
        let (mut repeating, name) = (cleanup.repeating(gone_by), self.name().clone());
        let handle = request.attempt().clone();
        let releasing = cleanup.unless_given_up(self.name(), counted, || async move {
            repeating.release(&lease, &name, |reply| replies.reply(&reply)).await;
        });
        match place {
            Place::Here => handle.begin(self.client.engine(), releasing),
            Place::Engine => drop(self.client.engine().spawn(releasing)),
        }
    }

    /// Undoes an attempt that no request wants any more, or that has failed with an unknown outcome, and a grant that has
    /// come for it.
    pub(super) fn cancel(
        self: &Arc<Self>,
        request: &AcquireRequest,
        grant: Option<Grant<AnyLease>>,
        counted: Pending,
    ) -> impl Future<Output = ()> + Send + 'static {
        let cleanup = &self.client.cleanup;
        let mut replies = Replies::to(self, request.attempt().number());
        let mut repeating = cleanup.repeating(cleanup.attempt_gone_by(request));
        let request = request.clone();
        cleanup.unless_given_up(self.name(), counted, || async move {
            repeating.cancel(&request, |reply| replies.reply(&reply)).await;
            drop(grant);
        })
    }

    /// Removes what is left of a lost lease at the server.
    ///
    /// If the core has declared the loss, the server keeps the lock for the holder until the abort margin is over: no
    /// other client may have it while the holder stops.
    pub(super) fn clear_lost(self: &Arc<Self>, lost: LostLease) {
        let LostLease { lease, holds, abort_margin, declared, gone_by, counted } = lost;
        let cleanup = &self.client.cleanup;
        let stops_by = (declared == Declared::ByCore).then(|| cleanup.stops_by(abort_margin));
        let (mut repeating, name, clock) =
            (cleanup.repeating(gone_by), self.name().clone(), self.clock().clone());
        let releasing = cleanup.unless_given_up(self.name(), counted, || async move {
            repeating.release(&lease, &name, |_| {}).await;
        });
        self.client.engine().spawn(async move {
            // Logged here, because the deadline thread may report the loss, and a logger may block.
            holds.iter().for_each(EndedHold::log);
            drop(holds);
            if let Some(stops_by) = stops_by {
                clock.sleep_until(stops_by).await;
            }
            releasing.await;
        });
    }

    /// Makes the lease of a writer that of the reader under it.
    pub(super) fn begin_downgrade(self: &Arc<Self>, downgrade: Downgrade, place: Place) {
        let Downgrade { number, lease, shared, reader, gone_by, counted } = downgrade;
        let cleanup = &self.client.cleanup;
        let handle = shared.attempt().clone();
        let downgrading = Downgrading {
            entry: Arc::clone(self),
            lease,
            shared,
            reader,
            repeating: cleanup.repeating(gone_by),
            replies: Replies::to(self, number),
        };
        let downgrading = cleanup.unless_given_up(self.name(), counted, || downgrading.until_certain());
        match place {
            Place::Here => handle.begin(self.client.engine(), downgrading),
            Place::Engine => drop(self.client.engine().spawn(downgrading)),
        }
    }
}

/// Passes the replies to a request on to the local lock. If it is dropped before the outcome is certain, there will be no answer:
/// the runtime has ended, or the client.
struct Replies {
    entry: Arc<Entry>,
    number: Number,
    is_certain: bool,
}

impl Replies {
    fn to(entry: &Arc<Entry>, number: Number) -> Self {
        Self { entry: Arc::clone(entry), number, is_certain: false }
    }

    fn reply(&mut self, reply: &Reply) {
        self.is_certain = !matches!(reply, Reply::Failed(_));
        self.entry.answered(self.number, reply, Place::Here);
    }
}

impl Drop for Replies {
    fn drop(&mut self) {
        if !self.is_certain {
            self.entry.answered(self.number, &Reply::Never, Place::Engine);
        }
    }
}

/// A writer that has ended, and whose lease is to become the reader's.
struct Downgrading {
    entry: Arc<Entry>,
    lease: AnyLease,
    shared: AcquireRequest,
    reader: Arc<HoldCore>,
    repeating: Repeating,
    replies: Replies,
}

impl Downgrading {
    async fn until_certain(mut self) {
        let remote = Arc::clone(&self.repeating.remote);
        loop {
            match remote.backend.downgrade(&self.lease, &self.shared).await {
                Ok(Downgraded::Shared(grant)) => return self.shared(grant).await,
                Ok(Downgraded::WasLost(reason)) => {
                    return self.replies.reply(&Reply::Released(Released::WasLost(reason)));
                }
                Err(error) => {
                    self.entry.logged().repeated("a downgrade failed", &error);
                    self.replies.reply(&Reply::Failed(error));
                }
            }
            if self.repeating.pause().await.is_none() {
                return;
            }
            if !self.reader.is_standing() {
                return self.undo().await;
            }
        }
    }

    async fn shared(mut self, grant: Grant<AnyLease>) {
        drop(self.lease);
        let Some(unwanted) = self.entry.downgraded(self.replies.number, &self.shared, grant) else {
            self.replies.is_certain = true;
            return;
        };
        if let Some(error) = &unwanted.error {
            self.entry.logged().repeated("a reader cannot keep its lease", error);
        }
        self.repeating.wait_for_the_holder(&self.reader).await;
        let name = self.entry.name().clone();
        self.repeating
            .release(&unwanted.lease, &name, |reply| self.replies.reply(&reply.without_loss()))
            .await;
    }

    /// The reader has ended before the server has answered, so that neither lease is wanted.
    async fn undo(mut self) {
        self.repeating.wait_for_the_holder(&self.reader).await;
        self.repeating.cancel(&self.shared, |_| {}).await;
        let name = self.entry.name().clone();
        self.repeating.release(&self.lease, &name, |reply| self.replies.reply(&reply.without_loss())).await;
    }
}

/// What repeats a request until its outcome is certain.
struct Repeating {
    remote: Arc<Remote>,
    backoff: Backoff,
    contact: Return,
    /// The moment by which the server has ended by itself what is to be undone.
    gone_by: Moment,
}

impl Repeating {
    /// Waits until it is time for another request; returns `None` when none is needed any more.
    async fn pause(&mut self) -> Option<()> {
        let clock = &self.remote.clock;
        let due = clock.now().plus(self.backoff.next_pause()).min(self.gone_by);
        first_of(clock.sleep_until(due), self.contact.noticed()).await;
        (clock.now() < self.gone_by).then_some(())
    }

    /// Releases a lease, until that is certain or not needed any more. `reply` learns of each answer.
    async fn release(&mut self, lease: &AnyLease, name: &LockName, mut reply: impl FnMut(Reply)) {
        loop {
            match self.remote.backend.release(lease).await {
                Ok(released) => return reply(Reply::Released(released)),
                Err(error) => {
                    log::Lock { name, server: &self.remote.server }.repeated("a release failed", &error);
                    reply(Reply::Failed(error));
                }
            }
            if self.pause().await.is_none() {
                return reply(Reply::Never);
            }
        }
    }

    /// Waits until a holder that has learned of its loss has stopped.
    async fn wait_for_the_holder(&self, reader: &HoldCore) {
        if matches!(reader.phase(), Phase::Lost(_)) {
            let clock = &self.remote.clock;
            clock.sleep_until(clock.now().plus(time_to_stop(reader.abort_margin()))).await;
        }
    }

    /// Undoes an attempt, in the same way.
    async fn cancel(&mut self, request: &AcquireRequest, mut reply: impl FnMut(Reply)) {
        loop {
            let Err(error) = self.remote.backend.cancel(request).await else { return reply(Reply::Done) };
            let lock = log::Lock { name: &request.name, server: &self.remote.server };
            lock.repeated("an attempt could not be undone yet", &error);
            reply(Reply::Failed(error));
            if self.pause().await.is_none() {
                return reply(Reply::Never);
            }
        }
    }
}

impl Reply {
    /// The answer to the release of a lease that no owner has any more.
    fn without_loss(self) -> Self {
        match self {
            Self::Released(_) => Self::Done,
            reply => reply,
        }
    }
}

/// How long a holder that learns of the loss now has to stop. It may learn of it, and may stop, a little late.
fn time_to_stop(abort_margin: Duration) -> Duration {
    if abort_margin.is_zero() { abort_margin } else { abort_margin.saturating_add(TIMER_SLIP) }
}

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
