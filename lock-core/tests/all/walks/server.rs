//! The server: first come, first served.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use lock_core::{Mode, Moment};

use super::network::{Answer, Id, LEASE, LEASE_TOKENS, Number};

#[derive(Debug, Clone)]
pub(super) struct Held {
    pub(super) client: usize,
    pub(super) group: u64,
    pub(super) mode: Mode,
    pub(super) until: Moment,
    pub(super) token: u64,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Waiter {
    pub(super) id: Id,
    pub(super) client: usize,
    pub(super) mode: Mode,
    /// The request that its grant answers.
    pub(super) request: Number,
}

#[derive(Debug, Default)]
pub(super) struct Server {
    pub(super) held: BTreeMap<Id, Held>,
    pub(super) queue: VecDeque<Waiter>,
    /// Attempts that have been cancelled or released: nothing brings them back.
    pub(super) dead: BTreeSet<Id>,
    /// How many sessions of each client have ended.
    sessions: BTreeMap<usize, u64>,
    last_token: u64,
}

impl Server {
    pub(super) fn fits(&self, mode: Mode) -> bool {
        let taken: u32 = self.held.values().map(|held| weight(held.mode)).sum();
        match mode {
            Mode::Exclusive => self.held.is_empty(),
            Mode::Shared => self.held.values().all(|held| held.mode == Mode::Shared),
            Mode::Permits { take, of } => taken + take.get() <= of.get(),
            _ => false,
        }
    }

    pub(super) fn hold(&mut self, id: Id, client: usize, mode: Mode, until: Moment) -> Answer {
        self.last_token += LEASE_TOKENS;
        let held = Held { client, group: self.group(client), mode, until, token: self.last_token };
        let answer = held.answer();
        self.held.insert(id, held);
        answer
    }

    /// Returns the group of what a client gets now: it ends with the client's session.
    pub(super) fn group(&self, client: usize) -> u64 {
        let ended = self.sessions.get(&client).copied().unwrap_or_default();
        100 * ended + u64::try_from(client).unwrap()
    }

    /// The locks of a client end together. Returns their tokens.
    pub(super) fn end_session(&mut self, client: usize) -> Vec<u64> {
        *self.sessions.entry(client).or_default() += 1;
        let of_client = self.held.iter().filter(|(_, held)| held.client == client);
        let (ids, tokens): (Vec<_>, Vec<_>) = of_client.map(|(id, held)| (*id, held.token)).unzip();
        self.held.retain(|_, held| held.client != client);
        self.dead.extend(ids);
        tokens
    }

    /// An operator ends the oldest hold.
    pub(super) fn break_first(&mut self) -> Option<(Id, Held)> {
        let (id, _) = self.held.iter().min_by_key(|(_, held)| held.token)?;
        let id = *id;
        self.dead.insert(id);
        self.held.remove(&id).map(|held| (id, held))
    }
}

impl Held {
    pub(super) fn answer(&self) -> Answer {
        Answer::Granted { token: self.token, group: self.group, since: self.until.minus(LEASE) }
    }
}

fn weight(mode: Mode) -> u32 {
    match mode {
        Mode::Permits { take, .. } => take.get(),
        _ => 1,
    }
}
