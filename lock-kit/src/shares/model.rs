//! Goes through all states of a few clients at one lock or semaphore. The mutants of this crate are its rules, each removed.

use std::collections::{BTreeSet, VecDeque};
use std::num::NonZeroU32;

use lock_core::{AttemptId, Mode};

use super::{Asked, Shares};

const CLIENTS: usize = 4;

/// How often each client asks.
const ASKS: usize = 2;

/// One state: the server, and what each client has come to.
#[derive(Clone)]
struct World {
    server: Shares<(), ()>,
    clients: [Client; CLIENTS],
    /// Who waits, in the order of arrival.
    arrived: Vec<AttemptId>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Client {
    asks: usize,
    is: Is,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Is {
    Idle,
    /// It waits, or holds, in the mode with this number.
    Asking(usize),
    /// It has become a reader.
    Downgraded,
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Ask(usize, usize),
    Try(usize, usize),
    AskAgain(usize),
    /// A release, a cancel, or the end of a lease.
    Leave(usize),
    Downgrade(usize),
}

fn permits(take: u32, of: u32) -> Mode {
    let number = |number| NonZeroU32::new(number).unwrap();
    Mode::Permits { take: number(take), of: number(of) }
}

/// The id of a client's attempt; a downgrade has one of its own.
fn id(client: usize, is: Is) -> AttemptId {
    let is_downgraded = u128::from(is == Is::Downgraded);
    AttemptId::new(10 * u128::try_from(client).unwrap() + is_downgraded)
}

impl World {
    fn new() -> Self {
        let clients = [Client { asks: ASKS, is: Is::Idle }; CLIENTS];
        Self { server: Shares::default(), clients, arrived: Vec::new() }
    }

    fn key(&self) -> (Vec<u128>, Vec<u128>, [Client; CLIENTS], u32) {
        let holders = self.server.holders().map(|(id, _, ())| id.get()).collect();
        let waiters = self.server.waiters().map(|(id, _, ())| id.get()).collect();
        (holders, waiters, self.clients, self.server.taken)
    }

    fn steps(&self, modes: &[Mode]) -> Vec<Step> {
        let mut steps = Vec::new();
        for (number, client) in self.clients.iter().enumerate() {
            match client.is {
                Is::Idle if client.asks > 0 => {
                    steps.extend((0..modes.len()).map(|mode| Step::Ask(number, mode)));
                    steps.extend((0..modes.len()).map(|mode| Step::Try(number, mode)));
                }
                Is::Idle => {}
                Is::Asking(mode) => {
                    steps.extend([Step::AskAgain(number), Step::Leave(number)]);
                    if modes[mode] == Mode::Exclusive && self.holds(id(number, client.is)) {
                        steps.push(Step::Downgrade(number));
                    }
                }
                Is::Downgraded => steps.push(Step::Leave(number)),
            }
        }
        steps
    }

    fn holds(&self, id: AttemptId) -> bool {
        self.server.holder(id).is_some()
    }

    /// Takes the step, and returns what is wrong then.
    fn take(&mut self, step: Step, modes: &[Mode]) -> Result<(), &'static str> {
        let mut granted = Vec::new();
        let before = self.arrived.clone();
        let grant = |id, _, ()| granted.push(id);
        match step {
            Step::Ask(number, mode) | Step::Try(number, mode) => {
                let client = &mut self.clients[number];
                (client.asks, client.is) = (client.asks - 1, Is::Asking(mode));
                let (id, mode) = (id(number, client.is), modes[mode]);
                let tries_once = matches!(step, Step::Try(..));
                match self.server.ask(id, mode) {
                    Asked::Free => {
                        self.server.hold(id, mode, ());
                        if !self.arrived.is_empty() {
                            return Err("it passes those who wait");
                        }
                    }
                    Asked::Behind if !tries_once => {
                        self.server.wait(id, mode, ());
                        self.arrived.push(id);
                    }
                    Asked::Behind | Asked::OtherPermits(_) => self.clients[number].is = Is::Idle,
                    Asked::Holds | Asked::Waits => return Err("a new attempt is known"),
                }
            }
            Step::AskAgain(number) => {
                let Is::Asking(mode) = self.clients[number].is else { return Ok(()) };
                let id = id(number, self.clients[number].is);
                let known = if self.holds(id) { Asked::Holds } else { Asked::Waits };
                if self.server.ask(id, modes[mode]) != known {
                    return Err("a repeated attempt is another one");
                }
            }
            Step::Leave(number) => {
                let id = id(number, self.clients[number].is);
                self.server.remove(id, grant);
                self.arrived.retain(|other| *other != id);
                self.clients[number].is = Is::Idle;
            }
            Step::Downgrade(number) => {
                let was = id(number, self.clients[number].is);
                self.clients[number].is = Is::Downgraded;
                if !self.server.share(was, id(number, Is::Downgraded), |()| (), grant) {
                    return Err("a holder cannot share");
                }
            }
        }
        let waited: Vec<_> = before.into_iter().filter(|id| self.arrived.contains(id)).collect();
        if !waited.starts_with(&granted) {
            return Err("one is served before another that came earlier");
        }
        self.arrived.retain(|id| !granted.contains(id));
        self.check()
    }

    fn check(&self) -> Result<(), &'static str> {
        let held: Vec<_> = self.server.holders().map(|(_, mode, ())| mode).collect();
        if !is_allowed(&held) {
            return Err("too many hold it");
        }
        if let Some(head) = self.arrived.first() {
            let waits_for = self.server.waiters().find(|(id, _, ())| id == head).map(|(_, mode, ())| mode);
            let Some(mode) = waits_for else { return Err("a waiter is forgotten") };
            if is_allowed(&[held, vec![mode]].concat()) {
                return Err("the head could hold it and waits");
            }
        }
        let is_idle = self.clients.iter().all(|client| client.is == Is::Idle);
        if is_idle && (!self.server.is_empty() || self.server.taken > 0) {
            return Err("something is left");
        }
        Ok(())
    }
}

/// Whether these may hold a lock or a semaphore together.
fn is_allowed(held: &[Mode]) -> bool {
    let permits = |mode: &Mode| match mode {
        Mode::Permits { take, of } => Some((take.get(), of.get())),
        _ => None,
    };
    match held {
        [] | [_] => true,
        [first, ..] if permits(first).is_some() => {
            let of = permits(first).unwrap().1;
            held.iter().all(|mode| permits(mode).is_some_and(|(_, other)| other == of))
                && held.iter().filter_map(permits).map(|(take, _)| take).sum::<u32>() <= of
        }
        _ => held.iter().all(|mode| *mode == Mode::Shared),
    }
}

/// Goes through all states, and returns how many there are, or what is wrong in one of them.
fn search(modes: &[Mode]) -> Result<usize, &'static str> {
    let first = World::new();
    let mut seen = BTreeSet::from([first.key()]);
    let mut open = VecDeque::from([first]);
    while let Some(world) = open.pop_front() {
        for step in world.steps(modes) {
            let mut next = world.clone();
            next.take(step, modes)?;
            if seen.insert(next.key()) {
                open.push_back(next);
            }
        }
    }
    Ok(seen.len())
}

fn all_modes() -> [Vec<Mode>; 2] {
    [
        vec![Mode::Exclusive, Mode::Shared],
        // The last one expects another number of permits.
        vec![permits(1, 3), permits(2, 3), permits(1, 4)],
    ]
}

#[test]
fn in_all_states_of_four_clients_none_is_passed_forgotten_or_too_much() {
    for modes in all_modes() {
        let states = search(&modes).unwrap();
        assert!(states > 1000, "only {states} states");
    }
}
