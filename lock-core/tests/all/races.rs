//! Tests of two events that may come in either order: each runs both orders, step by step, with one end for each.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::support::{ByHand, LEASE, SOON, Timed, eventually, name};
use lock_core::{
    ClientBuilder, DistributedLock, ErrorKind, LockClient, LockError, LockGuard, LossReason, Operation,
    Owner, Wait,
};
use lock_memory::faults::{Fault, Gate};
use lock_memory::{Loss, MemoryOptions, MemoryServer, Replies, Told};

const NAME: &str = "orders/42";

/// Which of the two events that a test names comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum First {
    One,
    Other,
}

const BOTH: [First; 2] = [First::One, First::Other];

fn client(server: &MemoryServer) -> (LockClient, Arc<dyn DistributedLock>) {
    let client = server.client().unwrap();
    let lock = client.mutex(NAME).unwrap();
    (client, lock)
}

fn held_up(server: &MemoryServer, operation: Operation, fault: impl FnOnce(Gate) -> Fault) -> Gate {
    let gate = Gate::new();
    server.faults().inject(operation, fault(gate.clone()));
    gate
}

/// Makes the next request of this kind fail, so that a test sees that none is sent.
fn refuse_next(server: &MemoryServer, operation: Operation) {
    server.faults().inject(operation, Fault::Fail(LockError::new(ErrorKind::Denied, operation)));
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, future).await.expect("it never ends")
}

/// Nothing is left, and the next owner gets the lock.
async fn nothing_is_left(server: &MemoryServer, client: &LockClient, lock: &Arc<dyn DistributedLock>) {
    soon(client.idle()).await;
    assert!(!lock.is_locked() && server.is_empty(), "something is left");
    assert_eq!(server.waiting_for(&name(NAME)), 0);
    soon(lock.acquire()).await.unwrap().release().await.unwrap();
    soon(client.idle()).await;
    assert!(server.is_empty());
}

/// On several threads, with each way in which a lock goes from one task to the next.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn tasks_of_one_client_are_never_inside_together_and_none_is_forgotten() {
    const TASKS: usize = 8;
    const ROUNDS: usize = 50;
    let remote = || MemoryOptions::new().replies(Replies::Later);
    let ways = [
        (remote(), ClientBuilder::new()),
        (remote().pipelining(), ClientBuilder::new()),
        (remote(), ClientBuilder::new().local_handoff(3, SOON)),
    ];
    for (options, builder) in ways {
        let server = MemoryServer::new();
        let client = server.client_with(options, builder).unwrap();
        let inside = Arc::new(tokio::sync::Mutex::new(Vec::new()));
        let tasks = (0..TASKS).map(|_| {
            let (lock, inside) = (client.mutex(NAME).unwrap(), Arc::clone(&inside));
            tokio::spawn(async move {
                for round in 0..ROUNDS {
                    let guard = lock.acquire().await.unwrap();
                    inside.try_lock().expect("two are inside").push(guard.token().unwrap());
                    if round % 2 == 0 {
                        guard.release().await.unwrap();
                    }
                }
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            soon(task).await.unwrap();
        }
        let tokens = std::mem::take(&mut *inside.lock().await);
        assert_eq!(tokens.len(), TASKS * ROUNDS);
        assert!(tokens.is_sorted_by(|one, next| one < next));
        nothing_is_left(&server, &client, &client.mutex(NAME).unwrap()).await;
    }
}

/// While its request is on its way, while the answer is, and when it has been granted: one acquisition is enough for the next.
#[tokio::test]
async fn a_waiter_that_leaves_at_any_moment_leaves_its_attempt_to_the_next() {
    for moment in 0..3 {
        let server = MemoryServer::new();
        let (client, lock) = client(&server);
        let gate = match moment {
            0 => held_up(&server, Operation::Acquire, Fault::Delay),
            _ => held_up(&server, Operation::Acquire, Fault::DelayReply),
        };
        let first = ByHand::begun(lock.acquire());
        let second = ByHand::begun(lock.acquire());
        soon(gate.reached()).await;
        refuse_next(&server, Operation::Acquire);
        if moment == 2 {
            gate.open();
            soon(first.woken()).await;
        }
        drop(first);
        gate.open();
        soon(second.woken()).await;
        let guard = soon(second.output()).await.unwrap();
        assert_eq!(guard.token().unwrap().get(), 1, "{moment}: it was asked for twice");
        guard.release().await.unwrap();
        // The refusal is still there: nothing else was sent.
        assert_eq!(lock.try_acquire().await.unwrap_err().kind(), ErrorKind::Denied);
        nothing_is_left(&server, &client, &lock).await;
    }
}

#[tokio::test]
async fn an_attempt_that_fails_while_its_waiter_leaves_blocks_no_other() {
    for (first, kind) in BOTH
        .into_iter()
        .flat_map(|first| [ErrorKind::Denied, ErrorKind::Unreachable].map(|kind| (first, kind)))
    {
        let server = MemoryServer::new();
        let (client, lock) = client(&server);
        let gate = held_up(&server, Operation::Acquire, Fault::Delay);
        let leaves = ByHand::begun(lock.try_acquire());
        soon(gate.reached()).await;
        // The one that fails is the request that the gate has held up.
        let error = LockError::new(kind, Operation::Acquire);
        server.faults().inject(Operation::Cancel, Fault::Fail(error.clone().retryable()));
        server.faults().sever();
        if first == First::One {
            gate.open();
            soon(leaves.woken()).await;
            drop(leaves);
        } else {
            drop(leaves);
            gate.open();
        }
        let next = ByHand::begun(lock.acquire());
        server.faults().heal();
        soon(next.output()).await.unwrap().release().await.unwrap();
        nothing_is_left(&server, &client, &lock).await;
    }
}

/// The winner holds until both have been answered, whichever looks first.
#[tokio::test]
async fn tries_behind_a_release_are_answered_while_the_winner_still_holds() {
    for first in BOTH {
        let server = MemoryServer::new();
        let (client, lock) = client(&server);
        let held = lock.acquire().await.unwrap();
        let gate = held_up(&server, Operation::Release, Fault::DelayReply);
        drop(held);
        soon(gate.reached()).await;
        let (one, other) = (ByHand::begun(lock.try_acquire()), ByHand::begun(lock.try_acquire()));
        let (one, other) = if first == First::One { (one, other) } else { (other, one) };
        gate.open();
        let one = soon(one.output()).await.unwrap();
        let other = soon(other.output()).await.unwrap();
        let (winner, loser) = if first == First::One { (one, other) } else { (other, one) };
        assert!(loser.is_none(), "both have it");
        winner.expect("the first has lost").release().await.unwrap();
        nothing_is_left(&server, &client, &lock).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_ends_at_the_moment_of_the_grant_is_decided_once() {
    const LENGTH: Duration = Duration::from_secs(2);
    for first in BOTH {
        let timed = Timed::new();
        let lock = timed.client.mutex(NAME).unwrap();
        let stranger = timed.other().mutex(NAME).unwrap().acquire().await.unwrap();
        let waits = ByHand::begun(lock.try_acquire_for(LENGTH));
        eventually("it waits", || timed.server.waiting_for(&name(NAME)) == 1).await;
        let outcome = if first == First::One {
            stranger.release().await.unwrap();
            soon(waits.woken()).await;
            timed.time.advance(LENGTH);
            soon(waits.output()).await
        } else {
            timed.time.advance(LENGTH);
            soon(waits.woken()).await;
            stranger.release().await.unwrap();
            soon(waits.output()).await
        };
        // Whatever has been decided stays so.
        match outcome.unwrap() {
            Some(guard) => {
                assert_eq!(first, First::One, "it was granted after its end");
                guard.release().await.unwrap();
            }
            None => assert_eq!(first, First::Other, "it had been granted before its end"),
        }
        nothing_is_left(&timed.server, &timed.client, &lock).await;
    }
}

#[tokio::test]
async fn a_loss_and_an_unlock_have_one_outcome_and_the_owner_learns_of_it_once() {
    for first in BOTH {
        let server = MemoryServer::new();
        let (client, lock) = client(&server);
        let gate = held_up(&server, Operation::Release, Fault::Delay);
        lock.lock().await.unwrap();
        let unlocked = if first == First::One {
            assert!(server.lose(&name(NAME), Loss::Delete, Told::AtOnce));
            soon(lock.unlock()).await
        } else {
            let mut unlocking = ByHand::begun(lock.unlock());
            soon(gate.reached()).await;
            assert!(server.lose(&name(NAME), Loss::Delete, Told::AtOnce));
            assert!(unlocking.poll().is_none(), "the release has not been answered");
            gate.open();
            soon(unlocking.output()).await
        };
        gate.open();
        // A loss that the release finds is its answer.
        assert_eq!(unlocked.unwrap_err().loss(), Some(LossReason::Deleted));
        assert_eq!(lock.unlock().await.unwrap_err().kind(), ErrorKind::NotOwner);
        lock.lock().await.unwrap();
        lock.unlock().await.unwrap();
        nothing_is_left(&server, &client, &lock).await;
    }
}

/// A waiter that has been granted the lock and has not looked.
async fn unseen<F: Future>(server: &MemoryServer, lock: &Arc<dyn DistributedLock>, waits: F) -> ByHand<F> {
    let stranger = server.client().unwrap().mutex(NAME).unwrap().acquire().await.unwrap();
    let waiter = ByHand::begun(waits);
    eventually("it waits at the server", || server.waiting_for(&name(NAME)) == 1).await;
    stranger.release().await.unwrap();
    eventually("it is granted", || lock.is_locked()).await;
    waiter
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_that_leaves_while_its_grant_is_lost_leaves_nothing() {
    for first in BOTH {
        let server = MemoryServer::new();
        let (client, lock) = client(&server);
        let waiter = unseen(&server, &lock, lock.acquire()).await;
        let gate = held_up(&server, Operation::Release, Fault::Delay);
        if first == First::One {
            assert!(server.lose(&name(NAME), Loss::Delete, Told::AtOnce));
            drop(waiter);
        } else {
            drop(waiter);
            soon(gate.reached()).await;
            assert!(server.lose(&name(NAME), Loss::Delete, Told::AtOnce));
        }
        gate.open();
        nothing_is_left(&server, &client, &lock).await;
    }
}

/// Whichever looks first.
#[tokio::test(flavor = "multi_thread")]
async fn two_waits_of_one_owner_are_both_granted() {
    for first in BOTH {
        let server = MemoryServer::new();
        let (client, lock) = client(&server);
        let owner = Owner::new();
        let gate = held_up(&server, Operation::Acquire, Fault::DelayReply);
        let one = ByHand::begun(lock.acquire_as(owner, Wait::Forever));
        let other = ByHand::begun(lock.acquire_as(owner, Wait::Forever));
        let (one, other) = if first == First::One { (one, other) } else { (other, one) };
        gate.open();
        let one = soon(one.output()).await.unwrap().unwrap();
        // Not only when the first releases.
        other.woken().await;
        let other = soon(other.output()).await.unwrap().unwrap();
        assert_eq!(lock.hold_count_of(owner), 2);
        assert_eq!((one.token(), one.hold().id()), (other.token(), other.hold().id()));
        one.release().await.unwrap();
        assert!(lock.is_locked() && other.hold().is_valid());
        other.release().await.unwrap();
        nothing_is_left(&server, &client, &lock).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_enters_again_while_its_loss_is_under_way_strands_no_waiter() {
    for first in BOTH {
        let server = MemoryServer::new();
        let (client, lock) = client(&server);
        let owner = Owner::new();
        let held = lock.acquire_as(owner, Wait::Forever).await.unwrap().unwrap();
        let waiter = ByHand::begun(lock.acquire());
        if first == First::One {
            assert!(server.lose(&name(NAME), Loss::Delete, Told::AtOnce));
            let error = soon(lock.acquire_as(owner, Wait::Forever)).await.unwrap_err();
            assert_eq!(error.loss(), Some(LossReason::Deleted));
        } else {
            let again = soon(lock.acquire_as(owner, Wait::Forever)).await.unwrap().unwrap();
            assert!(server.lose(&name(NAME), Loss::Delete, Told::AtOnce));
            assert_eq!(soon(again.release()).await.unwrap_err().loss(), Some(LossReason::Deleted));
        }
        soon(waiter.output()).await.unwrap().release().await.unwrap();
        drop(held);
        nothing_is_left(&server, &client, &lock).await;
    }
}

/// One branch of an owner has used the hold, the other has not looked and is dropped.
#[tokio::test(flavor = "multi_thread")]
async fn a_hold_whose_token_was_seen_is_not_passed_on() {
    for first in BOTH {
        let server = MemoryServer::new();
        let (client, lock) = client(&server);
        let owner = Owner::new();
        let used = unseen(&server, &lock, lock.acquire_as(owner, Wait::Forever)).await;
        let dropped = ByHand::of(lock.acquire_as(owner, Wait::Forever));
        let other = ByHand::begun(lock.acquire());
        let used = soon(used.output()).await.unwrap().unwrap();
        let seen = used.token();
        let mut dropped = dropped;
        let mut dropped = Some(dropped.poll().expect("it enters again").unwrap().unwrap());
        if first == First::One {
            drop(dropped.take());
        }
        used.release().await.unwrap();
        drop(dropped);
        let other = soon(other.output()).await.unwrap();
        assert!(other.token() > seen, "it was passed on");
        other.release().await.unwrap();
        nothing_is_left(&server, &client, &lock).await;
    }
}

/// Both waited when the grant came.
#[tokio::test(flavor = "multi_thread")]
async fn a_hold_that_a_branch_has_seen_is_not_passed_on_by_one_that_has_not() {
    for first in BOTH {
        let server = MemoryServer::new();
        let (client, lock) = client(&server);
        let owner = Owner::new();
        let stranger = server.client().unwrap().mutex(NAME).unwrap().acquire().await.unwrap();
        let one = ByHand::begun(lock.acquire_as(owner, Wait::Forever));
        let two = ByHand::begun(lock.acquire_as(owner, Wait::Forever));
        let other = ByHand::begun(lock.acquire());
        eventually("one waits at the server", || server.waiting_for(&name(NAME)) == 1).await;
        stranger.release().await.unwrap();
        soon(one.woken()).await;
        let used = soon(one.output()).await.unwrap().unwrap();
        let seen = used.token();
        if first == First::One {
            drop(two);
            assert!(used.hold().is_valid() && !other.is_woken());
            used.release().await.unwrap();
        } else {
            used.release().await.unwrap();
            assert!(lock.is_locked() && !other.is_woken(), "the other branch has entered, too");
            drop(two);
        }
        let other = soon(other.output()).await.unwrap();
        assert!(other.token() > seen, "it was passed on");
        other.release().await.unwrap();
        nothing_is_left(&server, &client, &lock).await;
    }
}

/// A reader and a writer that come together are sent in this order.
#[tokio::test]
async fn a_writer_that_comes_after_a_reader_is_sent_after_it() {
    for first in BOTH {
        let server = MemoryServer::new();
        // Its work goes on only while this task lets it.
        let builder = ClientBuilder::new().engine(lock_core::EngineChoice::Caller);
        let client = server.client_with(MemoryOptions::new(), builder).unwrap();
        let catalog = client.rw_lock(NAME).unwrap();
        let (read, write) = (catalog.read(), catalog.write());
        let stranger = server.client().unwrap().mutex(NAME).unwrap().acquire().await.unwrap();
        let gate = held_up(&server, Operation::Acquire, Fault::Delay);
        let (one, other) = if first == First::One { (&read, &write) } else { (&write, &read) };
        let one = ByHand::begun(one.acquire());
        soon(gate.reached()).await;
        let mut other = ByHand::begun(other.acquire());
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert_eq!(server.waiting_for(&name(NAME)), 0, "{first:?}: the second was sent first");
        gate.open();
        eventually("both are queued", || server.waiting_for(&name(NAME)) == 2).await;
        stranger.release().await.unwrap();
        let one = soon(one.output()).await.unwrap();
        assert!(other.poll().is_none(), "{first:?}: the second has overtaken the first");
        one.release().await.unwrap();
        soon(other.output()).await.unwrap().release().await.unwrap();
        soon(client.idle()).await;
        assert!(server.is_empty());
    }
}

#[tokio::test]
async fn permits_are_asked_for_one_by_one() {
    let server = MemoryServer::new();
    let builder = ClientBuilder::new().engine(lock_core::EngineChoice::Caller);
    let client = server.client_with(MemoryOptions::new(), builder).unwrap();
    let slots = client.semaphore(NAME, 3).unwrap();
    let (gates, second_gate) = (held_up(&server, Operation::Acquire, Fault::Delay), Gate::new());
    server.faults().inject(Operation::Acquire, Fault::Delay(second_gate.clone()));
    let many = ByHand::begun(slots.acquire(2));
    soon(gates.reached()).await;
    let one = ByHand::begun(slots.acquire(1));
    let sent = ByHand::begun(second_gate.reached());
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(!sent.is_woken(), "the second was sent first");
    gates.open();
    let many = soon(many.output()).await.unwrap();
    soon(sent.woken()).await;
    second_gate.open();
    let one = soon(one.output()).await.unwrap();
    many.release().await.unwrap();
    one.release().await.unwrap();
    soon(client.idle()).await;
    assert!(server.is_empty());
}

#[tokio::test]
async fn a_writer_waits_for_the_answer_to_the_release_of_a_reader() {
    for first in BOTH {
        let server = MemoryServer::new();
        let builder = ClientBuilder::new().engine(lock_core::EngineChoice::Caller);
        let client = server.client_with(MemoryOptions::new(), builder).unwrap();
        let catalog = client.rw_lock(NAME).unwrap();
        let (read, write) = (catalog.read(), catalog.write());
        let reader = read.acquire().await.unwrap();
        let gate = held_up(&server, Operation::Release, Fault::Delay);
        let acquired = held_up(&server, Operation::Acquire, Fault::DelayReply);
        // It comes before the release, or after.
        let before = (first == First::One).then(|| ByHand::begun(write.acquire()));
        if before.is_some() {
            // It is queued behind the reader.
            acquired.open();
            eventually("it is queued", || server.waiting_for(&name(NAME)) == 1).await;
            drop(reader);
        } else {
            drop(reader);
            soon(gate.reached()).await;
        }
        let writer = before.unwrap_or_else(|| ByHand::begun(write.acquire()));
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert!(!writer.is_woken());
        assert_eq!(server.waiting_for(&name(NAME)), usize::from(first == First::One), "{first:?}");
        acquired.open();
        gate.open();
        soon(writer.output()).await.unwrap().release().await.unwrap();
        soon(client.idle()).await;
        assert!(server.is_empty());
    }
}

/// Both that wait, when the first of them has been sent behind a release.
#[tokio::test]
async fn waiters_that_leave_while_an_attempt_is_sent_behind_a_release_leave_nothing() {
    for first in BOTH {
        let server = MemoryServer::new();
        let options = MemoryOptions::new().pipelining();
        let client = server.client_with(options, ClientBuilder::new()).unwrap();
        let lock = client.mutex(NAME).unwrap();
        let held = lock.acquire().await.unwrap();
        let (second, third) = (ByHand::begun(lock.acquire()), ByHand::begun(lock.acquire()));
        let gate = held_up(&server, Operation::Release, Fault::DelayReply);
        let released = ByHand::begun(held.release());
        soon(gate.reached()).await;
        let (one, other) = if first == First::One { (second, third) } else { (third, second) };
        drop(one);
        drop(other);
        gate.open();
        soon(released.output()).await.unwrap();
        nothing_is_left(&server, &client, &lock).await;
    }
}

/// The lock is lost before the waiter to which it was passed has looked.
#[tokio::test(flavor = "multi_thread")]
async fn a_hold_that_is_lost_while_it_is_passed_on_is_replaced_for_its_waiter() {
    for told in [Told::AtOnce, Told::WhenAsked] {
        let timed = Timed::new();
        let builder = Timed::builder(&timed.clock).local_handoff(10, Duration::from_secs(3600));
        let client = timed.server.client_with(MemoryOptions::new().lease(LEASE), builder).unwrap();
        let lock = client.mutex(NAME).unwrap();
        let first = lock.acquire().await.unwrap();
        let waiting = ByHand::begun(lock.acquire());
        let (ended, token) = (first.hold().clone(), first.token().unwrap().get());
        first.release().await.unwrap();
        assert!(waiting.is_woken() && !ended.is_valid());
        assert!(timed.server.lose(&name(NAME), Loss::Delete, told));
        eventually("the lock is asked for again", || {
            timed.time.advance(Duration::from_millis(100));
            timed.server.len() == 1
        })
        .await;
        let guard: LockGuard = soon(waiting.output()).await.unwrap();
        assert!(guard.hold().is_valid() && guard.token().unwrap().get() > token + 1);
        guard.release().await.unwrap();
        soon(client.idle()).await;
        assert!(timed.server.is_empty());
    }
}
