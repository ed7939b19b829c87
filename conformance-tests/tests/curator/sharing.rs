//! Curator's `InterProcessReadWriteLock` and `InterProcessSemaphoreV2` beside ours, in both directions.

use std::sync::Arc;
use std::time::{Duration, Instant};

use distlock::spi::Wait;
use distlock::status::{Mode, Participant};
use distlock::{DistributedLock, LockClient, LockGuard, Owner};
use test_servers::{CuratorHold, CuratorLock, CuratorPeer};
use tokio::task::JoinHandle;

use super::{LIVES_ON, LOOK_EVERY, NAME, PATIENCE, Stage, soon};

/// What a lock that is held refuses at once, on either side.
const AT_ONCE: Duration = Duration::from_millis(1);

/// Waits until the status shows so many holders and waiters.
async fn shows(client: &LockClient, holders: usize, waiters: usize) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let status = client.status(NAME).await.unwrap();
        if (status.holders.len(), status.waiters.len()) == (holders, waiters) {
            return;
        }
        assert!(
            Instant::now() < deadline,
            "{holders} holders and {waiters} waiters were expected: {status:?}"
        );
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn wanting(side: Arc<dyn DistributedLock>) -> JoinHandle<LockGuard> {
    tokio::spawn(async move { side.acquire().await.unwrap() })
}

fn curator_wants(curator: &Arc<CuratorPeer>, lock: CuratorLock, stage: &Stage) -> JoinHandle<CuratorHold> {
    let (curator, path) = (Arc::clone(curator), stage.path());
    tokio::spawn(async move { curator.acquire(lock, &path).await.unwrap() })
}

async fn curator_tries(curator: &CuratorPeer, lock: CuratorLock, stage: &Stage) -> Option<CuratorHold> {
    curator.acquire_within(lock, &stage.path(), AT_ONCE).await.unwrap()
}

/// Curator needs a moment even for what is free.
async fn curator_gets(curator: &CuratorPeer, lock: CuratorLock, stage: &Stage) -> CuratorHold {
    soon("Curator's turn", curator.acquire(lock, &stage.path())).await.unwrap()
}

#[tokio::test]
async fn readers_of_both_sides_are_beside_each_other_and_writers_alone() {
    let Some(stage) = Stage::new("sharing-both").await else { return };
    let (ours, curator) = (stage.ours().await, stage.curator().await);
    let lock = ours.rw_lock(NAME).unwrap();
    for _ in 0..3 {
        let reader = lock.read().acquire().await.unwrap();
        let theirs = curator_gets(&curator, CuratorLock::Reader, &stage).await;
        let beside = lock.read().try_acquire().await.unwrap().unwrap();
        assert!(curator_tries(&curator, CuratorLock::Writer, &stage).await.is_none());
        assert!(lock.write().try_acquire().await.unwrap().is_none());
        reader.release().await.unwrap();
        beside.release().await.unwrap();
        assert!(lock.write().try_acquire().await.unwrap().is_none(), "beside Curator's reader");
        curator.release(theirs).await.unwrap();

        let writer = lock.write().acquire().await.unwrap();
        for refused in [CuratorLock::Reader, CuratorLock::Writer, CuratorLock::Mutex] {
            assert!(curator_tries(&curator, refused, &stage).await.is_none(), "{refused:?} beside a writer");
        }
        writer.release().await.unwrap();

        let theirs = curator_gets(&curator, CuratorLock::Writer, &stage).await;
        assert!(lock.read().try_acquire().await.unwrap().is_none());
        assert!(lock.write().try_acquire().await.unwrap().is_none());
        curator.release(theirs).await.unwrap();
    }
    stage.nothing_is_left().await;
}

#[tokio::test]
async fn readers_and_writers_of_both_sides_stand_in_one_queue() {
    let Some(stage) = Stage::new("sharing-queue").await else { return };
    let (ours, other, curator) = (stage.ours().await, stage.ours().await, stage.curator().await);
    let (lock, others) = (ours.rw_lock(NAME).unwrap(), other.rw_lock(NAME).unwrap());
    let held = lock.write().acquire().await.unwrap();
    let their_reader = curator_wants(&curator, CuratorLock::Reader, &stage);
    shows(&ours, 1, 1).await;
    let reader = wanting(others.read());
    shows(&ours, 1, 2).await;
    let their_writer = curator_wants(&curator, CuratorLock::Writer, &stage);
    shows(&ours, 1, 3).await;
    let writer = wanting(others.write());
    shows(&ours, 1, 4).await;
    held.release().await.unwrap();

    let (their_reader, reader) =
        (soon("Curator's reader", their_reader).await.unwrap(), soon("our reader", reader).await.unwrap());
    assert!(!their_writer.is_finished() && !writer.is_finished(), "a writer is beside readers");
    reader.release().await.unwrap();
    curator.release(their_reader).await.unwrap();
    let their_writer = soon("Curator's writer", their_writer).await.unwrap();
    assert!(!writer.is_finished(), "both write");
    curator.release(their_writer).await.unwrap();
    soon("our writer", writer).await.unwrap().release().await.unwrap();
    stage.nothing_is_left().await;
}

#[tokio::test]
async fn curators_writer_waits_behind_one_of_ours_that_goes_on_reading() {
    let Some(stage) = Stage::new("sharing-downgrade").await else { return };
    let (ours, curator) = (stage.ours().await, stage.curator().await);
    let lock = ours.rw_lock(NAME).unwrap();
    let owner = Owner::new();
    for _ in 0..3 {
        let writer = lock.write().acquire_as(owner, Wait::Forever).await.unwrap().unwrap();
        let reader = lock.read().acquire_as(owner, Wait::Forever).await.unwrap().unwrap();
        let theirs = curator_wants(&curator, CuratorLock::Writer, &stage);
        shows(&ours, 1, 1).await;
        writer.release().await.unwrap();
        let their_reader = curator_wants(&curator, CuratorLock::Reader, &stage);
        shows(&ours, 1, 2).await;
        assert!(reader.hold().is_valid() && !theirs.is_finished(), "Curator's writer came between");
        reader.release().await.unwrap();
        let theirs = soon("Curator's writer", theirs).await.unwrap();
        assert!(!their_reader.is_finished(), "a reader is beside a writer");
        curator.release(theirs).await.unwrap();
        let their_reader = soon("Curator's reader", their_reader).await.unwrap();
        curator.release(their_reader).await.unwrap();
    }
    stage.nothing_is_left().await;
}

/// They see the names of its nodes, which are a writer's.
#[tokio::test]
async fn curators_readers_and_its_mutex_wait_behind_a_writer_of_ours_that_goes_on_reading() {
    let Some(stage) = Stage::new("sharing-names").await else { return };
    let (ours, other, curator) = (stage.ours().await, stage.ours().await, stage.curator().await);
    let lock = ours.rw_lock(NAME).unwrap();
    let owner = Owner::new();
    for _ in 0..3 {
        let writer = lock.write().acquire_as(owner, Wait::Forever).await.unwrap().unwrap();
        let reader = lock.read().acquire_as(owner, Wait::Forever).await.unwrap().unwrap();
        writer.release().await.unwrap();
        let beside = soon("our reader", other.rw_lock(NAME).unwrap().read().acquire()).await.unwrap();
        for refused in [CuratorLock::Reader, CuratorLock::Writer, CuratorLock::Mutex] {
            assert!(curator_tries(&curator, refused, &stage).await.is_none(), "{refused:?} sees no reader");
        }
        shows(&ours, 2, 0).await;
        let their_reader = curator_wants(&curator, CuratorLock::Reader, &stage);
        shows(&ours, 2, 1).await;
        assert!(!their_reader.is_finished() && reader.hold().is_valid());
        reader.release().await.unwrap();
        let their_reader = soon("Curator's reader", their_reader).await.unwrap();
        shows(&ours, 2, 0).await;
        curator.release(their_reader).await.unwrap();
        beside.release().await.unwrap();
    }
    stage.nothing_is_left().await;
}

#[tokio::test]
async fn a_killed_reader_of_curators_is_followed_by_our_writer_when_its_session_ends() {
    let Some(stage) = Stage::new("sharing-killed").await else { return };
    let (ours, curator) = (stage.ours().await, stage.curator().await);
    let _theirs = curator_gets(&curator, CuratorLock::Reader, &stage).await;
    let reader = ours.rw_lock(NAME).unwrap().read().acquire().await.unwrap();
    let writer = wanting(ours.rw_lock(NAME).unwrap().write());
    shows(&ours, 2, 1).await;
    reader.release().await.unwrap();
    let killed = Instant::now();
    curator.kill().unwrap();
    let guard = soon("our turn", writer).await.unwrap();
    assert!(killed.elapsed() >= LIVES_ON, "after {:?} its session cannot have ended", killed.elapsed());
    guard.release().await.unwrap();
    stage.nothing_is_left().await;
}

/// What is open, as the table on the page of the backend says.
#[tokio::test]
async fn curators_plain_mutex_does_not_know_readers() {
    let Some(stage) = Stage::new("sharing-open").await else { return };
    let (ours, curator) = (stage.ours().await, stage.curator().await);
    let lock = ours.rw_lock(NAME).unwrap();
    let reader = lock.read().acquire().await.unwrap();
    let mutex = curator_gets(&curator, CuratorLock::Mutex, &stage).await;
    reader.release().await.unwrap();
    assert!(lock.read().try_acquire().await.unwrap().is_none(), "a reader beside the mutex that came before");
    assert!(lock.write().try_acquire().await.unwrap().is_none());
    curator.release(mutex).await.unwrap();
    stage.nothing_is_left().await;
}

/// Waits until the status of the semaphore shows so many permits that are taken, and waiters.
async fn permits_show(client: &LockClient, size: u32, taken: u32, waiters: usize) {
    let deadline = Instant::now() + PATIENCE;
    let slots = client.semaphore(NAME, size).unwrap();
    loop {
        let status = slots.status().await.unwrap();
        let held: u32 = status.holders.iter().map(permits_of).sum();
        if (held, status.waiters.len()) == (taken, waiters) {
            return;
        }
        assert!(Instant::now() < deadline, "{taken} permits and {waiters} waiters were expected: {status:?}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn permits_of(holder: &Participant) -> u32 {
    match holder.mode {
        Mode::Permits { take, .. } => take.get(),
        _ => 0,
    }
}

#[tokio::test]
async fn permits_of_both_sides_are_never_more_than_there_are() {
    let Some(stage) = Stage::new("permits-both").await else { return };
    let (ours, curator) = (stage.ours().await, stage.curator().await);
    let (slots, permit) = (ours.semaphore(NAME, 3).unwrap(), CuratorLock::PermitOf(3));
    for _ in 0..3 {
        let two = slots.acquire(2).await.unwrap();
        let theirs = curator_gets(&curator, permit, &stage).await;
        permits_show(&ours, 3, 3, 0).await;
        assert!(slots.try_acquire(1).await.unwrap().is_none(), "a fourth permit");
        assert!(curator_tries(&curator, permit, &stage).await.is_none(), "a fourth permit of Curator's");
        curator.release(theirs).await.unwrap();
        let one = slots.acquire(1).await.unwrap();
        assert!(curator_tries(&curator, permit, &stage).await.is_none(), "a fourth permit of Curator's");
        two.release().await.unwrap();
        let theirs = curator_gets(&curator, permit, &stage).await;
        curator.release(theirs).await.unwrap();
        one.release().await.unwrap();
    }
    permits_show(&ours, 3, 0, 0).await;
}

#[tokio::test]
async fn waiters_for_permits_of_both_sides_are_served_in_turn() {
    let Some(stage) = Stage::new("permits-queue").await else { return };
    let (ours, curator) = (stage.ours().await, stage.curator().await);
    let (slots, permit) = (ours.semaphore(NAME, 3).unwrap(), CuratorLock::PermitOf(3));
    let (two, one) = (slots.acquire(2).await.unwrap(), slots.acquire(1).await.unwrap());
    let large = wanting(slots.permits(2).unwrap());
    permits_show(&ours, 3, 3, 1).await;
    let theirs = curator_wants(&curator, permit, &stage);
    permits_show(&ours, 3, 3, 2).await;
    let last = wanting(slots.permits(2).unwrap());
    permits_show(&ours, 3, 3, 3).await;
    one.release().await.unwrap();
    assert!(!large.is_finished() && !theirs.is_finished(), "granted, or passed the one before it");
    two.release().await.unwrap();
    let large = soon("our two permits", large).await.unwrap();
    let theirs = soon("Curator's permit", theirs).await.unwrap();
    assert!(!last.is_finished(), "a fourth permit");
    large.release().await.unwrap();
    let last = soon("our last permits", last).await.unwrap();
    assert!(last.hold().is_valid());
    curator.release(theirs).await.unwrap();
    last.release().await.unwrap();
    permits_show(&ours, 3, 0, 0).await;
}

#[tokio::test]
async fn a_killed_holder_of_a_permit_of_curators_frees_it_when_its_session_ends() {
    let Some(stage) = Stage::new("permits-killed").await else { return };
    let (ours, curator) = (stage.ours().await, stage.curator().await);
    let slots = ours.semaphore(NAME, 2).unwrap();
    let _theirs = curator_gets(&curator, CuratorLock::PermitOf(2), &stage).await;
    let waiting = wanting(slots.permits(2).unwrap());
    permits_show(&ours, 2, 1, 1).await;
    let killed = Instant::now();
    curator.kill().unwrap();
    let guard = soon("our turn", waiting).await.unwrap();
    assert!(killed.elapsed() >= LIVES_ON, "after {:?} its session cannot have ended", killed.elapsed());
    guard.release().await.unwrap();
    permits_show(&ours, 2, 0, 0).await;
}
