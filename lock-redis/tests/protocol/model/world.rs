//! The state of the model: a server, its clients, and the messages between them.
//!
//! Every time is an age or a remainder in ticks, capped where more makes no difference, so that the model is finite although
//! time is not. A message carries the age of the request that it answers; a real client, which alone knows when it
//! sent request number k, looks that up.
use std::hash::{Hash, Hasher};

use super::list::List;
use super::rules::{Rule, Rules};

/// The lease in ticks. An age that reaches it is too old for every purpose.
pub(crate) const LEASE: u8 = 2;

const MOST_CLIENTS: usize = 3;

/// A fencing token exceeds the clock by less than this; the tokens of the previous tick are below the clock.
const TOKENS_PER_TICK: i8 = 16;

/// An attempt: its client, and its number there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Id {
    pub(crate) client: u8,
    pub(crate) attempt: u8,
}

/// Hashes both fields as one number, because nearly every part of a state contains an id.
impl Hash for Id {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u32(u32::from(self.client) << 8 | u32::from(self.attempt));
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Intent {
    Try,
    Wait,
    Beat,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Request {
    Acquire { id: Id, intent: Intent, age: u8 },
    Renew { id: Id, age: u8 },
    Release { id: Id },
    Cancel { id: Id },
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Answer {
    Held,
    Waits,
    Gone,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Reply {
    Acquire {
        id: Id,
        answer: Answer,
        age: u8,
    },
    Renew {
        id: Id,
        is_held: bool,
        age: u8,
    },
    /// The reply to a release or a cancel.
    Ended {
        id: Id,
    },
}

/// A grant that the server pushes; its age is that of the heartbeat that it names.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Push {
    pub(crate) id: Id,
    pub(crate) age: u8,
}

/// The connection over which the server reaches a waiter, as the server sees it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Line {
    Current,
    /// A connection that the client has given up, but the server has not.
    Old,
    Closed,
    /// No connection: the waiter polls.
    Polls,
}

#[derive(Clone, Copy, Hash, Debug)]
pub(crate) struct Place {
    pub(crate) id: Id,
    pub(crate) left: u8,
    pub(crate) age: u8,
    pub(crate) line: Line,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Hold {
    pub(crate) id: Id,
    pub(crate) left: u8,
}

#[derive(Clone, Copy, Hash, Debug, Default)]
pub(crate) struct Server {
    pub(crate) holds: List<Hold, 6>,
    pub(crate) queue: List<Place, 4>,
    /// Relative to the clock.
    pub(crate) fence: Option<i8>,
}

/// A connection: requests and replies in order, and messages beside them.
#[derive(Clone, Copy, Hash, Debug, Default)]
pub(crate) struct Link {
    pub(crate) requests: List<Request, 4>,
    pub(crate) replies: List<Reply, 4>,
    pub(crate) pushes: List<Push, 4>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum End {
    Release,
    Cancel,
    /// Cancel, and start again because the wait is not over.
    CancelAndWait,
}

/// What a client is doing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Role {
    Idle,
    /// The client has sent its first request, or is about to; it does not know whether it has a place.
    Asks {
        id: Id,
        intent: Intent,
        is_sent: bool,
    },
    /// The client has a place. `acknowledged` is kept only for rules that need it.
    Waits {
        id: Id,
        is_busy: bool,
        acknowledged: u8,
    },
    /// The client believes that it holds the lock, for a lease from the age of its anchor.
    Believes {
        id: Id,
        age: u8,
        is_busy: bool,
        is_from_before: bool,
    },
    Ends {
        id: Id,
        end: End,
        is_sent: bool,
    },
    Dead,
}

#[derive(Clone, Copy, Hash, Debug)]
pub(crate) struct Client {
    pub(crate) role: Role,
    pub(crate) link: Option<Link>,
    /// Requests that may still arrive over a connection that was given up.
    pub(crate) old: Option<List<Request, 8>>,
    pub(crate) next_attempt: u8,
    /// One heartbeat or renewal per tick is enough.
    pub(crate) has_beaten: bool,
}

#[derive(Clone, Copy, Hash, Debug)]
pub(crate) struct World {
    pub(crate) server: Server,
    /// If there are fewer clients, the others are dead from the beginning.
    pub(crate) clients: [Client; MOST_CLIENTS],
    pub(crate) faults_left: u8,
    /// The last token that the server gave to any client, relative to the clock. The server does not know it.
    pub(crate) last_token: Option<i8>,
}

fn older(age: &mut u8) {
    *age = (*age + 1).min(LEASE);
}

fn older_request(request: &mut Request) {
    match request {
        Request::Acquire { age, .. } | Request::Renew { age, .. } => older(age),
        Request::Release { .. } | Request::Cancel { .. } => {}
    }
}

impl World {
    pub(crate) fn new(clients: usize, faults: u8) -> Self {
        let none = Client { role: Role::Dead, link: None, old: None, next_attempt: 0, has_beaten: false };
        let mut all = [none; MOST_CLIENTS];
        all[..clients].fill(Client { role: Role::Idle, link: Some(Link::default()), ..none });
        Self { server: Server::default(), clients: all, faults_left: faults, last_token: None }
    }

    /// Lets time pass for all clients: all clocks run at the same rate.
    pub(crate) fn tick(&mut self, rules: &Rules) {
        for client in &mut self.clients {
            client.tick(rules);
        }
        let server = &mut self.server;
        server.holds.iter_mut().for_each(|hold| hold.left = hold.left.saturating_sub(1));
        // The key expires with the last lease.
        let is_over = server.holds.iter().all(|hold| hold.left == 0);
        server.holds.retain(|hold| hold.left > 0 || !is_over && rules.drop(Rule::TheEndedAreRemoved));
        for place in server.queue.iter_mut() {
            older(&mut place.age);
            place.left = place.left.saturating_sub(1);
        }
        // The keys expire with the last deadline.
        if server.queue.iter().all(|place| place.left == 0) {
            server.queue = List::default();
        }
        let a_tick_ago = |token: i8| (token - TOKENS_PER_TICK).max(-1);
        server.fence = server.fence.map(a_tick_ago);
        self.last_token = self.last_token.map(a_tick_ago);
    }

    /// The clients that believe that they hold the lock because of a reply or message of the present server.
    pub(crate) fn believers(&self) -> impl Iterator<Item = u8> + Clone {
        let believes = |client: &Client| matches!(client.role, Role::Believes { is_from_before: false, .. });
        (0..).zip(&self.clients).filter(move |(_, client)| believes(client)).map(|(index, _)| index)
    }

    /// The server loses all connections and its data. A tick has to follow: a restart takes longer than one microsecond for
    /// each token that was given out.
    pub(crate) fn restart_empty(&mut self) {
        self.server = Server::default();
        for client in &mut self.clients {
            client.lose_link();
            client.old = None;
            if let Role::Believes { is_from_before, .. } = &mut client.role {
                *is_from_before = true;
            }
        }
    }
}

impl Client {
    fn tick(&mut self, rules: &Rules) {
        self.has_beaten = false;
        if let Some(old) = &mut self.old {
            old.iter_mut().for_each(older_request);
        }
        if let Some(link) = &mut self.link {
            link.requests.iter_mut().for_each(older_request);
            for reply in link.replies.iter_mut() {
                match reply {
                    Reply::Acquire { age, .. } | Reply::Renew { age, .. } => older(age),
                    Reply::Ended { .. } => {}
                }
            }
            link.pushes.iter_mut().for_each(|push| older(&mut push.age));
        }
        match &mut self.role {
            Role::Believes { id, age, .. } => {
                older(age);
                if *age == LEASE && rules.keep(Rule::OwnTimer) {
                    // The client's own timer ends the belief, not a reply of the server.
                    self.role = Role::Ends { id: *id, end: End::Cancel, is_sent: false };
                }
            }
            Role::Waits { acknowledged, .. } => older(acknowledged),
            _ => {}
        }
    }

    /// The client gives up the connection, with everything it had to read from it. Requests that it sent may still arrive.
    pub(crate) fn lose_link(&mut self) {
        if let Some(link) = self.link.take() {
            let old = self.old.get_or_insert_default();
            link.requests.iter().for_each(|request| old.push(*request));
        }
        match &mut self.role {
            Role::Asks { id, intent: Intent::Try, .. } => {
                self.role = Role::Ends { id: *id, end: End::Cancel, is_sent: false };
            }
            Role::Asks { is_sent, .. } | Role::Ends { is_sent, .. } => *is_sent = false,
            Role::Waits { is_busy, .. } | Role::Believes { is_busy, .. } => *is_busy = false,
            Role::Idle | Role::Dead => {}
        }
        self.has_beaten = false;
    }
}
