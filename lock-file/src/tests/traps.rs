//! Forces failures that otherwise happen once in a million runs.

use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use lock_core::{ClientBuilder, ErrorKind, LockClient};
use rustix::fs::FlockOperation;
use rustix::process::Signal;

use super::process::Process;
use super::{
    SOON, Scratch, block_on, eventually, inside, learns_of_a_break, pid_of_holder, pids_of_waiters, status,
};
use crate::FileOptions;
use crate::sync_point::Point;
use crate::watcher::RETRIES_END;

#[test]
fn a_process_stopped_in_the_gate_delays_no_limited_wait() {
    let scratch = Scratch::new();
    let client = FileOptions::in_folder(&scratch.path).client(ClientBuilder::new()).unwrap();
    let guard = block_on(client.mutex("held").unwrap().acquire()).unwrap();
    let stopped = Process::stopping_at(&scratch.path, Point::InGate);
    stopped.is_stopped_soon();

    // No process continues the stopped one meanwhile, so that a process that waited for it would wait for ever.
    let error = block_on(client.mutex("a").unwrap().try_acquire()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    let text = error.to_string();
    assert!(text.contains(&format!("kill -CONT {}", stopped.pid())), "{text}");

    eventually("a wait that ends tells who is in the way, unless it ends before that is known", || {
        let start = Instant::now();
        let lock = client.mutex("a").unwrap();
        let error = block_on(lock.try_acquire_for(Duration::from_millis(300))).unwrap_err();
        assert!(start.elapsed().as_millis() >= 290, "{:?}", start.elapsed());
        assert_eq!(error.kind(), ErrorKind::Unreachable);
        error.to_string().contains("kill -CONT")
    });

    assert_eq!(block_on(client.status("a")).unwrap_err().kind(), ErrorKind::Unreachable);

    block_on(guard.release()).unwrap();

    stopped.signal(Signal::CONT);
    let guard = block_on(client.mutex("a").unwrap().acquire()).unwrap();
    block_on(guard.release()).unwrap();
    stopped.end();
    eventually("the released lock is tidied away", || scratch.leftovers().is_empty());
}

/// A child has the file open, so that no event of its closing arrives, and unlocking sends none.
#[test]
fn a_waiter_learns_of_a_release_that_could_not_get_into_the_gate() {
    let scratch = Scratch::new();
    let client = scratch.client();
    let mut holder = Process::start(&scratch.path);
    holder.acquires("a");
    let child = holder.starts_child("a");
    let mut waiter = Process::without_second_chances(&scratch.path);
    waiter.say("acquire a");
    eventually("it waits", || pids_of_waiters(&client, "a") == [waiter.pid()]);
    waiter.is_asleep_soon();
    let mut stopped = Process::stopping_at(&scratch.path, Point::InGate);
    stopped.is_stopped_soon();
    holder.say("release a");
    holder.expect("released");
    // Neither of them will clean up, which would send the waiter an event too.
    holder.kill();
    assert!(waiter.has_said_nothing());
    stopped.kill();
    waiter.expect("granted");
    drop(child);
}

/// If a number were computed, stalled, and became a ticket after higher ones, two clients would hold the lock, or the later one
/// would get it first.
#[test]
fn no_late_lower_ticket() {
    let scratch = Scratch::new();
    let client = scratch.client();
    let guard = block_on(client.mutex("a").unwrap().acquire()).unwrap();
    let mut early = Process::stopping_at(&scratch.path, Point::BeforeTicket);
    early.say("acquire a");
    early.is_stopped_soon();
    let mut late = Process::start(&scratch.path);
    late.say("acquire a");
    let queue = scratch.path.join("queue/a");
    let tickets = || std::fs::read_dir(&queue).map_or(0, Iterator::count);
    late.is_at_the_gate_soon();
    assert_eq!(tickets(), 0);
    early.signal(Signal::CONT);
    eventually("both wait", || tickets() == 2);
    assert_eq!(pids_of_waiters(&client, "a"), [early.pid(), late.pid()]);
    let first = guard.hold().token().unwrap().get();
    block_on(guard.release()).unwrap();
    let second = early.expect("granted").parse::<u64>().unwrap();
    assert!(late.has_said_nothing());
    early.say("release a");
    early.expect("released");
    let third = late.expect("granted").parse::<u64>().unwrap();
    assert!(first < second && second < third);
}

/// The kernel reports that a dying holder has closed its file before it drops the lock. This test causes the event by closing
/// another descriptor, and drops the lock in a way that sends no event.
#[test]
fn an_announcement_before_the_fact_is_not_the_last_look() {
    let scratch = Scratch::new();
    let client = scratch.client();
    for pause in [0, 1, 20, 300] {
        let mut late = true;
        while late {
            late = announces_and_unlocks(&scratch, &client, Duration::from_millis(pause)) >= RETRIES_END;
        }
    }
}

/// Returns how long after the event the lock was dropped. The waiter allows only as much time as a dying process needs.
fn announces_and_unlocks(scratch: &Scratch, client: &LockClient, pause: Duration) -> Duration {
    let file = scratch.path.join("held/a");
    let writable = std::fs::File::create(&file).unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let holder = std::fs::File::open(&file).unwrap();
    rustix::fs::flock(&holder, FlockOperation::LockExclusive).unwrap();
    let mut waiter = Process::start(&scratch.path);
    waiter.say("acquire a");
    eventually("it waits", || !status(client, "a").waiters.is_empty());
    eventually("it sleeps", || waiter.state() == 'S');
    let announced = Instant::now();
    drop(writable);
    std::thread::sleep(pause);
    rustix::fs::flock(&holder, FlockOperation::Unlock).unwrap();
    let took = announced.elapsed();
    if took < RETRIES_END {
        waiter.expect("granted");
    }
    waiter.kill();
    took
}

/// The release happens exactly between a check and the watch, or between the second check and the sleep.
#[test]
fn no_lost_wake_up() {
    for point in [Point::BeforeWatch, Point::BeforeSleep] {
        let scratch = Scratch::new();
        let client = scratch.client();
        let guard = block_on(client.mutex("a").unwrap().acquire()).unwrap();
        let mut waiter = Process::stopping_at(&scratch.path, point);
        waiter.say("acquire a");
        waiter.is_stopped_soon();
        block_on(guard.release()).unwrap();
        waiter.signal(Signal::CONT);
        waiter.expect("granted");
    }
}

/// The same for a waiter whose predecessor leaves the queue.
#[test]
fn no_lost_wake_up_behind_a_waiter() {
    for point in [Point::BeforeWatch, Point::BeforeSleep] {
        let scratch = Scratch::new();
        let client = scratch.client();
        let guard = block_on(client.mutex("a").unwrap().acquire()).unwrap();
        let mut first = Process::start(&scratch.path);
        first.say("acquire a");
        eventually("the first waits", || pids_of_waiters(&client, "a").len() == 1);
        let mut second = Process::stopping_at(&scratch.path, point);
        second.say("acquire a");
        second.is_stopped_soon();
        first.kill();
        block_on(guard.release()).unwrap();
        second.signal(Signal::CONT);
        second.expect("granted");
    }
}

/// While another process has the file open, its removal sends no event of deletion, only one of changed attributes.
#[test]
fn a_removal_is_noticed_while_others_have_the_file_open() {
    let scratch = Scratch::new();
    let client = scratch.client();
    let guard = block_on(client.mutex("a").unwrap().acquire()).unwrap();
    let mut first = Process::without_second_chances(&scratch.path);
    let word = scratch.path.with_extension("word");
    std::fs::write(&word, "").unwrap();
    first.say(&format!("acquire a while {}", word.display()));
    eventually("the first waits", || pids_of_waiters(&client, "a").len() == 1);
    let ticket = std::fs::read_dir(scratch.path.join("queue/a")).unwrap().next().unwrap().unwrap().path();
    let open_ticket = std::fs::File::open(ticket).unwrap();
    let open_held = std::fs::File::open(scratch.path.join("held/a")).unwrap();
    let mut second = Process::without_second_chances(&scratch.path);
    second.say("acquire a");
    eventually("the second waits", || pids_of_waiters(&client, "a").len() == 2);
    std::fs::remove_file(&word).unwrap();
    first.expect("refused");
    block_on(guard.release()).unwrap();
    second.expect("granted");
    drop((open_ticket, open_held));
}

/// A process that is stopped after it has found the holder to break is in the gate, so that no other client can become the
/// victim.
#[test]
fn breaks_that_holder_alone() {
    let scratch = Scratch::new();
    let client = scratch.client();
    let guard = block_on(client.mutex("a").unwrap().acquire()).unwrap();
    let holder = status(&client, "a").holders.remove(0).id;
    let mut command = super::process::command(&scratch.path);
    command.env("DISTLOCK_TEST_HOLDER", holder.as_str());
    let mut late = Process::spawn(&mut command);
    command.env(crate::sync_point::STOP_AT, format!("{:?}", Point::BeforeBreak));
    let mut breaker = Process::spawn(&mut command);
    breaker.say("break a");
    breaker.is_stopped_soon();
    block_on(guard.release()).unwrap();
    let mut next = Process::start(&scratch.path);
    next.say("acquire a");
    next.is_at_the_gate_soon();
    assert!(next.has_said_nothing());
    breaker.signal(Signal::CONT);
    breaker.expect("broken");
    next.expect("granted");
    late.say("break a");
    assert_eq!(late.expect("broken"), "false");
    assert_eq!(pid_of_holder(&client, "a"), Some(next.pid()));
    next.say("release a");
    next.expect("released");
}

/// As an operator does to correct the folder's permissions.
#[test]
fn changing_the_modes_of_everything_breaks_no_hold() {
    let scratch = Scratch::new();
    let client = scratch.client();
    let guard = block_on(client.mutex("a").unwrap().acquire()).unwrap();
    let file = scratch.path.join("held/a");
    // Long enough held to be watched.
    std::thread::sleep(Duration::from_millis(60));
    for mode in [0o700, 0o600, 0o400, 0o700] {
        std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
        learns_of_a_break(&client, &scratch.client());
        assert!(guard.hold().is_valid(), "{mode:o}: {:?}", guard.hold().end());
    }
    block_on(guard.release()).unwrap();
}

#[test]
fn a_dropped_wait_leaves_the_queue() {
    let scratch = Scratch::new();
    let (ours, theirs) = (scratch.client(), scratch.client());
    let guard = block_on(ours.mutex("a").unwrap().acquire()).unwrap();
    block_on(async {
        for _ in 0..20 {
            let lock = theirs.mutex("a").unwrap();
            let mut wait = Box::pin(lock.acquire());
            let poll = std::future::poll_fn(|context| std::task::Poll::Ready(wait.as_mut().poll(context)));
            assert!(poll.await.is_pending());
            drop(wait);
        }
        theirs.idle().await;
    });
    eventually("no waiter is left", || status(&ours, "a").waiters.is_empty());
    block_on(guard.release()).unwrap();
    block_on(theirs.close(SOON)).unwrap();
    scratch.is_empty_soon();
}

/// A lock's file that is removed or replaced between opening and locking it excludes no other process.
#[test]
fn a_file_replaced_before_it_was_locked_is_not_the_lock() {
    for another in [None, Some("")] {
        let scratch = Scratch::new();
        let client = scratch.client();
        let mut early = Process::stopping_at(&scratch.path, Point::BeforeHeld);
        early.say("acquire a");
        early.is_stopped_soon();
        let held = scratch.path.join("held/a");
        std::fs::remove_file(&held).unwrap();
        if let Some(text) = another {
            std::fs::write(&held, text).unwrap();
            std::fs::set_permissions(&held, std::fs::Permissions::from_mode(0o600)).unwrap();
        }
        early.signal(Signal::CONT);
        early.expect("granted");
        assert!(block_on(client.mutex("a").unwrap().try_acquire()).unwrap().is_none());
        assert_eq!(pid_of_holder(&client, "a"), Some(early.pid()));
    }
}

#[test]
fn a_ticket_that_is_removed_before_it_was_locked_is_drawn_again() {
    let scratch = Scratch::new();
    let client = scratch.client();
    let guard = block_on(client.mutex("a").unwrap().acquire()).unwrap();
    let mut waiter = Process::stopping_at(&scratch.path, Point::BeforeMember);
    waiter.say("acquire a");
    waiter.is_stopped_soon();
    let [ticket] = &inside(&scratch.path.join("queue/a"))[..] else { panic!("not one ticket") };
    std::fs::remove_file(ticket).unwrap();
    waiter.signal(Signal::CONT);
    eventually("it waits", || pids_of_waiters(&client, "a") == [waiter.pid()]);
    block_on(guard.release()).unwrap();
    waiter.expect("granted");
}

/// A process that tidies up has found the file free and is about to remove it; because the gate was removed, another process
/// comes to the same file meanwhile. It must not hold a lock whose file is then removed.
#[test]
fn a_file_that_is_being_tidied_away_is_not_the_lock() {
    let scratch = Scratch::new();
    let client = scratch.client();
    let mut next = Process::start(&scratch.path);
    // Once it obeys, it has swept the folder, so it will not remove the file that the dead process is about to leave.
    next.acquires("b");
    let mut dead = Process::start(&scratch.path);
    dead.acquires("a");
    dead.kill();
    let cleaner = Process::stopping_at(&scratch.path, Point::BeforeRemoval);
    cleaner.is_stopped_soon();
    std::fs::remove_file(scratch.path.join("gate")).unwrap();
    next.say("acquire a");
    eventually("it holds or waits", || {
        pid_of_holder(&client, "a") == Some(next.pid()) || pids_of_waiters(&client, "a") == [next.pid()]
    });
    cleaner.signal(Signal::CONT);
    next.expect("granted");
    cleaner.end();
    assert!(block_on(client.mutex("a").unwrap().try_acquire()).unwrap().is_none());
    assert_eq!(pid_of_holder(&client, "a"), Some(next.pid()));
}

/// The second waiter gets an event about the first one's ticket when the folder is no longer at its path. The stopped first
/// waiter blocks it only in the old folder.
#[test]
fn a_stopped_waiter_in_a_folder_that_was_moved_away_blocks_no_other() {
    let scratch = Scratch::new();
    let client = scratch.client();
    let _guard = block_on(client.mutex("a").unwrap().acquire()).unwrap();
    let mut first = Process::start(&scratch.path);
    first.say("acquire a");
    eventually("the first waits", || pids_of_waiters(&client, "a").len() == 1);
    let ticket = std::fs::read_dir(scratch.path.join("queue/a")).unwrap().next().unwrap().unwrap();
    let mut second = Process::start(&scratch.path);
    second.say("acquire a");
    eventually("the second waits", || pids_of_waiters(&client, "a").len() == 2);
    second.is_asleep_soon();
    first.stop_outside_the_gate(&scratch.path);
    let moved = scratch.path.with_extension("moved");
    std::fs::rename(&scratch.path, &moved).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(moved.join("queue/a").join(ticket.file_name()), mode).unwrap();
    second.expect("granted");
}

/// A process that is stopped in the gate of a folder that is then moved away decides nothing in the new folder.
#[test]
fn a_process_stopped_in_the_gate_of_a_folder_that_was_moved_away_blocks_no_other() {
    let scratch = Scratch::new();
    let client = scratch.client();
    let stopped = Process::stopping_at(&scratch.path, Point::InGate);
    stopped.is_stopped_soon();
    std::fs::rename(&scratch.path, scratch.path.with_extension("moved")).unwrap();
    assert!(block_on(client.mutex("a").unwrap().try_acquire()).unwrap().is_some());
}

/// A gate that is removed between opening and locking it admits no process.
#[test]
fn a_gate_replaced_before_it_was_locked_is_not_the_gate() {
    let scratch = Scratch::new();
    drop(scratch.client());
    // It gets there for the first time when it opens the folder.
    let mut early = Process::stopping_at_time(&scratch.path, Point::BeforeGate, 2);
    early.say("acquire a");
    early.is_stopped_soon();
    std::fs::remove_file(scratch.path.join("gate")).unwrap();
    let inside = Process::stopping_at(&scratch.path, Point::InGate);
    inside.is_stopped_soon();
    early.signal(Signal::CONT);
    early.is_at_the_gate_soon();
    assert!(early.has_said_nothing());
    inside.signal(Signal::CONT);
    early.expect("granted");
}
