//! The blocking face: who owns what, what a closure sees of a loss, and where it refuses to block.
#![cfg(feature = "memory")]
#![allow(clippy::panic, clippy::unwrap_used, reason = "tests")]

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Barrier, mpsc};
use std::thread;
use std::time::Duration;

use distlock::blocking::{self, DistributedLock, LockClient};
use distlock::events::HoldEnd;
use distlock::{ErrorKind, LockError, LossReason, Operation};
use tokio::runtime::{Builder, Runtime};
use tokio::task::{LocalSet, block_in_place, coop, spawn_blocking};

fn locks_at(server: &str) -> LockClient {
    blocking::connect(format!("memory:blocking-{server}")).unwrap()
}

fn workers(threads: usize) -> Runtime {
    Builder::new_multi_thread().worker_threads(threads).enable_all().build().unwrap()
}

fn one_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn break_lock(locks: &LockClient, name: &str) {
    for holder in locks.status(name).unwrap().holders {
        locks.break_holder(name, &holder.id).unwrap();
    }
}

#[test]
fn a_thread_enters_again_and_another_one_waits() {
    let lock = locks_at("reentry").mutex("a").unwrap();
    lock.lock().unwrap();
    lock.lock().unwrap();
    assert!(lock.try_lock().unwrap());
    assert_eq!((lock.hold_count(), lock.is_held()), (3, true));

    let (tokens, seen) = mpsc::channel();
    thread::scope(|threads| {
        let lock = &lock;
        threads.spawn(move || {
            assert_eq!((lock.hold_count(), lock.is_held(), lock.is_locked()), (0, false, true));
            assert!(!lock.try_lock().unwrap());
            assert!(!lock.try_lock_for(Duration::from_millis(10)).unwrap());
            assert_eq!(lock.unlock().unwrap_err().kind(), ErrorKind::NotOwner);
            tokens.send(None).unwrap();
            lock.lock().unwrap();
            tokens.send(lock.hold().unwrap().token()).unwrap();
            lock.unlock().unwrap();
        });
        let mine = lock.hold().unwrap().token();
        assert_eq!(seen.recv().unwrap(), None);
        for _ in 0..3 {
            assert!(seen.try_recv().is_err());
            lock.unlock().unwrap();
        }
        assert!(seen.recv().unwrap() > mine);
    });
    assert!(!lock.is_locked());
}

#[test]
fn many_threads_count_without_losing_one() {
    let lock = locks_at("counting").mutex("a").unwrap();
    let count = AtomicU32::new(0);
    let add = || {
        let before = count.load(Ordering::Relaxed);
        thread::yield_now();
        count.store(before + 1, Ordering::Relaxed);
    };
    thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| {
                for _ in 0..25 {
                    lock.lock().unwrap();
                    add();
                    lock.unlock().unwrap();
                    lock.with_lock(|_| {
                        add();
                        Ok::<_, LockError>(())
                    })
                    .unwrap();
                    let guard = lock.acquire().unwrap();
                    add();
                    guard.release().unwrap();
                }
            });
        }
    });
    assert_eq!(count.into_inner(), 300);
}

#[test]
fn a_thread_inherits_nothing_from_one_that_ended_before() {
    let lock = locks_at("inheritance").mutex("a").unwrap();
    thread::scope(|threads| threads.spawn(|| lock.lock().unwrap()).join().unwrap());
    for _ in 0..200 {
        // The system reuses the number and the memory of the ended thread.
        let got = thread::scope(|threads| threads.spawn(|| lock.try_lock().unwrap()).join().unwrap());
        assert!(!got);
    }
}

#[test]
fn a_blocking_task_inherits_nothing_from_the_one_before_on_its_thread() {
    let runtime = Builder::new_current_thread().max_blocking_threads(1).build().unwrap();
    let lock = locks_at("pool").mutex("a").unwrap();
    let first = lock.clone();
    let left_behind = spawn_blocking_on(&runtime, move || {
        first.lock().unwrap();
        assert!(first.try_lock().unwrap());
        thread::current().id()
    });
    let next = spawn_blocking_on(&runtime, move || {
        assert!(!lock.try_lock().unwrap());
        thread::current().id()
    });
    assert_eq!(left_behind, next, "the pool has one thread");
}

fn spawn_blocking_on<T: Send + 'static>(runtime: &Runtime, work: impl FnOnce() -> T + Send + 'static) -> T {
    runtime.block_on(runtime.spawn_blocking(work)).unwrap()
}

#[test]
fn a_thread_is_the_same_owner_in_block_on() {
    let lock = locks_at("block-on").mutex("a").unwrap();
    lock.lock().unwrap();
    let inside = lock.as_async().clone();
    one_thread().block_on(async {
        assert!(inside.try_lock().await.unwrap());
        inside.unlock().await.unwrap();
    });
    assert_eq!(lock.hold_count(), 1);
    lock.unlock().unwrap();
}

#[test]
fn bodies_are_nested_and_release_what_they_leave_locked() {
    let locks = locks_at("bodies");
    let (lock, other) = (locks.mutex("a").unwrap(), locks.mutex("b").unwrap());
    let answer: Result<_, LockError> = lock.with_lock(|outer| {
        lock.with_lock(|inner| {
            assert_eq!(outer.token(), inner.token());
            lock.lock()?;
            other.lock()?;
            other.lock()?;
            assert!(lock.is_held() && other.is_held());
            Ok(7)
        })
    });
    assert_eq!(answer.unwrap(), 7);
    locks.idle().unwrap();
    assert!(!lock.is_locked() && !other.is_locked());

    lock.lock().unwrap();
    assert_eq!(lock.acquire().unwrap_err().kind(), ErrorKind::Deadlock);
    assert_eq!(lock.try_with_lock(|_| Ok::<_, LockError>(lock.hold_count())).unwrap(), Some(2));
    assert_eq!(lock.hold_count(), 1);
    lock.unlock().unwrap();
}

#[test]
fn a_panic_in_a_body_releases_the_lock() {
    let locks = locks_at("panic");
    let lock = locks.mutex("a").unwrap();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        lock.with_lock(|_| {
            lock.lock()?;
            assert_eq!(lock.hold_count(), 0, "the body panics here");
            Ok::<_, LockError>(())
        })
    }));
    assert!(panicked.is_err());
    locks.idle().unwrap();
    assert!(!lock.is_locked());
}

#[derive(Debug)]
enum Failure {
    Own,
    Lock(LockError),
}

impl From<LockError> for Failure {
    fn from(error: LockError) -> Self {
        Self::Lock(error)
    }
}

#[test]
fn a_body_fails_with_the_error_of_the_program() {
    let lock = locks_at("own-error").mutex("a").unwrap();
    let failed = lock.with_lock(|_| Err::<(), _>(Failure::Own));
    assert!(matches!(failed, Err(Failure::Own)));
    assert!(!lock.is_locked());
}

#[test]
fn a_body_polls_the_loss_and_the_answer_is_the_loss() {
    let locks = locks_at("loss");
    let lock = locks.mutex("a").unwrap();
    let ran_to_the_end = AtomicBool::new(false);
    let lost = lock.with_lock(|hold| {
        assert!(hold.is_valid());
        break_lock(&locks, "a");
        while hold.is_valid() {
            thread::yield_now();
        }
        assert_eq!(hold.end(), Some(HoldEnd::Lost(LossReason::Broken)));
        ran_to_the_end.store(true, Ordering::Relaxed);
        Ok::<_, Failure>(())
    });
    let Err(Failure::Lock(error)) = lost else { panic!("{lost:?}") };
    assert_eq!((error.kind(), error.loss()), (ErrorKind::Lost, Some(LossReason::Broken)));
    assert!(ran_to_the_end.into_inner());
    assert!(lock.try_with_lock(|_| Ok::<_, LockError>(())).unwrap().is_some());
}

#[test]
fn the_thread_that_sleeps_keeps_its_lease() {
    let locks = blocking::connect("memory:blocking-lease?lease=15s").unwrap();
    let slept = locks.mutex("a").unwrap().with_lock(|hold| {
        thread::sleep(Duration::from_secs(18));
        Ok::<_, LockError>(hold.is_valid())
    });
    assert!(slept.unwrap());
}

#[test]
fn a_lock_that_is_held_is_busy_and_the_body_does_not_run() {
    let lock = locks_at("busy").mutex("a").unwrap();
    let guard = lock.acquire().unwrap();
    let soon = Duration::from_millis(10);
    assert!(lock.try_acquire().unwrap().is_none());
    assert!(lock.try_acquire_for(soon).unwrap().is_none());
    assert_eq!(lock.acquire_for(soon).unwrap_err().kind(), ErrorKind::Busy);
    let body = |_| -> Result<(), LockError> { panic!("the body runs without the lock") };
    assert!(lock.try_with_lock(body).unwrap().is_none());
    assert_eq!(lock.with_lock_for(soon, body).unwrap_err().kind(), ErrorKind::Busy);
    drop(guard);
    lock.acquire_for(Duration::from_secs(60)).unwrap().release().unwrap();
}

#[test]
fn a_guard_goes_to_another_thread_and_excludes_the_next_one() {
    let locks = locks_at("guards");
    let lock = locks.mutex("a").unwrap();
    let guard = lock.acquire().unwrap();
    let second = guard.reenter().unwrap();
    assert_eq!(guard.token(), second.hold().token());
    guard.release().unwrap();
    assert!(lock.try_acquire().unwrap().is_none());
    thread::spawn(move || drop(second)).join().unwrap();
    locks.idle().unwrap();
    assert!(!locks.status("a").unwrap().is_held());

    let guard = lock.acquire().unwrap();
    break_lock(&locks, "a");
    assert_eq!(guard.release().unwrap_err().kind(), ErrorKind::Lost);
}

#[test]
fn a_wait_takes_no_wake_up_from_the_code_around_it() {
    let lock = locks_at("parking").mutex("a").unwrap();
    let guard = lock.acquire().unwrap();
    thread::current().unpark();
    thread::scope(|threads| {
        let releasing = threads.spawn(|| {
            thread::sleep(Duration::from_millis(20));
            drop(guard);
        });
        lock.acquire().unwrap().release().unwrap();
        // The scope would park for a thread that still runs, and take the wake-up.
        releasing.join().unwrap();
    });
    thread::park(); // returns at once: the wake-up from above is still there
}

#[test]
fn candidates_in_threads_lead_one_after_the_other() {
    let locks = locks_at("election");
    let election = locks.election("a").unwrap();
    let mut watch = election.observe().unwrap();
    assert_eq!(watch.leader(), None);
    let first = election.campaign("first").unwrap();
    assert_eq!(watch.changed().unwrap().unwrap().value.as_deref(), Some("first"));
    let (term, election) = (first.term(), &election);
    thread::scope(|threads| {
        let next = threads.spawn(move || {
            let second = election.campaign("second").unwrap();
            second.proclaim("second, ready").unwrap();
            second
        });
        assert!(first.is_leading());
        first.resign().unwrap();
        let second = next.join().unwrap();
        assert!(second.term() > term && second.hold().is_valid());
        while watch.leader().and_then(|leader| leader.value).as_deref() != Some("second, ready") {
            watch.changed().unwrap();
        }
        one_thread().block_on(async { refused(second.resign()) });
    });
    locks.idle().unwrap();
    assert!(!locks.status("a").unwrap().is_held());
}

#[test]
fn several_locks_are_one_for_a_thread() {
    let locks = locks_at("several");
    let both = locks.mutex_all(["b", "a", "b"]).unwrap();
    let one = locks.mutex("a").unwrap();
    both.with_lock(|hold| {
        assert!(hold.token_of("a").is_some() && hold.token_of("b").is_some());
        let got = thread::scope(|threads| threads.spawn(|| one.try_lock()).join().unwrap());
        assert!(!got?);
        Ok::<_, LockError>(())
    })
    .unwrap();
    assert!(one.try_acquire().unwrap().is_some());
}

#[test]
fn readers_in_threads_read_beside_each_other_and_permits_are_counted() {
    let locks = locks_at("sharing");
    let catalog = locks.rw_lock("catalog").unwrap();
    let together = Barrier::new(3);
    thread::scope(|threads| {
        for _ in 0..3 {
            threads.spawn(|| {
                // With fewer than three readers at once this would never end.
                catalog.read().with_lock(|_| Ok::<_, LockError>(together.wait())).unwrap();
            });
        }
    });
    let writing = catalog.write().acquire().unwrap();
    assert!(catalog.read().try_acquire().unwrap().is_none());
    assert_eq!((catalog.name(), catalog.write().name()), (writing.hold().name(), writing.hold().name()));
    writing.release().unwrap();

    let render = locks.semaphore("render", 3).unwrap();
    let two = render.acquire(2).unwrap();
    assert!(render.try_acquire(2).unwrap().is_none());
    assert_eq!(render.acquire_for(2, Duration::ZERO).unwrap_err().kind(), ErrorKind::Busy);
    let one = render.permits(1).unwrap().acquire().unwrap();
    assert_eq!((render.size(), render.status().unwrap().free_permits()), (3, Some(0)));
    one.release().unwrap();
    for holder in render.status().unwrap().holders {
        render.break_holder(&holder.id).unwrap();
    }
    assert_eq!(two.release().unwrap_err().kind(), ErrorKind::Lost);
}

#[test]
fn a_slot_is_taken_by_its_success_looked_up_and_forgotten() {
    let locks = locks_at("slots");
    let once = locks.once("reports", "monday").unwrap().retry_failed();
    assert_eq!(
        once.run(|_| Err::<(), _>(LockError::new(ErrorKind::Internal, Operation::Hold)))
            .err()
            .map(|error| error.kind()),
        Some(ErrorKind::Internal)
    );
    let guard = once.acquire().unwrap().unwrap();
    let busy = locks.once("reports", "tuesday").unwrap().acquire_for(Duration::ZERO).unwrap_err();
    assert_eq!(busy.kind(), ErrorKind::Busy);
    once.succeeded().unwrap();
    guard.release().unwrap();
    assert!(once.acquire().unwrap().is_none());
    assert!(locks.remembered("reports", "monday").unwrap().is_some());
    assert!(locks.forget("reports", "monday").unwrap());
    assert!(locks.remembered("reports", "monday").unwrap().is_none());
    assert!(once.run(|_| Ok::<_, LockError>(())).unwrap().is_some());
}

fn refused<T: std::fmt::Debug>(answer: Result<T, LockError>) {
    let error = answer.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    let text = error.to_string();
    assert!(text.contains("spawn_blocking") && text.contains("async"), "{text}");
}

/// Everything that may block is refused, and nothing is changed.
fn everything_is_refused(locks: &LockClient, lock: &DistributedLock) {
    refused(blocking::connect("memory:blocking-refused"));
    refused(lock.lock());
    refused(lock.try_lock());
    refused(lock.try_lock_for(Duration::ZERO));
    refused(lock.unlock());
    refused(lock.acquire());
    refused(lock.acquire_for(Duration::ZERO));
    refused(lock.try_acquire());
    refused(lock.try_acquire_for(Duration::ZERO));
    let body = |_| -> Result<(), LockError> { panic!("the body runs") };
    refused(lock.with_lock(body));
    refused(lock.with_lock_for(Duration::ZERO, body));
    refused(lock.try_with_lock(body));
    refused(locks.status("a"));
    refused(locks.election("a").unwrap().campaign(""));
    refused(locks.election("a").unwrap().campaign_for("", Duration::ZERO));
    refused(locks.election("a").unwrap().observe());
    let once = locks.once("a", "1").unwrap().retry_failed();
    refused(once.run(body).map(|_| ()));
    refused(once.acquire());
    refused(once.acquire_for(Duration::ZERO));
    refused(once.succeeded());
    refused(locks.remembered("a", "1"));
    refused(locks.forget("a", "1"));
    let permits = locks.semaphore("a", 1).unwrap();
    refused(permits.acquire(1));
    refused(permits.status());
    refused(locks.rw_lock("a").unwrap().read().acquire());
    refused(locks.idle());
    refused(locks.close(Duration::ZERO));
    assert!(!lock.is_locked());
    assert!(locks.mutex("a").is_ok(), "the client is still open");
}

#[test]
fn a_thread_that_runs_tasks_is_not_blocked() {
    let locks = locks_at("refusals");
    let lock = locks.mutex("a").unwrap();
    for runtime in [workers(1), one_thread()] {
        runtime.block_on(async { everything_is_refused(&locks, &lock) });
        runtime.block_on(coop::unconstrained(async {
            // A worker knows that it is one; nothing tells the thread of `block_on` in a runtime with workers from a free one.
            if tokio::runtime::worker_index().is_some() {
                everything_is_refused(&locks, &lock);
            }
        }));
        let (in_task, its_lock) = (locks.clone(), lock.clone());
        let task = runtime.spawn(async move {
            everything_is_refused(&in_task, &its_lock);
            coop::unconstrained(async { everything_is_refused(&in_task, &its_lock) }).await;
        });
        runtime.block_on(task).unwrap();
        let (in_task, its_lock) = (locks.clone(), lock.clone());
        let local = LocalSet::new();
        let task = local.spawn_local(async move { everything_is_refused(&in_task, &its_lock) });
        runtime.block_on(local.run_until(task)).unwrap();
    }
}

#[test]
fn asking_whether_a_thread_may_block_costs_a_task_nothing_of_its_budget() {
    fn units_left() -> usize {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        let mut units = Vec::new();
        while let std::task::Poll::Ready(unit) = coop::poll_proceed(&mut context) {
            units.push(unit);
        }
        let left = units.len();
        while units.pop().is_some() {}
        left
    }
    let lock = locks_at("budget").mutex("a").unwrap();
    workers(1).block_on(async {
        let before = units_left();
        refused(lock.try_lock());
        assert_eq!(units_left(), before);
        assert!(before > 0);
        while coop::has_budget_remaining() {
            tokio::task::coop::consume_budget().await;
        }
        refused(lock.try_lock()); // a task without budget is a task all the same
    });
}

#[test]
fn a_thread_that_may_block_is_not_refused() {
    let lock = locks_at("allowed").mutex("a").unwrap();
    let works = |lock: &DistributedLock| {
        lock.with_lock(|_| lock.with_lock(|_| Ok::<_, LockError>(()))).unwrap();
        lock.lock().unwrap();
        lock.unlock().unwrap();
        lock.acquire().unwrap().release().unwrap();
        locks_at("allowed").close(Duration::from_secs(5)).unwrap();
    };
    for runtime in [workers(1), one_thread()] {
        let in_pool = lock.clone();
        spawn_blocking_on(&runtime, move || works(&in_pool));
        let entered = runtime.enter(); // names a runtime; it does not run on this thread
        works(&lock);
        drop(entered);
        let waits = lock.clone();
        let guard = lock.acquire().unwrap();
        runtime.block_on(async move {
            let waiting = spawn_blocking(move || works(&waits)); // waits while the runtime goes on
            tokio::time::sleep(Duration::from_millis(10)).await;
            drop(guard);
            waiting.await.unwrap();
        });
    }
    let runtime = workers(1);
    runtime.block_on(async { block_in_place(|| works(&lock)) });
    let in_task = lock.clone();
    runtime.block_on(runtime.spawn(async move { block_in_place(|| works(&in_task)) })).unwrap();
}

#[test]
fn a_release_on_a_thread_that_runs_tasks_is_refused_and_happens_in_the_background() {
    let locks = locks_at("background");
    let lock = locks.mutex("a").unwrap();
    let guard = lock.acquire().unwrap();
    one_thread().block_on(async { refused(guard.release()) });
    locks.idle().unwrap();
    assert!(!lock.is_locked());
}

#[test]
fn an_asynchronous_client_has_a_blocking_face() {
    one_thread().block_on(async {
        let locks = distlock::connect("memory:blocking-face?engine=caller").await.unwrap();
        let guard = locks.mutex("a").unwrap().acquire().await.unwrap();
        let face = LockClient::from(locks.clone());
        let busy = spawn_blocking(move || face.mutex("a").unwrap().try_lock().unwrap()).await.unwrap();
        assert!(!busy);
        guard.release().await.unwrap();
    });
}

#[test]
fn a_client_has_a_thread_of_its_own() {
    let error = blocking::connect("memory:blocking-engine?engine=caller").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOption);
    assert!(error.to_string().contains("engine=caller"), "{error}");

    let builder = distlock::ClientBuilder::new().engine(distlock::connection::EngineChoice::Caller);
    let runtime = one_thread();
    let entered = runtime.enter(); // nothing drives it
    let locks = blocking::connect_with("memory:blocking-engine", builder).unwrap();
    locks.mutex("a").unwrap().acquire().unwrap().release().unwrap();
    drop(entered);
}

#[test]
fn a_thread_that_ends_gets_errors_and_no_panic() {
    struct Late(LockClient, mpsc::Sender<Option<ErrorKind>>);
    impl Drop for Late {
        fn drop(&mut self) {
            let answer = self.0.mutex("a").and_then(|lock| lock.try_lock());
            self.1.send(answer.err().map(|error| error.kind())).unwrap();
        }
    }
    thread_local! { static LATE: RefCell<Option<Late>> = const { RefCell::new(None) } }
    let locks = locks_at("ending");
    let (answers, answer) = mpsc::channel();
    let ended = thread::spawn(move || {
        LATE.with(|late| *late.borrow_mut() = Some(Late(locks.clone(), answers)));
        // tokio's variables are made after ours, and are gone first.
        locks.mutex("b").unwrap().acquire().unwrap().release().unwrap();
    });
    ended.join().unwrap();
    let answer = answer.recv().unwrap();
    assert!(matches!(answer, None | Some(ErrorKind::NoOwner)), "{answer:?}");
}

#[cfg(all(feature = "file", unix))]
#[test]
fn clients_of_a_folder_exclude_each_other() {
    let folder = std::env::temp_dir().join(format!("distlock-blocking-files-{}", std::process::id()));
    let url = format!("file:{}", folder.display());
    let connect = || blocking::connect(&url).unwrap();
    let (ours, theirs) = (connect(), connect());
    let held = ours.mutex("a").unwrap().acquire().unwrap();
    assert!(theirs.mutex("a").unwrap().try_acquire().unwrap().is_none());
    let theirs_next = thread::scope(|threads| {
        let waiting = threads.spawn(|| theirs.mutex("a").unwrap().acquire().unwrap().token());
        while ours.status("a").unwrap().waiters.is_empty() {
            thread::yield_now();
        }
        let token = held.token();
        held.release().unwrap();
        (token, waiting.join().unwrap())
    });
    assert!(theirs_next.1 > theirs_next.0);

    let tokens: BTreeSet<_> = thread::scope(|threads| {
        let work = || {
            let (locks, mut tokens) = (connect(), Vec::new());
            for _ in 0..20 {
                let lock = locks.mutex("counted").unwrap();
                tokens.extend(lock.with_lock(|hold| Ok::<_, LockError>(hold.token())).unwrap());
            }
            locks.close(Duration::from_secs(60)).unwrap();
            tokens
        };
        let workers: Vec<_> = (0..3).map(|_| threads.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    assert_eq!(tokens.len(), 60);
    std::fs::remove_dir_all(&folder).unwrap();
}
