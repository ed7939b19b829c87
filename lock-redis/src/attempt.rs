//! One attempt to acquire a lock: takes it at once, or waits in the server's queue until the server grants it.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use lock_core::{
    AcquireRequest, Backoff, Downgraded, ErrorKind, Grant, HolderId, LockError, Mode, Moment, Operation,
    Participant, Term, Wait,
};
use redis::Value;
use tokio::sync::watch;

use crate::backend::{Lease, RedisBackend, milliseconds};
use crate::keys::{IdAtServer, Keys};
use crate::line::Line;
use crate::link::Link;
use crate::push_router::{Address, Expected};
use crate::record::{Acquired, handed_over, holder_text, loss};
use crate::scripts::{ACQUIRE, ACQUIRE_SERIES, ACQUIRE_SHARED, DOWNGRADE};
use crate::supervisor::Contact;
use crate::turn::Turn;

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

impl Intent {
    fn line(self) -> Line {
        match self {
            Self::Try | Self::Wait => Line::Others,
            Self::Beat => Line::Heartbeats,
        }
    }
}

/// What ended a pause.
enum Woken {
    Granted(Option<Moment>, lock_core::FencingToken),
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
        // Most requests are described as their client is.
        let holder = if Arc::ptr_eq(request.holder(), backend.context.holder()) {
            Cow::Borrowed(&*backend.holder)
        } else {
            Cow::Owned(holder_text(request.holder())?)
        };
        let (lease, interval) = match request.lease() {
            Some(lease) => (lease, backend.context.renewal_interval(lease)?),
            None => (backend.lease, backend.interval),
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
        let link = self.backend.supervisor.link(Operation::Acquire)?;
        if self.request.wait() == Wait::Try {
            self.refuse_before_its_time(&link)?;
            self.try_once(&link).await
        } else {
            self.wait(link).await
        }
    }

    async fn try_once(self, link: &Arc<Link>) -> Result<Option<Grant<Lease>>, LockError> {
        // Before the request, because the hold may be broken before the client reads the reply.
        let address = self.backend.router.hold(self.request.id(), self.request);
        loop {
            let turn = link.turn(Intent::Try.line(), Operation::Acquire).await?;
            let sent = self.now();
            match self.ask(link, turn, Intent::Try, 0).await? {
                Acquired::Held(token) => {
                    return Ok(Some(self.grant(address, token, sent)));
                }
                // The lock is free: there were more dead waiters than one call checks.
                Acquired::Waits { remaining: Some(Duration::ZERO), .. } => {}
                Acquired::Waits { holder, .. } => {
                    self.name(holder);
                    return Ok(None);
                }
                Acquired::Gone => return Ok(None),
                Acquired::OtherPermits(is) => return Err(self.other_permits(is)),
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

    async fn wait(self, mut link: Arc<Link>) -> Result<Option<Grant<Lease>>, LockError> {
        let mut contact = self.backend.supervisor.watch();
        // Before the first request, because the server may push the grant before the client reads the reply.
        let expected = self.backend.router.expect_grant(self.request.id(), self.request);
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        let mut intent = Intent::Wait;
        loop {
            self.refuse_before_its_time(&link)?;
            let pause = match self.ask_in_turn(&link, intent, &expected).await {
                Ok((Acquired::Held(token), sent)) => return Ok(Some(self.hold(expected, token, sent))),
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
                // The client does not know whether it has a place; the core asks again with the same id.
                Err(error) if intent == Intent::Wait || !error.is_retryable() => return Err(error),
                Err(error) => {
                    self.request.unreachable(error);
                    backoff.next_pause()
                }
            };
            match self.woken(&expected, &mut contact, pause).await {
                Woken::Granted(Some(since), token) if self.is_fresh(since) => {
                    return Ok(Some(self.hold(expected, token, since)));
                }
                // Most of the lease is over, or its start is unknown: ask the server whether the grant is still valid.
                Woken::Granted(..) | Woken::TimeToAsk => {}
                Woken::ContactChanged => link = self.contact_returns(&mut contact).await,
            }
        }
    }

    /// Sends a waiter's request when its turn comes. Returns the reply and when the request was sent.
    async fn ask_in_turn(
        &self,
        link: &Arc<Link>,
        intent: Intent,
        expected: &Expected,
    ) -> Result<(Acquired, Moment), LockError> {
        let turn = link.turn(intent.line(), Operation::Acquire).await?;
        let (beat, sent) = (self.backend.router.next_beat(), self.now());
        expected.sent(beat, sent);
        Ok((self.ask(link, turn, intent, beat).await?, sent))
    }

    async fn ask(&self, link: &Link, turn: Turn, intent: Intent, beat: u64) -> Result<Acquired, LockError> {
        let script = match self.request.mode() {
            Mode::Exclusive if self.is_series() => ACQUIRE_SERIES,
            Mode::Exclusive => ACQUIRE,
            _ => ACQUIRE_SHARED,
        };
        let mut command = self.keys.call(script);
        command.arg(self.id).arg(milliseconds(self.lease)).arg(self.who(link));
        if intent != Intent::Try {
            command.arg(beat);
        }
        match (intent, self.request.place()) {
            (Intent::Beat, _) => drop(command.arg("-")),
            (Intent::Wait, Some(place)) => drop(command.arg(place.get())),
            _ => {}
        }
        let answer: Value = turn.call(script, command).await?;
        Acquired::read(&answer)
    }

    /// Whether more sections may follow the grant without the server.
    fn is_series(&self) -> bool {
        self.request.sections().get() > 1
    }

    /// Makes an exclusive hold a shared one, which is that of this attempt.
    pub(crate) async fn downgrade(self, held: &Lease) -> Result<Downgraded<Lease>, LockError> {
        let link = self.backend.supervisor.link(Operation::Downgrade)?;
        // Before the request, because the hold may be broken before the client reads the reply.
        let address = self.backend.router.hold(self.request.id(), self.request);
        let turn = link.turn(Line::of(Operation::Downgrade), Operation::Downgrade).await?;
        let sent = self.now();
        let mut command = self.keys.call(DOWNGRADE);
        command.arg(held.id()).arg(self.id).arg(milliseconds(self.lease)).arg(self.who(&link));
        let answer: Value = turn.call(DOWNGRADE, command).await?;
        if let Value::Int(code) = answer {
            return Ok(Downgraded::WasLost(loss(Operation::Downgrade, code)?));
        }
        let (token, more) = handed_over(Operation::Downgrade, &answer)?;
        self.backend.try_to_hand_over(&self.keys, held.id(), more).await;
        Ok(Downgraded::Shared(self.grant(address, lock_core::FencingToken::new(token.unsigned_abs()), sent)))
    }

    /// "channel holder": the channel for a pushed grant, and a readable description of the holder.
    fn who(&self, link: &Link) -> String {
        format!("{} {}", link.channel.as_deref().unwrap_or("-"), self.holder)
    }

    async fn woken(
        &self,
        expected: &Expected,
        contact: &mut watch::Receiver<Contact>,
        pause: Duration,
    ) -> Woken {
        let clock = self.backend.context.clock();
        tokio::select! {
            biased;
            (since, token) = expected.granted() => Woken::Granted(since, token),
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
                Contact::Lost(error) => self.request.unreachable(error.during(Operation::Acquire)),
            }
            if contact.changed().await.is_err() {
                // The client is gone, so no caller is waiting for this.
                std::future::pending::<()>().await;
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
        self.now() < since.plus(self.interval * 2)
    }

    fn refuse_before_its_time(&self, link: &Link) -> Result<(), LockError> {
        if self.now() >= link.usable_from {
            return Ok(());
        }
        Err(LockError::new(ErrorKind::Unreachable, Operation::Acquire)
            .because("the server was started recently, and may have forgotten locks that are still held")
            .remedy("wait for the restart_delay to pass")
            .retryable())
    }

    fn hold(self, expected: Expected, token: lock_core::FencingToken, since: Moment) -> Grant<Lease> {
        let address = expected.into_hold(self.request);
        self.grant(address, token, since)
    }

    fn grant(self, address: Address, token: lock_core::FencingToken, anchor: Moment) -> Grant<Lease> {
        let membership = self.backend.groups.enter();
        let group = membership.group();
        let is_told = self.request.mode() != Mode::Exclusive || self.is_series();
        let holder = is_told.then(|| HolderId::new(self.id.to_string()));
        let sections = self.request.sections();
        let lease = Lease::new(self.keys, self.id, self.lease, address, membership);
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
        self.backend.context.clock().now()
    }
}
