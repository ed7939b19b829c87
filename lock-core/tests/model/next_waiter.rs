//! A lock that goes to the next waiter of the same client: handed off, or with an attempt that is sent behind a release.

use super::*;

#[test]
fn a_waiter_that_leaves_while_the_lock_is_passed_to_it_gives_it_back() {
    explore(|| {
        let world = World::new();
        world.sections.store(1, Ordering::SeqCst);
        assert!(world.lock(1));
        let Entered::Waiting(ticket) = world.enter(2).0 else { panic!("the lock is held") };
        let holder = Arc::clone(&world);
        let unlocking = thread::spawn(move || holder.unlock(1).unwrap());
        world.undo(world.local.leave(ticket));
        unlocking.join().unwrap();
        world.assert_empty();
    });
}

#[test]
fn a_waiter_that_leaves_while_its_attempt_is_sent_behind_a_release_leaves_nothing() {
    explore(|| {
        let world = World::with(Pipelining::Yes);
        assert!(world.lock(1));
        let Entered::Waiting(first) = world.enter(2).0 else { panic!("the lock is held") };
        let Entered::Waiting(second) = world.enter(3).0 else { panic!("the lock is held") };
        let holder = Arc::clone(&world);
        let unlocking = thread::spawn(move || holder.unlock(1).unwrap());
        world.undo(world.local.leave(first));
        world.undo(world.local.leave(second));
        unlocking.join().unwrap();
        world.assert_empty();
    });
}

#[test]
fn a_try_beside_an_attempt_that_is_sent_behind_a_release_is_answered() {
    explore(|| {
        let world = World::with(Pipelining::Yes);
        assert!(world.lock(1));
        let Entered::Waiting(ticket) = world.enter(2).0 else { panic!("the lock is held") };
        let holder = Arc::clone(&world);
        let unlocking = thread::spawn(move || holder.unlock(1).unwrap());
        assert!(!world.try_lock(3), "a waiter comes before it");
        assert!(matches!(world.wait(ticket), Settled::Granted(_)));
        unlocking.join().unwrap();
        world.unlock(2).unwrap();
        world.assert_empty();
    });
}

#[test]
fn a_hold_that_is_lost_while_it_is_passed_on_is_replaced_for_its_waiter() {
    explore(|| {
        let world = World::new();
        assert!(world.lock(1));
        let Entered::Waiting(ticket) = world.enter(2).0 else { panic!("the lock is held") };
        let Exited::Release(hold) = world.local.exit(1, None, ask).0 else { panic!("it was the last entry") };
        hold.0.finish(None);
        let section = world.new_hold();
        let (server, lost) = (Arc::clone(&world), section.clone());
        let losing = thread::spawn(move || {
            assert!(lost.0.lose("taken"));
            server.local.lost(&lost, &"taken", ask)
        });
        let (undo, start) = world.local.hand_off(section.clone(), ask);
        let other = losing.join().unwrap();
        assert!(matches!(undo, Undo::Nothing));
        assert!(start.is_some() != other.is_some(), "one of them makes the attempt that replaces it");
        world.remotely_held.fetch_sub(1, Ordering::SeqCst);
        world.drive(start.or(other));
        let Settled::Granted(granted) = world.wait(ticket) else {
            panic!("the wait has ended without the lock")
        };
        assert!(!granted.is_same(&section));
        world.unlock(2).unwrap();
        world.assert_empty();
    });
}
