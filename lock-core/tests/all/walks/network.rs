//! A server, and a network in which the test decides when each request arrives, when its answer does, and which of them get lost.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::poll_fn;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Poll, Waker};
use std::time::Duration;

use lock_core::{
    AcquireRequest, AttemptHandle, Backend, BackendContext, Broken, Capabilities, CharacterSet, Clock,
    Downgraded, ErrorKind, FencingToken, Grant, GroupId, HolderId, InspectRequest, LeaseState, LockError,
    LockStatus, LossReason, Mode, Modes, Moment, NameRules, Operation, PermitLimits, Reach, Released,
    Reserving, Term,
};

pub(crate) const LEASE: Duration = Duration::from_secs(10);

/// How far the tokens of two leases are apart: a lease may serve several holds, one after the other.
pub(crate) const LEASE_TOKENS: u64 = 10;

fn lease_of(token: u64) -> u64 {
    token - token % LEASE_TOKENS
}

type Id = u128;
type Number = u64;

#[derive(Debug, Clone)]
enum Request {
    Acquire { id: Id, mode: Mode, tries: bool },
    Cancel { id: Id, mode: Mode },
    Release { id: Id, mode: Mode, token: u64 },
    Renew { ids: Vec<Id> },
    Downgrade { from: Id, id: Id },
}

#[derive(Debug, Clone)]
enum Answer {
    /// The token, and when the server granted it.
    Granted(u64, Moment),
    Refused,
    Done,
    WasLost,
    States(Vec<bool>),
    Failed,
}

#[derive(Debug)]
struct Message {
    client: usize,
    request: Request,
    sent: Moment,
    at: At,
    /// The future that waits for the answer has been dropped.
    is_abandoned: bool,
    waker: Option<Waker>,
}

#[derive(Debug)]
enum At {
    OnItsWay,
    /// A waiter in the server's queue.
    Queued,
    Answered(Answer),
    Delivered(Answer),
}

#[derive(Debug)]
struct Held {
    #[allow(dead_code, reason = "a failure shows it")]
    client: usize,
    mode: Mode,
    until: Moment,
    token: u64,
}

#[derive(Debug, Clone, Copy)]
struct Waiter {
    id: Id,
    client: usize,
    mode: Mode,
    /// The request that its grant answers.
    request: Number,
}

/// First come, first served.
#[derive(Debug, Default)]
struct Server {
    held: BTreeMap<Id, Held>,
    queue: VecDeque<Waiter>,
    /// Attempts that have been cancelled or released: nothing brings them back.
    dead: BTreeSet<Id>,
    last_token: u64,
}

/// What the server tells a client unasked.
#[derive(Debug)]
enum Report {
    Queued(AttemptHandle),
    Broken(u64, AttemptHandle),
}

#[derive(Default)]
struct State {
    now: u64,
    messages: BTreeMap<Number, Message>,
    last: Number,
    server: Server,
    handles: BTreeMap<Id, AttemptHandle>,
    sent: BTreeSet<Id>,
    reports: VecDeque<Report>,
    /// Releases and cancels whose first answer the client has not had.
    gates: BTreeMap<Id, (usize, Mode, Gate)>,
    /// What has had its first answer.
    opened: BTreeSet<Id>,
    /// The leases of valid holds that users have given back.
    returned: BTreeSet<u64>,
    violations: Vec<String>,
    /// The leases that an operator has ended, and those of which the client has the report.
    broken: BTreeSet<u64>,
    reported: BTreeSet<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gate {
    Release,
    Other,
}

/// What the test can do next in the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// A request arrives at the server.
    Arrive(Number),
    /// An answer arrives at the client.
    Answer(Number),
    /// A request or its answer gets lost, and the client notices.
    Fail(Number),
    /// The client gives up on a request that arrives all the same.
    GiveUp(Number),
    /// The oldest report arrives at the client.
    Report,
    /// An operator ends the first hold.
    Break,
}

/// Whether requests of one client arrive in the order in which they were sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    Any,
    Kept,
}

pub(crate) struct Network {
    clock: Clock,
    pub(crate) order: Order,
    state: Mutex<State>,
}

impl Network {
    pub(crate) fn new(clock: Clock, order: Order) -> Arc<Self> {
        Arc::new(Self { clock, order, state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap();
        state.now = self.clock.now().as_nanoseconds();
        state
    }

    /// Returns what can happen next: the first is what happens in a healthy network.
    pub(crate) fn steps(&self) -> Vec<Step> {
        let state = self.state();
        let mut steps = Vec::new();
        let mut seen = BTreeSet::new();
        for (number, message) in &state.messages {
            match &message.at {
                At::OnItsWay if seen.insert(message.client) || self.order == Order::Any => {
                    steps.push(Step::Arrive(*number));
                }
                At::Answered(_) => steps.push(Step::Answer(*number)),
                At::OnItsWay | At::Queued | At::Delivered(_) => {}
            }
        }
        if !state.reports.is_empty() {
            steps.push(Step::Report);
        }
        steps
    }

    /// Returns the harm that can be done next.
    pub(crate) fn harms(&self) -> Vec<Step> {
        let state = self.state();
        let lost = state.messages.iter().filter(|(_, message)| !matches!(message.at, At::Delivered(_)));
        let mut harms: Vec<_> = lost.map(|(number, _)| Step::Fail(*number)).collect();
        let late = state.messages.iter().filter(|(_, message)| matches!(message.at, At::OnItsWay));
        harms.extend(late.map(|(number, _)| Step::GiveUp(*number)));
        if !state.server.held.is_empty() {
            harms.push(Step::Break);
        }
        harms
    }

    pub(crate) fn carry_out(&self, step: Step) {
        let report = {
            let mut state = self.state();
            state.expire();
            match step {
                Step::Arrive(number) => state.arrive(number),
                Step::Answer(number) => state.answer(number),
                Step::Fail(number) => state.fail(number),
                Step::GiveUp(number) => state.give_up(number),
                Step::Break => state.break_first(),
                Step::Report => {}
            }
            let report = if step == Step::Report { state.reports.pop_front() } else { None };
            if let Some(Report::Broken(token, _)) = &report {
                state.reported.insert(*token);
            }
            report
        };
        match report {
            Some(Report::Queued(handle)) => handle.queued(),
            Some(Report::Broken(_, handle)) => handle.lost(LossReason::Broken),
            None => {}
        }
    }

    /// Returns what the clients have done wrong.
    pub(crate) fn violations(&self) -> Vec<String> {
        std::mem::take(&mut self.state().violations)
    }

    /// A user gives back a valid hold.
    pub(crate) fn gives_back(&self, token: u64) {
        self.state().returned.insert(lease_of(token));
    }

    /// Whether an operator has ended the lease of the hold with this token.
    pub(crate) fn has_broken(&self, token: u64) -> bool {
        self.state().broken.contains(&lease_of(token))
    }

    /// Whether its client can know that.
    pub(crate) fn has_reported(&self, token: u64) -> bool {
        self.state().reported.contains(&lease_of(token))
    }

    /// Whether the server has neither a holder nor a waiter, and nothing is on its way.
    pub(crate) fn is_empty(&self) -> bool {
        let mut state = self.state();
        state.expire();
        state.server.held.is_empty() && state.server.queue.is_empty() && state.messages.is_empty()
    }

    pub(crate) fn describe(&self) -> String {
        let state = self.state();
        let messages = state.messages.iter();
        let messages = messages.map(|(number, message)| {
            format!("#{number} of {}: {:?} {:?}", message.client, message.request, message.at)
        });
        format!("{:#?}\n{:#?}", messages.collect::<Vec<_>>(), state.server)
    }

    async fn ask(&self, client: usize, request: Request) -> (Answer, Moment) {
        let sent = self.clock.now();
        let asked = Asked { number: self.state().send(client, request, sent, self.order), network: self };
        let answer = poll_fn(|context| {
            let mut state = self.state();
            let Some(message) = state.messages.get_mut(&asked.number) else { return Poll::Pending };
            if let At::Delivered(answer) = &message.at {
                return Poll::Ready(answer.clone());
            }
            message.waker = Some(context.waker().clone());
            Poll::Pending
        });
        (answer.await, sent)
    }
}

/// A request whose future may be dropped: the request goes on.
struct Asked<'n> {
    number: Number,
    network: &'n Network,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        let mut state = self.network.state();
        let Some(message) = state.messages.get_mut(&self.number) else { return };
        message.is_abandoned = true;
        message.waker = None;
        if matches!(message.at, At::Delivered(_)) {
            state.messages.remove(&self.number);
        }
    }
}

impl State {
    fn send(&mut self, client: usize, request: Request, sent: Moment, order: Order) -> Number {
        self.check(client, &request, order);
        match &request {
            Request::Cancel { id, mode } => self.gate(client, *id, *mode, Gate::Other),
            Request::Release { id, mode, token } if self.returned.contains(token) => {
                self.gate(client, *id, *mode, Gate::Release);
            }
            Request::Downgrade { from, .. } => self.gate(client, *from, Mode::Exclusive, Gate::Other),
            // The release of a hold that was lost holds back nothing.
            Request::Release { .. } | Request::Acquire { .. } | Request::Renew { .. } => {}
        }
        self.last += 1;
        let message = Message { client, request, sent, at: At::OnItsWay, is_abandoned: false, waker: None };
        self.messages.insert(self.last, message);
        self.last
    }

    /// Nothing follows what it excludes before that has been answered for the first time.
    fn gate(&mut self, client: usize, id: Id, mode: Mode, gate: Gate) {
        if !self.opened.contains(&id) {
            self.gates.entry(id).or_insert((client, mode, gate));
        }
    }

    fn check(&mut self, client: usize, request: &Request, order: Order) {
        let Request::Acquire { id, mode, tries } = request else { return };
        if !self.sent.insert(*id) {
            return;
        }
        for (gate, (of, gated, kind)) in &self.gates {
            // Beside readers it depends on which was asked for first.
            let both_exclude = *mode == Mode::Exclusive && *gated == Mode::Exclusive;
            let may_follow = !tries && order == Order::Kept && *kind == Gate::Release;
            if *of == client && gate != id && both_exclude && !may_follow {
                self.violations.push(format!("client {client} asks beside its own {kind:?} of {gated:?}"));
            }
        }
        let other = self.messages.values().any(|message| {
            let is_exclusive = matches!(message.request, Request::Acquire { mode: Mode::Exclusive, .. });
            message.client == client && is_exclusive && !message.is_abandoned
        });
        if other && *mode == Mode::Exclusive {
            self.violations.push(format!("client {client} has two exclusive attempts"));
        }
    }

    fn expire(&mut self) {
        let now = self.now;
        let count = self.server.held.len();
        self.server.held.retain(|_, held| held.until.as_nanoseconds() > now);
        if self.server.held.len() < count {
            self.admit();
        }
    }

    fn arrive(&mut self, number: Number) {
        let Some(message) = self.messages.get(&number) else { return };
        let (client, request) = (message.client, message.request.clone());
        let until = Moment::from_nanoseconds(self.now).plus(LEASE);
        let answer = match request {
            Request::Acquire { id, mode, tries } => match self.server.held.get(&id) {
                _ if self.server.dead.contains(&id) => Answer::Refused,
                Some(held) => held.answer(),
                None => return self.acquire(number, client, id, mode, tries, until),
            },
            Request::Cancel { id, .. } => {
                self.remove(id);
                Answer::Done
            }
            Request::Release { id, .. } => match self.remove(id) {
                Some(_) => Answer::Done,
                None => Answer::WasLost,
            },
            Request::Renew { ids } => Answer::States(ids.iter().map(|id| self.renew(*id, until)).collect()),
            Request::Downgrade { from, id } => self.downgrade(from, id, until),
        };
        self.reply(number, answer);
    }

    fn remove(&mut self, id: Id) -> Option<Held> {
        self.server.dead.insert(id);
        let held = self.server.held.remove(&id);
        let place = self.server.queue.iter().position(|waiter| waiter.id == id);
        if let Some(waiter) = place.and_then(|place| self.server.queue.remove(place)) {
            self.reply(waiter.request, Answer::Refused);
        }
        self.admit();
        held
    }

    fn downgrade(&mut self, from: Id, id: Id, until: Moment) -> Answer {
        self.server.dead.insert(from);
        let held = self.server.held.remove(&from).filter(|_| !self.server.dead.contains(&id));
        if let Some(held) = held {
            self.server.held.insert(id, Held { mode: Mode::Shared, until, ..held });
        }
        self.admit();
        self.server.held.get(&id).map_or(Answer::WasLost, Held::answer)
    }

    fn renew(&mut self, id: Id, until: Moment) -> bool {
        self.server.held.get_mut(&id).map(|held| held.until = until).is_some()
    }

    fn acquire(&mut self, number: Number, client: usize, id: Id, mode: Mode, tries: bool, until: Moment) {
        if let Some(waiter) = self.server.queue.iter_mut().find(|waiter| waiter.id == id) {
            let former = std::mem::replace(&mut waiter.request, number);
            self.reply(former, Answer::Refused);
        } else if self.server.queue.is_empty() && self.server.fits(mode) {
            let answer = self.server.hold(id, client, mode, until);
            return self.reply(number, answer);
        } else if tries {
            return self.reply(number, Answer::Refused);
        } else {
            self.server.queue.push_back(Waiter { id, client, mode, request: number });
        }
        if let Some(message) = self.messages.get_mut(&number) {
            message.at = At::Queued;
        }
        if let Some(handle) = self.handles.get(&id) {
            self.reports.push_back(Report::Queued(handle.clone()));
        }
    }

    /// All waiters that fit have the lock, up to the first that does not.
    fn admit(&mut self) {
        while let Some(Waiter { id, client, mode, request }) = self.server.queue.front().copied()
            && self.server.fits(mode)
        {
            self.server.queue.pop_front();
            let until = Moment::from_nanoseconds(self.now).plus(LEASE);
            let answer = self.server.hold(id, client, mode, until);
            self.reply(request, answer);
        }
    }

    fn reply(&mut self, number: Number, answer: Answer) {
        if let Some(message) = self.messages.get_mut(&number) {
            message.at = At::Answered(answer);
        }
    }

    fn answer(&mut self, number: Number) {
        let Some(message) = self.messages.get_mut(&number) else { return };
        if let At::Answered(answer) = &message.at {
            message.at = At::Delivered(answer.clone());
            self.delivered(number);
        }
    }

    fn delivered(&mut self, number: Number) {
        let Some(message) = self.messages.get_mut(&number) else { return };
        let waker = message.waker.take();
        if let Request::Cancel { id, .. }
        | Request::Release { id, .. }
        | Request::Downgrade { from: id, .. } = &message.request
        {
            self.gates.remove(id);
            self.opened.insert(*id);
        }
        if message.is_abandoned {
            self.messages.remove(&number);
        }
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn fail(&mut self, number: Number) {
        if let Some(message) = self.messages.get_mut(&number) {
            message.at = At::Delivered(Answer::Failed);
            self.delivered(number);
        }
    }

    fn give_up(&mut self, number: Number) {
        let Some(message) = self.messages.get(&number) else { return };
        let (client, request, sent) = (message.client, message.request.clone(), message.sent);
        self.last += 1;
        let late = Message { client, request, sent, at: At::OnItsWay, is_abandoned: true, waker: None };
        self.messages.insert(self.last, late);
        self.fail(number);
    }

    fn break_first(&mut self) {
        let Some((id, held)) = self.server.held.pop_first() else { return };
        self.broken.insert(held.token);
        self.server.dead.insert(id);
        if let Some(handle) = self.handles.get(&id) {
            self.reports.push_back(Report::Broken(held.token, handle.clone()));
        }
        self.admit();
    }
}

impl Server {
    fn fits(&self, mode: Mode) -> bool {
        let taken: u32 = self.held.values().map(|held| weight(held.mode)).sum();
        match mode {
            Mode::Exclusive => self.held.is_empty(),
            Mode::Shared => self.held.values().all(|held| held.mode == Mode::Shared),
            Mode::Permits { take, of } => taken + take.get() <= of.get(),
            _ => false,
        }
    }

    fn hold(&mut self, id: Id, client: usize, mode: Mode, until: Moment) -> Answer {
        self.last_token += LEASE_TOKENS;
        let held = Held { client, mode, until, token: self.last_token };
        let answer = held.answer();
        self.held.insert(id, held);
        answer
    }
}

impl Held {
    fn answer(&self) -> Answer {
        Answer::Granted(self.token, self.until.minus(LEASE))
    }
}

fn weight(mode: Mode) -> u32 {
    match mode {
        Mode::Permits { take, .. } => take.get(),
        _ => 1,
    }
}

/// The backend of one client.
pub(crate) struct Remote {
    client: usize,
    network: Arc<Network>,
    _context: BackendContext,
    capabilities: Capabilities,
}

impl std::fmt::Debug for Remote {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Remote").field("client", &self.client).finish_non_exhaustive()
    }
}

#[derive(Debug)]
pub(crate) struct Lease {
    id: Id,
    mode: Mode,
    token: u64,
}

impl Remote {
    pub(crate) fn new(client: usize, network: &Arc<Network>, context: BackendContext) -> Self {
        let mut capabilities =
            Capabilities::new("network", Reach::Network, NameRules::new(CharacterSet::ANY, 100))
                .with_modes(Modes::exclusive().with_shared().with_permits(PermitLimits::NONE))
                .with_reserving(Reserving::AtMost(NonZeroU32::new(8).unwrap()));
        capabilities.pipelining = network.order == Order::Kept;
        Self { client, network: Arc::clone(network), _context: context, capabilities }
    }

    fn grant(&self, request: &AcquireRequest, token: u64, anchor: Moment) -> Grant<Lease> {
        let lease = Lease { id: request.id().get(), mode: request.mode(), token };
        let group = GroupId::new(u64::try_from(self.client).unwrap());
        Grant::new(lease, group, Term::Leased { anchor, length: LEASE }).with_token(FencingToken::new(token))
    }

    async fn ask(&self, operation: Operation, request: Request) -> Result<(Answer, Moment), LockError> {
        match self.network.ask(self.client, request).await {
            (Answer::Failed, _) => Err(LockError::new(ErrorKind::Unreachable, operation).retryable()),
            answered => Ok(answered),
        }
    }
}

impl Backend for Remote {
    type Lease = Lease;

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<Option<Grant<Lease>>, LockError> {
        let (id, mode) = (request.id().get(), request.mode());
        let tries = request.wait() == lock_core::Wait::Try;
        self.network.state().handles.insert(id, request.attempt().clone());
        let (answer, _) = self.ask(Operation::Acquire, Request::Acquire { id, mode, tries }).await?;
        Ok(match answer {
            Answer::Granted(token, since) => Some(self.grant(request, token, since)),
            _ => None,
        })
    }

    async fn cancel(&self, request: &AcquireRequest) -> Result<(), LockError> {
        let cancel = Request::Cancel { id: request.id().get(), mode: request.mode() };
        self.ask(Operation::Cancel, cancel).await.map(drop)
    }

    async fn renew(&self, _: GroupId, leases: &[Arc<Lease>]) -> Result<Vec<LeaseState>, LockError> {
        let ids = leases.iter().map(|lease| lease.id).collect();
        let (answer, sent) = self.ask(Operation::Renew, Request::Renew { ids }).await?;
        let Answer::States(states) = answer else { return Ok(vec![LeaseState::Unknown; leases.len()]) };
        let state = |is_held| {
            if is_held { LeaseState::HeldFrom(sent) } else { LeaseState::Lost(LossReason::Expired) }
        };
        Ok(states.into_iter().map(state).collect())
    }

    async fn release(&self, lease: &Lease) -> Result<Released, LockError> {
        let release = Request::Release { id: lease.id, mode: lease.mode, token: lease.token };
        Ok(match self.ask(Operation::Release, release).await?.0 {
            Answer::WasLost => Released::WasLost(LossReason::Expired),
            _ => Released::Clean,
        })
    }

    async fn downgrade(
        &self,
        lease: &Lease,
        request: &AcquireRequest,
    ) -> Result<Downgraded<Lease>, LockError> {
        let id = request.id().get();
        self.network.state().handles.insert(id, request.attempt().clone());
        let downgrade = Request::Downgrade { from: lease.id, id };
        Ok(match self.ask(Operation::Downgrade, downgrade).await? {
            (Answer::Granted(token, since), _) => Downgraded::Shared(self.grant(request, token, since)),
            _ => Downgraded::WasLost(LossReason::Expired),
        })
    }

    async fn inspect(&self, request: &InspectRequest) -> Result<LockStatus, LockError> {
        Ok(LockStatus::free(request.name().clone()))
    }

    async fn break_holder(&self, _: &InspectRequest, _: &HolderId) -> Result<Broken, LockError> {
        Ok(Broken::not_held())
    }

    async fn ping(&self) -> Result<(), LockError> {
        Ok(())
    }
}
