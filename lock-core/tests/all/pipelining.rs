//! Tests of an attempt that is sent right behind the release of a task of the same client.

use std::sync::Arc;
use std::time::Duration;

use crate::support::{ByHand, DropAfter, Recorder, SOON, Timed, Told, eventually, name, next};
use lock_core::{
    ClientBuilder, DistributedLock, ErrorKind, HolderId, LockClient, LockError, LockGuard, Operation,
};
use lock_memory::faults::{Fault, Gate};
use lock_memory::{MemoryOptions, MemoryServer, Replies};

const NAME: &str = "orders/42";

fn options() -> MemoryOptions {
    MemoryOptions::new().pipelining()
}

/// A client that sends an attempt right behind a release, and a lock of it.
fn pipelined(server: &MemoryServer) -> (LockClient, Arc<dyn DistributedLock>) {
    let client = server.client_with(options(), ClientBuilder::new()).unwrap();
    let lock = client.mutex(NAME).unwrap();
    (client, lock)
}

async fn holder(server: &MemoryServer) -> Option<HolderId> {
    let status = server.client().unwrap().status(NAME).await.unwrap();
    status.holders.first().map(|holder| holder.id.clone())
}

fn fails(operation: Operation, kind: ErrorKind) -> Fault {
    let error = LockError::new(kind, operation);
    Fault::Fail(if kind == ErrorKind::Unreachable { error.retryable() } else { error })
}

fn token(guard: &LockGuard) -> u64 {
    guard.token().unwrap().get()
}

#[tokio::test]
async fn the_next_attempt_does_not_wait_for_the_answer_to_the_release_and_its_waiter_does() {
    let server = MemoryServer::new();
    let (_client, lock) = pipelined(&server);
    let told = Recorder::listen(&lock);
    let first = lock.acquire().await.unwrap();
    let (hold, before) = (first.hold().clone(), token(&first));
    let mut second = ByHand::begun(lock.acquire());
    let gate = Gate::new();
    server.faults().inject(Operation::Release, Fault::DelayReply(gate.clone()));
    let mut released = ByHand::begun(first.release());
    gate.reached().await;
    let next_holder = holder(&server).await.expect("the next attempt has not been sent");
    assert_ne!(next_holder, hold.id());
    assert!(second.poll().is_none() && released.poll().is_none(), "the release has not been answered");
    gate.open();
    released.output().await.unwrap();
    let second = second.output().await.unwrap();
    assert_eq!(second.hold().id(), next_holder);
    assert!(token(&second) > before);
    for expected in [Told::Acquired, Told::Released, Told::Acquired] {
        assert_eq!(next(&told), expected);
    }
}

#[tokio::test]
async fn a_release_that_is_refused_is_reported_and_the_next_waits_for_its_repetition() {
    for kind in [ErrorKind::Denied, ErrorKind::Unreachable] {
        let server = MemoryServer::new();
        let (client, lock) = pipelined(&server);
        let told = Recorder::listen(&lock);
        let first = lock.acquire().await.unwrap();
        let before = token(&first);
        let second = ByHand::begun(lock.acquire());
        server.faults().inject(Operation::Release, fails(Operation::Release, kind));
        let released = first.release().await;
        assert_eq!(released.err().map(|error| error.kind()), (kind == ErrorKind::Denied).then_some(kind));
        let second = second.output().await.unwrap();
        assert!(token(&second) > before);
        for expected in [Told::Acquired, Told::Released, Told::Acquired] {
            assert_eq!(next(&told), expected);
        }
        second.release().await.unwrap();
        client.idle().await;
        assert!(server.is_empty());
    }
}

#[tokio::test]
async fn an_attempt_that_overtakes_the_release_queues_behind_it_and_before_those_that_come_later() {
    let server = MemoryServer::new();
    let (_client, lock) = pipelined(&server);
    let first = lock.acquire().await.unwrap();
    let mut second = ByHand::begun(lock.acquire());
    let gate = Gate::new();
    server.faults().inject(Operation::Release, Fault::Delay(gate.clone()));
    let mut released = ByHand::begun(first.release());
    eventually("it is queued", || server.waiting_for(&name(NAME)) == 1).await;
    let theirs = server.client().unwrap().mutex(NAME).unwrap();
    let mut stranger = ByHand::begun(theirs.acquire());
    eventually("both are queued", || server.waiting_for(&name(NAME)) == 2).await;
    assert!(lock.try_acquire().await.unwrap().is_none(), "others come before it");
    assert!(second.poll().is_none() && stranger.poll().is_none() && released.poll().is_none());
    gate.open();
    released.output().await.unwrap();
    let second = second.output().await.unwrap();
    assert!(stranger.poll().is_none(), "it has overtaken");
    second.release().await.unwrap();
    stranger.output().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn an_attempt_behind_a_release_queues_behind_the_waiters_of_other_clients() {
    let server = MemoryServer::new();
    let (_client, lock) = pipelined(&server);
    let first = lock.acquire().await.unwrap();
    let mut second = ByHand::begun(lock.acquire());
    let theirs = server.client().unwrap().mutex(NAME).unwrap();
    let stranger = ByHand::begun(theirs.acquire());
    eventually("it is queued", || server.waiting_for(&name(NAME)) == 1).await;
    first.release().await.unwrap();
    let stranger = stranger.output().await.unwrap();
    eventually("ours is queued", || server.waiting_for(&name(NAME)) == 1).await;
    assert!(second.poll().is_none());
    stranger.release().await.unwrap();
    second.output().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_release_whose_answer_is_lost_costs_the_next_nothing() {
    let server = MemoryServer::new();
    let (client, lock) = pipelined(&server);
    let told = Recorder::listen(&lock);
    let first = lock.acquire().await.unwrap();
    let before = token(&first);
    let second = ByHand::begun(lock.acquire());
    server.faults().inject(Operation::Release, Fault::DropReply);
    let released = ByHand::begun(first.release());
    let second = second.output().await.unwrap();
    released.output().await.unwrap();
    client.idle().await;
    assert!(second.hold().is_valid() && token(&second) == before + 1);
    // How the first ended is known only when the release has been repeated.
    let mut events = [next(&told), next(&told), next(&told)];
    events[1..].sort_by_key(|event| *event == Told::Acquired);
    assert_eq!(events, [Told::Acquired, Told::Released, Told::Acquired]);
}

#[tokio::test]
async fn both_are_repeated_when_neither_arrives() {
    let server = MemoryServer::new();
    let (client, lock) = pipelined(&server);
    let first = lock.acquire().await.unwrap();
    let second = ByHand::begun(lock.acquire());
    for operation in [Operation::Release, Operation::Acquire] {
        server.faults().inject(operation, fails(operation, ErrorKind::Unreachable));
    }
    first.release().await.unwrap();
    second.output().await.unwrap().release().await.unwrap();
    client.idle().await;
    assert!(server.is_empty());
}

#[tokio::test]
async fn a_try_waits_for_the_answer_to_the_release() {
    let server = MemoryServer::new();
    let (_client, lock) = pipelined(&server);
    let first = lock.acquire().await.unwrap();
    let gate = Gate::new();
    server.faults().inject(Operation::Release, Fault::Delay(gate.clone()));
    let released = ByHand::begun(first.release());
    let tried = ByHand::begun(lock.try_acquire());
    gate.reached().await;
    assert!(!tried.is_woken());
    gate.open();
    released.output().await.unwrap();
    assert!(tried.output().await.unwrap().is_some(), "it was answered before the release");
}

/// Whatever was on its way when they are dropped.
#[tokio::test]
async fn futures_that_are_dropped_leave_nothing() {
    let slow = |gate: &Gate| [None, Some(Fault::Delay(gate.clone())), Some(Fault::DelayReply(gate.clone()))];
    for (of_release, of_acquire) in (0..3).flat_map(|one| (0..3).map(move |other| (one, other))) {
        for (releasing, waiting) in (0..4).flat_map(|one| (0..4).map(move |other| (one, other))) {
            let case = format!("{of_release} {of_acquire}, dropped after {releasing} and {waiting} polls");
            let server = MemoryServer::new();
            let client = server.client_with(options().replies(Replies::Later), ClientBuilder::new()).unwrap();
            let lock = client.mutex(NAME).unwrap();
            let first = lock.acquire().await.unwrap();
            let mut second = ByHand::begun(lock.acquire());
            let third = ByHand::begun(lock.acquire());
            let gate = Gate::new();
            for (operation, fault) in [(Operation::Release, of_release), (Operation::Acquire, of_acquire)] {
                if let Some(fault) = slow(&gate)[fault].clone() {
                    server.faults().inject(operation, fault);
                }
            }
            let moment = Duration::from_millis(2);
            let _ = tokio::time::timeout(moment, DropAfter::new(releasing, first.release())).await;
            let polled = async {
                for _ in 0..waiting {
                    if second.poll().is_some() {
                        return;
                    }
                    second.woken().await;
                }
            };
            let _ = tokio::time::timeout(moment, polled).await;
            drop(second);
            gate.open();
            let third = tokio::time::timeout(SOON, third.output()).await;
            third
                .unwrap_or_else(|_| panic!("{case}: the next waits for ever"))
                .unwrap()
                .release()
                .await
                .unwrap();
            tokio::time::timeout(SOON, client.idle()).await.unwrap_or_else(|_| panic!("{case}: never idle"));
            assert!(server.is_empty(), "{case}: something is left");
            client.close(SOON).await.unwrap_or_else(|error| panic!("{case}: {error}"));
        }
    }
}

/// A client with a clock that the test advances; a task of it holds the lock.
async fn timed() -> (Timed, LockClient, Arc<dyn DistributedLock>, LockGuard) {
    let timed = Timed::new();
    let client = timed.server.client_with(options(), Timed::builder(&timed.clock)).unwrap();
    let lock = client.mutex(NAME).unwrap();
    let held = lock.acquire().await.unwrap();
    (timed, client, lock, held)
}

#[tokio::test]
async fn a_wait_that_ends_while_the_answers_are_on_their_way_gets_the_lock() {
    let (timed, _client, lock, first) = timed().await;
    let mut second = ByHand::begun(lock.acquire_for(Duration::from_millis(2500)));
    timed.time.advance(Duration::from_secs(2));
    let gate = Gate::new();
    timed.server.faults().inject(Operation::Release, Fault::DelayReply(gate.clone()));
    let released = ByHand::begun(first.release());
    gate.reached().await;
    timed.time.advance(Duration::from_millis(600));
    assert!(second.poll().is_none(), "the lock was held through this client until a moment ago");
    gate.open();
    released.output().await.unwrap();
    second.output().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_wait_that_ends_while_the_server_is_silent_is_an_error() {
    let (timed, _client, lock, first) = timed().await;
    let second = ByHand::begun(lock.acquire_for(Duration::from_secs(2)));
    let gate = Gate::new();
    for operation in [Operation::Release, Operation::Acquire] {
        timed.server.faults().inject(operation, Fault::Delay(gate.clone()));
    }
    let released = ByHand::begun(first.release());
    timed.time.advance(Duration::from_secs(2));
    assert_eq!(second.output().await.unwrap_err().kind(), ErrorKind::Unreachable);
    gate.open();
    released.output().await.unwrap();
}

#[tokio::test]
async fn a_try_while_the_server_is_silent_is_an_error_as_soon_as_the_release_is_overdue() {
    let (timed, _client, lock, first) = timed().await;
    let (mut second, gate) = (ByHand::begun(lock.acquire()), Gate::new());
    for operation in [Operation::Release, Operation::Acquire] {
        timed.server.faults().inject(operation, Fault::Delay(gate.clone()));
    }
    let released = ByHand::begun(first.release());
    assert!(lock.try_acquire().await.unwrap().is_none(), "a waiter comes before it");
    timed.time.advance(Duration::from_secs(1));
    let error = loop {
        match lock.try_acquire().await {
            Ok(tried) => assert!(tried.is_none()),
            Err(error) => break error,
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(second.poll().is_none(), "the wait has no end");
    gate.open();
    released.output().await.unwrap();
    second.output().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_reader_that_came_before_the_next_writer_is_not_overtaken() {
    let server = MemoryServer::new();
    let client = server.client_with(options(), ClientBuilder::new()).unwrap();
    let lock = client.rw_lock(NAME).unwrap();
    let (read, write) = (lock.read(), lock.write());
    let first = write.acquire().await.unwrap();
    let reader = ByHand::begun(read.acquire());
    let mut second = ByHand::begun(write.acquire());
    first.release().await.unwrap();
    let reader = reader.output().await.unwrap();
    assert!(second.poll().is_none(), "the writer has overtaken the reader");
    reader.release().await.unwrap();
    second.output().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_writer_behind_a_reader_that_is_not_queued_yet_does_not_follow_the_release_before_it() {
    let server = MemoryServer::new();
    // Its work goes on only while this task lets it.
    let builder = ClientBuilder::new().engine(lock_core::EngineChoice::Caller);
    let client = server.client_with(options(), builder).unwrap();
    let lock = client.rw_lock(NAME).unwrap();
    let (read, write) = (lock.read(), lock.write());
    let first = write.acquire().await.unwrap();
    let (of_reader, of_release) = (Gate::new(), Gate::new());
    server.faults().inject(Operation::Acquire, Fault::Delay(of_reader.clone()));
    let reader = ByHand::begun(read.acquire());
    of_reader.reached().await;
    let mut second = ByHand::begun(write.acquire());
    server.faults().inject(Operation::Release, Fault::Delay(of_release.clone()));
    let released = ByHand::begun(first.release());
    of_release.reached().await;
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(server.waiting_for(&name(NAME)), 0, "the writer has been sent");
    of_reader.open();
    eventually("the writer follows the reader", || server.waiting_for(&name(NAME)) == 2).await;
    of_release.open();
    released.output().await.unwrap();
    let reader = reader.output().await.unwrap();
    assert!(second.poll().is_none(), "the writer has overtaken the reader");
    reader.release().await.unwrap();
    second.output().await.unwrap().release().await.unwrap();
}

/// Of a lease that serves several holds the server has the rest of the tokens back before the next one.
#[tokio::test]
async fn no_attempt_is_sent_behind_the_release_of_a_lease_that_served_several_holds() {
    let server = MemoryServer::new();
    let builder = ClientBuilder::new().local_handoff(2, SOON).engine(lock_core::EngineChoice::Caller);
    let client = server.client_with(options(), builder).unwrap();
    let lock = client.mutex(NAME).unwrap();
    let first = lock.acquire().await.unwrap();
    let (second, third) = (ByHand::begun(lock.acquire()), ByHand::begun(lock.acquire()));
    first.release().await.unwrap();
    let second = second.output().await.unwrap();
    let gate = Gate::new();
    server.faults().inject(Operation::Release, Fault::DelayReply(gate.clone()));
    let released = ByHand::begun(second.release());
    gate.reached().await;
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(holder(&server).await.is_none() && !third.is_woken(), "it has been sent");
    gate.open();
    released.output().await.unwrap();
    third.output().await.unwrap().release().await.unwrap();
    client.idle().await;
    assert!(server.is_empty());
}

#[tokio::test]
async fn a_client_that_closes_while_both_are_on_their_way_leaves_nothing() {
    let server = MemoryServer::new();
    let (client, lock) = pipelined(&server);
    let first = lock.acquire().await.unwrap();
    let second = ByHand::begun(lock.acquire());
    let gate = Gate::new();
    server.faults().inject(Operation::Release, Fault::DelayReply(gate.clone()));
    let released = ByHand::begun(first.release());
    gate.reached().await;
    let mut closing = ByHand::begun(client.close(SOON));
    assert_eq!(second.output().await.unwrap_err().kind(), ErrorKind::Closed);
    assert!(closing.poll().is_none());
    gate.open();
    released.output().await.unwrap();
    closing.output().await.unwrap();
    assert!(server.is_empty());
}

/// The runtime of the client ends: no attempt waits for an answer that never comes.
#[test]
fn a_runtime_that_ends_between_the_two_ends_the_wait() {
    let server = MemoryServer::new();
    let gate = Gate::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (client, lock, mut second) = runtime.block_on(async {
        let builder = ClientBuilder::new().engine(lock_core::EngineChoice::Caller);
        let client = server.client_with(options(), builder).unwrap();
        let lock = client.mutex(NAME).unwrap();
        let first = lock.acquire().await.unwrap();
        let waits = Arc::clone(&lock);
        let second = ByHand::begun(async move { waits.acquire().await });
        server.faults().inject(Operation::Release, Fault::DelayReply(gate.clone()));
        assert!(DropAfter::new(1, first.release()).await.is_none());
        (client, lock, second)
    });
    assert!(second.poll().is_none());
    drop(runtime);
    gate.open();
    assert_eq!(second.poll().expect("it waits for ever").unwrap_err().kind(), ErrorKind::Closed);
    drop((client, lock));
}
