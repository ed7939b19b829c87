//! Tests of readers, writers and permits: what the core does before and beside the server.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use crate::support::{ByHand, LEASE, Recorder, SOON, Timed, Told, eventually, name, next};
use lock_core::{
    ErrorKind, FencingToken, Hold, HoldEnd, LockError, LossReason, Mode, Operation, Owner, Wait,
};
use lock_memory::faults::{Fault, Gate};
use lock_memory::{Loss, MemoryServer, Told as ToldBy};

const NAME: &str = "catalog";

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_reads_enters_again_without_the_server() {
    let server = MemoryServer::new();
    let client = server.client().unwrap();
    let read = client.rw_lock(NAME).unwrap().read();
    let guard = read.acquire().await.unwrap();
    server.faults().sever();
    let again = read.acquire_as(guard.owner(), Wait::Try).await.unwrap().unwrap();
    assert_eq!(read.hold_count_of(guard.owner()), 2);
    assert_eq!(again.hold().id(), guard.hold().id());
    server.faults().heal();
    guard.release().await.unwrap();
    assert!(again.hold().is_valid());
    again.release().await.unwrap();
    assert!(server.is_empty() && !read.is_locked());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_writer_reads_without_the_server_and_the_reader_gets_a_token_when_the_writer_ends() {
    let timed = Timed::new();
    let catalog = timed.client.rw_lock(NAME).unwrap();
    let writer = catalog.write().acquire().await.unwrap();
    timed.server.faults().sever();
    let reader = catalog.read().acquire_as(writer.owner(), Wait::Try).await.unwrap().unwrap();
    assert_eq!((reader.token(), reader.hold().mode()), (writer.token(), Mode::Shared));
    assert_eq!(reader.hold().remaining(), writer.hold().remaining());
    timed.server.faults().heal();
    let written = writer.token();
    writer.release().await.unwrap();
    assert!(reader.hold().is_valid() && reader.token() > written);
    // It is renewed by itself.
    let left = reader.hold().remaining().unwrap();
    timed.time.advance(LEASE / 2);
    eventually("the reader is renewed", || reader.hold().remaining().unwrap() >= left).await;
    let status = timed.client.status(NAME).await.unwrap();
    assert_eq!(
        status.holders.iter().map(|holder| holder.id.clone()).collect::<Vec<_>>(),
        [reader.hold().id()]
    );
    reader.release().await.unwrap();
    assert!(timed.server.is_empty());
}

/// When it is woken for the first time, notes the token of a hold.
struct Notes {
    hold: Hold,
    token: Mutex<Option<FencingToken>>,
}

impl Wake for Notes {
    fn wake(self: Arc<Self>) {
        let token = self.hold.token().unwrap();
        self.token.lock().unwrap().get_or_insert(token);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn when_the_writer_has_ended_the_reader_has_its_own_token() {
    let server = MemoryServer::new();
    let client = server.client().unwrap();
    let catalog = client.rw_lock(NAME).unwrap();
    let writer = catalog.write().acquire().await.unwrap();
    let reader = catalog.read().acquire_as(writer.owner(), Wait::Try).await.unwrap().unwrap();
    let gate = Gate::new();
    server.faults().inject(Operation::Downgrade, Fault::DelayReply(gate.clone()));
    let written = writer.token();
    let notes = Arc::new(Notes { hold: reader.hold().clone(), token: Mutex::default() });
    let mut ending = pin!(writer.release());
    let waker = Waker::from(Arc::clone(&notes));
    assert!(ending.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    gate.open();
    eventually("the writer has ended", || notes.token.lock().unwrap().is_some()).await;
    assert!(*notes.token.lock().unwrap() > written);
    ending.await.unwrap();
    reader.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_ends_before_the_writer_leaves_nothing() {
    let server = MemoryServer::new();
    let client = server.client().unwrap();
    let catalog = client.rw_lock(NAME).unwrap();
    let writer = catalog.write().acquire().await.unwrap();
    for _ in 0..3 {
        let reader = catalog.read().acquire_as(writer.owner(), Wait::Forever).await.unwrap().unwrap();
        assert!(catalog.read().is_locked());
        reader.release().await.unwrap();
        assert!(!catalog.read().is_locked() && writer.hold().is_valid());
    }
    writer.release().await.unwrap();
    assert!(server.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_downgrade_whose_reply_is_lost_is_repeated() {
    let server = MemoryServer::new();
    let (client, other) = (server.client().unwrap(), server.client().unwrap());
    let catalog = client.rw_lock(NAME).unwrap();
    let writer = catalog.write().acquire().await.unwrap();
    let reader = catalog.read().acquire_as(writer.owner(), Wait::Forever).await.unwrap().unwrap();
    server.faults().inject(Operation::Downgrade, Fault::DropReply);
    let (hold, written) = (writer.hold().clone(), writer.token());
    writer.release().await.unwrap();
    assert_eq!(hold.end(), Some(HoldEnd::Released));
    assert!(reader.hold().is_valid() && reader.token() > written);
    assert!(other.mutex(NAME).unwrap().try_acquire().await.unwrap().is_none());
    reader.release().await.unwrap();
    assert!(server.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_downgrade_that_is_refused_ends_the_reader_and_frees_the_lock() {
    let server = MemoryServer::new();
    let client = server.client().unwrap();
    let catalog = client.rw_lock(NAME).unwrap();
    let writer = catalog.write().acquire().await.unwrap();
    let reader = catalog.read().acquire_as(writer.owner(), Wait::Forever).await.unwrap().unwrap();
    let refusal = LockError::new(ErrorKind::Server, Operation::Downgrade);
    server.faults().inject(Operation::Downgrade, Fault::Fail(refusal));
    assert_eq!(writer.release().await.unwrap_err().kind(), ErrorKind::Server);
    assert_eq!(reader.lost().await, Some(LossReason::Expired));
    client.idle().await;
    assert!(server.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_is_released_during_the_downgrade_leaves_nothing() {
    let server = MemoryServer::new();
    let client = server.client().unwrap();
    let catalog = client.rw_lock(NAME).unwrap();
    let writer = catalog.write().acquire().await.unwrap();
    let reader = catalog.read().acquire_as(writer.owner(), Wait::Forever).await.unwrap().unwrap();
    let gate = Gate::new();
    server.faults().inject(Operation::Downgrade, Fault::DelayReply(gate.clone()));
    drop(writer);
    gate.reached().await;
    assert!(reader.hold().is_valid());
    drop(reader);
    gate.open();
    client.idle().await;
    assert!(server.is_empty());
    catalog.write().acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_hears_at_once_that_its_lease_is_lost_during_the_downgrade() {
    let gates = [Gate::new(), Gate::new()];
    let [before, after] = [Fault::Delay(gates[0].clone()), Fault::DelayReply(gates[1].clone())];
    for (fault, gate) in [before, after].into_iter().zip(gates) {
        let server = MemoryServer::new();
        let client = server.client().unwrap();
        let catalog = client.rw_lock(NAME).unwrap();
        let writer = catalog.write().acquire().await.unwrap();
        let reader = catalog.read().acquire_as(writer.owner(), Wait::Forever).await.unwrap().unwrap();
        server.faults().inject(Operation::Downgrade, fault);
        drop(writer);
        gate.reached().await;
        assert!(server.lose(&name(NAME), Loss::Delete, ToldBy::AtOnce));
        assert_eq!(reader.lost().await, Some(LossReason::Deleted));
        gate.open();
        client.idle().await;
        assert!(server.is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_is_lost_when_the_lease_of_its_writer_ends_during_the_downgrade() {
    let timed = Timed::new();
    let catalog = timed.client.rw_lock(NAME).unwrap();
    let told = Recorder::listen(&catalog.read());
    let writer = catalog.write().acquire().await.unwrap();
    let reader = catalog.read().acquire_as(writer.owner(), Wait::Forever).await.unwrap().unwrap();
    timed.server.faults().sever();
    drop(writer);
    assert!(reader.hold().is_valid());
    timed.time.advance(LEASE);
    assert_eq!(reader.lost().await, Some(LossReason::Expired));
    assert_eq!([next(&told), next(&told)], [Told::Acquired, Told::Acquired]);
    timed.server.faults().heal();
    let nothing_is_left = || {
        timed.time.advance(Duration::from_secs(1));
        timed.server.is_empty()
    };
    eventually("nothing is left", nothing_is_left).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_is_refused_before_anything_is_sent() {
    let server = MemoryServer::new();
    let client = server.client().unwrap();
    let catalog = client.rw_lock(NAME).unwrap();
    let reader = catalog.read().acquire().await.unwrap();
    server.faults().sever();
    for wait in [Wait::Try, Wait::Forever] {
        let error = catalog.write().acquire_as(reader.owner(), wait).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Deadlock);
        assert!(error.to_string().contains("release the read side first"), "{error}");
    }
    server.faults().heal();
    reader.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_reads_and_waits_for_a_guard_of_the_write_side_gets_an_error() {
    let client = MemoryServer::new().client().unwrap();
    let catalog = client.rw_lock(NAME).unwrap();
    let write = catalog.write();
    let outcome = catalog.read().with_lock(async |_| write.acquire().await.map(drop)).await;
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Deadlock);
}

/// However the caller holds the write side, and however it asks for the read side.
#[tokio::test(flavor = "multi_thread")]
async fn a_body_reads_under_the_write_side_around_it() {
    let server = MemoryServer::new();
    let client = server.client().unwrap();
    let catalog = client.rw_lock(NAME).unwrap();
    let (read, write) = (catalog.read(), catalog.write());
    let reads = async || {
        let token = |hold: Hold| async move { Ok::<_, LockError>(hold.token()) };
        let first = read.with_lock(token).await?;
        assert_eq!(read.with_lock_for(SOON, token).await?, first);
        assert_eq!(read.try_with_lock(token).await?, Some(first));
        read.lock().await?;
        read.unlock().await?;
        Ok::<_, LockError>(first)
    };
    let token =
        write.with_lock(async |hold| Ok::<_, LockError>((hold.token(), reads().await?))).await.unwrap();
    assert_eq!(token.0, token.1);
    write.lock().await.unwrap();
    reads().await.unwrap();
    write.unlock().await.unwrap();
    client.idle().await;
    assert!(server.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_reads_is_refused_the_write_side_at_once_however_it_asks() {
    let client = MemoryServer::new().client().unwrap();
    let catalog = client.rw_lock(NAME).unwrap();
    let (read, write) = (catalog.read(), catalog.write());
    let body = async |_: Hold| Ok::<_, LockError>(());
    let errors = read
        .with_lock(async |_| {
            Ok::<_, LockError>([
                write.with_lock(body).await.unwrap_err(),
                write.with_lock_for(SOON, body).await.unwrap_err(),
                write.try_with_lock(body).await.unwrap_err(),
                write.lock().await.unwrap_err(),
                write.try_lock().await.unwrap_err(),
                write.acquire().await.map(drop).unwrap_err(),
                write.try_acquire_for(SOON).await.map(drop).unwrap_err(),
            ])
        })
        .await
        .unwrap();
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Deadlock, "{error}");
        assert!(error.to_string().contains("release the read side first"), "{error}");
    }
}

/// Also while the server has not answered the request for the write side.
#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_waits_for_both_sides_gets_both() {
    let server = MemoryServer::new();
    let (ours, theirs) = (server.client().unwrap(), server.client().unwrap());
    for granted_before in [false, true] {
        let held = theirs.mutex(NAME).unwrap().acquire().await.unwrap();
        let catalog = ours.rw_lock(NAME).unwrap();
        let (read, write, owner) = (catalog.read(), catalog.write(), Owner::new());
        let mut writing = ByHand::begun(write.acquire_as(owner, Wait::Forever));
        let reader = if granted_before {
            held.release().await.unwrap();
            writing.woken().await;
            read.acquire_as(owner, Wait::Forever).await
        } else {
            let reading = ByHand::begun(read.acquire_as(owner, Wait::Forever));
            assert!(writing.poll().is_none());
            held.release().await.unwrap();
            reading.output().await
        };
        let reader = reader.unwrap().unwrap();
        let writer = writing.output().await.unwrap().unwrap();
        assert_eq!(reader.token(), writer.token());
        writer.release().await.unwrap();
        assert!(reader.hold().is_valid());
        reader.release().await.unwrap();
        ours.idle().await;
        assert!(server.is_empty());
    }
    // The other way round it would wait for itself.
    let held = theirs.mutex(NAME).unwrap().acquire().await.unwrap();
    let catalog = ours.rw_lock(NAME).unwrap();
    let (read, write, owner) = (catalog.read(), catalog.write(), Owner::new());
    let reading = ByHand::begun(read.acquire_as(owner, Wait::Forever));
    let error = write.acquire_as(owner, Wait::Forever).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Deadlock, "{error}");
    held.release().await.unwrap();
    reading.output().await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_of_one_client_leave_in_the_order_of_their_arrival() {
    let server = MemoryServer::new();
    let (ours, theirs) = (server.client().unwrap(), server.client().unwrap());
    let held = theirs.mutex(NAME).unwrap().acquire().await.unwrap();
    let catalog = ours.rw_lock(NAME).unwrap();
    let (read, write) = (catalog.read(), catalog.write());
    let first = ByHand::begun(write.acquire());
    let second = ByHand::begun(write.acquire());
    let third = ByHand::begun(read.acquire());
    // The second waits behind the first in this client, and the reader behind both.
    assert_eq!(server.waiting_for(held.hold().name()), 1);
    held.release().await.unwrap();
    first.output().await.unwrap().release().await.unwrap();
    second.output().await.unwrap().release().await.unwrap();
    third.output().await.unwrap().release().await.unwrap();
    assert!(server.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_writer_that_leaves_keeps_its_place_for_no_one_that_came_after_a_reader() {
    let server = MemoryServer::new();
    let (ours, theirs) = (server.client().unwrap(), server.client().unwrap());
    let held = theirs.mutex(NAME).unwrap().acquire().await.unwrap();
    let catalog = ours.rw_lock(NAME).unwrap();
    let (write, read) = (catalog.write(), catalog.read());
    let first = ByHand::begun(write.acquire());
    let reader = ByHand::begun(read.acquire());
    let mut second = ByHand::begun(write.acquire());
    eventually("both are queued", || server.waiting_for(held.hold().name()) == 2).await;
    drop(first);
    held.release().await.unwrap();
    let reader = reader.output().await.unwrap();
    assert!(second.poll().is_none());
    reader.release().await.unwrap();
    second.output().await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_try_to_write_waits_for_the_release_of_a_reader_and_of_nothing_else() {
    let server = MemoryServer::new();
    let client = server.client().unwrap();
    let catalog = client.rw_lock(NAME).unwrap();
    let gate = Gate::new();
    server.faults().inject(Operation::Release, Fault::DelayReply(gate.clone()));
    drop(catalog.read().acquire().await.unwrap());
    gate.reached().await;
    let write = catalog.write();
    let tried = ByHand::begun(write.try_acquire());
    gate.open();
    let guard = tried.output().await.unwrap().expect("the reader is gone");
    assert!(catalog.read().try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_reader_learns_of_its_loss_once() {
    let server = MemoryServer::new();
    let client = server.client().unwrap();
    let read = client.rw_lock(NAME).unwrap().read();
    let other = read.acquire().await.unwrap();
    Owner::new()
        .scope(async {
            read.lock().await.unwrap();
            let hold = read.hold().unwrap();
            client.break_holder(NAME, &hold.id()).await.unwrap();
            assert_eq!(hold.lost().await, Some(LossReason::Broken));
            assert_eq!(read.lock().await.unwrap_err().kind(), ErrorKind::Lost);
            read.lock().await.unwrap();
            read.unlock().await.unwrap();
        })
        .await;
    assert!(other.hold().is_valid());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_writes_and_reads_learns_of_both_losses_once() {
    let server = MemoryServer::new();
    let client = server.client().unwrap();
    let catalog = client.rw_lock(NAME).unwrap();
    let (read, write) = (catalog.read(), catalog.write());
    Owner::new()
        .scope(async {
            write.lock().await.unwrap();
            read.lock().await.unwrap();
            let (written, reads) = (write.hold().unwrap(), read.hold().unwrap());
            assert!(server.lose(&name(NAME), Loss::Delete, ToldBy::AtOnce));
            assert!(!written.is_valid() && !reads.is_valid());
            assert_eq!(reads.lost().await, Some(LossReason::Deleted));
            assert!(!read.is_locked() && !write.is_locked());
            for side in [&read, &write] {
                assert!(side.hold().is_none() && side.hold_count() == 0);
                assert_eq!(side.unlock().await.unwrap_err().loss(), Some(LossReason::Deleted));
                assert_eq!(side.unlock().await.unwrap_err().kind(), ErrorKind::NotOwner);
            }
        })
        .await;
    assert!(!read.is_locked() && !write.is_locked());
    client.idle().await;
    assert!(server.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_a_client_ends_the_waits_of_readers_and_of_permits() {
    let server = MemoryServer::new();
    let (ours, theirs) = (server.client().unwrap(), server.client().unwrap());
    let _written = theirs.mutex(NAME).unwrap().acquire().await.unwrap();
    let _taken = theirs.semaphore(NAME, 1).unwrap().acquire(1).await.unwrap();
    let (read, slots) = (ours.rw_lock(NAME).unwrap().read(), ours.semaphore(NAME, 1).unwrap());
    let reader = ByHand::begun(read.acquire());
    let permit = ByHand::begun(slots.acquire(1));
    ours.close(Duration::from_secs(5)).await.unwrap();
    assert_eq!(reader.output().await.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(permit.output().await.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(read.acquire().await.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(slots.acquire(1).await.unwrap_err().kind(), ErrorKind::Closed);
}

#[tokio::test(flavor = "multi_thread")]
async fn listeners_of_a_semaphore_do_not_hear_of_the_lock_of_its_name() {
    let client = MemoryServer::new().client().unwrap();
    let slot = client.semaphore(NAME, 1).unwrap().permits(1).unwrap();
    let of_semaphore = Recorder::listen(&slot);
    let of_lock = Recorder::listen(&client.mutex(NAME).unwrap());
    slot.acquire().await.unwrap().release().await.unwrap();
    assert_eq!([next(&of_semaphore), next(&of_semaphore)], [Told::Acquired, Told::Released]);
    client.rw_lock(NAME).unwrap().read().acquire().await.unwrap().release().await.unwrap();
    assert_eq!([next(&of_lock), next(&of_lock)], [Told::Acquired, Told::Released]);
    assert!(of_semaphore.try_recv().is_err() && of_lock.try_recv().is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn names_that_are_reserved_for_semaphores_are_refused() {
    let client = MemoryServer::new().client().unwrap();
    for name in ["render/locks", "render/leases"] {
        assert_eq!(client.mutex(name).unwrap_err().kind(), ErrorKind::InvalidName);
        assert_eq!(client.semaphore(name, 1).unwrap_err().kind(), ErrorKind::InvalidName);
    }
    client.mutex("locks").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_a_thousand_readers_stays_in_the_client() {
    let server = MemoryServer::new();
    let client = server.client().unwrap();
    let read = client.rw_lock(NAME).unwrap().read();
    let mut guards = Vec::new();
    for _ in 0..1000 {
        guards.push(read.acquire().await.unwrap());
    }
    drop(guards);
    client.idle().await;
    assert!(server.is_empty() && !read.is_locked());
}
