//! What it costs to acquire and release a lock, and to wait for it, in counts that do not depend on the machine. They may
//! only become smaller: write a smaller number here. The locks inside tokio do not count, and the server costs nothing.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::api::builder::ClientBuilder;
use crate::api::guard::LockGuard;
use crate::api::tests::fake::Fake;
use crate::runtime::counts::{Counts, counts};
use crate::runtime::{Clock, EngineChoice};
use crate::types::LockError;

/// The work of some cycles, of which each acquires and releases a free lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cost {
    allocations: u64,
    mutexes: u64,
    /// Those of them that all clients of the process share.
    of_process: u64,
    spawns: u64,
    /// How often the caller is polled, beyond the first time: it was woken as often.
    wakes: u64,
}

const CYCLES: u64 = 256;

/// What a cycle begins with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Beginning {
    /// A lock that the caller has kept.
    Lock,
    /// The name, for which the client looks up the lock.
    Name,
}

/// A clock of its own has no alarms of other tests.
fn clock_of_its_own() -> Clock {
    Clock::manual().0
}

/// Counts the work of one cycle, in which the client and its caller share a runtime of one thread, while the client has
/// `others` other locks. Between the cycles it gets the lock from its client by name if `begins` says so.
fn cost_of_a_cycle(server: &Fake, others: usize, clock: Clock, begins: Beginning) -> Cost {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let builder = ClientBuilder::new().engine(EngineChoice::Caller).clock(clock);
    let client = runtime.block_on(async { server.client(builder) });
    let acquire = |name: String| runtime.block_on(client.mutex(name).unwrap().acquire()).unwrap();
    let held: Vec<_> = (0..others).map(|number| acquire(format!("other/{number}"))).collect();
    let lock = client.mutex("orders/42").unwrap();
    let cost_of = |cycles: u64| {
        let mut done = (counts(), 0);
        let allocated = allocation_counter::measure(|| {
            let work = async {
                for _ in 0..cycles {
                    let named = (begins == Beginning::Name).then(|| client.mutex("orders/42").unwrap());
                    named.as_ref().unwrap_or(&lock).acquire().await.unwrap().release().await.unwrap();
                }
            };
            let before = counts();
            let polls = runtime.block_on(polls_of(work));
            done = (before, polls);
        });
        let (before, polls) = done;
        let Counts { mutexes, of_process, spawns, .. } = counts();
        Cost {
            allocations: allocated.count_total,
            mutexes: mutexes - before.mutexes,
            of_process: of_process - before.of_process,
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
        // Not those that happen now and then.
        of_process: more.of_process.saturating_sub(some.of_process) / CYCLES,
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
fn costs_at_most(limit: Cost, cost: Cost) {
    println!("a cycle costs {cost:?}");
    let is_within = cost.allocations <= limit.allocations
        && cost.mutexes <= limit.mutexes
        && cost.of_process <= limit.of_process
        && cost.spawns <= limit.spawns
        && cost.wakes <= limit.wakes;
    assert!(is_within, "{cost:?} instead of at most {limit:?}");
}

fn at_once() -> Fake {
    Fake::default()
}

fn later_with_a_lease() -> Fake {
    Fake::later_with_a_lease(Duration::from_secs(60))
}

#[test]
fn a_cycle_whose_replies_come_at_once() {
    let cost = cost_of_a_cycle(&at_once(), 0, clock_of_its_own(), Beginning::Lock);
    costs_at_most(Cost { allocations: 9, mutexes: 11, of_process: 0, spawns: 0, wakes: 0 }, cost);
}

#[test]
fn a_cycle_whose_replies_come_later_with_a_lease() {
    let cost = cost_of_a_cycle(&later_with_a_lease(), 0, clock_of_its_own(), Beginning::Lock);
    costs_at_most(Cost { allocations: 14, mutexes: 19, of_process: 0, spawns: 2, wakes: 2 }, cost);
}

#[test]
fn a_cycle_that_begins_with_the_name() {
    let cost = cost_of_a_cycle(&at_once(), 0, clock_of_its_own(), Beginning::Name);
    costs_at_most(Cost { allocations: 11, mutexes: 12, of_process: 0, spawns: 0, wakes: 0 }, cost);
}

/// The alarms of its leases are kept by the thread that all clients of the process share: those of other tests can make a cycle cost
/// more now and then, and never less.
#[test]
fn a_cycle_on_the_clock_of_the_machine() {
    let cost = || cost_of_a_cycle(&later_with_a_lease(), 0, Clock::system(), Beginning::Lock);
    let cost =
        std::iter::repeat_with(cost).take(5).min_by_key(|cost| cost.allocations + cost.mutexes).unwrap();
    costs_at_most(Cost { allocations: 14, mutexes: 20, of_process: 0, spawns: 2, wakes: 2 }, cost);
}

#[test]
fn a_cycle_costs_the_same_beside_very_many_holds() {
    let beside = |others| cost_of_a_cycle(&later_with_a_lease(), others, clock_of_its_own(), Beginning::Lock);
    assert_eq!(beside(10), beside(1_000));
}

/// How many bytes of memory a client has for each lock that it holds, with the guard and the name.
fn bytes_of_a_held_lock(server: &Fake) -> i64 {
    const HOLDS: usize = 1_000;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let builder = ClientBuilder::new().engine(EngineChoice::Caller).clock(clock_of_its_own());
    let client = runtime.block_on(async { server.client(builder) });
    let acquire = |number| {
        let lock = client.mutex(format!("orders/{number}")).unwrap();
        runtime.block_on(lock.acquire()).unwrap()
    };
    let mut held: Vec<_> = (0..HOLDS).map(acquire).collect();
    // The maps of a client grow by as much as they have: measured is the memory of twice as many.
    let more = allocation_counter::measure(|| held.extend((HOLDS..2 * HOLDS).map(acquire)));
    more.bytes_current / i64::try_from(HOLDS).unwrap()
}

#[test]
fn the_memory_of_a_held_lock() {
    for (server, limit) in [(at_once(), 1_360), (later_with_a_lease(), 1_448)] {
        let bytes = bytes_of_a_held_lock(&server);
        println!("a held lock takes {bytes} bytes");
        assert!(bytes <= limit, "{bytes} instead of at most {limit} bytes");
    }
}

/// How many requests of the line are looked at, with very many in it, for each one.
#[derive(Debug)]
struct Looks {
    joining: u64,
    passing: u64,
    leaving: u64,
}

/// Counts how many requests are looked at while very many users of a client wait for one lock, each with a time of its own.
fn looks(builder: ClientBuilder) -> Looks {
    const WAITERS: u32 = 20_000;
    const HAND_OFFS: u32 = 100;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let client = runtime
        .block_on(async { at_once().client(builder.engine(EngineChoice::Caller).clock(clock_of_its_own())) });
    let lock = client.mutex("orders/42").unwrap();
    let mut held = Some(runtime.block_on(lock.acquire()).unwrap());
    let poll = |waiting: &mut Waiting| {
        let _inside = runtime.enter();
        waiting.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    };
    let looked_at_by = |times: u32, work: &mut dyn FnMut()| {
        let before = counts().requests;
        work();
        (counts().requests - before) / u64::from(times)
    };
    let mut waiters = VecDeque::new();
    let joining = looked_at_by(WAITERS, &mut || {
        for number in 0..WAITERS {
            // The last one is the least patient.
            let (lock, time) = (Arc::clone(&lock), Duration::from_secs((WAITERS - number).into()));
            let mut waiting: Waiting = Box::pin(async move { lock.acquire_for(time).await });
            assert!(poll(&mut waiting).is_pending());
            waiters.push_back(waiting);
        }
    });
    let passing = looked_at_by(HAND_OFFS, &mut || {
        for _ in 0..HAND_OFFS {
            runtime.block_on(held.take().unwrap().release()).unwrap();
            let mut next = waiters.pop_front().unwrap();
            let Poll::Ready(granted) = poll(&mut next) else { panic!("it is not passed on") };
            held = Some(granted.unwrap());
        }
    });
    let leaving = looked_at_by(WAITERS - HAND_OFFS, &mut || waiters.clear());
    drop(held);
    Looks { joining, passing, leaving }
}

type Waiting = Pin<Box<dyn Future<Output = Result<LockGuard, LockError>>>>;

#[test]
fn few_of_very_many_waiters_are_looked_at() {
    for builder in
        [ClientBuilder::new(), ClientBuilder::new().local_handoff(1_000, Duration::from_secs(3600))]
    {
        let looks = looks(builder);
        println!("of very many waiters are looked at {looks:?}");
        assert!(looks.joining <= 20 && looks.passing <= 30 && looks.leaving <= 20, "{looks:?}");
    }
}
