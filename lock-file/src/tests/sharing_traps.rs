//! Forces failures of those that share which otherwise happen once in a million runs.

use lock_core::{ErrorKind, LockClient, LockGuard};
use rustix::process::Signal;

use super::process::Process;
use super::{Scratch, block_on, eventually, learns_of_a_break, pids_of_waiters, status};
use crate::sync_point::Point;

fn try_permits(client: &LockClient, take: u32) -> Option<LockGuard> {
    block_on(client.semaphore("a", 3).unwrap().try_acquire(take)).unwrap()
}

fn try_read(client: &LockClient) -> Option<LockGuard> {
    block_on(client.rw_lock("a").unwrap().read().try_acquire()).unwrap()
}

/// A process stops in the gate, after it has seen that it may have what `word` says; then the gate is removed.
fn stopped_in_an_old_gate(scratch: &Scratch, point: Point, word: &str) -> Process {
    let mut early = Process::stopping_at(&scratch.path, point);
    early.say(&format!("acquire {word}"));
    early.is_stopped_soon();
    std::fs::remove_file(scratch.path.join("gate")).unwrap();
    early
}

#[test]
fn a_reader_in_an_old_gate_sees_the_writer_in_a_new_one() {
    let scratch = Scratch::new();
    let client = scratch.client();
    let reader = stopped_in_an_old_gate(&scratch, Point::BeforeShare, "read:a");
    let writer = block_on(client.mutex("a").unwrap().try_acquire()).unwrap().unwrap();
    reader.signal(Signal::CONT);
    eventually("the reader waits", || pids_of_waiters(&client, "a") == [reader.pid()]);
    assert!(reader.has_said_nothing());
    assert!(writer.hold().is_valid());
    block_on(writer.release()).unwrap();
    reader.expect("granted");
}

#[test]
fn a_writer_in_an_old_gate_sees_the_reader_in_a_new_one() {
    let scratch = Scratch::new();
    let client = scratch.client();
    let writer = stopped_in_an_old_gate(&scratch, Point::BeforeHeld, "a");
    let reader = try_read(&client).unwrap();
    writer.signal(Signal::CONT);
    eventually("the writer waits", || pids_of_waiters(&client, "a") == [writer.pid()]);
    assert!(writer.has_said_nothing());
    assert!(reader.hold().is_valid());
    block_on(reader.release()).unwrap();
    writer.expect("granted");
}

#[test]
fn a_writer_that_has_looked_in_an_old_gate_is_seen_by_the_reader_in_a_new_one() {
    let scratch = Scratch::new();
    let client = scratch.client();
    let writer = stopped_in_an_old_gate(&scratch, Point::BeforeRecord, "a");
    assert!(try_read(&client).is_none());
    writer.signal(Signal::CONT);
    writer.expect("granted");
}

#[test]
fn permits_that_were_counted_in_an_old_gate_are_counted_again() {
    let scratch = Scratch::new();
    let client = scratch.client();
    let early = stopped_in_an_old_gate(&scratch, Point::BeforeShare, "2/3:a");
    let held = try_permits(&client, 2).unwrap();
    early.signal(Signal::CONT);
    let slots = client.semaphore("a", 3).unwrap();
    eventually("it waits", || block_on(slots.status()).unwrap().waiters.len() == 1);
    assert!(early.has_said_nothing());
    assert_eq!(block_on(slots.status()).unwrap().free_permits(), Some(1));
    block_on(held.release()).unwrap();
    early.expect("granted");
}

/// A child has the file open, so that no event of its closing arrives, and unlocking sends none.
#[test]
fn a_waiter_learns_of_a_share_that_ended_outside_the_gate() {
    for (word, next) in [("read:a", "a"), ("2/3:a", "2/3:a")] {
        let scratch = Scratch::new();
        let client = scratch.client();
        let mut holder = Process::start(&scratch.path);
        holder.acquires(word);
        let child = holder.starts_child(word);
        let mut waiter = Process::without_second_chances(&scratch.path);
        waiter.say(&format!("acquire {next}"));
        let queue = scratch.path.join(if next == "a" { "queue/a" } else { "permits-queue/a" });
        eventually("it waits", || queue.is_dir());
        waiter.is_asleep_soon();
        let mut stopped = Process::stopping_at(&scratch.path, Point::InGate);
        stopped.is_stopped_soon();
        holder.say(&format!("release {word}"));
        holder.expect("released");
        // Neither of them will clean up, which would send the waiter an event too.
        holder.kill();
        assert!(waiter.has_said_nothing());
        stopped.kill();
        waiter.expect("granted");
        drop((child, client));
    }
}

#[test]
fn a_share_whose_process_was_killed_before_it_wrote_its_record_is_free() {
    let scratch = Scratch::new();
    let client = scratch.client();
    for word in ["read:a", "2/3:a"] {
        let mut killed = Process::stopping_at(&scratch.path, Point::BeforeShare);
        killed.say(&format!("acquire {word}"));
        killed.is_stopped_soon();
        killed.kill();
    }
    assert!(!status(&client, "a").is_held());
    assert!(block_on(client.mutex("a").unwrap().try_acquire()).unwrap().is_some());
    assert!(try_permits(&client, 3).is_some());
}

#[test]
fn no_break_takes_the_share_of_another() {
    let scratch = Scratch::new();
    let client = scratch.client();
    let (first, second) = (try_read(&client).unwrap(), try_read(&client).unwrap());
    let former = first.hold().id();
    block_on(first.release()).unwrap();
    let broken = block_on(client.break_holder("a", &former)).unwrap();
    assert!(!broken.taken_away);
    learns_of_a_break(&client, &scratch.client());
    assert!(second.hold().is_valid());
}

/// What a newer version keeps in the folder may mean something else, so nothing is decided from it, and nothing is changed.
#[test]
fn a_folder_with_a_newer_layout_is_refused() {
    let scratch = Scratch::new();
    let client = scratch.client();
    let (guard, permits) = (try_read(&client).unwrap(), try_permits(&client, 1).unwrap());
    let gate = scratch.path.join("gate");
    let text = std::fs::read_to_string(&gate).unwrap();
    assert!(text.ends_with("\nlayout 2\n"), "{text:?}");
    for newer in ["layout 3\n", "layout 10\n", "layout 4000000000\n"] {
        std::fs::write(&gate, text.replace("layout 2\n", newer)).unwrap();
        let opened = super::patient(&scratch.path).client(lock_core::ClientBuilder::new()).map(drop);
        let errors = [
            opened.unwrap_err(),
            block_on(client.mutex("a").unwrap().try_acquire()).unwrap_err(),
            block_on(client.mutex("b").unwrap().acquire()).unwrap_err(),
            block_on(client.rw_lock("a").unwrap().read().try_acquire()).unwrap_err(),
            block_on(client.semaphore("a", 3).unwrap().try_acquire(1)).unwrap_err(),
            block_on(client.status("a")).unwrap_err(),
            block_on(client.break_holder("a", &guard.hold().id())).unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            let text = error.to_string();
            assert!(text.contains("newer version") && text.contains("update this program"), "{text}");
        }
    }
    // What is held can be given back.
    block_on(guard.release()).unwrap();
    block_on(permits.release()).unwrap();
    for layout in ["", "layout 0\n", "layout 1\n", "layout 2\n", "nonsense"] {
        std::fs::write(&gate, text.replace("layout 2\n", layout)).unwrap();
        block_on(block_on(client.mutex("a").unwrap().acquire()).unwrap().release()).unwrap();
    }
}
