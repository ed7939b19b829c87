//! One attempt to acquire a lock: tried once, or waited for at the server until it is granted.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lock_core::spi::within;
use lock_core::{
    AcquireRequest, Backoff, Grant, HolderId, LockError, Mode, Moment, Operation, Participant, Wait,
};
use lock_kit::{PooledLink as _, gone, no_answer};

use crate::claim::{Claim, Waiter};
use crate::client::{Client, Placed};
use crate::dialect::Dialect;
use crate::failure::blocked;
use crate::link::{Asked, Command, Link, Taken};
use crate::pool::OwnLink;
use crate::waiting::Waiting;

/// The pause before the next look at a wait that shows neither its place nor its end, or after the server did not answer.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// The pause before the first look whether a wait has its place, from which they grow. Readers that crowd at a lock without a writer wait
/// for less, and for the server such a look is more work than what they wait for.
const FIRST_LOOK: Duration = Duration::from_millis(10);

/// The longest pause between two looks at a wait that has lasted for a while.
const LONGEST_PAUSE: Duration = Duration::from_mins(5);

/// How often a waiter tries the lock while no connection is free on which it could wait at the server.
const LOOK_WITHOUT_A_PLACE: Duration = Duration::from_secs(1);

/// How often at least a wait may be found not to be one before the client gives the connection up: its statement or its answer may be on
/// the way, or another client about to get the lock.
const MOST_MISSES: u32 = 3;

/// The pauses between two tries while others pass the gate of the lock, which takes less than a millisecond.
const FIRST_TRY_AGAIN: Duration = Duration::from_millis(1);
const LONGEST_TRY_AGAIN: Duration = Duration::from_millis(8);

/// What a client sees of a session that was sent to wait for a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// It waits in the queue of the server.
    Waiting,
    /// Another session has the lock. Whether this one waits for it is not known.
    Held(HolderId),
    /// It carries out its statement, and is not in the queue: it was not or is no longer, or the server is slow.
    Active,
    /// Its statement is on the way, or its answer, or either was lost.
    Idle,
    /// The lock is free.
    Free,
    /// The session does not exist.
    Gone,
}

pub(crate) struct Attempt<'a, D: Dialect> {
    client: &'a Client<D>,
    request: &'a AcquireRequest,
    claim: Claim<D::Key>,
    /// Whether the core has asked what the server says of the wait.
    is_asked: AtomicBool,
}

impl<'a, D: Dialect> Attempt<'a, D> {
    pub(crate) fn new(client: &'a Client<D>, request: &'a AcquireRequest) -> Result<Self, LockError> {
        Ok(Self { client, request, claim: client.claim(request)?, is_asked: AtomicBool::new(false) })
    }

    pub(crate) async fn make(self) -> Result<Option<Grant<Placed<D>>>, LockError> {
        // The core may have called before for this attempt, with an unknown outcome.
        self.undo().await?;
        match self.request.wait() {
            Wait::Try => Box::pin(self.try_once()).await,
            Wait::Until(_) | Wait::Forever => self.wait().await,
        }
    }

    async fn undo(&self) -> Result<(), LockError> {
        self.client.undo(self.claim.id, Operation::Cancel).await
    }

    async fn try_once(&self) -> Result<Option<Grant<Placed<D>>>, LockError> {
        let clock = self.client.settings.clock();
        let mut pauses = Backoff::new(FIRST_TRY_AGAIN, LONGEST_TRY_AGAIN);
        let deadline = clock.now().plus(self.client.settings.request_timeout);
        let mut tries = D::TRIES_AT_A_GATE;
        // A connection may have ended while it was unused, which shows only at the next statement; this may be so for all of them.
        let mut more = self.client.pool.connections().max(1);
        loop {
            match self.take_somewhere().await? {
                Outcome::Granted(grant) => return Ok(Some(grant)),
                // Which says nothing of what is behind the gate.
                Outcome::Refused { is_passing: true } if tries > 1 => {
                    if clock.now() >= deadline {
                        return Err(blocked(Operation::Acquire));
                    }
                    tries -= 1;
                    clock.sleep_until(clock.now().plus(pauses.next_pause())).await;
                }
                Outcome::Refused { .. } => {
                    self.name_holder().await;
                    return Ok(None);
                }
                Outcome::Nothing if more > 0 => {
                    more -= 1;
                    self.undo().await?;
                }
                Outcome::Nothing => return Err(gone(Operation::Acquire)),
            }
        }
    }

    /// Boxes what a wait without a limit does not need: the space for it would be allocated with each wait.
    async fn wait(&self) -> Result<Option<Grant<Placed<D>>>, LockError> {
        // The server answers a wait only when it is over. One that ends without an answer does not know whether another client holds the
        // lock, and a check from another connection may come too late.
        let try_first = async { self.tried(self.take_somewhere().await?).await };
        if matches!(self.request.wait(), Wait::Until(_))
            && let Some(grant) = Box::pin(try_first).await?
        {
            return Ok(Some(grant));
        }
        let own = match self.client.pool.idle() {
            Some(own) => own,
            None => match Box::pin(self.own_or_grant()).await? {
                Begun::Own(own) => own,
                Begun::Granted(grant) => return Ok(Some(grant)),
            },
        };
        match self.wait_on(own).await? {
            Outcome::Granted(grant) => Ok(Some(grant)),
            // It has also reached the longest time that the client asks the server for.
            Outcome::Refused { .. } | Outcome::Nothing => Ok(None),
        }
    }

    /// Reports what a try before a wait, or instead of one, has found.
    async fn tried(&self, outcome: Outcome<D>) -> Result<Option<Grant<Placed<D>>>, LockError> {
        match outcome {
            Outcome::Granted(grant) => return Ok(Some(grant)),
            // Another client has the lock. Others of this client may come only when this attempt is in the server's
            // queue: their connections may be faster.
            Outcome::Refused { .. } => self.request.busy(),
            Outcome::Nothing => self.undo().await?,
        }
        Ok(None)
    }

    fn placed(&self, link: &Arc<Link<D>>) -> Placed<D> {
        Placed { link: Arc::clone(link), claim: self.claim.clone() }
    }

    /// Called when no connection is free to wait on. Tries the lock, which needs no connection of its own. If the lock is not free,
    /// waits for a connection, and tries again now and then, and when the core asks.
    async fn own_or_grant(&self) -> Result<Begun<D>, LockError> {
        let (pool, settings, attempt) = (&self.client.pool, &self.client.settings, self.request);
        let mut is_told = false;
        let mut owning = pin!(pool.own());
        loop {
            tokio::select! {
                biased;
                // Not at first: a lock that is free needs no connection of its own.
                own = &mut owning, if is_told => return own.map(Begun::Own),
                sent = pool.take_somewhere(&self.claim) => match sent {
                    Ok((link, asked)) => {
                        let outcome = self.taken(link, asked).await?;
                        if let Some(grant) = self.tried(outcome).await? {
                            return Ok(Begun::Granted(grant));
                        }
                        // Not at first: it has yet to come into the queue for a connection.
                        if is_told {
                            self.name_holder().await;
                        }
                    }
                    Err(error) if error.is_retryable() => attempt.unreachable(error),
                    Err(error) => return Err(error),
                },
            }
            if !std::mem::replace(&mut is_told, true) {
                tracing::warn!(
                    target: "distlock",
                    lock = %self.request.name(),
                    max_waiting = settings.limits.waiting,
                    "no connection is free to wait on: the client tries the lock now and then, and waiters at the server come first"
                );
            }
            let again = settings.clock().now().plus(LOOK_WITHOUT_A_PLACE.min(settings.interval));
            tokio::select! {
                biased;
                own = &mut owning => return own.map(Begun::Own),
                () = attempt.asked() => self.is_asked.store(true, Ordering::Relaxed),
                () = settings.clock().sleep_until(again) => {}
            }
        }
    }

    /// Takes the lock, if it is free, as soon as a connection has space.
    async fn take_somewhere(&self) -> Result<Outcome<D>, LockError> {
        let (link, asked) = self.client.pool.take_somewhere(&self.claim).await?;
        self.taken(link, asked).await
    }

    async fn taken(&self, link: Arc<Link<D>>, mut asked: Asked) -> Result<Outcome<D>, LockError> {
        self.client.track(self.placed(&link), None);
        let clock = self.client.settings.clock();
        let limit = self.client.settings.request_timeout;
        loop {
            match within(clock, clock.now().plus(limit), &mut asked).await {
                // Other commands were before it, and the server has answered them.
                None if !link.is_slow(clock, limit / 2) && !link.has_ended() => {}
                None => return Err(no_answer(Operation::Acquire)),
                Some(Err(_)) => return Ok(Outcome::Nothing),
                Some(Ok(taken)) => return Ok(self.outcome(&link, taken?)),
            }
        }
    }

    fn outcome(&self, link: &Arc<Link<D>>, came: Taken) -> Outcome<D> {
        match came {
            Taken::Granted { token, anchor } => {
                let place = self.placed(link);
                // Until it is released: the core may cancel an attempt that has its lock.
                self.client.track(place.clone(), None);
                Outcome::Granted(self.client.grant(place, token, anchor))
            }
            Taken::Refused { holder, is_passing } => {
                self.client.forget(self.claim.id);
                if let Some(holder) = holder {
                    self.request.held_by(*holder);
                }
                Outcome::Refused { is_passing }
            }
            Taken::Interrupted => Outcome::Nothing,
        }
    }

    /// Waits at the server, on this connection. Meanwhile it checks that the server responds, that it still has the session, and that
    /// another one holds the lock. Otherwise the answer may never come, because the server has forgotten the wait or the grant was lost.
    async fn wait_on(&self, own: OwnLink<D>) -> Result<Outcome<D>, LockError> {
        let has_tried = matches!(self.request.wait(), Wait::Until(_));
        let waiting = Waiting::new(Waiter::of(&self.claim, self.request.holder()).comment(), has_tried);
        let link = own.occupy(&self.claim);
        let (claim, waits) = (self.claim.clone(), Some(Arc::clone(&waiting)));
        let mut asked = link.asked(|answer| Command::Acquire { claim, waiting: waits, answer });
        self.client.track(self.placed(&link), Some(&waiting));
        self.client.settings.dialect.begins_to_wait(&self.client.control, &link.session, &waiting);
        let (attempt, clock) = (self.request, self.client.settings.clock());
        let mut watch = self.begin_to_watch();
        loop {
            let event = async {
                tokio::select! {
                    biased;
                    () = attempt.asked() => watch.is_asked(clock.now()),
                    () = waiting.placed(), if !watch.is_placed => {
                        watch.is_placed = true;
                        attempt.queued();
                    }
                    () = clock.sleep_until(watch.look_at) => self.look(&link, &waiting, &mut watch).await?,
                }
                Ok::<_, LockError>(())
            };
            tokio::select! {
                biased;
                taken = &mut asked => {
                    let taken = taken.map_err(|_| gone(Operation::Acquire))??;
                    return Ok(self.outcome(&link, taken));
                }
                seen = event => seen?,
            }
        }
    }

    /// Most waits without a limit are granted before the first look, and then it does not matter who held the lock. But others of this
    /// client that share the lock may only be sent when this attempt has its place in the server's queue.
    fn begin_to_watch(&self) -> Watch {
        let settings = &self.client.settings;
        let is_limited = matches!(self.request.wait(), Wait::Until(_));
        let seeks_place = self.claim.mode != Mode::Exclusive || self.is_asked.load(Ordering::Relaxed);
        let is_urgent = seeks_place || is_limited && D::NAMES_HOLDERS_LATER;
        let first = if is_urgent { FIRST_LOOK.min(settings.interval) } else { settings.interval };
        Watch {
            look_at: settings.clock().now().plus(first),
            pause: settings.interval,
            soon: FIRST_LOOK,
            misses: 0,
            is_placed: false,
            seeks_place,
            is_limited,
        }
    }

    /// Looks at the wait, and reports what it sees.
    async fn look(&self, link: &Link<D>, waiting: &Waiting, watch: &mut Watch) -> Result<(), LockError> {
        let (attempt, settings) = (self.request, &self.client.settings);
        let seeks_place = watch.seeks_place && !watch.is_placed;
        let seen = self.client.control.look_at_wait(&self.claim.key, &link.session, seeks_place).await;
        let again = match seen {
            // The task is turning it into a hold.
            Ok(_) if waiting.has_answer() => LOOK_AGAIN,
            Ok(Seen::Gone) => return Err(gone(Operation::Acquire)),
            Ok(Seen::Waiting) => {
                waiting.has_a_place();
                // Before the holder is asked for, whose answer says nothing of this wait.
                attempt.queued();
                if watch.is_limited {
                    self.name_holder().await;
                }
                watch.is_in_order()
            }
            // It lacks something behind the gate, for which it looks itself, at a server that answers.
            Ok(Seen::Active | Seen::Idle) if waiting.is_at_head() => {
                attempt.queued();
                watch.is_in_order()
            }
            Ok(Seen::Held(holder)) => {
                if self.claim.holder.is_none() {
                    attempt.held_by(Participant::new(holder));
                }
                if watch.is_placed {
                    attempt.queued();
                } else {
                    attempt.busy();
                }
                let pause = watch.is_in_order();
                if seeks_place { watch.next_soon() } else { pause }
            }
            Ok(Seen::Active) => watch.next_soon(),
            Ok(seen @ (Seen::Idle | Seen::Free)) => {
                let pause = watch.next_soon();
                watch.misses += u32::from(pause == LOOK_AGAIN);
                // The network may retransmit an answer that the server has sent; one that it has not sent gets no more time.
                let retransmitted = settings.request_timeout.div_duration_f64(LOOK_AGAIN);
                let patience = if seen == Seen::Idle { retransmitted } else { 0.0 };
                if f64::from(watch.misses) > patience.max(f64::from(MOST_MISSES)) {
                    return Err(gone(Operation::Acquire));
                }
                pause
            }
            Err(error) => {
                attempt.unreachable(error.during(Operation::Acquire));
                LOOK_AGAIN
            }
        };
        watch.look_at = settings.clock().now().plus(again);
        Ok(())
    }

    /// Finds out who holds the lock, for the error of a caller that does not get it.
    async fn name_holder(&self) {
        if let Some(holder) = D::holder_of(self.client, &self.claim).await {
            self.request.held_by(holder);
        }
    }
}

/// What is known of a wait, and when to look at it.
struct Watch {
    look_at: Moment,
    /// The pause between two looks at a wait that is in order.
    pause: Duration,
    /// The pause between two looks at one that is not, yet.
    soon: Duration,
    misses: u32,
    is_placed: bool,
    /// Whether it matters when the wait has its place.
    seeks_place: bool,
    /// Whether the wait may end without the lock.
    is_limited: bool,
}

impl Watch {
    fn is_asked(&mut self, now: Moment) {
        (self.seeks_place, self.is_limited) = (true, true);
        self.look_at = self.look_at.min(now.plus(FIRST_LOOK));
    }

    fn is_in_order(&mut self) -> Duration {
        self.misses = 0;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE.max(self.pause));
        self.pause
    }

    fn next_soon(&mut self) -> Duration {
        let pause = self.soon;
        self.soon = (pause * 2).min(LOOK_AGAIN);
        pause
    }
}

/// What an attempt finds for which no connection was free.
enum Begun<D: Dialect> {
    /// A connection to wait on.
    Own(OwnLink<D>),
    /// The lock.
    Granted(Grant<Placed<D>>),
}

enum Outcome<D: Dialect> {
    Granted(Grant<Placed<D>>),
    Refused {
        /// Others pass the gate of the lock, or wait there: it is not known what is behind it.
        is_passing: bool,
    },
    /// Nothing is known; the attempt may have left something that has to be undone.
    Nothing,
}
