//! All short ways: a search through the states that a few users can bring a client into, in any order of their steps, of the
//! network's and of time, each of them once. It begins with a user that holds the lock.
//!
//! No state can be kept, so a state is reached by the steps that led to it first. Two states are the same if no user and no
//! message differs, nor what the clients have heard (see [`digest`](super::digest)). From each new state the search goes on in one way at
//! once, and in all others later: the shortest come first.
//!
//! `DISTLOCK_SEARCH` sets how many states each test visits at most.

use std::collections::{HashSet, VecDeque};

use super::network::Order;
use super::users::{Action, Checked, Kind, Limits, Rules, Walk};
use super::{READ, Random, WRITE, number, runtime};

/// How a state is reached: by this step, from the state with this number.
struct Way {
    from: Option<usize>,
    action: Action,
}

struct Search {
    rules: Rules,
    ways: Vec<Way>,
    /// The states that are left to visit, or to find visited.
    open: VecDeque<Option<usize>>,
    seen: HashSet<u64>,
    most: usize,
}

impl Search {
    fn of(rules: Rules) -> Self {
        let most = number("DISTLOCK_SEARCH").map_or(600, |most| usize::try_from(most).unwrap());
        Self { rules, ways: Vec::new(), open: VecDeque::from([None]), seen: HashSet::new(), most }
    }

    fn steps_to(&self, state: Option<usize>) -> Vec<Action> {
        let ways = std::iter::successors(state, |state| self.ways[*state].from);
        let mut steps: Vec<_> = ways.map(|way| self.ways[way].action).collect();
        steps.reverse();
        steps
    }

    /// Goes to a state, and from there on as long as it finds new ones.
    async fn visit(&mut self, walk: &mut Walk, mut state: Option<usize>) -> Checked {
        walk.begin_held().await?;
        for action in self.steps_to(state) {
            walk.act(action).await?;
        }
        let mut is_new = false;
        let mut digest = walk.digest();
        while self.seen.len() < self.most && self.seen.insert(digest) {
            is_new = true;
            let actions: Vec<_> = walk.actions().into_iter().flat_map(|(_, actions)| actions).collect();
            if actions.is_empty() {
                break;
            }
            let first = self.ways.len();
            self.ways.extend(actions.iter().map(|action| Way { from: state, action: *action }));
            let chosen = Random::of(digest).below(actions.len());
            self.open
                .extend((0..actions.len()).filter(|other| *other != chosen).map(|other| Some(first + other)));
            state = Some(first + chosen);
            walk.act(actions[chosen]).await?;
            digest = walk.digest();
        }
        if is_new { walk.end().await } else { Ok(()) }
    }
}

fn search(kinds: &[Kind], order: Order, sections: u32, limits: Limits) {
    let has_faults = limits.harms > 0;
    let mut search = Search::of(Rules { kinds: kinds.to_vec(), order, sections, has_faults, limits });
    let runtime = runtime();
    let _inside = runtime.enter();
    while let Some(state) = search.open.pop_front()
        && search.seen.len() < search.most
    {
        let mut walk = Walk::new(&search.rules);
        if let Err(violation) = runtime.block_on(search.visit(&mut walk, state)) {
            panic!("after {} states: {violation}\n{}", search.seen.len(), walk.describe());
        }
    }
    println!("{} states", search.seen.len());
}

const CALM: Limits = Limits { asks: 4, leaves: 1, harms: 0, waits: 2 };
const ROUGH: Limits = Limits { asks: 3, leaves: 1, harms: 2, waits: 2 };

#[test]
fn of_exclusive_locks() {
    search(&[WRITE], Order::Any, 1, CALM);
    search(&[WRITE], Order::Any, 1, ROUGH);
}

#[test]
fn of_exclusive_locks_with_pipelining() {
    search(&[WRITE], Order::Kept, 1, CALM);
    search(&[WRITE], Order::Kept, 1, ROUGH);
}

#[test]
fn of_leases_that_serve_several_holds() {
    search(&[WRITE, READ], Order::Any, 3, CALM);
    search(&[WRITE, READ], Order::Kept, 3, ROUGH);
}

#[test]
fn of_readers_and_writers() {
    search(&[WRITE, READ], Order::Any, 1, CALM);
    search(&[READ, WRITE], Order::Any, 1, CALM);
    search(&[WRITE, READ], Order::Any, 1, ROUGH);
}

#[test]
fn of_readers_and_writers_with_pipelining() {
    search(&[WRITE, READ], Order::Kept, 1, CALM);
    search(&[READ, WRITE], Order::Kept, 1, ROUGH);
}

#[test]
fn of_permits() {
    search(&[Kind::Permits(1), Kind::Permits(2)], Order::Any, 1, CALM);
    search(&[Kind::Permits(2), Kind::Permits(1)], Order::Any, 1, ROUGH);
}
