//! The permits of a semaphore: ours beside Curator's, with waiters whose nodes an operator deletes.

use super::{World, Wrong, search};

/// A rule that a test can remove.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Rule {
    /// The nodes are created first, and counted then.
    CreateFirst,
    /// A waiter whose node in the queue is gone gives its permits back and begins anew.
    BeginAnew,
    /// All nodes of an attempt count.
    WeightsCount,
    /// The queue lets the next one be its head when permits are granted.
    TheQueueMovesOn,
}

/// How many permits there are.
const OF: usize = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Role {
    /// Takes so many permits.
    Ours(usize),
    /// Takes one, counts all nodes, and does not notice that its place in the queue is gone.
    Curator,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Is {
    Idle,
    /// Its permits, created without a place in the queue, are to be counted.
    Counting,
    /// They did not fit.
    Refused,
    Queued,
    /// The head of the queue, whose permits are created and do not fit yet.
    Head,
    /// Has what it wants, and is still the head.
    Granted,
    Holding,
    Done,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Client {
    role: Role,
    is: Is,
    /// The newest state that it has seen.
    seen: usize,
    /// The places in the queue before its own.
    before: Vec<u8>,
}

/// The nodes, in the order of their numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct State {
    /// Places and their owners.
    queue: Vec<(u8, usize)>,
    /// The owners of permits.
    leases: Vec<usize>,
}

impl State {
    fn leave_queue(&mut self, number: usize) {
        self.queue.retain(|(_, owner)| *owner != number);
    }

    fn has_place(&self, number: usize) -> bool {
        self.queue.iter().any(|(_, owner)| *owner == number)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Permits {
    missing: Option<Rule>,
    log: Vec<State>,
    clients: Vec<Client>,
    /// The next place in the queue.
    place: u8,
    /// Places in the queue that an operator may still delete.
    deletions: u8,
    /// Attempts that may still begin anew.
    again: u8,
}

impl Permits {
    fn new(roles: &[Role], missing: Option<Rule>) -> Self {
        let client = |role: &Role| Client { role: *role, is: Is::Idle, seen: 0, before: Vec::new() };
        let clients = roles.iter().map(client).collect();
        Self { missing, log: vec![State::default()], clients, place: 0, deletions: 1, again: 1 }
    }

    fn keeps(&self, rule: Rule) -> bool {
        self.missing != Some(rule)
    }

    fn newest(&self) -> &State {
        &self.log[self.log.len() - 1]
    }

    fn with(&self, change: impl FnOnce(&mut Self)) -> Self {
        let mut next = self.clone();
        change(&mut next);
        next
    }

    fn change(&mut self, number: usize, is: Is, change: impl FnOnce(&mut State)) {
        let mut state = self.newest().clone();
        change(&mut state);
        self.log.push(state);
        self.clients[number].is = is;
        self.clients[number].seen = self.log.len() - 1;
    }

    fn take(&self, number: usize) -> usize {
        match self.clients[number].role {
            Role::Ours(take) => take,
            Role::Curator => 1,
        }
    }

    /// Whether the client's permits are its own in this state.
    fn fits(&self, number: usize, at: usize) -> bool {
        let leases = &self.log[at].leases;
        let last = leases.iter().rposition(|owner| *owner == number);
        match self.clients[number].role {
            Role::Curator => last.is_some() && leases.len() <= OF,
            Role::Ours(_) if !self.keeps(Rule::WeightsCount) => {
                let mut owners = leases[..last.map_or(0, |last| last + 1)].to_vec();
                owners.dedup();
                last.is_some() && owners.len() <= OF
            }
            Role::Ours(_) => last.is_some_and(|last| last < OF),
        }
    }

    /// The first request of an attempt, without a place in the queue.
    fn begin(&mut self, number: usize) {
        let take = self.take(number);
        if self.clients[number].role == Role::Curator {
            return self.queue(number);
        }
        let is = if self.newest().queue.is_empty() { Is::Counting } else { Is::Refused };
        self.change(number, is, |state| state.leases.extend(vec![number; take]));
    }

    /// Goes to the end of the queue.
    fn queue(&mut self, number: usize) {
        self.clients[number].before = self.newest().queue.iter().map(|(place, _)| *place).collect();
        let place = self.place;
        self.place += 1;
        self.change(number, Is::Queued, |state| {
            state.leases.retain(|owner| *owner != number);
            state.queue.push((place, number));
        });
    }

    /// What one that waits in the queue does when it looks at this state.
    fn look_at_queue(&mut self, number: usize, at: usize) {
        self.clients[number].seen = at;
        let state = self.log[at].clone();
        let is_ours = self.clients[number].role != Role::Curator;
        if !state.has_place(number) && is_ours && self.keeps(Rule::BeginAnew) {
            return self.begin_anew(number);
        }
        let before = &mut self.clients[number].before;
        before.retain(|before| state.queue.iter().any(|(place, _)| place == before));
        if !before.is_empty() {
            return;
        }
        let take = self.take(number);
        if self.keeps(Rule::CreateFirst) || !is_ours {
            self.change(number, Is::Head, |state| state.leases.extend(vec![number; take]));
        } else if state.leases.len() + take <= OF {
            self.change(number, Is::Granted, |state| state.leases.extend(vec![number; take]));
        }
    }

    fn look_at_leases(&mut self, number: usize, at: usize) {
        self.clients[number].seen = at;
        let has_place = self.log[at].has_place(number);
        let notices = self.keeps(Rule::BeginAnew) && self.clients[number].role != Role::Curator;
        if self.clients[number].is == Is::Head && !has_place && notices {
            self.begin_anew(number);
        } else if self.fits(number, at) {
            let is = if self.clients[number].is == Is::Head { Is::Granted } else { Is::Holding };
            self.clients[number].is = is;
        } else if self.clients[number].is == Is::Counting {
            self.clients[number].is = Is::Refused;
        }
    }

    fn begin_anew(&mut self, number: usize) {
        let is = if self.again > 0 { Is::Idle } else { Is::Done };
        self.again = self.again.saturating_sub(1);
        self.change(number, is, |state| {
            state.leases.retain(|owner| *owner != number);
            state.leave_queue(number);
        });
    }

    fn views(&self, number: usize) -> std::ops::Range<usize> {
        self.clients[number].seen..self.log.len()
    }
}

impl World for Permits {
    fn next(&self) -> Vec<Self> {
        let mut next = Vec::new();
        for (number, client) in self.clients.iter().enumerate() {
            match client.is {
                Is::Idle => next.push(self.with(|world| world.begin(number))),
                Is::Refused => next.push(self.with(|world| world.queue(number))),
                Is::Queued => {
                    next.extend(
                        self.views(number).map(|at| self.with(|world| world.look_at_queue(number, at))),
                    );
                }
                Is::Counting | Is::Head => {
                    next.extend(
                        self.views(number).map(|at| self.with(|world| world.look_at_leases(number, at))),
                    );
                }
                Is::Granted => next.push(self.with(|world| {
                    let moves_on = world.keeps(Rule::TheQueueMovesOn);
                    world.change(number, Is::Holding, |state| {
                        if moves_on {
                            state.leave_queue(number);
                        }
                    });
                })),
                Is::Holding => next.push(self.with(|world| {
                    world.change(number, Is::Done, |state| state.leases.retain(|owner| *owner != number));
                })),
                Is::Done => {}
            }
            let waits = matches!(client.is, Is::Queued | Is::Head) && client.role != Role::Curator;
            if waits && self.deletions > 0 && self.newest().has_place(number) {
                next.push(self.with(|world| {
                    let seen = client.seen;
                    world.deletions -= 1;
                    world.change(number, client.is, |state| state.leave_queue(number));
                    world.clients[number].seen = seen;
                }));
            }
        }
        // A look that finds nothing new.
        next.retain(|world| world != self);
        next
    }

    fn forget(&mut self) {
        let newest = self.log.len() - 1;
        let looks = |client: &&Client| matches!(client.is, Is::Counting | Is::Queued | Is::Head);
        let oldest = self.clients.iter().filter(looks).map(|client| client.seen).min().unwrap_or(newest);
        self.log.drain(..oldest);
        for client in &mut self.clients {
            let is_looking = looks(&&*client);
            client.seen = if is_looking { client.seen - oldest } else { 0 };
            if client.is != Is::Queued {
                client.before.clear();
            }
        }
    }

    fn check(&self) -> Result<(), Wrong> {
        let has = |client: &&Client| matches!(client.is, Is::Granted | Is::Holding);
        let numbers = self.clients.iter().enumerate().filter(|(_, client)| has(client));
        let held: usize = numbers.map(|(number, _)| self.take(number)).sum();
        if held > OF {
            return Err("more permits are held than there are");
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.clients.iter().all(|client| client.is == Is::Done)
    }
}

const SEARCHES: [&[Role]; 4] = [
    &[Role::Ours(1), Role::Ours(1), Role::Ours(1)],
    &[Role::Ours(2), Role::Ours(1), Role::Ours(2)],
    &[Role::Ours(2), Role::Curator, Role::Ours(1)],
    &[Role::Ours(1), Role::Ours(2), Role::Curator],
];

#[test]
fn there_are_never_too_many_permits_and_no_waiter_waits_for_ever() {
    for roles in SEARCHES {
        let states = search(Permits::new(roles, None)).unwrap_or_else(|wrong| panic!("{roles:?}: {wrong}"));
        assert!(states > 1000, "{roles:?}: only {states} states");
    }
}

#[test]
fn each_rule_is_needed() {
    let rules = [Rule::CreateFirst, Rule::BeginAnew, Rule::WeightsCount, Rule::TheQueueMovesOn];
    for rule in rules {
        let found = SEARCHES.iter().find_map(|roles| search(Permits::new(roles, Some(rule))).err());
        assert!(found.is_some(), "nothing goes wrong without {rule:?}");
    }
}
