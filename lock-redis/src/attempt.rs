//! One attempt to acquire a lock: takes it at once, or waits in the server's queue until the server grants it.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use lock_core::{
    AcquireRequest, Backoff, Downgraded, FencingToken, Grant, HolderId, LockError, Mode, Moment, Operation,
    Participant, Term, Wait,
};
use lock_kit::gone;
use redis::Value;
use tokio::sync::{mpsc, watch};

use crate::backend::{Lease, RedisBackend, milliseconds};
use crate::connection::{Contact, Link, Nodes, Turn};
use crate::failure::is_elsewhere;
use crate::keys::{IdAtServer, Keys};
use crate::messages::{Address, Granted};
use crate::record::{Acquired, handed_over, holder_text, loss};
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

/// What ended a pause.
enum Woken {
    Granted(Granted),
    ContactChanged,
    /// It is time to ask the server, or the core wants to know.
    TimeToAsk,
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
        let nodes = &backend.nodes;
        // Most requests are described as their client is.
        let holder = if Arc::ptr_eq(request.holder(), nodes.context.holder()) {
            Cow::Borrowed(&*backend.holder)
        } else {
            Cow::Owned(holder_text(request.holder())?)
        };
        let (lease, interval) = match request.lease() {
            Some(lease) => (lease, nodes.context.renewal_interval(lease)?),
            None => (nodes.options.server.lease, nodes.interval),
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
        let since = self.now();
        let link = self.nodes().find(self.keys.hash_slot, Operation::Acquire, since).await?;
        if self.request.wait() == Wait::Try {
            self.try_once(link, since).await
        } else {
            self.wait(link, since).await
        }
    }

    fn nodes(&self) -> &'a Nodes {
        &self.backend.nodes
    }

    async fn try_once(self, mut link: Arc<Link>, since: Moment) -> Result<Option<Grant<Lease>>, LockError> {
        // Before the request, because the hold may be broken before the client reads the reply.
        let address = self.nodes().router.hold(self.request);
        loop {
            let asked = match self.ask(&link, Intent::Try).await {
                Err(error) if self.nodes().again(self.keys.hash_slot, &error, since).await => {
                    link = self.nodes().find(self.keys.hash_slot, Operation::Acquire, since).await?;
                    continue;
                }
                asked => asked?,
            };
            match asked {
                (Acquired::Held(token), sent) => return Ok(Some(self.grant(&link, address, (sent, token)))),
                // The lock is free: there were more dead waiters than one call checks.
                (Acquired::Waits { remaining: Some(Duration::ZERO), .. }, _) => {}
                (Acquired::Waits { holder, .. }, _) => {
                    self.name(holder);
                    return Ok(None);
                }
                (Acquired::Gone, _) => return Ok(None),
                (Acquired::OtherPermits(is), _) => return Err(self.other_permits(is)),
            }
        }
    }

    fn other_permits(&self, is: u32) -> LockError {
        let asked = match self.request.mode() {
            Mode::Permits { of, .. } => of.get(),
            _ => 0,
        };
        LockError::other_permits(self.request.name(), asked, is)
    }

    fn name(&self, holder: Option<Participant>) {
        if let Some(holder) = holder {
            self.request.held_by(holder);
        }
    }

    async fn wait(self, mut link: Arc<Link>, since: Moment) -> Result<Option<Grant<Lease>>, LockError> {
        let mut contact = self.nodes().of(self.keys.hash_slot)?.watch();
        // Before the first request, because the server may push the grant before the client reads the reply.
        let (address, mut granted) = self.nodes().router.wait(self.request);
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        let mut intent = Intent::Wait;
        loop {
            let pause = match self.ask(&link, intent).await {
                Ok((Acquired::Held(token), sent)) => {
                    return Ok(Some(self.grant(&link, address, (sent, token))));
                }
                Ok((Acquired::Gone, _)) => return Ok(None),
                Ok((Acquired::OtherPermits(is), _)) => return Err(self.other_permits(is)),
                Ok((Acquired::Waits { remaining, before, place, holder }, _)) => {
                    self.name(holder);
                    intent = Intent::Beat;
                    backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
                    if let Some(place) = place {
                        self.request.keep_place(place);
                    }
                    if remaining != Some(Duration::ZERO) {
                        self.request.queued();
                    }
                    self.pause(&link, remaining, before)
                }
                Err(error)
                    if intent == Intent::Wait
                        && self.nodes().again(self.keys.hash_slot, &error, since).await =>
                {
                    link = self.nodes().find(self.keys.hash_slot, Operation::Acquire, since).await?;
                    contact = self.nodes().of(self.keys.hash_slot)?.watch();
                    continue;
                }
                // The client does not know whether it has a place; the core asks again with the same id.
                Err(error) if intent == Intent::Wait || !error.is_retryable() => return Err(error),
                Err(error) => {
                    if is_elsewhere(&error) {
                        self.nodes().look_again().await;
                        contact = self.nodes().of(self.keys.hash_slot).map_or(contact, |there| there.watch());
                        link = self.contact_returns(&mut contact).await;
                    }
                    self.request.unreachable(error);
                    backoff.next_pause()
                }
            };
            match self.woken(&mut granted, &mut contact, pause).await {
                Woken::Granted(granted) if self.is_fresh(granted.0) && !link.may_be_replaced() => {
                    return Ok(Some(self.grant(&link, address, granted)));
                }
                // Most of the lease is over, or the grant may be of another time of the server as the primary: ask whether it is valid.
                Woken::Granted(_) | Woken::TimeToAsk => {}
                Woken::ContactChanged => link = self.contact_returns(&mut contact).await,
            }
        }
    }

    /// Sends a request when its turn comes. Returns the reply and when the request was sent.
    async fn ask(&self, link: &Arc<Link>, intent: Intent) -> Result<(Acquired, Moment), LockError> {
        // A heartbeat keeps a place that would otherwise be lost.
        let turn =
            if intent == Intent::Beat { Turn::default() } else { link.turn(Operation::Acquire).await? };
        let script = if self.request.mode() == Mode::Exclusive { &ACQUIRE } else { &ACQUIRE_SHARED };
        let sent = self.now();
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
        let answer: Value = link.call_in(turn, script, &Arc::new(command)).await?;
        Ok((Acquired::read(&answer)?, sent))
    }

    /// Makes an exclusive hold a shared one, which is that of this attempt.
    pub(crate) async fn downgrade(self, held: &Lease) -> Result<Downgraded<Lease>, LockError> {
        // Before the request, because the hold may be broken before the client reads the reply.
        let address = self.nodes().router.hold(self.request);
        let since = self.now();
        let (link, sent, answer): (_, _, Value) = loop {
            let link = self.nodes().find(self.keys.hash_slot, Operation::Downgrade, since).await?;
            // Before it is certain that the connection is good for what is sent now.
            let sent = self.now();
            if !link.is_trusted_at(sent) || !held.may_go_on(&link, sent, self.nodes()) {
                return Err(gone(Operation::Downgrade));
            }
            let mut command = self.keys.call(&DOWNGRADE);
            command.arg(held.id).arg(self.id).arg(milliseconds(self.lease)).arg(self.who(&link));
            match link.call(&DOWNGRADE, &Arc::new(command)).await {
                Err(error) if self.nodes().again(self.keys.hash_slot, &error, since).await => {}
                answer => break (link, sent, answer?),
            }
        };
        if let Value::Int(code) = answer {
            return Ok(Downgraded::WasLost(loss(Operation::Downgrade, code)?));
        }
        let (token, more) = handed_over(Operation::Downgrade, answer)?;
        self.backend.try_to_hand_over(&self.keys, held.id, more).await;
        Ok(Downgraded::Shared(self.grant(&link, address, (sent, FencingToken::new(token.unsigned_abs())))))
    }

    /// "channel holder": the channel for a pushed grant, and a readable description of the holder.
    fn who(&self, link: &Link) -> String {
        format!("{} {}", link.channel.as_deref().unwrap_or("-"), self.holder)
    }

    async fn woken(
        &self,
        granted: &mut mpsc::UnboundedReceiver<Granted>,
        contact: &mut watch::Receiver<Contact>,
        pause: Duration,
    ) -> Woken {
        let clock = self.nodes().context.clock();
        tokio::select! {
            biased;
            Some(granted) = granted.recv() => Woken::Granted(granted),
            // The channel closes with the client, and the client has then dropped this future.
            _ = contact.changed() => Woken::ContactChanged,
            () = self.request.asked() => Woken::TimeToAsk,
            () = clock.sleep_until(clock.now().plus(pause)) => Woken::TimeToAsk,
        }
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
                *contact = there.watch();
            }
        }
    }

    /// How long to wait at most before asking again.
    fn pause(&self, link: &Link, remaining: Option<Duration>, before: u32) -> Duration {
        let most = if link.channel.is_some() { self.interval } else { POLL_INTERVAL.min(self.interval) };
        match remaining {
            // The lock is free: before this waiter there were more dead ones than one call checks.
            Some(Duration::ZERO) => END_OF_LEASE,
            Some(remaining) => most.min(remaining + END_OF_LEASE + STEP_OF_RANK.saturating_mul(before)),
            None => most,
        }
    }

    /// Whether enough of a pushed grant's lease is left to renew it in time.
    fn is_fresh(&self, since: Moment) -> bool {
        (since..since.plus(self.interval * 2)).contains(&self.now())
    }

    fn grant(self, link: &Link, address: Address, (anchor, token): Granted) -> Grant<Lease> {
        let membership = link.groups.enter();
        let group = membership.group();
        let sections = self.request.sections();
        let is_told = self.request.mode() != Mode::Exclusive || sections.get() > 1;
        let holder = is_told.then(|| HolderId::new(self.id.to_string()));
        let lease = Lease::new(self.keys, self.id, self.lease, address, membership);
        lease.goes_on(link, anchor);
        let term = Term::Leased { anchor, length: self.lease };
        let passes = Arc::clone(&lease.passes);
        let grant =
            Grant::new(lease, group, term).with_token(token).with_sections(sections).counting_passes(passes);
        match holder {
            Some(holder) => grant.with_holder(holder),
            None => grant,
        }
    }

    fn now(&self) -> Moment {
        self.nodes().context.clock().now()
    }
}
