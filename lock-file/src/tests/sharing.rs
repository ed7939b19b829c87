//! Readers, and holders of permits: processes that are killed and stopped, children that inherit, operators that delete.

use std::path::Path;
use std::time::{Duration, Instant};

use lock_core::{LockClient, LockGuard, LockStatus, LossReason, Mode};
use rustix::process::Signal;

use super::process::Process;
use super::{SOON, Scratch, block_on, eventually, pids_of_waiters, remove_folder, status};

/// Starts a process that begins to wait for what the word says, as the last of `count` waiters.
fn waiting(scratch: &Scratch, client: &LockClient, word: &str, count: usize) -> Process {
    let mut process = Process::start(&scratch.path);
    process.say(&format!("acquire {word}"));
    eventually("it waits", || status_of(client, word).waiters.len() == count);
    process
}

fn holding(scratch: &Scratch, word: &str) -> Process {
    let mut process = Process::start(&scratch.path);
    process.acquires(word);
    process
}

/// Ends a process that holds what the word says. A client that closes would wait for its holders.
fn lets_go(mut process: Process, word: &str) {
    process.say(&format!("release {word}"));
    process.expect("released");
    process.end();
}

/// The status of what a word names.
fn status_of(client: &LockClient, word: &str) -> LockStatus {
    match word.split_once('/').zip(word.split_once(':')) {
        Some((_, (how, name))) => {
            let (_, of) = how.split_once('/').unwrap();
            block_on(client.semaphore(name, of.parse().unwrap()).unwrap().status()).unwrap()
        }
        None => status(client, word.trim_start_matches("read:")),
    }
}

fn try_write(client: &LockClient) -> Option<LockGuard> {
    block_on(client.rw_lock("a").unwrap().write().try_acquire()).unwrap()
}

fn try_read(client: &LockClient) -> Option<LockGuard> {
    block_on(client.rw_lock("a").unwrap().read().try_acquire()).unwrap()
}

fn try_permits(client: &LockClient, take: u32, of: u32) -> Option<LockGuard> {
    block_on(client.semaphore("a", of).unwrap().try_acquire(take)).unwrap()
}

fn pids_of_holders(client: &LockClient, word: &str) -> Vec<u32> {
    status_of(client, word).holders.iter().map(|holder| holder.pid.unwrap()).collect()
}

#[test]
fn a_killed_reader_gives_up_its_share_and_no_more() {
    let scratch = Scratch::new();
    let client = scratch.client();
    let (mut first, mut second) = (holding(&scratch, "read:a"), holding(&scratch, "read:a"));
    let writer = waiting(&scratch, &client, "a", 1);
    first.kill();
    assert_eq!(pids_of_holders(&client, "a"), [second.pid()]);
    assert!(status(&client, "a").holders.iter().all(|holder| holder.mode == Mode::Shared));
    assert!(try_write(&client).is_none());
    assert!(writer.has_said_nothing());
    second.kill();
    writer.expect("granted");
    lets_go(writer, "a");
    scratch.is_empty_soon();
}

#[test]
fn a_killed_holder_of_permits_gives_up_its_permits_and_no_more() {
    let scratch = Scratch::new();
    let client = scratch.client();
    let (mut two, mut three) = (holding(&scratch, "2/5:a"), holding(&scratch, "3/5:a"));
    let next = waiting(&scratch, &client, "2/5:a", 1);
    let last = waiting(&scratch, &client, "3/5:a", 2);
    two.kill();
    next.expect("granted");
    assert!(last.has_said_nothing());
    assert_eq!(status_of(&client, "1/5:a").free_permits(), Some(0));
    three.kill();
    last.expect("granted");
    lets_go(next, "2/5:a");
    lets_go(last, "3/5:a");
    scratch.is_empty_soon();
}

#[test]
fn a_killed_writer_at_the_head_lets_those_behind_it_in() {
    let scratch = Scratch::new();
    let client = scratch.client();
    let reader = holding(&scratch, "read:a");
    let mut writer = waiting(&scratch, &client, "a", 1);
    let next = waiting(&scratch, &client, "read:a", 2);
    let modes: Vec<Mode> = status(&client, "a").waiters.iter().map(|waiter| waiter.mode).collect();
    assert_eq!(modes, [Mode::Exclusive, Mode::Shared]);
    assert!(try_read(&client).is_none());
    writer.kill();
    next.expect("granted");
    assert_eq!(pids_of_holders(&client, "a"), [reader.pid(), next.pid()]);
}

#[test]
fn killed_users_of_a_semaphore_decide_nothing_about_its_size() {
    let scratch = Scratch::new();
    let client = scratch.client();
    let mut holder = holding(&scratch, "3/3:a");
    let mut waiter = waiting(&scratch, &client, "1/3:a", 1);
    let error = block_on(client.semaphore("a", 5).unwrap().try_acquire(1)).unwrap_err().to_string();
    assert!(error.contains("3 permits, not 5"), "{error}");
    holder.kill();
    waiter.expect("granted");
    let error = block_on(client.semaphore("a", 5).unwrap().acquire(5)).unwrap_err().to_string();
    assert!(error.contains("3 permits, not 5"), "{error}");
    waiter.kill();
    assert!(try_permits(&client, 5, 5).is_some());
}

/// An operator breaks it: what it does when it goes on, and what its file says, no longer matters to the others.
#[test]
fn a_stopped_reader_keeps_its_share_until_it_is_broken() {
    let scratch = Scratch::new();
    let client = scratch.client();
    for (word, beside) in [("read:a", None), ("1/3:a", try_permits(&client, 2, 3))] {
        let mut stopped = holding(&scratch, word);
        stopped.say(&format!("lost {word}"));
        stopped.stop_outside_the_gate(&scratch.path);
        let mut others = if word == "read:a" {
            vec![holding(&scratch, "read:a"), holding(&scratch, "read:a")]
        } else {
            vec![]
        };
        let wanted = if word == "read:a" { "a" } else { "1/3:a" };
        let next = waiting(&scratch, &client, wanted, 1);
        let holders = status_of(&client, word).holders;
        let stopped_one = holders.into_iter().find(|holder| holder.pid == Some(stopped.pid())).unwrap();
        for mut other in others.drain(..) {
            other.kill();
        }
        assert!(next.has_said_nothing());
        let broken = match word {
            "read:a" => block_on(client.break_holder("a", &stopped_one.id)),
            _ => block_on(client.semaphore("a", 3).unwrap().break_holder(&stopped_one.id)),
        };
        assert!(broken.unwrap().taken_away);
        next.expect("granted");
        stopped.signal(Signal::CONT);
        stopped.expect("lost Broken");
        // Its release gives back nothing that is another's.
        stopped.say(&format!("release {word}"));
        stopped.expect("error");
        assert_eq!(pids_of_holders(&client, word).last(), Some(&next.pid()));
        lets_go(next, wanted);
        drop(beside);
    }
}

#[test]
fn behind_a_stopped_writer_that_waits_timed_reads_end_in_time() {
    let scratch = Scratch::new();
    let client = scratch.client();
    let reader = try_read(&client).unwrap();
    let writer = waiting(&scratch, &client, "a", 1);
    writer.stop_outside_the_gate(&scratch.path);
    let read = client.rw_lock("a").unwrap().read();
    assert!(block_on(read.try_acquire()).unwrap().is_none());
    let start = Instant::now();
    assert!(block_on(read.try_acquire_for(Duration::from_millis(200))).unwrap().is_none());
    assert!(start.elapsed().as_millis() >= 190, "{:?}", start.elapsed());
    writer.signal(Signal::CONT);
    block_on(reader.release()).unwrap();
    writer.expect("granted");
}

#[test]
fn the_share_of_a_killed_holder_stays_with_the_child_that_inherited_it() {
    for (word, next, fits) in [("read:a", "a", "read:a"), ("2/3:a", "2/3:a", "1/3:a")] {
        let scratch = Scratch::new();
        let client = scratch.client();
        let mut holder = holding(&scratch, word);
        // The child has this share alone, not the other one of its parent.
        holder.acquires("read:b");
        let child = holder.starts_child(word);
        holder.kill();
        assert!(block_on(client.mutex("b").unwrap().try_acquire()).unwrap().is_some(), "{word}");
        let beside = holding(&scratch, fits);
        assert_eq!(pids_of_holders(&client, word), [holder.pid(), beside.pid()]);
        lets_go(beside, fits);
        let next = waiting(&scratch, &client, next, 1);
        assert!(next.has_said_nothing());
        drop(child);
        next.expect("granted");
    }
}

/// The child keeps the file open, so that no event of its closing arrives.
#[test]
fn a_release_does_not_wait_for_a_child_that_inherited_the_share() {
    for (word, next) in [("read:a", "a"), ("2/3:a", "2/3:a")] {
        let scratch = Scratch::new();
        let client = scratch.client();
        let mut holder = holding(&scratch, word);
        let child = holder.starts_child(word);
        let mut waiter = Process::without_second_chances(&scratch.path);
        waiter.say(&format!("acquire {next}"));
        eventually("it waits", || status_of(&client, next).waiters.len() == 1);
        waiter.is_asleep_soon();
        holder.say(&format!("release {word}"));
        holder.expect("released");
        waiter.expect("granted");
        drop(child);
    }
}

/// They check only after an event, so if they get the lock at all, an event has arrived.
#[test]
fn adjacent_readers_are_admitted_together() {
    let scratch = Scratch::new();
    let client = scratch.client();
    let guard = try_write(&client).unwrap();
    let readers: Vec<Process> = (1..=4)
        .map(|count| {
            let mut reader = Process::without_second_chances(&scratch.path);
            reader.say("acquire read:a");
            eventually("it waits", || pids_of_waiters(&client, "a").len() == count);
            reader
        })
        .collect();
    readers.iter().for_each(Process::is_asleep_soon);
    block_on(guard.release()).unwrap();
    for reader in &readers {
        reader.expect("granted");
    }
    assert_eq!(pids_of_holders(&client, "a").len(), 4);
}

/// The head waits for whichever of the holders comes first, also for those that came after it had begun to wait.
#[test]
fn a_head_that_waits_for_permits_learns_of_any_release() {
    let scratch = Scratch::new();
    let client = scratch.client();
    let mut held: Vec<LockGuard> = (0..3).map(|_| try_permits(&client, 1, 3).unwrap()).collect();
    for position in [0, 2, 1] {
        let mut waiter = Process::without_second_chances(&scratch.path);
        waiter.say("acquire 1/3:a");
        eventually("it waits", || status_of(&client, "1/3:a").waiters.len() == 1);
        waiter.is_asleep_soon();
        block_on(held.remove(position).release()).unwrap();
        waiter.expect("granted");
        waiter.say("release 1/3:a");
        waiter.expect("released");
        held.insert(position, try_permits(&client, 1, 3).unwrap());
    }
}

fn shares_in(folder: &Path) -> Vec<std::path::PathBuf> {
    std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn a_holder_that_shares_learns_that_its_file_or_folder_is_gone() {
    type Lose = fn(&Scratch, &Path);
    type Take = fn(&LockClient) -> Option<LockGuard>;
    let losses: [(&str, Lose); 4] = [
        ("file removed", |_, shares| std::fs::remove_file(&shares_in(shares)[0]).unwrap()),
        ("file moved", |_, shares| {
            std::fs::rename(&shares_in(shares)[0], shares.with_extension("moved")).unwrap();
        }),
        ("folder removed", |_, shares| remove_folder(shares)),
        ("all moved", |scratch, _| {
            std::fs::rename(&scratch.path, scratch.path.with_extension("moved")).unwrap();
        }),
    ];
    let kinds: [(&str, Take, Take); 2] = [
        ("shared/a", try_read, try_write),
        ("permits/a", |client| try_permits(client, 2, 3), |client| try_permits(client, 3, 3)),
    ];
    for (what, lose) in losses {
        for (shares, take, all) in kinds {
            let scratch = Scratch::new();
            let (ours, theirs) = (scratch.client(), scratch.client());
            let guard = take(&ours).unwrap();
            // Held long enough to be watched, or not yet: the test takes both paths.
            if what.starts_with("file") {
                std::thread::sleep(Duration::from_millis(60));
            }
            lose(&scratch, &scratch.path.join(shares));
            let reason = block_on(async { tokio::time::timeout(SOON, guard.hold().lost()).await });
            assert_eq!(reason.ok(), Some(Some(LossReason::Deleted)), "{what}: {shares}");
            let next = all(&theirs).expect(what);
            assert!(next.hold().token() > guard.hold().token(), "{what}");
            drop(guard);
            block_on(ours.idle());
            assert!(next.hold().is_valid(), "{what}: {shares}");
            assert!(take(&theirs).is_none(), "{what}: {shares}");
        }
    }
}

#[test]
fn waiters_whose_tickets_were_removed_draw_others() {
    let scratch = Scratch::new();
    let client = scratch.client();
    for (queue, word) in [("queue", "read:a"), ("permits-queue", "1/3:a")] {
        let held = if queue == "queue" { try_write(&client) } else { try_permits(&client, 3, 3) };
        let waiter = waiting(&scratch, &client, word, 1);
        remove_folder(&scratch.path.join(queue));
        block_on(held.unwrap().release()).unwrap();
        waiter.expect("granted");
    }
}

#[test]
fn several_processes_read_what_one_wrote_and_take_no_more_than_there_is() {
    let scratch = Scratch::new();
    let (number, crowd) = (scratch.path.with_extension("number"), scratch.path.with_extension("crowd"));
    std::fs::write(&number, "0").unwrap();
    std::fs::create_dir(&crowd).unwrap();
    let mut processes: Vec<_> = (0..4).map(|_| Process::start(&scratch.path)).collect();
    for (command, path, answer) in [("mix", &number, "mixed"), ("crowd", &crowd, "crowded")] {
        for process in &mut processes {
            process.say(&format!("{command} {} 60", path.display()));
        }
        for process in &processes {
            process.expect(answer);
        }
    }
    assert_eq!(std::fs::read_to_string(&number).unwrap(), "60");
    processes.into_iter().for_each(Process::end);
    scratch.is_empty_soon();
}
