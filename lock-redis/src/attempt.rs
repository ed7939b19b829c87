//! One attempt to acquire a lock: takes it at once, or waits in the server's queue until the server grants it.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use lock_core::spi::Mutex;
use lock_core::{
    AcquireRequest, Backoff, Downgraded, FencingToken, Grant, HolderId, LockError, Mode, Moment, Operation,
    Term, Wait,
};
use lock_kit::gone;
use redis::Value;
use tokio::sync::watch;

use crate::backend::{Lease, RedisBackend, milliseconds};
use crate::connection::{Contact, Link, Nodes};
use crate::failure::is_elsewhere;
use crate::keys::{IdAtServer, Keys};
use crate::messages::{Address, Granted};
use crate::record::{Acquired, holder_text, loss};
use crate::scripts::{ACQUIRE, ACQUIRE_SHARED, DOWNGRADE};

/// How often a waiter asks if the server sends it no messages.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// When the holder's lease ends, the first waiter in the queue asks at once, and each further one this much later than the one
/// before it, in case that one is dead.
const STEP_OF_RANK: Duration = Duration::from_millis(100);

/// A lease that ends in the current millisecond has not ended yet.
const END_OF_LEASE: Duration = Duration::from_millis(1);

const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, PartialEq)]
enum Intent {
    Try,
    Wait,
    /// Only keeps the place that the attempt already has.
    Beat,
}

pub(crate) struct Attempt<'a> {
    backend: &'a RedisBackend,
    request: &'a AcquireRequest,
    keys: Keys,
    id: IdAtServer,
    lease: Duration,
    /// The time between two heartbeats of a waiter.
    interval: Duration,
    /// How the request describes its holder to the server.
    holder: Cow<'a, str>,
}

impl<'a> Attempt<'a> {
    pub(crate) fn new(backend: &'a RedisBackend, request: &'a AcquireRequest) -> Result<Self, LockError> {
        let client = &backend.nodes.client;
        // Most requests are described as their client is.
        let holder = if Arc::ptr_eq(request.holder(), client.context.holder()) {
            Cow::Borrowed(&*backend.holder)
        } else {
            Cow::Owned(holder_text(request.holder())?)
        };
        let (lease, interval) = match request.lease() {
            Some(lease) => (lease, client.context.renewal_interval(lease)?),
            None => (client.options.server.lease, client.interval),
        };
        Ok(Self {
            backend,
            request,
            keys: backend.keys(request.physical(), request.mode().kind()),
            id: IdAtServer::of(request),
            lease,
            interval,
            holder,
        })
    }

    pub(crate) async fn make(self) -> Result<Option<Grant<Lease>>, LockError> {
        let slot = self.keys.hash_slot;
        // Before the first request, because the server may push the grant, or the hold may be broken, before the client reads the reply.
        let (address, mut granted) = self.nodes().client.router.enter(self.request);
        let this = &self;
        let asking = self.nodes().send(slot, Operation::Acquire, |there, link| async move {
            let contact = there.contact.subscribe();
            this.ask_first(&link).await.map(|answer| (link, contact, answer))
        });
        // If this fails, the client does not know whether it has a place; the core asks again with the same id.
        let (mut link, mut contact, answer) = asking.await?;
        let (mut answer, mut backoff) = (Ok(answer), Backoff::new(FIRST_PAUSE, LONGEST_PAUSE));
        loop {
            let pause = match answer {
                Ok((Acquired::Held(token), sent)) => {
                    return Ok(Some(self.grant(&link, address, (sent, token))));
                }
                Ok((Acquired::Gone, _)) => return Ok(None),
                Ok((Acquired::OtherPermits(is), _)) => return Err(self.other_permits(is)),
                Ok((Acquired::Waits { remaining, before, place, holder }, _)) => {
                    if let Some(holder) = holder {
                        self.request.held_by(holder);
                    }
                    if self.request.wait() == Wait::Try {
                        return Ok(None);
                    }
                    backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
                    if let Some(place) = place {
                        self.request.keep_place(place);
                    }
                    self.queued(&link, remaining, before)
                }
                Err(error) if !LockError::is_retryable(&error) => return Err(error),
                Err(error) => {
                    if is_elsewhere(&error) {
                        self.nodes().look_again().await;
                        contact = self.nodes().of(slot).map_or(contact, |there| there.contact.subscribe());
                        link = self.contact_returns(&mut contact).await;
                    }
                    self.request.unreachable(error);
                    backoff.next_pause()
                }
            };
            let clock = self.nodes().client.context.clock();
            let pushed = tokio::select! {
                biased;
                Some(granted) = granted.recv() => Some(granted),
                // The channel closes with the client, and the client has then dropped this future.
                _ = contact.changed() => {
                    link = self.contact_returns(&mut contact).await;
                    None
                }
                // The core wants to know.
                () = self.request.asked() => None,
                () = clock.sleep_until(clock.now().plus(pause)) => None,
            };
            match pushed {
                Some(granted) if self.is_fresh(granted.0) && link.believes_messages() => {
                    return Ok(Some(self.grant(&link, address, granted)));
                }
                // Also if most of the lease is over, or the server has to say that the grant counts.
                _ => answer = self.ask(&link, Intent::Beat).await,
            }
        }
    }

    async fn ask_first(&self, link: &Arc<Link>) -> Result<(Acquired, Moment), LockError> {
        if self.request.wait() != Wait::Try {
            return self.ask(link, Intent::Wait).await;
        }
        loop {
            match self.ask(link, Intent::Try).await {
                // The lock is free: there were more dead waiters than one call checks.
                Ok((Acquired::Waits { remaining: Some(Duration::ZERO), .. }, _)) => {}
                answer => return answer,
            }
        }
    }

    fn nodes(&self) -> &'a Nodes {
        &self.backend.nodes
    }

    /// Sends a request when its turn comes. Returns the reply and when the request was sent.
    async fn ask(&self, link: &Arc<Link>, intent: Intent) -> Result<(Acquired, Moment), LockError> {
        // A heartbeat keeps a place that would otherwise be lost.
        let turn = if intent == Intent::Beat { None } else { link.turn(Operation::Acquire).await? };
        let script = if self.request.mode() == Mode::Exclusive { &ACQUIRE } else { &ACQUIRE_SHARED };
        let sent = self.nodes().client.now();
        link.grants_at(self.keys.hash_slot, sent)?;
        let mut command = self.keys.call(script);
        command.arg(self.id).arg(milliseconds(self.lease)).arg(self.who(link));
        if intent != Intent::Try {
            command.arg(sent.as_nanoseconds());
        }
        match (intent, self.request.place()) {
            (Intent::Beat, _) => drop(command.arg("-")),
            (Intent::Wait, Some(place)) => drop(command.arg(place.get())),
            _ => {}
        }
        let answer: Value = link.call(turn, script, &Arc::new(command)).await?;
        Ok((Acquired::read(&answer)?, sent))
    }

    /// Makes an exclusive hold a shared one, which is that of this attempt.
    pub(crate) async fn downgrade(self, held: &Lease) -> Result<Downgraded<Lease>, LockError> {
        // Before the request, because the hold may be broken before the client reads the reply.
        let (address, _) = self.nodes().client.router.enter(self.request);
        let this = &self;
        let sending = self.nodes().send(self.keys.hash_slot, Operation::Downgrade, |_, link| async move {
            // Before it is certain that the connection is good for what is sent now.
            let sent = this.nodes().client.now();
            if !link.is_trusted_at(sent) || !held.may_go_on(&link, sent, this.nodes()) {
                return Err(gone(Operation::Downgrade));
            }
            let mut command = this.keys.call(&DOWNGRADE);
            command.arg(held.id).arg(this.id).arg(milliseconds(this.lease)).arg(this.who(&link));
            let answer: Value = link.call(None, &DOWNGRADE, &Arc::new(command)).await?;
            Ok((link, sent, answer))
        });
        let (link, sent, answer) = sending.await?;
        if let Value::Int(code) = answer {
            return Ok(Downgraded::WasLost(loss(Operation::Downgrade, code)?));
        }
        let token = self.backend.hand_over(Operation::Downgrade, &self.keys, held.id, answer).await?;
        Ok(Downgraded::Shared(self.grant(&link, address, (sent, FencingToken::new(token.unsigned_abs())))))
    }

    /// "channel holder": the channel for a pushed grant, and a readable description of the holder.
    fn who(&self, link: &Link) -> String {
        format!("{} {}", link.channel.as_deref().unwrap_or("-"), self.holder)
    }

    /// Waits until there is a connection again. Reports each reason why there is none, so that a wait that ends before then
    /// ends with that error.
    async fn contact_returns(&self, contact: &mut watch::Receiver<Contact>) -> Arc<Link> {
        loop {
            match contact.borrow_and_update().clone() {
                Contact::Good(link) => return link,
                Contact::Opening => {}
                Contact::Lost(error) => self.request.unreachable(error.during(Operation::Acquire)),
            }
            if contact.changed().await.is_err() {
                // The client is gone, so no caller is waiting for this.
                std::future::pending::<()>().await;
            }
            // Its hash slot may be elsewhere by now.
            if let Ok(there) = self.nodes().of(self.keys.hash_slot) {
                *contact = there.contact.subscribe();
            }
        }
    }

    /// It is in the queue. Returns how long to wait at most before asking again.
    fn queued(&self, link: &Link, remaining: Option<Duration>, before: u32) -> Duration {
        // The lock is free: before this waiter there were more dead ones than one call checks.
        if remaining == Some(Duration::ZERO) {
            return END_OF_LEASE;
        }
        self.request.queued();
        let most = if link.channel.is_some() { self.interval } else { POLL_INTERVAL.min(self.interval) };
        let ends = |remaining| remaining + END_OF_LEASE + STEP_OF_RANK.saturating_mul(before);
        remaining.map_or(most, |remaining| most.min(ends(remaining)))
    }

    fn other_permits(&self, is: u32) -> LockError {
        let asked = if let Mode::Permits { of, .. } = self.id.mode { of.get() } else { 0 };
        LockError::other_permits(self.request.name(), asked, is)
    }

    /// Whether enough of a pushed grant's lease is left to renew it in time.
    fn is_fresh(&self, since: Moment) -> bool {
        (since..since.plus(self.interval * 2)).contains(&self.nodes().client.now())
    }

    fn grant(self, link: &Link, address: Address, (anchor, token): Granted) -> Grant<Lease> {
        let membership = link.groups.enter();
        let group = *membership;
        let sections = self.request.sections();
        let id = self.id;
        let lease = Lease {
            keys: self.keys,
            id,
            length: self.lease,
            passes: Arc::default(),
            record: Mutex::new((None, anchor)),
            _address: address,
            _membership: membership,
        };
        lease.goes_on(link, anchor);
        let term = Term::Leased { anchor, length: self.lease };
        let (token, passes) = (Some(token), Some(Arc::clone(&lease.passes)));
        // The same as the attempt's, otherwise.
        let is_told = id.mode != Mode::Exclusive || sections.get() > 1;
        let holder = is_told.then(|| HolderId::new(id.to_string()));
        Grant { token, sections, passes, holder, ..Grant::new(lease, group, term) }
    }
}
