//! Ways through all of a client: users ask, wait, leave, release and read under their write lock, while requests, answers and
//! reports arrive in any order or get lost, leases and sessions end, and an operator breaks holds.
//!
//! Nothing here knows how the client does it. After each step a walk compares what the users believe with what the docs promise; at
//! the end a network without faults must bring every wait to its end, and leave neither a holder nor a waiter at the server.
//!
//! There are walks of two kinds: long ones that choose their steps at random, here, and a [search](search) for all short ones.
//!
//! `DISTLOCK_WALKS` sets how many walks each test takes, and `DISTLOCK_WALK` the only one: a failure names it. It repeats, but for
//! the pauses before retries, which are random.

mod backend;
mod digest;
mod network;
mod search;
mod server;
mod users;

use lock_core::Mode;
use network::Order;
use users::{Checked, Kind, Limits, Rules, Walk};

const WRITE: Kind = Kind::Mode(Mode::Exclusive);
const READ: Kind = Kind::Mode(Mode::Shared);

/// How many steps a walk takes before the network works without faults.
const STEPS: usize = 60;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().unwrap()
}

struct Random(u64);

impl Random {
    fn of(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap() % bound
    }
}

fn walk(kinds: &[Kind], order: Order, sections: u32) {
    let seeds = match number("DISTLOCK_WALK") {
        Some(seed) => seed..seed + 1,
        None => 0..number("DISTLOCK_WALKS").unwrap_or(150),
    };
    let runtime = runtime();
    let _inside = runtime.enter();
    for seed in seeds {
        let (kinds, has_faults) = (kinds.to_vec(), seed % 2 == 1);
        let mut walk = Walk::new(&Rules { kinds, order, sections, has_faults, limits: Limits::NONE });
        if let Err(violation) = runtime.block_on(at_random(&mut walk, Random::of(seed))) {
            panic!("walk {seed}: {violation}\n{}", walk.describe());
        }
    }
}

async fn at_random(walk: &mut Walk, mut random: Random) -> Checked {
    for _ in 0..STEPS {
        let kinds = walk.actions();
        let mut place = random.below(kinds.iter().map(|(often, _)| often).sum());
        let chosen = kinds.into_iter().find(|(often, _)| {
            let is_it = place < *often;
            place = place.saturating_sub(*often);
            is_it
        });
        let Some((_, actions)) = chosen else { break };
        walk.act(actions[random.below(actions.len())]).await?;
    }
    walk.end().await
}

#[test]
fn of_exclusive_locks() {
    walk(&[WRITE], Order::Any, 1);
}

#[test]
fn of_exclusive_locks_with_pipelining() {
    walk(&[WRITE], Order::Kept, 1);
}

#[test]
fn of_leases_that_serve_several_holds() {
    walk(&[WRITE, WRITE, READ], Order::Any, 3);
}

#[test]
fn of_leases_that_serve_several_holds_with_pipelining() {
    walk(&[WRITE, WRITE, READ], Order::Kept, 3);
}

#[test]
fn of_readers_and_writers() {
    walk(&[WRITE, READ], Order::Any, 1);
}

#[test]
fn of_readers_and_writers_with_pipelining() {
    walk(&[WRITE, READ], Order::Kept, 1);
}

#[test]
fn of_permits() {
    walk(&[Kind::Permits(1), Kind::Permits(2)], Order::Any, 1);
}
