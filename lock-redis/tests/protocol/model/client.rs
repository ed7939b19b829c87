//! The steps of the model, and how clients react to them.
use super::list::List;
use super::rules::{Rule, Rules};
use super::server::Violation;
use super::world::{Answer, End, Id, Intent, LEASE, Line, Link, Push, Reply, Request, Role, World};

/// One step of the model. Each belongs to one client, except for the last two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    Begin(usize, Intent),
    Send(usize),
    Release(usize),
    GiveUp(usize),
    Connect(usize),
    /// A request arrives at the server, which runs it.
    Arrive(usize),
    ArriveLate(usize),
    ReadReply(usize),
    ReadPush(usize),
    LosePush(usize),
    LoseConnection(usize),
    /// The server notices that an old connection has ended.
    ForgetConnection(usize),
    Die(usize),
    RestartEmpty,
    Tick,
}

/// What the search tries beyond what clients do by themselves.
#[derive(Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) clients: usize,
    pub(crate) attempts: u8,
    pub(crate) faults: u8,
    pub(crate) with_restarts: bool,
    /// Also clients that do not wait.
    pub(crate) with_tries: bool,
}

impl World {
    /// All possible steps.
    pub(crate) fn steps(&self, rules: &Rules, bounds: Bounds) -> Vec<Step> {
        let mut steps = Vec::with_capacity(16);
        steps.push(Step::Tick);
        for (index, client) in self.clients.iter().enumerate() {
            if let Some(link) = &client.link {
                self.steps_with_link(rules, bounds, index, link, &mut steps);
            } else if client.role != Role::Dead {
                steps.push(Step::Connect(index));
            }
            if let Some(old) = &client.old {
                steps.push(Step::ForgetConnection(index));
                if !old.is_empty() {
                    steps.push(Step::ArriveLate(index));
                }
            }
            match client.role {
                Role::Asks { .. } | Role::Waits { .. } => steps.push(Step::GiveUp(index)),
                Role::Believes { .. } => steps.push(Step::Release(index)),
                Role::Idle | Role::Ends { .. } | Role::Dead => {}
            }
        }
        if self.faults_left > 0 && bounds.with_restarts {
            steps.push(Step::RestartEmpty);
        }
        steps
    }

    fn steps_with_link(
        &self,
        rules: &Rules,
        bounds: Bounds,
        index: usize,
        link: &Link,
        steps: &mut Vec<Step>,
    ) {
        let client = &self.clients[index];
        if client.role == Role::Idle && client.next_attempt < bounds.attempts {
            steps.push(Step::Begin(index, Intent::Wait));
            if bounds.with_tries {
                steps.push(Step::Begin(index, Intent::Try));
            }
        }
        if self.message(rules, index).is_some() {
            steps.push(Step::Send(index));
        }
        if !link.requests.is_empty() {
            steps.push(Step::Arrive(index));
        }
        if !link.replies.is_empty() {
            steps.push(Step::ReadReply(index));
        }
        if !link.pushes.is_empty() {
            steps.push(Step::ReadPush(index));
        }
        if self.faults_left > 0 {
            steps.extend([Step::LoseConnection(index), Step::Die(index)]);
            if !link.pushes.is_empty() {
                steps.push(Step::LosePush(index));
            }
        }
    }

    /// The first step if nothing fails and every client acts at once: a holder releases. An old connection may stay as it is,
    /// because the protocol cannot rely on its end.
    pub(crate) fn next_without_faults(&self, rules: &Rules) -> Step {
        let first = |is_so: &dyn Fn(usize) -> bool| (0..self.clients.len()).find(|index| is_so(*index));
        let link = |index: usize| self.clients[index].link.as_ref();
        let role = |index: usize| self.clients[index].role;
        first(&|index| link(index).is_none() && role(index) != Role::Dead)
            .map(Step::Connect)
            .or_else(|| {
                first(&|index| link(index).is_some_and(|link| !link.requests.is_empty())).map(Step::Arrive)
            })
            .or_else(|| {
                first(&|index| link(index).is_some_and(|link| !link.replies.is_empty())).map(Step::ReadReply)
            })
            .or_else(|| {
                first(&|index| link(index).is_some_and(|link| !link.pushes.is_empty())).map(Step::ReadPush)
            })
            .or_else(|| first(&|index| matches!(role(index), Role::Believes { .. })).map(Step::Release))
            .or_else(|| first(&|index| self.message(rules, index).is_some()).map(Step::Send))
            .unwrap_or(Step::Tick)
    }

    /// Whether a living client waits without having got the lock.
    pub(crate) fn has_waiters(&self) -> bool {
        self.clients.iter().any(|client| {
            matches!(
                client.role,
                Role::Asks { .. } | Role::Waits { .. } | Role::Ends { end: End::CancelAndWait, .. }
            )
        })
    }

    /// The request that the client would send now.
    fn message(&self, rules: &Rules, index: usize) -> Option<Request> {
        let client = &self.clients[index];
        client.link.as_ref()?;
        match client.role {
            Role::Asks { id, intent, is_sent: false } => Some(Request::Acquire { id, intent, age: 0 }),
            Role::Waits { id, is_busy: false, .. } if !client.has_beaten && rules.keep(Rule::WaitersBeat) => {
                Some(Request::Acquire { id, intent: Intent::Beat, age: 0 })
            }
            Role::Believes { id, is_busy: false, .. } if !client.has_beaten => {
                Some(Request::Renew { id, age: 0 })
            }
            Role::Ends { id, end: End::Release, is_sent: false } => Some(Request::Release { id }),
            Role::Ends { id, is_sent: false, .. } => Some(Request::Cancel { id }),
            _ => None,
        }
    }

    /// The state of the model after a step.
    pub(crate) fn after(&self, rules: &Rules, bounds: Bounds, step: Step) -> Result<Self, Violation> {
        let mut world = *self;
        world.take(rules, bounds, step)?;
        world.check(rules)?;
        Ok(world)
    }

    fn check(&self, rules: &Rules) -> Result<(), Violation> {
        if !Rules::are_together(self.believers().map(|client| rules.mode(client))) {
            return Err("two believe that they hold the lock");
        }
        let is_over = |id: Id| match self.clients[usize::from(id.client)].role {
            Role::Idle => true,
            Role::Dead => false,
            Role::Asks { id: known, .. }
            | Role::Waits { id: known, .. }
            | Role::Believes { id: known, .. }
            | Role::Ends { id: known, .. } => known != id,
        };
        let server = &self.server;
        if server.queue.iter().any(|place| is_over(place.id))
            || server.holds.iter().any(|hold| is_over(hold.id))
        {
            return Err("something is left of an attempt that ended");
        }
        Ok(())
    }

    fn take(&mut self, rules: &Rules, bounds: Bounds, step: Step) -> Result<(), Violation> {
        match step {
            Step::Begin(index, intent) => self.begin(index, intent),
            Step::Send(index) => self.send(rules, index),
            Step::Release(index) => self.end(index, End::Release),
            Step::GiveUp(index) => self.end(index, End::Cancel),
            Step::Connect(index) => {
                if rules.keep(Rule::OldConnectionIsKilled) {
                    self.forget_connection(index);
                }
                self.clients[index].link = Some(Link::default());
                if let Role::Asks { is_sent, .. } | Role::Ends { is_sent, .. } = &mut self.clients[index].role
                    && rules.drop(Rule::SendsAgain)
                {
                    *is_sent = true;
                }
            }
            Step::Arrive(index) => self.arrive(rules, index)?,
            Step::ArriveLate(index) => {
                if let Some(request) = self.clients[index].old.as_mut().and_then(List::pop_first) {
                    self.run(rules, request, by(rules, index, Line::Old))?;
                }
            }
            Step::ReadReply(index) => {
                let link = self.clients[index].link.as_mut();
                if let Some(reply) = link.and_then(|link| link.replies.pop_first()) {
                    self.read_reply(rules, bounds, index, reply);
                }
            }
            Step::ReadPush(index) => {
                let link = self.clients[index].link.as_mut();
                if let Some(push) = link.and_then(|link| link.pushes.pop_first()) {
                    self.read_push(rules, index, push);
                }
            }
            Step::LosePush(index) => {
                self.faults_left -= 1;
                if let Some(link) = &mut self.clients[index].link {
                    link.pushes.pop_first();
                }
            }
            Step::LoseConnection(index) => self.lose_connection(index),
            Step::ForgetConnection(index) => self.forget_connection(index),
            Step::Die(index) => {
                self.lose_connection(index);
                self.clients[index].role = Role::Dead;
            }
            Step::RestartEmpty => {
                self.faults_left -= 1;
                self.restart_empty();
                self.tick(rules);
            }
            Step::Tick => self.tick(rules),
        }
        Ok(())
    }

    fn begin(&mut self, index: usize, intent: Intent) {
        let client = &mut self.clients[index];
        let id = Id { client: number(index), attempt: client.next_attempt };
        client.next_attempt += 1;
        client.role = Role::Asks { id, intent, is_sent: false };
    }

    fn send(&mut self, rules: &Rules, index: usize) {
        let Some(request) = self.message(rules, index) else { return };
        let client = &mut self.clients[index];
        match &mut client.role {
            Role::Asks { is_sent, .. } | Role::Ends { is_sent, .. } => *is_sent = true,
            Role::Waits { is_busy, .. } | Role::Believes { is_busy, .. } => {
                *is_busy = true;
                client.has_beaten = true;
            }
            Role::Idle | Role::Dead => {}
        }
        if let Some(link) = &mut client.link {
            link.requests.push(request);
        }
    }

    fn end(&mut self, index: usize, end: End) {
        let client = &mut self.clients[index];
        if let Role::Asks { id, .. } | Role::Waits { id, .. } | Role::Believes { id, .. } = client.role {
            client.role = Role::Ends { id, end, is_sent: false };
        }
    }

    fn arrive(&mut self, rules: &Rules, index: usize) -> Result<(), Violation> {
        let link = self.clients[index].link.as_mut();
        let Some(request) = link.and_then(|link| link.requests.pop_first()) else { return Ok(()) };
        let reply = self.run(rules, request, by(rules, index, Line::Current))?;
        if let Some(link) = &mut self.clients[index].link {
            link.replies.push(reply);
        }
        Ok(())
    }

    fn lose_connection(&mut self, index: usize) {
        self.faults_left -= 1;
        self.clients[index].lose_link();
        self.change_line(index, Line::Current, Line::Old);
    }

    fn forget_connection(&mut self, index: usize) {
        self.clients[index].old = None;
        self.change_line(index, Line::Old, Line::Closed);
    }

    fn change_line(&mut self, index: usize, from: Line, to: Line) {
        for place in self.server.queue.iter_mut() {
            if usize::from(place.id.client) == index && place.line == from {
                place.line = to;
            }
        }
    }

    fn read_reply(&mut self, rules: &Rules, bounds: Bounds, index: usize, reply: Reply) {
        match reply {
            Reply::Acquire { id, answer, age } => {
                let age = if rules.keep(Rule::AnswerLastsFromItsRequest) { age } else { 0 };
                self.read_answer(rules, index, id, answer, age);
            }
            Reply::Renew { id, is_held, age: acknowledged } => {
                let acknowledged =
                    if rules.keep(Rule::RenewalLastsFromItsRequest) { acknowledged } else { 0 };
                if let Role::Believes { id: mine, age, is_busy, .. } = &mut self.clients[index].role
                    && *mine == id
                {
                    *is_busy = false;
                    *age = acknowledged.min(*age);
                    if !is_held {
                        self.end(index, End::Cancel);
                    }
                }
            }
            Reply::Ended { id } => {
                if let Role::Ends { id: mine, end, .. } = self.clients[index].role
                    && mine == id
                {
                    self.clients[index].role = Role::Idle;
                    if end == End::CancelAndWait && self.clients[index].next_attempt < bounds.attempts {
                        self.begin(index, Intent::Wait);
                    }
                }
            }
        }
    }

    fn read_answer(&mut self, rules: &Rules, index: usize, id: Id, answer: Answer, age: u8) {
        let role = &mut self.clients[index].role;
        let (mine, is_try, believed) = match *role {
            Role::Asks { id, intent, .. } => (id, intent == Intent::Try, None),
            Role::Waits { id, .. } => (id, false, None),
            Role::Believes { id, age, is_from_before, .. } => (id, false, Some((age, is_from_before))),
            Role::Idle | Role::Ends { .. } | Role::Dead => return,
        };
        if mine != id {
            return;
        }
        match (answer, believed) {
            (Answer::Held, _) => {
                let (before, is_from_before) = believed.unwrap_or((LEASE, false));
                let age = age.min(before);
                *role = Role::Believes { id, age, is_busy: false, is_from_before };
                if age >= LEASE {
                    self.end(index, if is_try { End::Cancel } else { End::CancelAndWait });
                }
            }
            // The attempt was granted meanwhile, and the client received the grant.
            (Answer::Waits, Some((age, is_from_before))) => {
                *role = Role::Believes { id, age, is_busy: false, is_from_before };
            }
            (Answer::Waits, None) if is_try => *role = Role::Idle,
            (Answer::Waits, None) => {
                let acknowledged = if rules.keep(Rule::PushIgnoresLaterHeartbeats) { LEASE } else { age };
                *role = Role::Waits { id, is_busy: false, acknowledged };
            }
            (Answer::Gone, Some(_)) => self.end(index, End::Cancel),
            (Answer::Gone, None) if rules.keep(Rule::GoneBeginsAnew) => self.end(index, End::CancelAndWait),
            (Answer::Gone, None) => *role = Role::Waits { id, is_busy: false, acknowledged: LEASE },
        }
    }

    fn read_push(&mut self, rules: &Rules, index: usize, push: Push) {
        let role = &mut self.clients[index].role;
        let (mine, is_busy, acknowledged) = match *role {
            Role::Waits { id, is_busy, acknowledged } => (id, is_busy, acknowledged),
            Role::Asks { id, is_sent, .. } => (id, is_sent, LEASE),
            Role::Ends { id, end: End::Cancel, .. } if rules.drop(Rule::UnknownPushIsIgnored) => {
                (id, false, LEASE)
            }
            _ => return,
        };
        if mine != push.id {
            return;
        }
        let age = if rules.drop(Rule::PushLastsFromItsHeartbeat) { 0 } else { push.age.min(acknowledged) };
        // If the grant has expired, the next heartbeat finds out more.
        if age < LEASE {
            *role = Role::Believes { id: mine, age, is_busy, is_from_before: false };
        }
    }
}

/// How the server reaches a client whose request came over this connection.
fn by(rules: &Rules, index: usize, connection: Line) -> Line {
    if rules.poller == Some(number(index)) { Line::Polls } else { connection }
}

fn number(index: usize) -> u8 {
    u8::try_from(index).unwrap_or(u8::MAX)
}
