//! Many processes, many waiters, many cycles; and no inotify.

use std::collections::BTreeSet;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lock_core::{Backend, FencingToken, LockClient, Released, Wait};
use rustix::process::geteuid;

use super::attempts::Bare;
use super::process::{Process, command, observer};
use super::{SOON, Scratch, block_on, copy_program, eventually, pids_of_waiters, status};
use crate::watcher::RETRIES_END;

#[test]
fn eight_processes_lose_no_count() {
    let scratch = Scratch::new();
    let counter = scratch.path.with_extension("counter");
    std::fs::write(&counter, "0").unwrap();
    let mut processes: Vec<_> = (0..8).map(|_| Process::start(&scratch.path)).collect();
    for process in &mut processes {
        process.say(&format!("count {} 200", counter.display()));
    }
    // The time of a hand-off depends on the machine; this test only checks that one follows the other.
    let read = || std::fs::read_to_string(&counter).unwrap();
    let mut last = read();
    while last != "1600" {
        eventually("the count goes on", || read() != last);
        last = read();
        std::thread::sleep(Duration::from_millis(50));
    }
    let mut tokens = BTreeSet::new();
    for process in processes {
        let line = process.hear();
        tokens.extend(line.split(' ').skip(1).map(|token| token.parse::<u64>().unwrap()));
        process.end();
    }
    assert_eq!(std::fs::read_to_string(&counter).unwrap(), "1600");
    assert_eq!(tokens.len(), 1600);
    scratch.is_empty_soon();
}

#[test]
fn a_client_keeps_some_folders_until_it_ends() {
    type End = fn(LockClient);
    let close: End = |client| block_on(client.close(SOON)).unwrap();
    let scratch = Scratch::new();
    for (end, names) in [(close, 1), (drop, 1), (drop, 200)] {
        let client = scratch.client();
        for name in 0..names {
            let read = client.rw_lock(format!("lock-{name}")).unwrap().read();
            let permit = client.semaphore(format!("semaphore-{name}"), 2).unwrap().permits(1).unwrap();
            for lock in [read, permit] {
                block_on(async { lock.acquire().await?.release().await }).unwrap();
            }
        }
        assert_eq!(scratch.entries().len(), (2 * names).min(64));
        assert!(scratch.leftovers().is_empty());
        end(client);
        eventually("no folder is left", || scratch.entries().is_empty());
    }
}

#[test]
fn processes_are_served_in_the_order_in_which_they_came() {
    let scratch = Scratch::new();
    let client = scratch.client();
    let guard = block_on(client.mutex("a").unwrap().acquire()).unwrap();
    let mut waiters = Vec::new();
    for number in 1..=8 {
        let mut waiter = Process::start(&scratch.path);
        waiter.say("acquire a");
        eventually("it waits", || pids_of_waiters(&client, "a").len() == number);
        waiters.push(waiter);
    }
    let expected: Vec<u32> = waiters.iter().map(Process::pid).collect();
    assert_eq!(pids_of_waiters(&client, "a"), expected);
    let mut last = guard.hold().token().unwrap().get();
    block_on(guard.release()).unwrap();
    for position in 0..waiters.len() {
        let token = waiters[position].expect("granted").parse::<u64>().unwrap();
        assert!(token > last);
        last = token;
        assert!(waiters[position + 1..].iter().all(Process::has_said_nothing));
        waiters[position].say("release a");
        waiters[position].expect("released");
    }
}

/// As many as leave inotify instances to the other programs of this user: they poll where there is none.
#[test]
fn fifty_waiting_processes_use_no_time() {
    let scratch = Scratch::new();
    let client = scratch.client();
    let guard = block_on(client.mutex("a").unwrap().acquire()).unwrap();
    let mut waiters: Vec<_> = (0..50).map(|_| Process::start(&scratch.path)).collect();
    for waiter in &mut waiters {
        waiter.say("acquire a");
    }
    eventually("all wait", || pids_of_waiters(&client, "a").len() == 50);
    let wake_ups = || waiters.iter().map(Process::wake_ups).sum::<u64>();
    // The checks after a new watch come to an end.
    let pause = RETRIES_END + Duration::from_secs(2);
    let mut before = wake_ups();
    eventually("nobody wakes up any more", || {
        std::thread::sleep(pause);
        let former = std::mem::replace(&mut before, wake_ups());
        before == former
    });
    block_on(guard.release()).unwrap();
    let head = status(&client, "a").holders.first().and_then(|holder| holder.pid);
    assert!(head.is_none() || waiters.iter().any(|waiter| Some(waiter.pid()) == head));
}

#[test]
fn hundreds_of_waiters_in_a_process_share_one_thread() {
    let scratch = Scratch::new();
    let (ours, theirs) = (scratch.client(), scratch.client());
    let threads = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
        names.filter(|name| name.trim() == "distlock-files").count()
    };
    block_on(async {
        let names: Vec<String> = (0..300).map(|number| format!("lock-{number}")).collect();
        let mut guards = Vec::new();
        for name in &names {
            guards.push(ours.mutex(name).unwrap().acquire().await.unwrap());
        }
        let waits: Vec<_> = names
            .iter()
            .map(|name| {
                let lock = theirs.mutex(name).unwrap();
                tokio::spawn(async move { lock.acquire().await.unwrap().release().await.unwrap() })
            })
            .collect();
        let queue = scratch.path.join("queue");
        while std::fs::read_dir(&queue).unwrap().count() < 300 {
            tokio::task::yield_now().await;
        }
        // Other tests of this process may be starting or ending their watchers.
        eventually("one thread serves them", || threads() <= 2);
        for guard in guards {
            guard.release().await.unwrap();
        }
        for wait in waits {
            tokio::time::timeout(SOON, wait).await.unwrap().unwrap();
        }
    });
    block_on(theirs.close(SOON)).unwrap();
    eventually("nothing is left", || scratch.leftovers().is_empty());
}

/// A tenth of them through the core, which costs much more time than the files do.
#[test]
fn many_thousand_cycles_leave_nothing() {
    let cycles =
        if std::env::var("DISTLOCK_TESTS").is_ok_and(|tier| tier == "all") { 100_000 } else { 5_000 };
    let scratch = Scratch::new();
    let (bare, client) = (Bare::new(&scratch), scratch.client());
    block_on(async {
        let mut last: Option<FencingToken> = None;
        for cycle in 0..cycles {
            let name = format!("lock-{}", cycle % 1000);
            let token = if cycle / 1000 % 10 == 0 {
                let guard = client.mutex(name).unwrap().acquire().await.unwrap();
                let token = guard.hold().token();
                guard.release().await.unwrap();
                token
            } else {
                let request = bare.request(cycle, &name, Wait::Forever);
                let grant = bare.backend.acquire(&request).await.unwrap().unwrap();
                assert_eq!(bare.backend.release(&grant.lease).await.unwrap(), Released::Clean);
                grant.token
            };
            assert!(token > last);
            last = token;
        }
    });
    drop(bare);
    block_on(client.close(SOON)).unwrap();
    scratch.is_empty_soon();
    let gate = std::fs::metadata(scratch.path.join("gate")).unwrap();
    assert!(gate.len() < 100);
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().count();
    assert!(descriptors < 900, "{descriptors}");
}

/// A user all of whose inotify instances are in use.
struct WithoutInotify {
    scratch: Scratch,
    program: PathBuf,
    /// Has all instances.
    holder: Process,
    _alone: MutexGuard<'static, ()>,
}

impl WithoutInotify {
    fn new() -> Self {
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let scratch = Scratch::new();
        let open_to_all = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(scratch.path.parent().unwrap(), open_to_all).unwrap();
        let program = scratch.path.with_extension("helper");
        copy_program(std::env::current_exe().unwrap(), &program);
        let mut holder = Self::spawn(&program, &mut command(&scratch.path));
        holder.say("exhaust");
        assert_ne!(holder.expect("exhausted"), "0");
        Self { scratch, program, holder, _alone: alone }
    }

    /// Starts a process of this user.
    fn start(&self, helper: &mut Command) -> Process {
        let mut process = Self::spawn(&self.program, helper);
        process.say("exhaust");
        assert_eq!(process.expect("exhausted"), "0");
        process
    }

    fn spawn(program: &Path, helper: &mut Command) -> Process {
        let mut command = Command::new(program);
        command
            .args(helper.get_args())
            .envs(helper.get_envs().filter_map(|(key, value)| Some((key, value?))));
        if geteuid().is_root() {
            // The limit is per user: take the instances of a user whom no other process needs, and who may not read the build
            // folder.
            command.uid(54_322).gid(54_322).current_dir("/");
        }
        Process::spawn(&mut command)
    }

    fn until_so_many_wait(&self, count: usize) {
        let queue = self.scratch.path.join("queue/a");
        eventually("they wait", || std::fs::read_dir(&queue).map_or(0, Iterator::count) == count);
    }
}

/// Waiters and holders check from time to time.
#[test]
fn works_without_inotify() {
    let mut user = WithoutInotify::new();
    let [mut waiter, mut last] = [0, 1].map(|_| user.start(&mut command(&user.scratch.path)));
    user.holder.acquires("a");
    waiter.say("acquire a");
    user.until_so_many_wait(1);
    last.say("acquire a");
    user.until_so_many_wait(2);
    let WithoutInotify { scratch, holder, .. } = &mut user;
    holder.say("release a");
    holder.expect("released");
    waiter.expect("granted");
    waiter.say("lost a");
    std::fs::remove_file(scratch.path.join("held/a")).unwrap();
    waiter.expect("lost Deleted");
    last.expect("granted");
}

/// The waiter checks only after an event, so if it gets the lock at all, an event has arrived.
#[test]
fn a_hand_over_between_processes_is_notified_and_not_polled() {
    let scratch = Scratch::new();
    let client = observer(&scratch.path);
    let mut waiter = Process::without_second_chances(&scratch.path);
    let mut times = Vec::new();
    for _ in 0..50 {
        let guard = block_on(client.mutex("a").unwrap().acquire()).unwrap();
        waiter.say("acquire a");
        eventually("it waits", || !pids_of_waiters(&client, "a").is_empty());
        let start = std::time::Instant::now();
        block_on(guard.release()).unwrap();
        waiter.expect("granted");
        times.push(start.elapsed());
        waiter.say("release a");
        waiter.expect("released");
    }
    times.sort_unstable();
    println!("hand-over between processes: median {:?}, worst {:?}", times[25], times[49]);
}
