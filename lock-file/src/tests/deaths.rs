//! Killed holders and waiters, and what they leave.

use lock_core::LossReason;
use rustix::process::Signal;

use super::process::{Process, observer};
use super::{Scratch, block_on, eventually, pid_of_holder, pids_of_waiters, remove_folder, status};
use crate::sync_point::Point;

#[test]
fn a_killed_holder_frees_the_lock() {
    let scratch = Scratch::new();
    let (mut holder, mut waiter) = (Process::start(&scratch.path), Process::start(&scratch.path));
    let first = holder.acquires("a");
    waiter.say("acquire a");
    let client = observer(&scratch.path);
    eventually("it waits", || pids_of_waiters(&client, "a") == [waiter.pid()]);
    holder.kill();
    assert!(waiter.expect("granted").parse::<u64>().unwrap() > first);
    waiter.say("release a");
    waiter.expect("released");
    waiter.end();
    scratch.is_empty_soon();
}

#[test]
fn killed_waiters_give_up_their_places() {
    let scratch = Scratch::new();
    let client = scratch.client();
    let guard = block_on(client.mutex("a").unwrap().acquire()).unwrap();
    let mut waiters = Vec::new();
    for number in 1..=5 {
        let mut waiter = Process::start(&scratch.path);
        waiter.say("acquire a");
        eventually("it waits", || pids_of_waiters(&client, "a").len() == number);
        waiters.push(waiter);
    }
    let pids: Vec<u32> = waiters.iter().map(Process::pid).collect();
    // The first, one in the middle, the last.
    for position in [0, 2, 4] {
        waiters[position].kill();
    }
    assert_eq!(pids_of_waiters(&client, "a"), [pids[1], pids[3]]);
    block_on(guard.release()).unwrap();
    waiters[1].expect("granted");
    assert!(waiters[3].has_said_nothing());
    waiters[1].say("release a");
    waiters[1].expect("released");
    waiters[3].expect("granted");
    waiters[3].say("release a");
    waiters[3].expect("released");
    scratch.is_empty_soon();
}

#[test]
fn what_the_dead_leave_is_swept_up_by_the_next_client() {
    let scratch = Scratch::new();
    let (mut holder, mut waiter) = (Process::start(&scratch.path), Process::start(&scratch.path));
    holder.acquires("a");
    waiter.say("acquire a");
    let client = observer(&scratch.path);
    eventually("it waits", || !pids_of_waiters(&client, "a").is_empty());
    waiter.kill();
    holder.kill();
    assert_eq!(scratch.leftovers().len(), 2);
    drop(scratch.client());
    eventually("no folder is left either", || scratch.entries().is_empty());
}

#[test]
fn a_process_killed_before_it_wrote_its_record_holds_nothing() {
    let scratch = Scratch::new();
    let client = scratch.client();
    let mut killed = Process::stopping_at(&scratch.path, Point::BeforeRecord);
    killed.say("acquire a");
    killed.is_stopped_soon();
    killed.kill();
    assert!(!status(&client, "a").is_held());
    assert!(block_on(client.mutex("a").unwrap().try_acquire()).unwrap().is_some());
}

#[test]
fn a_stopped_holder_keeps_the_lock() {
    let scratch = Scratch::new();
    let client = scratch.client();
    let mut holder = Process::start(&scratch.path);
    holder.acquires("a");
    holder.signal(Signal::STOP);
    holder.is_stopped_soon();
    assert!(block_on(client.mutex("a").unwrap().try_acquire()).unwrap().is_none());
    holder.signal(Signal::CONT);
    holder.say("release a");
    holder.expect("released");
    assert!(block_on(client.mutex("a").unwrap().try_acquire()).unwrap().is_some());
}

#[test]
fn behind_a_stopped_waiter_timed_waits_end_in_time() {
    let scratch = Scratch::new();
    let client = scratch.client();
    let guard = block_on(client.mutex("a").unwrap().acquire()).unwrap();
    let mut first = Process::start(&scratch.path);
    first.say("acquire a");
    eventually("it waits", || !pids_of_waiters(&client, "a").is_empty());
    first.stop_outside_the_gate(&scratch.path);
    block_on(guard.release()).unwrap();
    let lock = client.mutex("a").unwrap();
    assert!(block_on(lock.try_acquire()).unwrap().is_none());
    let start = std::time::Instant::now();
    // No process continues the one before it meanwhile: a wait that did not end by itself would last for ever.
    assert!(block_on(lock.try_acquire_for(std::time::Duration::from_millis(200))).unwrap().is_none());
    assert!(start.elapsed().as_millis() >= 190, "{:?}", start.elapsed());
    first.signal(Signal::CONT);
    first.expect("granted");
}

#[test]
fn the_lock_of_a_killed_holder_stays_with_the_child_that_inherited_it() {
    let scratch = Scratch::new();
    let client = scratch.client();
    let mut holder = Process::start(&scratch.path);
    holder.acquires("a");
    let child = holder.starts_child("a");
    let mut waiter = Process::start(&scratch.path);
    waiter.say("acquire a");
    eventually("it waits", || !pids_of_waiters(&client, "a").is_empty());
    holder.kill();
    assert!(block_on(client.mutex("a").unwrap().try_acquire()).unwrap().is_none());
    assert_eq!(pid_of_holder(&client, "a"), Some(holder.pid()));
    assert!(waiter.has_said_nothing());
    drop(child);
    waiter.expect("granted");
}

/// The child keeps the file open, so that no event of its closing arrives.
#[test]
fn a_release_does_not_wait_for_a_child_that_inherited_the_lock() {
    let scratch = Scratch::new();
    let client = scratch.client();
    let mut holder = Process::start(&scratch.path);
    holder.acquires("a");
    let child = holder.starts_child("a");
    let mut waiter = Process::without_second_chances(&scratch.path);
    waiter.say("acquire a");
    eventually("it waits", || !pids_of_waiters(&client, "a").is_empty());
    waiter.is_asleep_soon();
    holder.say("release a");
    holder.expect("released");
    waiter.expect("granted");
    drop(child);
}

#[test]
fn a_broken_holder_is_notified_by_the_system() {
    let scratch = Scratch::new();
    let client = scratch.client();
    let mut holder = Process::without_second_chances(&scratch.path);
    holder.acquires("a");
    let child = holder.starts_child("a");
    holder.say("lost a");
    // Older than the first look after the grant, so that only an event can report the break.
    std::thread::sleep(std::time::Duration::from_millis(200));
    let id = status(&client, "a").holders.remove(0).id;
    block_on(client.break_holder("a", &id)).unwrap();
    holder.expect("lost Broken");
    assert!(block_on(client.mutex("a").unwrap().try_acquire()).unwrap().is_some());
    drop(child);
}

#[test]
fn a_child_does_not_inherit_by_accident() {
    let scratch = Scratch::new();
    let client = scratch.client();
    let (mut holder, mut waiter) = (Process::start(&scratch.path), Process::start(&scratch.path));
    holder.acquires("other");
    holder.acquires("a");
    waiter.say("acquire a");
    eventually("it waits", || !pids_of_waiters(&client, "a").is_empty());
    let child = holder.starts_child("other");
    holder.kill();
    waiter.expect("granted");
    drop(child);
}

#[test]
fn a_holder_learns_that_its_file_or_folder_is_gone() {
    type Lose = fn(&Scratch);
    let losses: [(&str, Lose); 4] = [
        ("file removed", |scratch| std::fs::remove_file(scratch.path.join("held/a")).unwrap()),
        ("file moved", |scratch| {
            std::fs::rename(scratch.path.join("held/a"), scratch.path.join("held/b")).unwrap();
        }),
        ("folder removed", |scratch| remove_folder(&scratch.path)),
        ("folder moved", |scratch| {
            std::fs::rename(&scratch.path, scratch.path.with_extension("moved")).unwrap();
        }),
    ];
    for (what, lose) in losses {
        let scratch = Scratch::new();
        let (ours, theirs) = (scratch.client(), scratch.client());
        let guard = block_on(ours.mutex("a").unwrap().acquire()).unwrap();
        // Held long enough to be watched, or not yet: the test takes both paths.
        if what.starts_with("file") {
            std::thread::sleep(std::time::Duration::from_millis(60));
        }
        lose(&scratch);
        let reason = block_on(async { tokio::time::timeout(super::SOON, guard.hold().lost()).await });
        assert_eq!(reason.ok(), Some(Some(LossReason::Deleted)), "{what}");
        let next = block_on(theirs.mutex("a").unwrap().try_acquire()).unwrap().expect(what);
        assert!(next.hold().token() > guard.hold().token(), "{what}");
        drop(guard);
        block_on(ours.idle());
        assert!(next.hold().is_valid(), "{what}");
        assert!(status(&theirs, "a").is_held(), "{what}");
    }
}

#[test]
fn a_waiter_whose_ticket_was_removed_draws_another() {
    let scratch = Scratch::new();
    let client = scratch.client();
    let guard = block_on(client.mutex("a").unwrap().acquire()).unwrap();
    let mut waiter = Process::start(&scratch.path);
    waiter.say("acquire a");
    eventually("it waits", || !pids_of_waiters(&client, "a").is_empty());
    remove_folder(&scratch.path.join("queue"));
    block_on(guard.release()).unwrap();
    waiter.expect("granted");
}

#[test]
fn tokens_rise_over_killed_processes() {
    let scratch = Scratch::new();
    let mut last = 0;
    for round in 0..20 {
        let mut process = Process::start(&scratch.path);
        process.say("cycle a");
        for _ in 0..=(round * 7 % 40) {
            let token = process.expect("granted").parse::<u64>().unwrap();
            assert!(token > last);
            last = token;
        }
        process.kill();
        while !process.has_said_nothing() {}
        let client = scratch.client();
        let guard = block_on(client.mutex("a").unwrap().acquire()).unwrap();
        let token = guard.hold().token().unwrap().get();
        assert!(token > last);
        last = token;
        block_on(guard.release()).unwrap();
    }
}
