//! Drives a backend for the local lock: makes an attempt until it has an outcome, retries while it is wanted, and undoes it when it is
//! not.
//!
//! An attempt that no request wants any more is stopped from outside: the future of the backend is dropped, whatever it was
//! doing, and the attempt is undone by the same task, so that the cancel never comes before what it cancels.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::policy::entry::{Entry, Place};
use crate::policy::local::{Outcome, Pause, Reply};
use crate::policy::log::{self, Trace};
use crate::runtime::{Moment, race, with_waker, within};
use crate::spi::{AcquireRequest, AnyLease, Backoff, Grant, Memo, Recall, Remembered, Wait};
use crate::types::{ErrorKind, LockError, Operation};

const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How often a wait in a pause asks whether that goes on: an operator may have ended it.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

impl Entry {
    /// Makes an attempt.
    pub(super) fn begin_attempt(
        self: &Arc<Self>,
        request: &AcquireRequest,
        pause: Option<Pause>,
        place: Place,
    ) {
        let attempt =
            Driver { entry: Arc::clone(self), request: request.clone(), unwanted: None, is_over: false };
        self.start(request, place, attempt.drive(pause, log::span(self.name())));
    }

    /// Completes a future unless the attempt is not wanted any more.
    async fn while_wanted<T>(&self, request: &AcquireRequest, future: impl Future<Output = T>) -> Option<T> {
        let (number, mut future) = (request.number(), pin!(future));
        poll_fn(|context| {
            if let Poll::Ready(output) = future.as_mut().poll(context) {
                return Poll::Ready(Some(output));
            }
            with_waker(context, |waker| {
                let is_wanted = self.look(|local| local.is_wanted(number, waker));
                if is_wanted { Poll::Pending } else { Poll::Ready(None) }
            })
        })
        .await
    }
}

/// One attempt. If it is dropped before it is over, all requests are refused.
struct Driver {
    entry: Arc<Entry>,
    request: AcquireRequest,
    /// A grant that is not wanted. It is kept until it is undone: a backend may leave what nothing refers to any more to its
    /// session.
    unwanted: Option<Grant<AnyLease>>,
    is_over: bool,
}

impl Drop for Driver {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let (entry, number) = (&self.entry, self.request.number());
        let ended = LockError::new(ErrorKind::Closed, Operation::Acquire)
            .because("the runtime that the client's work runs on has ended");
        entry.close(&ended);
        // What it has left at the server, no task undoes.
        drop(entry.client.unconfirmed.begin().until_done());
        drop(entry.look(|local| local.take_counted(number)));
        entry.answered(number, &Reply::Never, Place::Engine);
    }
}

impl Driver {
    /// Makes the attempt, and undoes what is not wanted of it.
    async fn drive(mut self, pause: Option<Pause>, trace: Trace) {
        let outcome = trace.around(pin!(self.make(pause))).await.unwrap_or(Outcome::Void);
        let number = self.request.number();
        let undo = self.entry.turn(Place::Here, |local, turn| local.attempted(turn, number, outcome));
        self.is_over = true;
        if let Some((counted, grant)) = undo {
            // It does not concern the caller.
            self.request.continue_on_engine();
            let unwanted = self.unwanted.take().or(grant);
            // In a box, as all that is rare: the future of each attempt has to have room for it otherwise.
            Box::pin(self.entry.cancel(&self.request, unwanted, counted)).await;
        }
    }

    /// Makes the attempt until it has an outcome; returns `None` when it is not wanted any more.
    async fn make(&mut self, pause: Option<Pause>) -> Option<Outcome> {
        let Self { entry, request, .. } = &*self;
        let (backend, clock) = (&entry.client.backend, entry.clock());
        let tries_once = request.wait() == Wait::Try;
        if request.options().at_least.is_some()
            && let Some(outcome) = Box::pin(self.wait_for_pause()).await?
        {
            return Some(outcome);
        }
        if let Some(Pause { reason, in_a_row }) = pause {
            entry.log_lost_unseen(reason, in_a_row);
            let longest = FIRST_PAUSE * (1 << in_a_row.min(8)) / 2;
            let length = Backoff::new(longest, LONGEST_PAUSE).next_pause();
            entry.while_wanted(request, clock.sleep_until(clock.now().plus(length))).await?;
        }
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        loop {
            match entry.while_wanted(request, backend.acquire(request)).await? {
                Ok(Some(grant)) => {
                    return match request.options().at_least {
                        None => Some(Outcome::Granted(grant)),
                        Some(at_least) => Box::pin(self.unless_paused(grant, at_least)).await,
                    };
                }
                Ok(None) if tries_once => return Some(Outcome::Refused),
                Ok(None) => return Some(Outcome::Void),
                Err(error) if error.is_retryable() && !tries_once => {
                    entry.log_repeated("an attempt failed and is repeated", &error);
                    request.unreachable(error);
                }
                Err(error) => return Some(Outcome::Failed(error)),
            }
            let pause = clock.now().plus(backoff.next_pause());
            entry.while_wanted(request, clock.sleep_until(pause)).await?;
        }
    }

    /// Waits while the pause of an earlier holder goes on, if this client knows of one. The server is asked about it first, now and then,
    /// and before a wait ends. Returns an outcome that comes before the end of the pause.
    async fn wait_for_pause(&self) -> Option<Option<Outcome>> {
        let Self { entry, request, .. } = self;
        let (backend, clock, memo) = (&entry.client.backend, entry.clock(), self.memo_of_pause());
        let is_known = |now: Moment| entry.look(|local| local.pause_end.filter(|end| *end > now));
        while let Some(mut end) = is_known(clock.now()) {
            let looking = within(clock, end, backend.recall(&memo, Recall::Look));
            match entry.while_wanted(request, looking).await? {
                None => continue,
                Some(Ok(remaining)) => {
                    let known = remaining.map(|remaining| clock.now().plus(remaining));
                    entry.look(|local| local.pause_end = known);
                    match known {
                        Some(known) => end = known,
                        None => continue,
                    }
                    request.queued();
                    if request.wait() == Wait::Try {
                        return Some(Some(Outcome::Refused));
                    }
                }
                Some(Err(error)) if error.is_retryable() && request.wait() != Wait::Try => {
                    entry.log_repeated("a pause was not looked at", &error);
                    request.unreachable(error);
                }
                Some(Err(error)) => return Some(Some(Outcome::Failed(error))),
            }
            let look_again = clock.sleep_until(end.min(clock.now().plus(LOOK_AGAIN)));
            let _ = entry.while_wanted(request, race(request.asked(), look_again)).await?;
        }
        Some(None)
    }

    fn memo_of_pause(&self) -> Memo {
        Memo::of_pause(self.entry.name().clone(), self.request.physical().clone())
    }

    /// Begins the pause of a grant, unless that of an earlier holder goes on, or the server has not said: then the grant is
    /// not wanted.
    async fn unless_paused(&mut self, grant: Grant<AnyLease>, at_least: Duration) -> Option<Outcome> {
        let memo = self.memo_of_pause();
        let Self { entry, request, unwanted, .. } = self;
        *unwanted = Some(grant);
        let (backend, clock) = (&entry.client.backend, entry.clock());
        match entry.while_wanted(request, backend.remember(&memo, at_least)).await? {
            Ok(Remembered::Now) => unwanted.take().map(Outcome::Granted),
            Ok(Remembered::Already { remaining }) => {
                let end = clock.now().plus(remaining);
                entry.look(|local| local.pause_end = Some(end));
                Some(Outcome::Void)
            }
            Err(error) if error.is_retryable() && request.wait() != Wait::Try => {
                entry.log_repeated("an attempt failed and is repeated", &error);
                request.unreachable(error);
                entry.while_wanted(request, clock.sleep_until(clock.now().plus(LONGEST_PAUSE))).await?;
                Some(Outcome::Void)
            }
            Err(error) => Some(Outcome::Failed(error)),
        }
    }
}
