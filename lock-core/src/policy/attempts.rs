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

use crate::policy::client_lock::{ClientLock, Where};
use crate::policy::local::{Outcome, Reply, UnseenLosses};
use crate::policy::log::{self, Trace};
use crate::runtime::{Moment, race, with_waker, within};
use crate::spi::{AcquireRequest, AnyLease, Backoff, Grant, Memo, Recall, Remembered, Wait};
use crate::types::{ErrorKind, LockError, Operation};

const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How often a wait in a pause asks whether that goes on: an operator may have ended it.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

impl ClientLock {
    /// Makes an attempt.
    pub(super) fn begin_attempt(
        self: &Arc<Self>,
        request: &AcquireRequest,
        losses: Option<UnseenLosses>,
        at: Where,
    ) {
        let attempt =
            Driver { lock: Arc::clone(self), request: request.clone(), unwanted: None, is_over: false };
        self.start(request, at, attempt.drive(losses, log::span(self.name())));
    }

    /// Completes a future, or ends the attempt, because it is not wanted any more.
    async fn while_wanted<T>(
        &self,
        request: &AcquireRequest,
        future: impl Future<Output = T>,
    ) -> Result<T, Outcome> {
        let (number, mut future) = (request.number(), pin!(future));
        poll_fn(|context| {
            if let Poll::Ready(output) = future.as_mut().poll(context) {
                return Poll::Ready(Ok(output));
            }
            with_waker(context, |waker| {
                let is_wanted = self.look(|local| local.is_wanted(number, waker));
                if is_wanted { Poll::Pending } else { Poll::Ready(Err(Outcome::Void)) }
            })
        })
        .await
    }
}

/// One attempt. If it is dropped before it is over, all requests are refused.
struct Driver {
    lock: Arc<ClientLock>,
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
        let (lock, number) = (&self.lock, self.request.number());
        let ended = LockError::new(ErrorKind::Closed, Operation::Acquire)
            .because("the runtime that the client's work runs on has ended");
        lock.close(&ended);
        // What it has left at the server, no task undoes.
        drop(lock.client.unconfirmed.begin().until_done());
        drop(lock.look(|local| local.take_counted(number)));
        lock.answered(number, &Reply::Never, Where::OnEngine);
    }
}

impl Driver {
    /// Makes the attempt, and undoes what is not wanted of it.
    async fn drive(mut self, losses: Option<UnseenLosses>, trace: Trace) {
        let granted = trace.around(pin!(self.make(losses))).await;
        let outcome = granted.map_or_else(|outcome| outcome, Outcome::Granted);
        let number = self.request.number();
        let undo = self.lock.turn(Where::Here, |local, turn| local.attempted(turn, number, outcome));
        self.is_over = true;
        if let Some((counted, grant)) = undo {
            // It does not concern the caller.
            self.request.continue_on_engine();
            let unwanted = self.unwanted.take().or(grant);
            // In a box, as all that is rare: the future of each attempt has to have room for it otherwise.
            Box::pin(self.lock.cancel(&self.request, unwanted, counted)).await;
        }
    }

    /// Makes the attempt until it is granted, or ends in another way.
    async fn make(&mut self, losses: Option<UnseenLosses>) -> Result<Grant<AnyLease>, Outcome> {
        let Self { lock, request, .. } = &*self;
        let (backend, clock) = (&lock.client.backend, lock.clock());
        let tries_once = request.wait() == Wait::Try;
        if request.options().at_least.is_some() {
            Box::pin(self.wait_for_pause()).await?;
        }
        if let Some(UnseenLosses { reason, in_a_row }) = losses {
            lock.log_lost_unseen(reason, in_a_row);
            let longest = FIRST_PAUSE * (1 << in_a_row.min(8)) / 2;
            let length = Backoff::new(longest, LONGEST_PAUSE).next_pause();
            lock.while_wanted(request, clock.sleep_until(clock.now().plus(length))).await?;
        }
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        loop {
            match lock.while_wanted(request, backend.acquire(request)).await? {
                Ok(Some(grant)) => {
                    return match request.options().at_least {
                        None => Ok(grant),
                        Some(at_least) => Box::pin(self.unless_paused(grant, at_least)).await,
                    };
                }
                Ok(None) if tries_once => return Err(Outcome::Refused),
                Ok(None) => return Err(Outcome::Void),
                Err(error) if error.is_retryable() && !tries_once => {
                    lock.log_repeated("an attempt failed and is repeated", &error);
                    request.unreachable(error);
                }
                Err(error) => return Err(Outcome::Failed(error)),
            }
            let pause = clock.now().plus(backoff.next_pause());
            lock.while_wanted(request, clock.sleep_until(pause)).await?;
        }
    }

    /// Waits while the pause of an earlier holder goes on, if this client knows of one. The server is asked about it first, now and then,
    /// and before a wait ends.
    async fn wait_for_pause(&self) -> Result<(), Outcome> {
        let Self { lock, request, .. } = self;
        let (backend, clock, memo) = (&lock.client.backend, lock.clock(), self.memo_of_pause());
        let is_known = |now: Moment| lock.look(|local| local.pause_end.filter(|end| *end > now));
        while let Some(mut end) = is_known(clock.now()) {
            let looking = within(clock, end, backend.recall(&memo, Recall::Look));
            match lock.while_wanted(request, looking).await? {
                None => continue,
                Some(Ok(remaining)) => {
                    let known = remaining.map(|remaining| clock.now().plus(remaining));
                    lock.look(|local| local.pause_end = known);
                    match known {
                        Some(known) => end = known,
                        None => continue,
                    }
                    request.queued();
                    if request.wait() == Wait::Try {
                        return Err(Outcome::Refused);
                    }
                }
                Some(Err(error)) if error.is_retryable() && request.wait() != Wait::Try => {
                    lock.log_repeated("a pause was not looked at", &error);
                    request.unreachable(error);
                }
                Some(Err(error)) => return Err(Outcome::Failed(error)),
            }
            let look_again = clock.sleep_until(end.min(clock.now().plus(LOOK_AGAIN)));
            let _ = lock.while_wanted(request, race(request.asked(), look_again)).await?;
        }
        Ok(())
    }

    fn memo_of_pause(&self) -> Memo {
        Memo::of_pause(self.lock.name().clone(), self.request.physical().clone())
    }

    /// Begins the pause of a grant, unless that of an earlier holder goes on, or the server has not said: then the grant is
    /// not wanted.
    async fn unless_paused(
        &mut self,
        grant: Grant<AnyLease>,
        at_least: Duration,
    ) -> Result<Grant<AnyLease>, Outcome> {
        let memo = self.memo_of_pause();
        let Self { lock, request, unwanted, .. } = self;
        *unwanted = Some(grant);
        let (backend, clock) = (&lock.client.backend, lock.clock());
        match lock.while_wanted(request, backend.remember(&memo, at_least)).await? {
            Ok(Remembered::Now) => unwanted.take().ok_or(Outcome::Void),
            Ok(Remembered::Already { remaining }) => {
                let end = clock.now().plus(remaining);
                lock.look(|local| local.pause_end = Some(end));
                Err(Outcome::Void)
            }
            Err(error) if error.is_retryable() && request.wait() != Wait::Try => {
                lock.log_repeated("an attempt failed and is repeated", &error);
                request.unreachable(error);
                lock.while_wanted(request, clock.sleep_until(clock.now().plus(LONGEST_PAUSE))).await?;
                Err(Outcome::Void)
            }
            Err(error) => Err(Outcome::Failed(error)),
        }
    }
}
