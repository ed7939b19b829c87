//! One attempt to acquire a lock: tried once, or waited for at the server until it is granted.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lock_core::spi::within;
use lock_core::{
    AcquireRequest, AttemptId, Downgraded, FencingToken, Grant, HolderId, LockError, Mode, Moment, Operation,
    Participant, Term, Wait,
};
use lock_kit::PooledLink as _;
use lock_kit::{ClientRecord, gone, no_answer};

use crate::backend::{Lease, MySqlBackend};
use crate::batch::{Promise, Waiting};
use crate::claim::Claim;
use crate::control::{Seen, waits};
use crate::dialect::{Asked, Link, MySql, OwnLink, Placed, Taken};
use crate::inspection;
use crate::options::TokenSource;
use crate::parts::word_of;
use crate::statement::{Holder, Waiter};

/// The pause before the next check of a wait if the lock was free or ours, or the server did not answer.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// The longest pause between two checks of a wait that has lasted for a while.
const LONGEST_PAUSE: Duration = Duration::from_mins(5);

/// How often a waiter tries the lock while no connection is free on which it could wait at the server.
const LOOK_WITHOUT_A_PLACE: Duration = Duration::from_secs(1);

/// When one who shares and tries tries again: others who share may just have passed the gate, for less than a millisecond.
const PAUSES_AT_THE_GATE: [Duration; 4] =
    [Duration::from_millis(1), Duration::from_millis(3), Duration::from_millis(6), Duration::from_millis(10)];

/// The pause before the first look whether a wait has its place. Readers that crowd at a lock without a writer wait for less, and for the
/// server such a look is more work than what they wait for.
const FIRST_LOOK_AT_A_PLACE: Duration = Duration::from_millis(5);

/// How often in a row the lock may be found free before the client gives the connection up: another client may just have been about
/// to get it.
const MOST_MISSES: u32 = 3;

pub(crate) struct Attempt<'a> {
    backend: &'a MySqlBackend,
    request: &'a AcquireRequest,
    claim: Claim,
}

impl<'a> Attempt<'a> {
    pub(crate) fn new(backend: &'a MySqlBackend, request: &'a AcquireRequest) -> Self {
        let info = request.holder();
        let holder = (backend.client.settings.dialect.fencing == TokenSource::Table).then(|| {
            Arc::new(Holder {
                lock: request.name().as_str().to_owned(),
                client: ClientRecord::from(&**info),
                mode: word_of(request.mode()),
                together: Vec::new(),
                waits: false,
            })
        });
        let mode = request.mode();
        let parts = Arc::new(backend.parts(request.physical(), mode.kind()));
        let claim = Claim { parts, id: request.id(), mode, holder, sections: request.sections() };
        Self { backend, request, claim }
    }

    pub(crate) async fn make(self) -> Result<Option<Grant<Lease>>, LockError> {
        // The core may have called before for this attempt, with an unknown outcome.
        self.backend.client.undo(self.claim.id, Operation::Cancel).await?;
        match self.request.wait() {
            Wait::Try => self.try_once().await,
            Wait::Until(_) | Wait::Forever => self.wait().await,
        }
    }

    async fn try_once(&self) -> Result<Option<Grant<Lease>>, LockError> {
        if self.claim.mode == Mode::Exclusive {
            return self.try_now().await;
        }
        let clock = self.backend.client.settings.clock();
        for pause in PAUSES_AT_THE_GATE {
            if let Some(grant) = self.try_now().await? {
                return Ok(Some(grant));
            }
            clock.sleep_until(clock.now().plus(pause)).await;
        }
        self.try_now().await
    }

    async fn try_now(&self) -> Result<Option<Grant<Lease>>, LockError> {
        // A connection may have ended while it was unused, which shows only at the next statement; this may be so for all of them.
        for _ in 0..=self.backend.client.pool.connections().max(1) {
            let started = self.take_somewhere().await?;
            match self.taken(started).await? {
                Outcome::Granted(grant) => return Ok(Some(grant)),
                Outcome::Refused => return Ok(None),
                Outcome::Nothing => self.backend.client.undo(self.claim.id, Operation::Cancel).await?,
            }
        }
        Err(gone(Operation::Acquire))
    }

    async fn wait(&self) -> Result<Option<Grant<Lease>>, LockError> {
        if self.tries_first()
            && let Some(grant) = self.try_before_waiting().await?
        {
            return Ok(Some(grant));
        }
        loop {
            let (started, waiting) = match self.begin().await? {
                Way::Waits(started, waiting) => (started, waiting),
                Way::Granted(grant) => return Ok(Some(grant)),
            };
            match self.watch(started, &waiting).await? {
                Outcome::Granted(grant) => return Ok(Some(grant)),
                // The wait has reached the longest time that the client asks the server for.
                Outcome::Refused => {}
                Outcome::Nothing => return Ok(None),
            }
        }
    }

    /// A reader with time enough does not try first: the try would take a slot for this reader alone.
    fn tries_first(&self) -> bool {
        let Wait::Until(end) = self.request.wait() else { return false };
        let left = end.since(self.backend.client.settings.clock().now());
        self.claim.mode != Mode::Shared || left <= self.backend.client.settings.interval
    }

    /// Begins to wait, or takes part in the wait of another reader of this client. If no connection is free, takes the lock as soon
    /// as it is.
    async fn begin(&self) -> Result<Way, LockError> {
        if self.claim.mode != Mode::Shared {
            return self.wait_or_grant().await;
        }
        if let Some(joined) = self.join() {
            return Ok(joined);
        }
        let turn = self.backend.batches.turn(&self.claim.parts.gate);
        let _turn =
            within(self.backend.client.settings.clock(), self.next_look_without_a_place(), turn.lock()).await;
        match self.join() {
            Some(joined) => Ok(joined),
            None => self.wait_or_grant().await,
        }
    }

    fn join(&self) -> Option<Way> {
        let label = self.request.holder().label.as_deref();
        let (link, waiting, asked) = self.backend.batches.join(&self.claim, label)?;
        self.track(&link, waiting.hold, Some(&waiting));
        let started = Started { link, hold: waiting.hold, asked };
        Some(Way::Waits(started, waiting))
    }

    async fn wait_or_grant(&self) -> Result<Way, LockError> {
        match self.backend.client.pool.idle() {
            Some(own) => Ok(self.wait_on(own)),
            None => self.own_or_grant().await,
        }
    }

    fn wait_on(&self, own: OwnLink) -> Way {
        let (id, gate) = (self.claim.id, &self.claim.parts.gate);
        let (waiting, asked) = Waiting::new(id, self.request.holder().label.clone());
        let link = own.occupy(&self.claim);
        link.wait(self.claim.clone(), (self.description(), Promise(Arc::clone(&waiting))));
        match self.claim.mode {
            Mode::Shared => self.backend.batches.open(gate, &link, &waiting),
            _ => self.backend.batches.end(gate),
        }
        self.track(&link, id, Some(&waiting));
        Way::Waits(Started { link, hold: id, asked }, waiting)
    }

    fn placed(&self, link: &Arc<Link>, hold: AttemptId) -> Placed {
        let (link, key) = (Arc::clone(link), Arc::clone(&self.claim.parts.gate));
        Placed { link, key, id: self.claim.id, hold }
    }

    fn track(&self, link: &Arc<Link>, hold: AttemptId, waiting: Option<&Arc<Waiting>>) {
        self.backend.client.track(self.placed(link, hold), waiting.cloned());
    }

    /// Takes the lock, if it is free, as soon as a connection has space.
    async fn take_somewhere(&self) -> Result<Started, LockError> {
        Ok(self.started(self.backend.client.pool.take_somewhere(&self.claim).await?))
    }

    fn started(&self, (link, asked): lock_sql::Started<MySql>) -> Started {
        Started { link, hold: self.claim.id, asked }
    }

    /// Tries the lock before a wait with a time limit. The server answers a wait only when it is over. A wait that ends without an
    /// answer does not know whether another client holds the lock, and a check from another connection may come too late.
    async fn try_before_waiting(&self) -> Result<Option<Grant<Lease>>, LockError> {
        let started = self.take_somewhere().await?;
        match self.taken(started).await? {
            Outcome::Granted(grant) => return Ok(Some(grant)),
            Outcome::Refused => self.request.busy(),
            Outcome::Nothing => self.backend.client.undo(self.claim.id, Operation::Cancel).await?,
        }
        Ok(None)
    }

    /// Called when no connection is free to wait on. Tries the lock, which needs no connection of its own. If the lock is not free,
    /// waits for a connection, and tries again now and then.
    async fn own_or_grant(&self) -> Result<Way, LockError> {
        let (pool, clock) = (&self.backend.client.pool, self.backend.client.settings.clock());
        let mut is_told = false;
        let mut started = None;
        if self.claim.mode == Mode::Exclusive {
            started = Some(self.take_somewhere().await?);
        }
        let mut owning = std::pin::pin!(pool.own());
        loop {
            if let Some(started) = started {
                match self.taken(started).await? {
                    Outcome::Granted(grant) => return Ok(Way::Granted(grant)),
                    Outcome::Refused => self.request.busy(),
                    Outcome::Nothing => self.backend.client.undo(self.claim.id, Operation::Cancel).await?,
                }
            }
            if let Some(own) = within(clock, self.next_look_without_a_place(), owning.as_mut()).await {
                let own = own?;
                return Ok(self.join().unwrap_or_else(|| self.wait_on(own)));
            }
            if let Some(joined) = self.join() {
                return Ok(joined);
            }
            if !std::mem::replace(&mut is_told, true) {
                tracing::warn!(
                    target: "distlock",
                    lock = %self.request.name(),
                    "no connection is free to wait on: the client tries the lock now and then, and waiters at the server come first"
                );
            }
            started = pool.take(&self.claim).map(|started| self.started(started));
        }
    }

    fn next_look_without_a_place(&self) -> Moment {
        let pause = LOOK_WITHOUT_A_PLACE.min(self.backend.client.settings.interval);
        self.backend.client.settings.clock().now().plus(pause)
    }

    async fn taken(&self, started: Started) -> Result<Outcome, LockError> {
        let Started { link, hold, asked } = started;
        self.track(&link, hold, None);
        let clock = self.backend.client.settings.clock();
        let limit = self.backend.client.settings.request_timeout;
        let mut asked = asked;
        loop {
            match within(clock, clock.now().plus(limit), &mut asked).await {
                // Other commands were before it, and the server has answered them.
                None if !link.is_slow(clock, limit / 2) && !link.has_ended() => {}
                None => return Err(no_answer(Operation::Acquire)),
                Some(Err(_)) => return Ok(Outcome::Nothing),
                Some(Ok(taken)) => return self.outcome(&link, hold, &taken?),
            }
        }
    }

    fn outcome(&self, link: &Arc<Link>, hold: AttemptId, came: &Taken) -> Result<Outcome, LockError> {
        match came {
            Taken::Granted { token, anchor } => {
                // Until it is released: the core may cancel an attempt that has its lock.
                self.track(link, hold, None);
                Ok(Outcome::Granted(self.grant(link, hold, *token, *anchor)))
            }
            Taken::Refused(refusal) => {
                self.backend.client.forget(self.claim.id);
                if let Some(is) = refusal.other_permits {
                    let asked = if let Mode::Permits { of, .. } = self.claim.mode { of.get() } else { 0 };
                    return Err(LockError::other_permits(self.request.name(), asked, is));
                }
                if let Some(holder) = inspection::named(refusal, &link.session.run) {
                    self.request.held_by(holder);
                }
                Ok(Outcome::Refused)
            }
            Taken::Interrupted => Ok(Outcome::Nothing),
        }
    }

    fn grant(
        &self,
        link: &Arc<Link>,
        hold: AttemptId,
        token: Option<FencingToken>,
        anchor: Moment,
    ) -> Grant<Lease> {
        let lease = Lease { placed: self.placed(link, hold), holder: self.claim.holder.clone() };
        let term = Term::Leased { anchor, length: self.backend.client.settings.server.lease };
        let mut grant = Grant::new(lease, link.group, term).with_sections(self.claim.sections);
        if self.claim.holder.is_none() {
            grant = grant.with_holder(HolderId::new(link.session.to_string()));
        }
        match token {
            Some(token) => grant.with_token(token),
            None => grant,
        }
    }

    /// Makes the exclusive hold of `lease` the hold of this attempt.
    pub(crate) async fn downgrade(self, lease: &Lease) -> Result<Downgraded<Lease>, LockError> {
        let downgraded = self.backend.client.downgrade(&lease.placed, self.claim.clone()).await?;
        Ok(match downgraded {
            Ok((token, anchor)) => {
                Downgraded::Shared(self.grant(&lease.placed.link, self.claim.id, token, anchor))
            }
            Err(reason) => Downgraded::WasLost(reason),
        })
    }

    /// Waits for the answer to a wait. Meanwhile it checks that the server responds, that it still has the waiting connection, and
    /// that another client holds the lock. Otherwise the answer may never come, because the server has forgotten the wait or the
    /// grant was lost.
    async fn watch(&self, started: Started, waiting: &Waiting) -> Result<Outcome, LockError> {
        let Started { link, hold, mut asked } = started;
        let attempt = self.request;
        let clock = self.backend.client.settings.clock();
        let mut pause = self.backend.client.settings.interval;
        // Most waits are granted sooner, and then it does not matter whether another client held the lock.
        let mut look_at = clock.now().plus(pause);
        let mut misses = 0;
        // Others of the client that share the lock may only be sent when this attempt has its place in the server's queue.
        let mut is_asked = self.claim.mode != Mode::Exclusive;
        let (mut is_placed, mut seeks_place) = (false, false);
        let mut awaits_place = true;
        loop {
            if !seeks_place && is_asked {
                seeks_place = true;
                match self.place(&link, &mut asked, waiting, look_at).await? {
                    Place::Answered(taken) => return self.outcome(&link, hold, &taken),
                    Place::Confirmed => is_placed = true,
                    Place::Unknown => {}
                }
            }
            tokio::select! {
                biased;
                taken = &mut asked => {
                    let taken = taken.map_err(|_| gone(Operation::Acquire))??;
                    return self.outcome(&link, hold, &taken);
                }
                () = attempt.asked() => {
                    is_asked = true;
                    look_at = look_at.min(clock.now().plus(FIRST_LOOK_AT_A_PLACE));
                    continue;
                }
                () = waiting.placed(), if awaits_place => {
                    (is_placed, awaits_place) = (true, false);
                    attempt.queued();
                    continue;
                }
                () = clock.sleep_until(look_at) => {}
            }
            let look = async {
                let control = &self.backend.client.control;
                let looked =
                    control.look_at_wait((Arc::clone(&self.claim.parts.gate), link.session.clone())).await;
                let is_placed = is_placed
                    || seeks_place && looked.is_ok() && waits(control, &link.session).await.unwrap_or(false);
                (looked, is_placed)
            };
            let looked = tokio::select! {
                biased;
                taken = &mut asked => {
                    let taken = taken.map_err(|_| gone(Operation::Acquire))??;
                    return self.outcome(&link, hold, &taken);
                }
                (looked, is_placed_now) = look => {
                    is_placed = is_placed_now;
                    looked
                }
            };
            let again = match looked {
                Ok(Seen { is_waiter_there: false, .. }) if !waiting.has_answer() => {
                    return Err(gone(Operation::Acquire));
                }
                Ok(Seen { holder: Some(holder), .. }) if holder != link.session.number => {
                    misses = 0;
                    if self.claim.holder.is_none() {
                        attempt.held_by(Participant::new(inspection::id_of(holder, &link.session.run)));
                    }
                    if is_placed {
                        attempt.queued();
                    } else {
                        attempt.busy();
                    }
                    pause = (pause * 2).min(LONGEST_PAUSE.max(self.backend.client.settings.interval));
                    if seeks_place && !is_placed { LOOK_AGAIN } else { pause }
                }
                // It has the gate, and waits for what is behind it.
                Ok(Seen { holder: Some(_), .. }) if waiting.is_behind_the_gate() && !waiting.has_answer() => {
                    misses = 0;
                    attempt.queued();
                    pause = (pause * 2).min(LONGEST_PAUSE.max(self.backend.client.settings.interval));
                    pause
                }
                // The wait has its answer, and the actor is turning it into a hold.
                Ok(_) if waiting.has_answer() => LOOK_AGAIN,
                Ok(Seen { holder, .. }) => {
                    misses += 1;
                    // The network may retransmit an answer that the server has sent; one that the server has not sent gets no more
                    // time.
                    let patience = self.backend.client.settings.request_timeout.div_duration_f64(LOOK_AGAIN);
                    let is_granted = holder.is_some() && f64::from(misses) < patience;
                    if misses >= MOST_MISSES && !is_granted {
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

    /// Finds out when the wait has its place in the server's queue. Leaves that to the checks after `until`.
    async fn place(
        &self,
        link: &Link,
        asked: &mut Asked,
        waiting: &Waiting,
        until: Moment,
    ) -> Result<Place, LockError> {
        let (attempt, clock) = (self.request, self.backend.client.settings.clock());
        let mut pause = FIRST_LOOK_AT_A_PLACE;
        while clock.now() < until {
            let look = async {
                clock.sleep_until(clock.now().plus(pause)).await;
                waits(&self.backend.client.control, &link.session).await
            };
            tokio::select! {
                biased;
                taken = &mut *asked => {
                    return Ok(Place::Answered(taken.map_err(|_| gone(Operation::Acquire))??));
                }
                () = waiting.placed() => {
                    attempt.queued();
                    return Ok(Place::Confirmed);
                }
                waits = look => match waits {
                    Err(error) if !waiting.is_behind_the_gate() => {
                        attempt.unreachable(error.during(Operation::Acquire));
                    }
                    Ok(false) if !waiting.is_behind_the_gate() => {}
                    // The next round confirms it, for this attempt and for those that take part.
                    _ => waiting.has_a_place(),
                },
            }
            pause = (pause * 2).min(LOOK_AGAIN);
        }
        Ok(Place::Unknown)
    }

    fn description(&self) -> Waiter {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Waiter {
            id: self.claim.id.to_string(),
            client: ClientRecord::of_waiter(self.request.holder()),
            mode: word_of(self.claim.mode),
            since: now.as_micros().try_into().unwrap_or(u64::MAX),
        }
    }
}

/// A pending request on a connection.
struct Started {
    link: Arc<Link>,
    /// The attempt by whose id the connection knows what it has for this request.
    hold: AttemptId,
    asked: Asked,
}

/// What an attempt gets that begins to wait.
enum Way {
    Waits(Started, Arc<Waiting>),
    Granted(Grant<Lease>),
}

/// What is known of a wait that has just been sent.
enum Place {
    /// It is over.
    Answered(Taken),
    Confirmed,
    Unknown,
}

enum Outcome {
    Granted(Grant<Lease>),
    Refused,
    /// Nothing is known; the attempt may have left something that has to be undone.
    Nothing,
}
