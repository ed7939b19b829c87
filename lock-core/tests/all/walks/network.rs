//! A network in which the test decides when each request arrives, when its answer does, and which of them get lost.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Poll, Waker};
use std::time::Duration;

use lock_core::{AcquireRequest, BackendContext, Clock, GroupId, LossReason, Mode, Moment};

use super::digest::Digest;
use super::server::{Held, Server, Waiter};

pub(crate) const LEASE: Duration = Duration::from_secs(10);

/// How far the tokens of two leases are apart: a lease may serve several holds, one after the other.
pub(crate) const LEASE_TOKENS: u64 = 10;

pub(super) fn lease_of(token: u64) -> u64 {
    token - token % LEASE_TOKENS
}

pub(super) type Id = u128;
pub(super) type Number = u64;

#[derive(Debug, Clone)]
pub(super) enum Request {
    Acquire { id: Id, mode: Mode, tries: bool },
    Cancel { id: Id, mode: Mode },
    Release { id: Id, mode: Mode, token: u64 },
    Renew { ids: Vec<Id> },
    Downgrade { from: Id, id: Id },
}

#[derive(Debug, Clone)]
pub(super) enum Answer {
    Granted { token: u64, group: u64, since: Moment },
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

/// What the server tells a client unasked.
#[derive(Debug)]
enum Report {
    Queued(Id, AcquireRequest),
    Broken(u64, AcquireRequest),
    /// The session of this client has ended, and with it all that is in this group.
    SessionEnded(usize, GroupId, Vec<u64>),
}

#[derive(Default)]
pub(super) struct State {
    now: u64,
    contexts: BTreeMap<usize, BackendContext>,
    messages: BTreeMap<Number, Message>,
    last: Number,
    server: Server,
    handles: BTreeMap<Id, AcquireRequest>,
    sent: BTreeSet<Id>,
    cancelled: BTreeSet<Id>,
    /// What a client has heard of each attempt.
    heard: BTreeMap<Id, Vec<Heard>>,
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
enum Heard {
    Queued,
    Failed,
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
    /// The server ends the session of a client.
    EndSession(usize),
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

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
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
        let holding: BTreeSet<_> = state.server.held.values().map(|held| held.client).collect();
        harms.extend(holding.into_iter().map(Step::EndSession));
        harms
    }

    pub(crate) fn carry_out(&self, step: Step) {
        let mut state = self.state();
        state.expire();
        match step {
            Step::Arrive(number) => state.arrive(number),
            Step::Answer(number) => state.answer(number),
            Step::Fail(number) => state.fail(number),
            Step::GiveUp(number) => state.give_up(number),
            Step::Break => state.break_first(),
            Step::EndSession(client) => state.end_session(client),
            Step::Report => Self::report(state),
        }
    }

    fn report(mut state: MutexGuard<'_, State>) {
        match state.reports.pop_front() {
            None => {}
            Some(Report::Queued(id, handle)) => {
                state.hears(id, Heard::Queued);
                drop(state);
                handle.queued();
            }
            Some(Report::Broken(token, handle)) => {
                state.reported.insert(token);
                drop(state);
                handle.lost(LossReason::Broken);
            }
            Some(Report::SessionEnded(client, group, tokens)) => {
                state.reported.extend(tokens);
                let context = state.contexts[&client].clone();
                drop(state);
                context.group_lost(group, LossReason::SessionClosed);
            }
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

    /// Writes down what can make a difference from here on.
    pub(crate) fn digest(&self, digest: &mut Digest) {
        let state = self.state();
        for message in state.messages.values() {
            digest.add(message.client);
            digest.request(&message.request);
            digest.moment(message.sent);
            match &message.at {
                At::Answered(answer) | At::Delivered(answer) => digest.answer(answer),
                at => digest.add(at),
            }
            digest.add((message.is_abandoned, message.waker.is_some()));
        }
        let mut held: Vec<_> = state.server.held.iter().collect();
        held.sort_by_key(|(_, held)| held.token);
        for (id, Held { client, group, mode, until, token }) in held {
            digest.id(*id);
            digest.token(*token);
            digest.moment(*until);
            digest.add((client, group == &state.server.group(*client), mode));
        }
        for Waiter { id, client, mode, request } in &state.server.queue {
            digest.id(*id);
            digest.add((client, mode, state.messages.contains_key(request)));
        }
        let mut gates: Vec<_> = state.gates.iter().map(|(id, (client, ..))| (*client, *id)).collect();
        gates.sort_unstable();
        for (_, id) in gates {
            digest.id(id);
            digest.add(state.gates[&id]);
        }
        for report in &state.reports {
            match report {
                Report::Queued(id, _) => digest.id(*id),
                Report::Broken(token, _) => digest.token(*token),
                Report::SessionEnded(client, ..) => digest.add(client),
            }
        }
        for id in digest.ids() {
            digest.add(state.heard.get(&id));
        }
        for token in digest.tokens() {
            let of = |tokens: &BTreeSet<u64>| tokens.contains(&token);
            digest.add((of(&state.broken), of(&state.reported), of(&state.returned)));
        }
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

    pub(super) async fn ask(&self, client: usize, request: Request) -> (Answer, Moment) {
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
            Request::Cancel { id, mode } => {
                self.cancelled.insert(*id);
                self.gate(client, *id, *mode, Gate::Other);
            }
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
        if self.cancelled.contains(id) {
            self.violations.push(format!("client {client} asks again for what it has cancelled"));
        }
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
            self.reports.push_back(Report::Queued(id, handle.clone()));
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
        let failed = match (&message.request, &message.at) {
            (Request::Acquire { id, .. }, At::Delivered(Answer::Failed)) => Some(*id),
            _ => None,
        };
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
        if let Some(id) = failed {
            self.hears(id, Heard::Failed);
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

    fn end_session(&mut self, client: usize) {
        let group = GroupId::new(self.server.group(client));
        let tokens = self.server.end_session(client);
        self.broken.extend(&tokens);
        self.reports.push_back(Report::SessionEnded(client, group, tokens));
        self.admit();
    }

    pub(super) fn opens(&mut self, client: usize, context: BackendContext) {
        self.contexts.insert(client, context);
    }

    pub(super) fn tells(&mut self, id: Id, handle: AcquireRequest) {
        self.handles.insert(id, handle);
    }

    fn hears(&mut self, id: Id, heard: Heard) {
        let all = self.heard.entry(id).or_default();
        if all.last() != Some(&heard) {
            all.push(heard);
        }
    }

    fn break_first(&mut self) {
        let Some((id, held)) = self.server.break_first() else { return };
        self.broken.insert(held.token);
        if let Some(handle) = self.handles.get(&id) {
            self.reports.push_back(Report::Broken(held.token, handle.clone()));
        }
        self.admit();
    }
}
