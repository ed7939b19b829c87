//! The local mutex and the state machine of a hold under a model checker: loom runs each test through every
//! interleaving of its threads, with at most three preemptions. The modules are compiled into this test unchanged, with
//! loom's mutex instead of the standard one.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // also in shared functions of the tests
#![allow(dead_code)] // the modules have functions that no model uses
#![allow(missing_docs, unreachable_pub)] // the modules are private here, and documented where they are public

#[path = "../src/policy/local/mod.rs"]
mod local;
#[path = "../src/runtime/number_map.rs"]
mod number_map;
#[path = "../src/policy/hold/state.rs"]
mod state;
#[path = "../src/runtime/waker.rs"]
mod waker;

#[path = "loom_sync/mod.rs"]
mod sync;

#[path = "model/next_waiter.rs"]
mod next_waiter;

/// Provides what the modules import.
mod runtime {
    pub(crate) use super::{number_map, sync, waker};
}

use std::future::poll_fn;

use local::{
    Attempt, Attempted, Entered, Exited, LocalMutex, Occupant, Order, Patience, Settled, Ticket, Undo,
};
use loom::future::block_on;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::thread;
use state::{HoldState, Phase};

const FOREVER: Patience = Patience::Until(u64::MAX);
type Reason = &'static str;
#[derive(Clone)]
struct Hold(Arc<HoldState<Reason>>, Pipelining);

/// Whether an attempt is sent right behind a release.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pipelining {
    No,
    Yes,
}

/// All waiters ask for the same.
#[derive(Clone)]
struct Plain;

impl Occupant for Hold {
    type Loss = Reason;
    type Options = Plain;

    fn suits(&self, _: &Plain) -> bool {
        true
    }

    fn number(&self) -> u64 {
        u64::try_from(Arc::as_ptr(&self.0).addr()).unwrap()
    }

    fn verify(&self) -> Result<(), Reason> {
        self.0.verify(|| 0, "expired")
    }

    fn begin_release(&self) -> Result<(), Reason> {
        self.0.begin_release(|| 0, "expired")
    }

    fn lost_unseen(&self) {}

    fn may_be_followed(&self) -> bool {
        self.1 == Pipelining::Yes
    }
}

/// An attempt: whether it was stopped.
#[derive(Clone)]
struct Ask(Arc<AtomicBool>);

impl Attempt for Ask {
    type Failure = Reason;

    fn extend(&self, _: u64) {}

    fn outage(&self) -> Option<Reason> {
        None
    }

    fn why_unknown(&self) -> Option<Reason> {
        None
    }
}

fn ask(_: Patience, _: &Plain) -> Ask {
    Ask(Arc::new(AtomicBool::new(false)))
}

/// One client: the local mutex, and a remote lock that no other client uses.
struct World {
    local: LocalMutex<u8, Hold, Ask>,
    remotely_held: AtomicUsize,
    inside: AtomicUsize,
    acquisitions: AtomicUsize,
    /// How many attempts fail from now on.
    failures: AtomicUsize,
    /// How many holds may still follow on another one without the server.
    sections: AtomicUsize,
    pipelining: Pipelining,
}

impl World {
    fn new() -> Arc<Self> {
        Self::with(Pipelining::No)
    }

    fn with(pipelining: Pipelining) -> Arc<Self> {
        Arc::new(Self {
            pipelining,
            local: LocalMutex::new(),
            remotely_held: AtomicUsize::new(0),
            inside: AtomicUsize::new(0),
            acquisitions: AtomicUsize::new(0),
            failures: AtomicUsize::new(0),
            sections: AtomicUsize::new(0),
        })
    }

    /// Does the work of the driver.
    fn drive(&self, start: Option<Ask>) {
        let mut next = start;
        while let Some(attempt) = next {
            if attempt.0.load(Ordering::SeqCst) {
                next = self.local.cleared(ask);
                continue;
            }
            if self.failures.load(Ordering::SeqCst) > 0 {
                self.failures.fetch_sub(1, Ordering::SeqCst);
                assert!(self.local.attempted(Attempted::Failed("failed"), ask).1.is_none());
                next = self.local.cleared(ask);
                continue;
            }
            // A client never queues behind itself: its own release has been carried out before it asks again.
            assert_eq!(self.remotely_held.fetch_add(1, Ordering::SeqCst), 0);
            self.acquisitions.fetch_add(1, Ordering::SeqCst);
            let hold = self.new_hold();
            let (undo, following) = self.local.attempted(Attempted::Granted(hold), ask);
            next = following;
            self.undo(undo);
        }
    }

    fn new_hold(&self) -> Hold {
        Hold(Arc::new(HoldState::new(u64::MAX)), self.pipelining)
    }

    fn undo(&self, undo: Undo<Hold, Ask>) {
        match undo {
            Undo::Nothing => {}
            Undo::Attempt(attempt) => attempt.0.store(true, Ordering::SeqCst),
            Undo::Hold(hold) => {
                let _ = hold.begin_release();
                self.release_remotely(&hold);
                self.drive(self.local.cleared(ask));
            }
        }
    }

    fn release_remotely(&self, hold: &Hold) {
        assert_eq!(self.remotely_held.fetch_sub(1, Ordering::SeqCst), 1);
        hold.0.finish(None);
    }

    fn enter(&self, owner: u8) -> (Entered<Hold, Reason>, Option<Ask>) {
        self.local.enter(owner, FOREVER, Plain, ask)
    }

    fn try_lock(&self, owner: u8) -> bool {
        let (entered, start) = self.local.enter(owner, Patience::Once, Plain, ask);
        self.drive(start);
        let granted = match entered {
            Entered::Waiting(ticket) => self.wait(ticket),
            Entered::Settled(Settled::Refused) => Settled::Refused,
            Entered::Settled(_) => panic!("neither granted, nor refused, nor waiting"),
        };
        matches!(granted, Settled::Granted(_))
    }

    fn wait(&self, ticket: Ticket) -> Settled<Hold, Reason> {
        block_on(poll_fn(|context| self.local.poll(ticket, context)))
    }

    /// Waits for the lock; returns `false` when the hold was lost before the waiter saw it.
    fn lock(&self, owner: u8) -> bool {
        let (entered, start) = self.enter(owner);
        self.drive(start);
        let granted = match entered {
            Entered::Waiting(ticket) => self.wait(ticket),
            Entered::Settled(Settled::Granted(hold)) => Settled::Granted(hold),
            Entered::Settled(_) => panic!("neither granted nor waiting"),
        };
        matches!(granted, Settled::Granted(_))
    }

    fn unlock(&self, owner: u8) -> Result<(), Reason> {
        let (exited, start) = self.local.exit(owner, None, ask);
        if let (Exited::Release(hold), true) = (&exited, start.is_some()) {
            assert!(self.pipelining == Pipelining::Yes, "the release has not been answered");
            self.release_remotely(hold);
            self.drive(start);
            return Ok(());
        }
        self.drive(start);
        match exited {
            Exited::StillHeld => Ok(()),
            Exited::Lost(reason) => Err(reason),
            Exited::NotOwner => Err("not the owner"),
            Exited::Downgrade { .. } => panic!("no owner reads"),
            Exited::Release(hold) => {
                if self.sections.load(Ordering::SeqCst) > 0 && self.local.next_options().is_some() {
                    self.sections.fetch_sub(1, Ordering::SeqCst);
                    hold.0.finish(None);
                    let (undo, start) = self.local.hand_off(self.new_hold(), ask);
                    self.undo(undo);
                    self.drive(start);
                    return Ok(());
                }
                self.release_remotely(&hold);
                self.drive(self.local.cleared(ask));
                Ok(())
            }
        }
    }

    /// Does what the core does when the server takes the lock away.
    fn lose(&self, hold: &Hold) -> bool {
        if !hold.0.lose("taken") {
            return false;
        }
        self.remotely_held.fetch_sub(1, Ordering::SeqCst);
        let start = self.local.lost(hold, &"taken", ask);
        self.drive(start);
        true
    }

    /// Gives a request that shares the lock its place.
    fn enqueue(&self, order: Order) -> Ticket {
        self.local.request_admission(ask(FOREVER, &Plain), FOREVER, order)
    }

    /// Waits for the turn of a request, and sends it.
    fn send(&self, ticket: Ticket) {
        let admission = block_on(poll_fn(|context| self.local.poll_admission(ticket, context)));
        assert!(matches!(admission, local::Admission::Admitted));
    }

    /// A request has been granted.
    fn leave_admissions(&self, ticket: Ticket) {
        self.drive(self.local.leave_admissions(ticket, ask));
    }

    fn assert_empty(&self) {
        assert!(self.local.holder().is_none());
        assert_eq!(self.remotely_held.load(Ordering::SeqCst), 0);
        // The next owner gets it: nothing is stuck.
        assert!(self.lock(99));
        self.unlock(99).unwrap();
    }
}

fn explore(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    // `LOOM_MAX_PREEMPTIONS` sets another bound.
    builder.preemption_bound.get_or_insert(3);
    builder.check(model);
}

/// With and without a lock that is passed on, and with attempts that are sent right behind a release.
#[test]
fn two_owners_are_never_inside_together_and_neither_is_forgotten() {
    fn section(world: &World, owner: u8) {
        assert!(world.lock(owner));
        assert_eq!(world.inside.fetch_add(1, Ordering::SeqCst), 0);
        assert_eq!(world.inside.fetch_sub(1, Ordering::SeqCst), 1);
        world.unlock(owner).unwrap();
    }
    for (sections, pipelining) in [(0, Pipelining::No), (1, Pipelining::No), (0, Pipelining::Yes)] {
        explore(move || {
            let world = World::with(pipelining);
            world.sections.store(sections, Ordering::SeqCst);
            let other = Arc::clone(&world);
            let thread = thread::spawn(move || section(&other, 1));
            section(&world, 2);
            thread.join().unwrap();
            world.assert_empty();
        });
    }
}

#[test]
fn a_waiter_that_leaves_at_any_moment_leaves_nothing_and_the_next_one_gets_in() {
    explore(|| {
        let world = World::new();
        let (entered, start) = world.enter(1);
        let Entered::Waiting(ticket) = entered else { panic!("a free lock starts an attempt") };
        let driver = Arc::clone(&world);
        let driving = thread::spawn(move || driver.drive(start));
        let second = Arc::clone(&world);
        let waiting = thread::spawn(move || {
            assert!(second.lock(2));
            second.unlock(2).unwrap();
        });
        world.undo(world.local.leave(ticket));
        driving.join().unwrap();
        waiting.join().unwrap();
        world.assert_empty();
    });
}

#[test]
fn an_attempt_that_fails_while_its_waiter_leaves_blocks_no_other() {
    explore(|| {
        let world = World::new();
        world.failures.store(1, Ordering::SeqCst);
        let (entered, start) = world.enter(1);
        let Entered::Waiting(ticket) = entered else { panic!("a free lock starts an attempt") };
        let driver = Arc::clone(&world);
        let driving = thread::spawn(move || driver.drive(start));
        let (settled, undo) = world.local.give_up(ticket, || "no answer");
        world.undo(undo);
        driving.join().unwrap();
        assert!(!matches!(settled, Settled::Granted(_)));
        world.failures.store(0, Ordering::SeqCst);
        world.assert_empty();
    });
}

#[test]
fn tries_behind_a_release_are_answered_while_the_winner_still_holds() {
    explore(|| {
        let world = World::new();
        assert!(world.lock(1));
        let tries = |owner| {
            let world = Arc::clone(&world);
            thread::spawn(move || world.try_lock(owner))
        };
        // No owner unlocks before both have been answered.
        let (second, third) = (tries(2), tries(3));
        world.unlock(1).unwrap();
        let (second, third) = (second.join().unwrap(), third.join().unwrap());
        assert!(!(second && third));
        for (owner, granted) in [(2, second), (3, third)] {
            assert_eq!(world.unlock(owner).is_ok(), granted);
        }
        world.assert_empty();
    });
}

#[test]
fn a_live_attempt_passes_to_the_next_waiter() {
    explore(|| {
        let world = World::new();
        let (first, start) = world.enter(1);
        let (second, none) = world.enter(2);
        assert!(none.is_none());
        let (Entered::Waiting(first), Entered::Waiting(second)) = (first, second) else {
            panic!("both wait")
        };
        let driver = Arc::clone(&world);
        let driving = thread::spawn(move || driver.drive(start));
        world.undo(world.local.leave(first));
        assert!(matches!(world.wait(second), Settled::Granted(_)));
        driving.join().unwrap();
        // Whether the head left before or after the grant, the single acquisition served the second waiter.
        assert_eq!(world.acquisitions.load(Ordering::SeqCst), 1);
        world.unlock(2).unwrap();
        world.assert_empty();
    });
}

#[test]
fn a_wait_that_ends_at_the_moment_of_the_grant_is_decided_once() {
    explore(|| {
        let world = World::new();
        let (entered, start) = world.enter(1);
        let Entered::Waiting(ticket) = entered else { panic!("a free lock starts an attempt") };
        let driver = Arc::clone(&world);
        let driving = thread::spawn(move || driver.drive(start));
        let (settled, undo) = world.local.give_up(ticket, || "no answer");
        world.undo(undo);
        driving.join().unwrap();
        match settled {
            Settled::Granted(_) => world.unlock(1).unwrap(),
            Settled::Refused => assert_eq!(world.unlock(1), Err("not the owner")),
            _ => panic!("nothing was lost and nothing failed"),
        }
        world.assert_empty();
    });
}

#[test]
fn a_loss_and_an_unlock_have_one_outcome_and_the_owner_is_notified_once() {
    explore(|| {
        let world = World::new();
        assert!(world.lock(1));
        let hold = world.local.holder().unwrap().1;
        let server = Arc::clone(&world);
        let lost = hold.clone();
        let losing = thread::spawn(move || server.lose(&lost));
        let unlocked = world.unlock(1);
        let was_lost = losing.join().unwrap();
        assert_eq!(unlocked, if was_lost { Err("taken") } else { Ok(()) });
        assert_eq!(world.unlock(1), Err("not the owner"));
        assert_eq!(hold.0.phase(), if was_lost { Phase::Lost("taken") } else { Phase::Released });
        world.assert_empty();
    });
}

#[test]
fn a_loss_lets_the_next_one_in_although_the_owner_never_unlocks() {
    explore(|| {
        let world = World::new();
        assert!(world.lock(1));
        let hold = world.local.holder().unwrap().1;
        let second = Arc::clone(&world);
        let waiting = thread::spawn(move || {
            assert!(second.lock(2));
            second.unlock(2).unwrap();
        });
        assert!(world.lose(&hold));
        waiting.join().unwrap();
        assert!(matches!(world.enter(1).0, Entered::Settled(Settled::Lost("taken"))));
        world.assert_empty();
    });
}

#[test]
fn a_loss_before_the_waiter_has_looked_does_not_end_its_wait() {
    explore(|| {
        let world = World::new();
        let (entered, start) = world.enter(1);
        let Entered::Waiting(ticket) = entered else { panic!("a free lock starts an attempt") };
        world.drive(start);
        let hold = world.local.holder().unwrap().1;
        let server = Arc::clone(&world);
        let lost = hold.clone();
        let losing = thread::spawn(move || assert!(server.lose(&lost)));
        let Settled::Granted(granted) = world.wait(ticket) else {
            panic!("the wait has ended without the lock")
        };
        losing.join().unwrap();
        assert_eq!(world.unlock(1), if granted.is_same(&hold) { Err("taken") } else { Ok(()) });
        world.assert_empty();
    });
}

#[test]
fn a_waiter_after_an_unseen_loss_is_before_later_ones() {
    explore(|| {
        let world = World::new();
        let (first, start) = world.enter(1);
        let (second, _) = world.enter(2);
        let (Entered::Waiting(first), Entered::Waiting(second)) = (first, second) else {
            panic!("both wait")
        };
        world.drive(start);
        let hold = world.local.holder().unwrap().1;
        let server = Arc::clone(&world);
        let lost = hold.clone();
        let losing = thread::spawn(move || assert!(server.lose(&lost)));
        let Settled::Granted(granted) = world.wait(first) else {
            panic!("the wait has ended without the lock")
        };
        if granted.is_same(&hold) {
            losing.join().unwrap();
        } else {
            assert!(matches!(world.local.held_by(1), Some((now, 1)) if now.is_same(&granted)));
            world.unlock(1).unwrap();
            losing.join().unwrap();
        }
        assert!(matches!(world.wait(second), Settled::Granted(_)));
        world.unlock(2).unwrap();
        if granted.is_same(&hold) {
            assert_eq!(world.unlock(1), Err("taken"));
        }
        world.assert_empty();
    });
}

#[test]
fn a_waiter_that_leaves_while_its_grant_is_lost_leaves_nothing() {
    explore(|| {
        let world = World::new();
        let (entered, start) = world.enter(1);
        let Entered::Waiting(ticket) = entered else { panic!("a free lock starts an attempt") };
        world.drive(start);
        let hold = world.local.holder().unwrap().1;
        let server = Arc::clone(&world);
        let losing = thread::spawn(move || server.lose(&hold));
        world.undo(world.local.leave(ticket));
        losing.join().unwrap();
        world.assert_empty();
    });
}

#[test]
fn two_waits_of_one_owner_are_both_granted() {
    explore(|| {
        let world = World::new();
        let (first, start) = world.enter(1);
        let (second, _) = world.enter(1);
        let (Entered::Waiting(first), Entered::Waiting(second)) = (first, second) else {
            panic!("both wait")
        };
        let driver = Arc::clone(&world);
        let driving = thread::spawn(move || driver.drive(start));
        assert!(matches!(world.wait(second), Settled::Granted(_)));
        assert!(matches!(world.wait(first), Settled::Granted(_)));
        driving.join().unwrap();
        world.unlock(1).unwrap();
        assert!(world.local.holder().is_some());
        world.unlock(1).unwrap();
        world.assert_empty();
    });
}

#[test]
fn a_loss_that_the_owner_finds_before_it_is_reported_strands_no_waiter() {
    explore(|| {
        let world = World::new();
        assert!(world.lock(1));
        let hold = world.local.holder().unwrap().1;
        let (second, none) = world.enter(2);
        let Entered::Waiting(second) = second else { panic!("it waits") };
        assert!(none.is_none());
        let server = Arc::clone(&world);
        let losing = thread::spawn(move || {
            // Gone at the server before this client knows it.
            server.remotely_held.fetch_sub(1, Ordering::SeqCst);
            assert!(hold.0.lose("taken"));
            server.drive(server.local.lost(&hold, &"taken", ask));
        });
        // The owner enters again while the loss is under way.
        let (entered, start) = world.enter(1);
        world.drive(start);
        losing.join().unwrap();
        assert!(matches!(world.wait(second), Settled::Granted(_)));
        world.unlock(2).unwrap();
        match entered {
            Entered::Settled(Settled::Granted(_)) => {
                assert!(matches!(world.enter(1).0, Entered::Settled(Settled::Lost("taken"))));
            }
            Entered::Settled(Settled::Lost(_)) => {}
            Entered::Waiting(ticket) => world.undo(world.local.leave(ticket)),
            Entered::Settled(_) => panic!("nothing was refused and nothing failed"),
        }
        world.assert_empty();
    });
}

#[test]
fn a_hold_whose_token_was_seen_is_not_passed_on() {
    explore(|| {
        let world = World::new();
        let (first, start) = world.enter(1);
        let (second, _) = world.enter(1);
        let (third, _) = world.enter(2);
        let (Entered::Waiting(first), Entered::Waiting(second), Entered::Waiting(third)) =
            (first, second, third)
        else {
            panic!("all wait")
        };
        world.drive(start);
        assert!(matches!(world.wait(first), Settled::Granted(_)));
        let dropping = Arc::clone(&world);
        let dropped = thread::spawn(move || dropping.undo(dropping.local.leave(second)));
        world.unlock(1).unwrap();
        dropped.join().unwrap();
        assert!(matches!(world.wait(third), Settled::Granted(_)));
        assert_eq!(world.acquisitions.load(Ordering::SeqCst), 2);
        world.unlock(2).unwrap();
        world.assert_empty();
    });
}

#[test]
fn a_shared_request_and_a_writer_that_come_together_are_both_served() {
    explore(|| {
        let world = World::new();
        let shared = Arc::clone(&world);
        let sharing = thread::spawn(move || {
            let ticket = shared.enqueue(Order::BehindExclusive);
            shared.send(ticket);
            shared.drive(shared.local.request_confirmed(ticket, ask));
            shared.leave_admissions(ticket);
        });
        assert!(world.lock(1));
        world.unlock(1).unwrap();
        sharing.join().unwrap();
        assert!(world.local.is_unused());
        world.assert_empty();
    });
}

#[test]
fn a_writer_that_comes_after_a_shared_request_is_sent_after_it() {
    explore(|| {
        let world = World::new();
        let ticket = world.enqueue(Order::BehindExclusive);
        let shared = Arc::clone(&world);
        let sharing = thread::spawn(move || {
            shared.send(ticket);
            assert_eq!(shared.acquisitions.load(Ordering::SeqCst), 0, "the writer was sent first");
            shared.leave_admissions(ticket);
        });
        assert!(world.lock(1));
        world.unlock(1).unwrap();
        sharing.join().unwrap();
        world.assert_empty();
    });
}

#[test]
fn a_writer_that_leaves_does_not_let_the_next_one_overtake_a_shared_request() {
    explore(|| {
        let world = World::new();
        let (first, start) = world.enter(1);
        let Entered::Waiting(first) = first else { panic!("a free lock starts an attempt") };
        let ticket = world.enqueue(Order::BehindExclusive);
        let (second, none) = world.enter(2);
        assert!(none.is_none());
        let Entered::Waiting(second) = second else { panic!("it waits") };
        let shared = Arc::clone(&world);
        let sharing = thread::spawn(move || {
            shared.send(ticket);
            assert!(shared.acquisitions.load(Ordering::SeqCst) == 0, "the next writer was sent first");
            shared.leave_admissions(ticket);
        });
        world.undo(world.local.leave(first));
        world.drive(start);
        assert!(matches!(world.wait(second), Settled::Granted(_)));
        sharing.join().unwrap();
        world.unlock(2).unwrap();
        world.assert_empty();
    });
}

#[test]
fn requests_that_exclude_each_other_are_sent_one_by_one() {
    explore(|| {
        let world = World::new();
        let (first, second) = (world.enqueue(Order::BehindAll), world.enqueue(Order::BehindAll));
        let shared = Arc::clone(&world);
        let sharing = thread::spawn(move || {
            shared.send(second);
            assert_eq!(shared.inside.load(Ordering::SeqCst), 1, "the second was sent first");
            shared.leave_admissions(second);
        });
        world.send(first);
        world.inside.fetch_add(1, Ordering::SeqCst);
        world.drive(world.local.request_confirmed(first, ask));
        sharing.join().unwrap();
        world.leave_admissions(first);
        assert!(world.local.is_unused());
    });
}

#[test]
fn a_writer_waits_for_the_answer_to_the_release_of_a_reader() {
    explore(|| {
        let world = World::new();
        let clearing = world.local.enqueue_clearing(None);
        let (entered, none) = world.enter(1);
        let Entered::Waiting(ticket) = entered else { panic!("it waits for the answer") };
        assert!(none.is_none());
        let answered = Arc::clone(&world);
        let answering = thread::spawn(move || answered.leave_admissions(clearing));
        assert!(matches!(world.wait(ticket), Settled::Granted(_)));
        answering.join().unwrap();
        world.unlock(1).unwrap();
        world.assert_empty();
    });
}
