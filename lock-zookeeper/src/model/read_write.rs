//! The queue of a read-write lock, with writers that go on reading.

use super::{World, Wrong, search};

/// A rule that a test can remove.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Rule {
    /// A writer that goes on reading is in the way of writers.
    WritersWaitForThoseThatRead,
    /// One between a reader and a writer that goes on reading stays in the reader's way.
    NearerOnesStay,
    /// After a writer of Curator's the queue is listed again.
    ListAfterCurator,
    /// After a loss of contact the servers are asked for the own node.
    OwnIsAskedFor,
    /// The end of the own node counts before that of others.
    OwnComesFirst,
    /// When the watched one has gone, the others are looked at.
    OthersAreLookedAt,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Role {
    Reader,
    Writer,
    /// A writer that may go on reading: its node says so then.
    Downgrader,
    /// The same, of a newer Curator: it creates a reader's node first, and then deletes the writer's.
    Curator,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Node {
    number: u8,
    owner: usize,
    is_successor: bool,
    /// What its value says, or, for a reader's, its name.
    reads: bool,
}

/// What the servers have after one transaction.
type State = Vec<Node>;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Before {
    owner: usize,
    is_successor: bool,
    /// Whether it may leave a successor.
    may_leave: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Is {
    Idle,
    Waiting,
    Holding,
    /// Curator's, with both nodes.
    Between,
    Reading,
    Done,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Client {
    role: Role,
    is: Is,
    /// The newest state that it has seen.
    seen: usize,
    before: Vec<Before>,
    is_to_be_looked_at: bool,
    is_to_be_listed: bool,
    /// Since which state it watches the next.
    watches: Option<usize>,
    has_lost_contact: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Queue {
    missing: Option<Rule>,
    log: Vec<State>,
    clients: Vec<Client>,
    number: u8,
    /// How many nodes of waiters an operator may still delete.
    deletions: u8,
    /// How often contact may still be lost.
    losses: u8,
    /// Whether a client has begun to hold although it knew better.
    is_wrong: bool,
}

impl Queue {
    fn new((roles, deletions, losses): (&[Role], u8, u8), missing: Option<Rule>) -> Self {
        let client = |role: &Role| Client {
            role: *role,
            is: Is::Idle,
            seen: 0,
            before: Vec::new(),
            is_to_be_looked_at: false,
            is_to_be_listed: false,
            watches: None,
            has_lost_contact: false,
        };
        Self {
            missing,
            log: vec![State::new()],
            clients: roles.iter().map(client).collect(),
            number: 0,
            deletions,
            losses,
            is_wrong: false,
        }
    }

    fn keeps(&self, rule: Rule) -> bool {
        self.missing != Some(rule)
    }

    fn find(&self, at: usize, owner: usize, is_successor: bool) -> Option<&Node> {
        self.log[at].iter().find(|node| (node.owner, node.is_successor) == (owner, is_successor))
    }

    fn has(&self, at: usize, owner: usize, is_successor: bool) -> bool {
        self.find(at, owner, is_successor).is_some()
    }

    /// Whether this node, as it is there, is in the client's way.
    fn is_in_the_way(&self, number: usize, node: Node) -> bool {
        let both_read = node.reads && self.clients[number].role == Role::Reader;
        !both_read && (!node.reads || self.keeps(Rule::WritersWaitForThoseThatRead))
    }

    /// The states that a request of this client may be answered from.
    fn views(&self, number: usize) -> std::ops::Range<usize> {
        self.clients[number].seen..self.log.len()
    }

    /// A transaction of this client.
    fn change(&mut self, number: usize, change: impl FnOnce(&mut State)) {
        let mut nodes = self.log[self.log.len() - 1].clone();
        change(&mut nodes);
        nodes.sort_unstable_by_key(|node| (node.number, node.owner, node.is_successor));
        self.log.push(nodes);
        self.clients[number].seen = self.log.len() - 1;
    }

    fn with(&self, change: impl FnOnce(&mut Self)) -> Self {
        let mut next = self.clone();
        change(&mut next);
        next
    }

    /// The request of a waiter, answered from one of these states.
    fn ask(&self, number: usize, next: &mut Vec<Self>) {
        let client = &self.clients[number];
        if client.role == Role::Curator || client.is_to_be_listed {
            next.extend(self.views(number).map(|at| self.with(|world| world.list(number, at))));
        } else if client.before.is_empty() {
            next.push(self.with(|world| world.confirm(number)));
        } else if client.watches.is_none() {
            for watched_at in self.views(number) {
                let looks = self.views(number).filter(|at| *at >= watched_at);
                next.extend(looks.map(|at| self.with(|world| world.watch(number, watched_at, at))));
            }
        } else if let Some(at) = self.event(number) {
            next.push(self.with(|world| world.hear(number, at)));
        }
    }

    fn list(&mut self, number: usize, at: usize) {
        self.clients[number].seen = at;
        let Some(own) = self.find(at, number, false).copied() else {
            self.clients[number].is = Is::Done;
            return;
        };
        let reads = self.clients[number].role == Role::Reader;
        // A listing has only names.
        let is_reader = |node: &Node| node.is_successor || self.clients[node.owner].role == Role::Reader;
        let is_before = |node: &&Node| node.number < own.number && !(reads && is_reader(node));
        let before = self.log[at].iter().filter(is_before).map(|node| Before {
            owner: node.owner,
            is_successor: node.is_successor,
            may_leave: !reads && !is_reader(node) && self.clients[node.owner].role == Role::Curator,
        });
        let before: Vec<_> = before.collect();
        let client = &mut self.clients[number];
        if client.role == Role::Curator {
            client.is = if before.is_empty() { Is::Holding } else { Is::Waiting };
            return;
        }
        (client.before, client.is_to_be_listed, client.is_to_be_looked_at) = (before, false, false);
    }

    /// Nothing is left before the client.
    fn confirm(&mut self, number: usize) {
        let (asks, own_comes_first) = (self.keeps(Rule::OwnIsAskedFor), self.keeps(Rule::OwnComesFirst));
        let newest = self.log.len() - 1;
        let client = &mut self.clients[number];
        let was_away = std::mem::take(&mut client.has_lost_contact);
        if was_away && asks {
            client.seen = newest;
        }
        let is_checked = if was_away { asks } else { own_comes_first };
        let own_is_there = self.has(self.clients[number].seen, number, false);
        self.clients[number].is = if own_is_there || !is_checked { Is::Holding } else { Is::Done };
        self.is_wrong |= self.clients[number].is == Is::Holding && !own_is_there;
    }

    fn watch(&mut self, number: usize, watched_at: usize, at: usize) {
        let before = self.clients[number].before.clone();
        let looks = self.clients[number].is_to_be_looked_at;
        let next = if looks { before.len() - 1 } else { before.len().saturating_sub(2) };
        if looks {
            self.look(number, watched_at, at);
            return;
        }
        let found = self.find(watched_at, before[next].owner, before[next].is_successor).copied();
        let client = &mut self.clients[number];
        client.seen = client.seen.max(watched_at);
        match found {
            Some(node) => self.found(number, node, watched_at),
            None => self.has_gone(number),
        }
    }

    /// The watched one is there.
    fn found(&mut self, number: usize, node: Node, watched_at: usize) {
        let (waits, stay) = (self.is_in_the_way(number, node), self.keeps(Rule::NearerOnesStay));
        let client = &mut self.clients[number];
        if waits {
            client.watches = Some(watched_at);
            return;
        }
        client.is_to_be_looked_at = false;
        let watched = client.before.len().saturating_sub(2);
        client.before.drain(if stay { ..=watched } else { ..=client.before.len() - 1 });
    }

    /// Looks at all, and watches the nearest.
    fn look(&mut self, number: usize, watched_at: usize, at: usize) {
        let before = self.clients[number].before.clone();
        let Some((nearest, others)) = before.split_last() else { return };
        let found = self.find(watched_at, nearest.owner, nearest.is_successor).copied();
        let is_left = |one: &Before| self.has(at, one.owner, one.is_successor);
        let last = others.iter().rposition(is_left).filter(|_| self.keeps(Rule::OthersAreLookedAt));
        let left = last.map_or(0, |last| last + 1);
        let gone = left..before.len() - usize::from(found.is_some());
        let lists =
            self.keeps(Rule::ListAfterCurator) && before[gone.clone()].iter().any(|one| one.may_leave);
        let client = &mut self.clients[number];
        client.seen = client.seen.max(watched_at).max(at);
        client.before.drain(gone);
        (client.is_to_be_looked_at, client.is_to_be_listed) = (false, client.is_to_be_listed || lists);
        if let Some(node) = found.filter(|_| left == 0) {
            self.found(number, node, watched_at);
        }
    }

    /// When the watched node goes or changes, if that has happened.
    fn event(&self, number: usize) -> Option<usize> {
        let client = &self.clients[number];
        let since = client.watches?;
        let watched = &client.before[client.before.len().saturating_sub(2)];
        let node = |at| self.find(at, watched.owner, watched.is_successor);
        (since + 1..self.log.len()).find(|at| node(*at) != node(since))
    }

    fn hear(&mut self, number: usize, at: usize) {
        let own_is_gone = !self.has(at, number, false);
        let own_comes_first = self.keeps(Rule::OwnComesFirst);
        let client = &mut self.clients[number];
        let watched = client.before[client.before.len().saturating_sub(2)].clone();
        client.watches = None;
        client.seen = client.seen.max(at);
        // What happened without contact is reported in no particular order.
        if own_is_gone && own_comes_first && !client.has_lost_contact {
            client.is = Is::Done;
        } else if !self.has(at, watched.owner, watched.is_successor) {
            self.has_gone(number);
        }
    }

    fn has_gone(&mut self, number: usize) {
        let lists = self.keeps(Rule::ListAfterCurator);
        let client = &mut self.clients[number];
        let gone = client.before.remove(client.before.len().saturating_sub(2));
        client.is_to_be_listed |= lists && gone.may_leave;
        client.is_to_be_looked_at = client.before.len() > 1;
    }

    fn leave(&mut self, number: usize) {
        self.change(number, |nodes| nodes.retain(|node| node.owner != number));
        self.clients[number].is = Is::Done;
    }

    /// The writer goes on reading; Curator's in two steps.
    fn downgrade(&mut self, number: usize) {
        let is_curators = self.clients[number].role == Role::Curator;
        let creates = self.clients[number].is == Is::Holding;
        let change = |nodes: &mut State| {
            let own = nodes.iter().position(|node| node.owner == number && !node.is_successor);
            match own {
                Some(own) if !is_curators => nodes[own].reads = true,
                Some(own) if creates => nodes.push(Node { is_successor: true, reads: true, ..nodes[own] }),
                Some(own) => drop(nodes.remove(own)),
                None => {}
            }
        };
        self.change(number, change);
        self.clients[number].is = if is_curators && creates { Is::Between } else { Is::Reading };
    }
}

impl World for Queue {
    fn next(&self) -> Vec<Self> {
        let mut next = Vec::new();
        for (number, client) in self.clients.iter().enumerate() {
            let can_downgrade = matches!(client.role, Role::Downgrader | Role::Curator);
            match client.is {
                // Clients of one role differ in nothing else: the first of them comes first.
                Is::Idle
                    if self.clients[..number]
                        .iter()
                        .any(|other| (other.role, other.is) == (client.role, Is::Idle)) => {}
                Is::Idle => next.push(self.with(|world| {
                    let reads = client.role == Role::Reader;
                    let node = Node { number: world.number, owner: number, is_successor: false, reads };
                    world.change(number, |nodes| nodes.push(node));
                    world.number += 1;
                    world.clients[number].is = Is::Waiting;
                    world.clients[number].is_to_be_listed = true;
                })),
                Is::Waiting => {
                    self.ask(number, &mut next);
                    if self.deletions > 0 && self.has(self.log.len() - 1, number, false) {
                        next.push(self.with(|world| {
                            world.deletions -= 1;
                            world.leave(number);
                        }));
                        // The waiter does not know it yet.
                        next.push(self.with(|world| {
                            let seen = client.seen;
                            world.deletions -= 1;
                            world.leave(number);
                            (world.clients[number].seen, world.clients[number].is) = (seen, Is::Waiting);
                        }));
                    }
                    if self.losses > 0 && client.watches.is_some() && client.role != Role::Curator {
                        next.push(self.with(|world| {
                            world.losses -= 1;
                            world.clients[number].has_lost_contact = true;
                        }));
                    }
                }
                Is::Holding => {
                    next.push(self.with(|world| world.leave(number)));
                    if can_downgrade {
                        next.push(self.with(|world| world.downgrade(number)));
                    }
                }
                Is::Between => next.push(self.with(|world| world.downgrade(number))),
                Is::Reading => next.push(self.with(|world| world.leave(number))),
                Is::Done => {}
            }
        }
        // A client of Curator's that looks again and again finds the same.
        next.retain(|world| world != self);
        next
    }

    fn forget(&mut self) {
        let newest = self.log.len() - 1;
        let waits = |client: &&Client| client.is == Is::Waiting;
        let oldest = self
            .clients
            .iter()
            .filter(waits)
            .map(|client| client.watches.unwrap_or(newest).min(client.seen))
            .min();
        let oldest = oldest.unwrap_or(newest);
        self.log.drain(..oldest);
        for client in &mut self.clients {
            client.seen = client.seen.saturating_sub(oldest);
            client.watches = client.watches.map(|since| since.saturating_sub(oldest));
            if client.is != Is::Waiting {
                (client.seen, client.watches) = (0, None);
                client.before.clear();
                (client.is_to_be_listed, client.is_to_be_looked_at, client.has_lost_contact) =
                    (false, false, false);
            }
        }
    }

    fn check(&self) -> Result<(), Wrong> {
        let holders = self.clients.iter().enumerate().filter(|(number, client)| {
            // A holder whose node is deleted is told so; for that long there may be two.
            let is_there = self.log[self.log.len() - 1].iter().any(|node| node.owner == *number);
            is_there && matches!(client.is, Is::Holding | Is::Between | Is::Reading)
        });
        let writes =
            |client: &Client| client.role != Role::Reader && matches!(client.is, Is::Holding | Is::Between);
        let holders: Vec<_> = holders.map(|(_, client)| writes(client)).collect();
        if holders.contains(&true) && holders.len() > 1 {
            return Err("a writer is beside another holder");
        }
        if self.is_wrong { Err("a client holds whose node it knows to be gone") } else { Ok(()) }
    }

    fn is_done(&self) -> bool {
        self.clients.iter().all(|client| client.is == Is::Done)
    }
}

/// A queue in which two give up between the holder and the last one. It has too many states for every run.
const LONG_QUEUE: (&[Role], u8, u8) = (&[Role::Writer; 4], 2, 0);

/// The clients of each search, how many nodes of waiters an operator may delete, and how often contact may be lost.
const SEARCHES: [(&[Role], u8, u8); 5] = [
    (&[Role::Downgrader, Role::Writer, Role::Writer], 1, 1),
    (&[Role::Downgrader, Role::Downgrader, Role::Reader], 0, 0),
    (&[Role::Downgrader, Role::Reader, Role::Writer], 0, 1),
    (&[Role::Curator, Role::Writer, Role::Writer], 1, 0),
    (&[Role::Curator, Role::Reader, Role::Downgrader], 0, 0),
];

#[test]
fn no_writer_is_beside_another_holder_and_no_waiter_waits_for_ever() {
    for clients in SEARCHES {
        let states = search(Queue::new(clients, None)).unwrap_or_else(|wrong| panic!("{clients:?}: {wrong}"));
        assert!(states > 500, "{clients:?}: only {states} states");
    }
}

#[test]
#[ignore = "takes a minute: see CONTRIBUTING.md"]
fn nothing_is_wrong_in_a_long_queue() {
    let states = search(Queue::new(LONG_QUEUE, None)).unwrap();
    assert!(states > 100_000, "only {states} states");
}

#[test]
fn each_rule_is_needed() {
    let rules = [
        Rule::WritersWaitForThoseThatRead,
        Rule::NearerOnesStay,
        Rule::ListAfterCurator,
        Rule::OwnIsAskedFor,
        Rule::OwnComesFirst,
        Rule::OthersAreLookedAt,
    ];
    for rule in rules {
        let mut searches = SEARCHES.iter().chain([&LONG_QUEUE]);
        let found = searches.find_map(|clients| search(Queue::new(*clients, Some(rule))).err());
        assert!(found.is_some(), "nothing goes wrong without {rule:?}");
    }
}
