//! Random walks through all of a client: users ask, wait, leave, release and read under their write lock, while requests, answers and
//! reports arrive in any order or get lost, leases end, and an operator breaks holds.
//!
//! Nothing here knows how the client does it. After each step the walk compares what the users believe with what the docs promise; at
//! the end a network without faults must bring every wait to its end, and leave neither a holder nor a waiter at the server.
//!
//! `DISTLOCK_WALKS` sets how many walks each test takes, and `DISTLOCK_WALK` the only one: a failure names it. It repeats, but for
//! the pauses before retries, which are random.

mod network;
mod users;

use lock_core::Mode;
use network::Order;
use users::{Kind, Rules, Walk};

/// How many steps a walk takes before the network works without faults.
const STEPS: usize = 60;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

fn walk(kinds: &[Kind], order: Order) {
    let sections = 1;
    walk_by(&Rules { kinds: kinds.to_vec(), order, sections });
}

fn walk_by(rules: &Rules) {
    let seeds = match number("DISTLOCK_WALK") {
        Some(seed) => seed..seed + 1,
        None => 0..number("DISTLOCK_WALKS").unwrap_or(300),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for seed in seeds {
        runtime.block_on(async {
            let mut walk = Walk::new(seed, rules);
            if let Err(violation) = walk.run(STEPS).await {
                panic!("walk {seed}: {violation}\n{}", walk.describe());
            }
        });
    }
}

#[test]
fn of_exclusive_locks() {
    walk(&[Kind::Mode(Mode::Exclusive)], Order::Any);
}

#[test]
fn of_exclusive_locks_with_pipelining() {
    walk(&[Kind::Mode(Mode::Exclusive)], Order::Kept);
}

#[test]
fn of_leases_that_serve_several_holds() {
    let kinds = [Kind::Mode(Mode::Exclusive), Kind::Mode(Mode::Exclusive), Kind::Mode(Mode::Shared)];
    walk_by(&Rules { kinds: kinds.to_vec(), order: Order::Any, sections: 3 });
}

#[test]
fn of_leases_that_serve_several_holds_with_pipelining() {
    let kinds = [Kind::Mode(Mode::Exclusive), Kind::Mode(Mode::Exclusive), Kind::Mode(Mode::Shared)];
    walk_by(&Rules { kinds: kinds.to_vec(), order: Order::Kept, sections: 3 });
}

#[test]
fn of_readers_and_writers() {
    walk(&[Kind::Mode(Mode::Exclusive), Kind::Mode(Mode::Shared)], Order::Any);
}

#[test]
fn of_readers_and_writers_with_pipelining() {
    walk(&[Kind::Mode(Mode::Exclusive), Kind::Mode(Mode::Shared)], Order::Kept);
}

#[test]
fn of_permits() {
    walk(&[Kind::Permits(1), Kind::Permits(2)], Order::Any);
}
