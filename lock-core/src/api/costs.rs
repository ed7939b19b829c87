//! What it costs to acquire and release a lock, in counts that do not depend on the machine. They may only become
//! smaller: write a smaller number here.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use crate::api::builder::ClientBuilder;
use crate::memory::{MemoryOptions, MemoryServer, Replies};
use crate::runtime::clock::Clock;
use crate::runtime::counts::{Counts, counts};
use crate::runtime::engine::EngineChoice;

/// The work of some cycles, of which each acquires and releases a free lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cost {
    allocations: u64,
    mutexes: u64,
    spawns: u64,
    /// How often the caller is polled, beyond the first time: it was woken as often.
    wakes: u64,
}

const CYCLES: u64 = 256;

/// Counts the work of one cycle, in which the client and its caller share a runtime of one thread, while the client has
/// `others` other locks.
fn cost_of_a_cycle(options: MemoryOptions, others: usize) -> Cost {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    // A clock of its own has no alarms of other tests.
    let (clock, _) = Clock::manual();
    let builder = ClientBuilder::new().engine(EngineChoice::Caller).clock(clock.clone());
    let server = MemoryServer::with_clock(clock);
    let client = runtime.block_on(async { server.client_with(options, builder).unwrap() });
    let acquire = |name: String| runtime.block_on(client.mutex(name).unwrap().acquire()).unwrap();
    let held: Vec<_> = (0..others).map(|number| acquire(format!("other/{number}"))).collect();
    let lock = client.mutex("orders/42").unwrap();
    let cost_of = |cycles: u64| {
        let mut done = (counts(), 0);
        let allocated = allocation_counter::measure(|| {
            let work = async {
                for _ in 0..cycles {
                    lock.acquire().await.unwrap().release().await.unwrap();
                }
            };
            let before = counts();
            let polls = runtime.block_on(polls_of(work));
            done = (before, polls);
        });
        let (before, polls) = done;
        let Counts { mutexes, spawns } = counts();
        Cost {
            allocations: allocated.count_total,
            mutexes: mutexes - before.mutexes,
            spawns: spawns - before.spawns,
            wakes: polls - 1,
        }
    };
    cost_of(CYCLES);
    // What is done once for all cycles is in both.
    let (some, more) = (cost_of(CYCLES), cost_of(2 * CYCLES));
    let of_one = |some: u64, more: u64| (more - some).div_ceil(CYCLES);
    drop(held);
    Cost {
        allocations: of_one(some.allocations, more.allocations),
        mutexes: of_one(some.mutexes, more.mutexes),
        spawns: of_one(some.spawns, more.spawns),
        wakes: of_one(some.wakes, more.wakes),
    }
}

async fn polls_of(work: impl Future<Output = ()>) -> u64 {
    let (mut work, mut polls) = (pin!(work), 0);
    std::future::poll_fn(|context| {
        polls += 1;
        work.as_mut().poll(context)
    })
    .await;
    polls
}

#[track_caller]
fn costs_at_most(limit: Cost, options: MemoryOptions) {
    let cost = cost_of_a_cycle(options, 0);
    println!("a cycle costs {cost:?}");
    let is_within = cost.allocations <= limit.allocations
        && cost.mutexes <= limit.mutexes
        && cost.spawns <= limit.spawns
        && cost.wakes <= limit.wakes;
    assert!(is_within, "{cost:?} instead of at most {limit:?}");
}

#[test]
fn a_cycle_whose_replies_come_at_once() {
    let limit = Cost { allocations: 25, mutexes: 29, spawns: 0, wakes: 0 };
    costs_at_most(limit, MemoryOptions::new());
}

#[test]
fn a_cycle_whose_replies_come_later_with_a_lease() {
    let limit = Cost { allocations: 32, mutexes: 50, spawns: 2, wakes: 2 };
    costs_at_most(limit, MemoryOptions::new().replies(Replies::Later).lease(Duration::from_secs(60)));
}

#[test]
fn a_cycle_costs_the_same_beside_very_many_holds() {
    let options = MemoryOptions::new().replies(Replies::Later).lease(Duration::from_secs(60));
    // The memory server's tree has more nodes to divide.
    let beside = |others| Cost { allocations: 0, ..cost_of_a_cycle(options.clone(), others) };
    assert_eq!(beside(10), beside(1_000));
}
