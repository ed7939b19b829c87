//! Tests of the local queue with very many waiters: what a hand-off costs, and what remains of waiters that have left.
//!
//! The queue is compiled into this test unchanged, with owners and attempts that count the calls.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test
#![allow(dead_code)] // the module has functions that this test does not use
#![allow(missing_docs, unreachable_pub)] // the module is private here, and documented where it is public

#[path = "../src/runtime/counts.rs"]
mod counts;
#[path = "../src/policy/local/mod.rs"]
mod local;
#[path = "../src/runtime/number_map.rs"]
mod number_map;
#[path = "../src/runtime/sync.rs"]
mod sync;
#[path = "../src/runtime/waker.rs"]
mod waker;

/// Provides what the module imports.
mod runtime {
    pub(crate) use super::{number_map, sync, waker};
}

use std::cell::Cell;
use std::hash::{Hash, Hasher};
use std::task::{Context, Poll, Waker};

use local::{Attempt, Attempted, Entered, Exited, LocalMutex, Occupant, Patience, Settled, Ticket};

const FOREVER: Patience = Patience::Until(u64::MAX);

thread_local! {
    static ASKED: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    ASKED.set(ASKED.get() + 1);
}

#[derive(Clone, Copy)]
struct Owner(u64);

impl PartialEq for Owner {
    fn eq(&self, other: &Self) -> bool {
        count();
        self.0 == other.0
    }
}

impl Eq for Owner {}

impl Hash for Owner {
    fn hash<H: Hasher>(&self, state: &mut H) {
        count();
        self.0.hash(state);
    }
}

#[derive(Clone)]
struct Hold(u64);

/// All waiters ask for the same.
#[derive(Clone)]
struct Plain;

impl Occupant for Hold {
    type Loss = ();
    type Options = Plain;

    fn suits(&self, _: &Plain) -> bool {
        true
    }

    fn number(&self) -> u64 {
        self.0
    }

    fn is_same(&self, other: &Self) -> bool {
        self.0 == other.0
    }

    fn verify(&self) -> Result<(), ()> {
        Ok(())
    }

    fn begin_release(&self) -> Result<(), ()> {
        Ok(())
    }

    fn lost_unseen(&self) {}
}

#[derive(Clone)]
struct Ask;

impl Attempt for Ask {
    type Failure = ();

    fn extend(&self, _: u64) {
        count();
    }

    fn outage(&self) -> Option<()> {
        None
    }

    fn why_unknown(&self) -> Option<()> {
        None
    }
}

fn ask(_: Patience, _: &Plain) -> Ask {
    Ask
}

type Mutex = LocalMutex<Owner, Hold, Ask>;

fn waits(mutex: &Mutex, owner: u64, patience: Patience) -> Ticket {
    match mutex.enter(Owner(owner), patience, Plain, ask).0 {
        Entered::Waiting(ticket) => ticket,
        Entered::Settled(_) => panic!("it does not wait"),
    }
}

#[test]
fn a_hand_off_looks_at_few_of_very_many_waiters() {
    const WAITERS: u64 = 20_000;
    const HAND_OFFS: u64 = 100;
    let mutex = Mutex::new();
    let tickets: Vec<_> =
        (0..WAITERS).map(|owner| waits(&mutex, owner, Patience::Until(u64::MAX - owner))).collect();
    ASKED.set(0);
    for owner in 0..HAND_OFFS {
        drop(mutex.attempted(Attempted::Granted(Hold(owner)), ask));
        let ticket = tickets[usize::try_from(owner).unwrap()];
        let settled = mutex.poll(ticket, &mut Context::from_waker(Waker::noop()));
        assert!(matches!(settled, Poll::Ready(Settled::Granted(_))));
        assert!(matches!(mutex.exit(Owner(owner), None, ask).0, Exited::Release(_)));
        assert!(mutex.cleared(ask).is_some());
    }
    let asked = ASKED.get() / HAND_OFFS;
    assert!(asked < 50, "{asked} owners and attempts are asked at each hand-off");
}

#[test]
fn the_ends_of_waits_go_with_those_who_wait() {
    let mutex = Mutex::new();
    let patient = waits(&mutex, 0, FOREVER);
    for owner in 1..100_000 {
        let ticket = waits(&mutex, owner, Patience::Until(owner));
        assert_eq!(mutex.next_end(0), Some(owner));
        drop(mutex.give_up(ticket, || ()));
    }
    assert_eq!(mutex.next_end(0), Some(u64::MAX));
    let (early, late) = (waits(&mutex, 1, Patience::Until(7)), waits(&mutex, 2, Patience::Until(9)));
    let same = waits(&mutex, 3, Patience::Until(7));
    drop(mutex.leave(early));
    assert_eq!((mutex.next_end(0), mutex.next_end(7), mutex.next_end(9)), (Some(7), Some(9), Some(u64::MAX)));
    drop((mutex.leave(same), mutex.leave(patient)));
    assert_eq!((mutex.next_end(0), mutex.next_end(9)), (Some(9), None));
    drop(mutex.leave(late));
    assert_eq!(mutex.next_end(0), None);
}
