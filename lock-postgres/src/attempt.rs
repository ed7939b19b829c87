//! One attempt to acquire a lock: tried once, or waited for at the server until it is granted.

use std::sync::Arc;
use std::time::Duration;

use lock_core::spi::within;
use lock_core::{AcquireRequest, Backoff, ErrorKind, Grant, LockError, Operation, Wait};
use lock_kit::PooledLink as _;
use lock_kit::{ClientRecord, gone, no_answer};
use tokio::sync::oneshot;

use crate::backend::PostgresBackend;
use crate::claim::{self, Claim, Refusal, Waiting, Wanted};
use crate::control::Seen;
use crate::dialect::{Link, OwnLink, Placed, Started, Taken};
use crate::failure::blocked;
use crate::statement::Waiter;

/// The pause before the next check of a wait if the session did not wait, or the server did not answer.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// The longest pause between two checks of a wait that has lasted for a while.
const LONGEST_PAUSE: Duration = Duration::from_mins(5);

/// How often a waiter tries the lock while no connection is free on which it could wait at the server.
const LOOK_WITHOUT_A_PLACE: Duration = Duration::from_secs(1);

/// How often at least a session may be found idle before the client gives it up: its statement or its answer may be on
/// the way.
const MOST_MISSES: u32 = 3;

/// The pauses between two tries for permits while another client passes the gate, which takes less than a millisecond.
const FIRST_TRY_AGAIN: Duration = Duration::from_millis(1);
const LONGEST_TRY_AGAIN: Duration = Duration::from_millis(8);

/// When a client first checks a wait on which others of this client wait, or which ends without the name of the holder.
const SOON: Duration = Duration::from_millis(20);

pub(crate) struct Attempt<'a> {
    backend: &'a PostgresBackend,
    request: &'a AcquireRequest,
    claim: Claim,
}

impl<'a> Attempt<'a> {
    pub(crate) fn new(backend: &'a PostgresBackend, request: &'a AcquireRequest) -> Result<Self, LockError> {
        let unsupported = || LockError::new(ErrorKind::Unsupported, Operation::Acquire).on(request.name());
        let wanted = Wanted::of(request.mode()).ok_or_else(unsupported)?;
        let claim = backend.claim(request, wanted)?;
        Ok(Self { backend, request, claim })
    }

    pub(crate) async fn make(self) -> Result<Option<Grant<Placed>>, LockError> {
        // The core may have called before for this attempt, with an unknown outcome.
        self.backend.client.undo(self.claim.id, Operation::Cancel).await?;
        match self.request.wait() {
            Wait::Try => Box::pin(self.try_once()).await,
            Wait::Until(_) | Wait::Forever => self.wait().await,
        }
    }

    async fn try_once(&self) -> Result<Option<Grant<Placed>>, LockError> {
        let clock = self.backend.client.settings.clock();
        let mut pauses = Backoff::new(FIRST_TRY_AGAIN, LONGEST_TRY_AGAIN);
        let deadline = clock.now().plus(self.backend.client.settings.request_timeout);
        // A connection may have ended while it was unused, which shows only at the next statement; this may be so for all of them.
        let mut more = self.backend.client.pool.connections().max(1);
        loop {
            let started = self.backend.client.pool.take_somewhere(&self.claim).await?;
            match self.taken(started).await? {
                Outcome::Granted(grant) => return Ok(Some(grant)),
                Outcome::Refused => {
                    self.name_holder().await;
                    return Ok(None);
                }
                // Which says nothing of the permits.
                Outcome::GateTaken if clock.now() < deadline => {
                    clock.sleep_until(clock.now().plus(pauses.next_pause())).await;
                }
                Outcome::GateTaken => return Err(blocked(Operation::Acquire)),
                Outcome::Nothing if more > 0 => {
                    more -= 1;
                    self.backend.client.undo(self.claim.id, Operation::Cancel).await?;
                }
                Outcome::Nothing => return Err(gone(Operation::Acquire)),
            }
        }
    }

    /// Boxes what a wait without a limit does not need: the space for it would be allocated with each wait.
    async fn wait(&self) -> Result<Option<Grant<Placed>>, LockError> {
        if let Wait::Until(_) = self.request.wait()
            && let Some(grant) = Box::pin(self.try_before_waiting()).await?
        {
            return Ok(Some(grant));
        }
        let own = match self.backend.client.pool.idle() {
            Some(own) => own,
            None => match Box::pin(self.own_or_grant()).await? {
                Way::Own(own) => own,
                Way::Granted(grant) => return Ok(Some(grant)),
            },
        };
        let waiting = Arc::new(Waiting::default());
        let link = own.occupy(&self.claim);
        let (answer, asked) = oneshot::channel();
        let wait = claim::Wait { waiter: self.description(), waiting: Arc::clone(&waiting), answer };
        link.wait(self.claim.clone(), wait);
        self.backend.track(&self.claim, &link, Some(Arc::clone(&waiting)));
        self.backend.snapshot_monitor.add(link.session, &waiting);
        match self.watch((link, asked), &waiting).await? {
            Outcome::Granted(grant) => Ok(Some(grant)),
            Outcome::Refused | Outcome::GateTaken | Outcome::Nothing => Ok(None),
        }
    }

    /// Tries the lock before a wait with a time limit. The server answers a wait only when it is over. A wait that ends without an
    /// answer does not know whether another client holds the lock, and a check from another connection may come too late.
    async fn try_before_waiting(&self) -> Result<Option<Grant<Placed>>, LockError> {
        let started = self.backend.client.pool.take_somewhere(&self.claim).await?;
        match self.taken(started).await? {
            Outcome::Granted(grant) => return Ok(Some(grant)),
            // Another client has the lock. Others of this client may come only when this attempt is in the server's
            // queue: their connections may be faster.
            Outcome::Refused | Outcome::GateTaken => self.request.busy(),
            Outcome::Nothing => self.backend.client.undo(self.claim.id, Operation::Cancel).await?,
        }
        Ok(None)
    }

    /// Called when no connection is free to wait on. Tries the lock, which needs no connection of its own. If the lock is not free,
    /// waits for a connection, and tries again now and then.
    async fn own_or_grant(&self) -> Result<Way, LockError> {
        let (pool, clock) = (&self.backend.client.pool, self.backend.client.settings.clock());
        let mut is_told = false;
        let mut started = Some(pool.take_somewhere(&self.claim).await?);
        let mut owning = std::pin::pin!(pool.own());
        loop {
            if let Some(started) = started {
                match self.taken(started).await? {
                    Outcome::Granted(grant) => return Ok(Way::Granted(grant)),
                    Outcome::Refused | Outcome::GateTaken => {
                        self.request.busy();
                        // Not at first: it has yet to come into the queue for a connection.
                        if is_told {
                            self.name_holder().await;
                        }
                    }
                    Outcome::Nothing => self.backend.client.undo(self.claim.id, Operation::Cancel).await?,
                }
            }
            let pause = clock.now().plus(LOOK_WITHOUT_A_PLACE.min(self.backend.client.settings.interval));
            if let Some(own) = within(clock, pause, owning.as_mut()).await {
                return Ok(Way::Own(own?));
            }
            if !std::mem::replace(&mut is_told, true) {
                tracing::warn!(
                    target: "distlock",
                    lock = %self.request.name(),
                    max_waiting = self.backend.client.settings.limits.waiting,
                    "as many waits as allowed are at the server: the client tries the lock now and then, and waiters at the server come first"
                );
            }
            started = pool.take(&self.claim);
        }
    }

    async fn taken(&self, started: Started) -> Result<Outcome, LockError> {
        let (link, asked) = started;
        self.backend.track(&self.claim, &link, None);
        let clock = self.backend.client.settings.clock();
        let limit = self.backend.client.settings.request_timeout;
        let mut asked = asked;
        loop {
            match within(clock, clock.now().plus(limit), &mut asked).await {
                // Other commands were before it, and the server has answered them.
                None if !link.is_slow(clock, limit / 2) && !link.has_ended() => {}
                None => return Err(no_answer(Operation::Acquire)),
                Some(Err(_)) => return Ok(Outcome::Nothing),
                Some(Ok(taken)) => return Ok(self.outcome(&link, &taken?)),
            }
        }
    }

    fn outcome(&self, link: &Arc<Link>, came: &Taken) -> Outcome {
        if let Taken::Interrupted = came {
            return Outcome::Nothing;
        }
        if let Taken::Granted { .. } = came {
            // Until it is released: the core may cancel an attempt that has its lock.
            self.backend.track(&self.claim, link, None);
        } else {
            self.backend.client.forget(self.claim.id);
        }
        let Taken::Granted { token, anchor } = *came else {
            return if let Taken::Refused(Refusal::AtGate) = came {
                Outcome::GateTaken
            } else {
                Outcome::Refused
            };
        };
        Outcome::Granted(self.backend.grant(link, &self.claim, token, anchor))
    }

    /// Waits for the answer to a wait. Meanwhile it checks that the server responds, and that the session waits for the lock, which
    /// another session then holds. Otherwise the answer may never come, because the server has forgotten the wait or the grant
    /// was lost.
    async fn watch(&self, started: Started, waiting: &Waiting) -> Result<Outcome, LockError> {
        let (link, mut asked) = started;
        let attempt = self.request;
        let clock = self.backend.client.settings.clock();
        let mut pause = self.backend.client.settings.interval;
        // Most waits without a limit are granted sooner, and then it does not matter who held the lock.
        let mut is_limited = matches!(self.request.wait(), Wait::Until(_));
        let is_urgent = is_limited || self.claim.wanted != Wanted::Exclusive;
        let first = if is_urgent { SOON.min(pause) } else { pause };
        let mut look_at = clock.now().plus(first);
        let mut misses = 0;
        loop {
            tokio::select! {
                biased;
                taken = &mut asked => {
                    let taken = taken.map_err(|_| gone(Operation::Acquire))??;
                    return Ok(self.outcome(&link, &taken));
                }
                () = attempt.asked() => is_limited = true,
                () = clock.sleep_until(look_at) => {}
            }
            let looked = tokio::select! {
                biased;
                taken = &mut asked => {
                    let taken = taken.map_err(|_| gone(Operation::Acquire))??;
                    return Ok(self.outcome(&link, &taken));
                }
                looked = self.look(&link, is_limited) => looked,
            };
            let again = match looked {
                Ok(Seen::Gone) if !waiting.has_answer() => return Err(gone(Operation::Acquire)),
                Ok(Seen::Waiting) => {
                    misses = 0;
                    attempt.queued();
                    pause = (pause * 2).min(LONGEST_PAUSE.max(self.backend.client.settings.interval));
                    pause
                }
                // Only permits are missing, for which it looks itself, at a server that answers.
                Ok(_) if waiting.is_at_head() && !waiting.has_answer() => {
                    misses = 0;
                    attempt.queued();
                    self.backend.client.settings.interval
                }
                // The wait has its answer, and the actor is turning it into a hold.
                Ok(_) if waiting.has_answer() => LOOK_AGAIN,
                Ok(Seen::Active) => {
                    misses = 0;
                    LOOK_AGAIN
                }
                Ok(_) => {
                    misses += 1;
                    // The network may retransmit an answer that the server has sent.
                    let patience = self.backend.client.settings.request_timeout.div_duration_f64(LOOK_AGAIN);
                    if f64::from(misses) > patience.max(f64::from(MOST_MISSES)) {
                        return Err(gone(Operation::Acquire));
                    }
                    LOOK_AGAIN
                }
                Err(error) => {
                    attempt.unreachable(error.during(Operation::Acquire));
                    LOOK_AGAIN
                }
            };
            look_at = clock.now().plus(again);
        }
    }

    /// Looks at the wait. For a caller that may stop waiting it also asks who holds the lock.
    async fn look(&self, link: &Link, is_limited: bool) -> Result<Seen, LockError> {
        let seen = self.backend.client.control.look_at_wait(link.session).await?;
        if seen == Seen::Waiting && is_limited {
            self.request.queued();
            self.name_holder().await;
        }
        Ok(seen)
    }

    /// Finds out who holds the lock, for the error of a caller that does not get it.
    async fn name_holder(&self) {
        if let Wanted::Permits(_) = self.claim.wanted {
            return;
        }
        if let Some(holder) = self.backend.holder_lookup.holder(self.backend, self.claim.key).await {
            self.request.held_by(holder);
        }
    }

    fn description(&self) -> Waiter {
        let client = ClientRecord::of_waiter(self.request.holder());
        let id = self.claim.id.to_string();
        let permits = match self.claim.wanted {
            Wanted::Permits(permits) => Some((permits.take, permits.of)),
            _ => None,
        };
        Waiter { id, client, permits }
    }
}

/// What an attempt gets after it found no connection to wait on.
enum Way {
    Own(OwnLink),
    Granted(Grant<Placed>),
}

enum Outcome {
    Granted(Grant<Placed>),
    Refused,
    /// Others take permits of the semaphore, or wait for some.
    GateTaken,
    /// Nothing is known; the attempt may have left something that has to be undone.
    Nothing,
}
