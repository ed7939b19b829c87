//! Tests of a client that passes a lock between its tasks without the server.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{ByHand, LEASE, Recorder, SOON, Timed, Told, eventually, name, next};
use lock_core::{
    ClientBuilder, DistributedLock, ErrorKind, Fairness, HoldEnd, LockClient, LockError, LockGuard,
    LockOptions, LossReason, Operation,
};
use lock_kit::LockUrl;
use lock_memory::faults::Fault;
use lock_memory::{DRIVER, Loss, MemoryOptions, MemoryServer, Replies, Told as Notified};

const NAME: &str = "orders/42";
const LONG: Duration = Duration::from_secs(3600);

/// A client of `timed` that passes a lock on to at most `sections` holds in a row.
fn passing(timed: &Timed, sections: u32, time: Duration) -> (LockClient, Arc<dyn DistributedLock>) {
    let builder = Timed::builder(&timed.clock).local_handoff(sections, time);
    let client = timed.server.client_with(MemoryOptions::new().lease(LEASE), builder).unwrap();
    let lock = client.mutex(NAME).unwrap();
    (client, lock)
}

/// Makes the next request of this kind fail, so that a test sees that none is sent.
fn refuse_next(server: &MemoryServer, operation: Operation) {
    server.faults().inject(operation, Fault::Fail(LockError::new(ErrorKind::Denied, operation)));
}

fn refuse_next_cycle(server: &MemoryServer) {
    refuse_next(server, Operation::Acquire);
    refuse_next(server, Operation::Release);
}

/// Releases `held`, and returns what `waiting` gets within that call.
async fn passed_on(
    held: LockGuard,
    mut waiting: ByHand<impl Future<Output = Result<LockGuard, LockError>>>,
) -> LockGuard {
    held.release().await.unwrap();
    assert!(waiting.is_woken());
    waiting.poll().expect("woken and not served").unwrap()
}

#[tokio::test]
async fn a_lock_passes_between_tasks_without_the_server_and_each_has_a_hold_of_its_own() {
    let timed = Timed::new();
    let (_client, lock) = passing(&timed, 10, LONG);
    let told = Recorder::listen(&lock);
    let first = lock.acquire().await.unwrap();
    let (second, third) = (ByHand::begun(lock.acquire()), ByHand::begun(lock.acquire()));
    refuse_next_cycle(&timed.server);
    let ended = first.hold().clone();
    timed.time.advance(Duration::from_secs(1));
    let second = passed_on(first, second).await;
    assert_eq!(ended.end(), Some(HoldEnd::Released));
    assert!(second.hold().is_valid() && !ended.is_valid());
    assert_eq!(second.hold().held_for(), Duration::ZERO);
    assert_eq!(second.token().unwrap().get(), ended.token().unwrap().get() + 1);
    let third = passed_on(second, third).await;
    assert!(timed.server.len() == 1 && third.hold().is_valid());
    for expected in [Told::Acquired, Told::Released, Told::Acquired, Told::Released, Told::Acquired] {
        assert_eq!(next(&told), expected);
    }
    // Without a waiter the server is asked.
    assert_eq!(third.release().await.unwrap_err().kind(), ErrorKind::Denied);
}

#[tokio::test]
async fn another_client_waits_for_no_more_sections_than_the_option_allows() {
    const SECTIONS: u32 = 5;
    let timed = Timed::new();
    let (_client, lock) = passing(&timed, SECTIONS, LONG);
    let mut held = lock.acquire().await.unwrap();
    let theirs = timed.other().mutex(NAME).unwrap();
    let mut stranger = ByHand::begun(theirs.acquire());
    let mut tokens = vec![held.token().unwrap()];
    for _ in 1..SECTIONS {
        let waiting = ByHand::begun(lock.acquire());
        held = passed_on(held, waiting).await;
        tokens.push(held.token().unwrap());
        assert!(!stranger.is_woken());
    }
    let waiting = ByHand::begun(lock.acquire());
    held.release().await.unwrap();
    stranger.woken().await;
    let between = stranger.poll().expect("woken and not served").unwrap();
    assert!(!waiting.is_woken());
    tokens.push(between.token().unwrap());
    between.release().await.unwrap();
    tokens.push(waiting.output().await.unwrap().token().unwrap());
    assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
}

/// The next owner would take it for good until the next renewal.
#[tokio::test]
async fn a_hold_without_contact_is_not_passed_on() {
    let timed = Timed::new();
    let (_client, lock) = passing(&timed, 10, LONG);
    let told = Recorder::listen(&lock);
    let held = lock.acquire().await.unwrap();
    let waiting = ByHand::begun(lock.acquire());
    assert_eq!(next(&told), Told::Acquired);
    timed.server.faults().sever();
    timed.time.advance(LEASE / 4);
    assert_eq!(next(&told), Told::Suspect);
    drop(held);
    assert!(!waiting.is_woken(), "passed on");
}

/// That process may still use what it protects.
#[cfg(unix)]
#[tokio::test]
async fn a_lock_that_another_process_may_have_inherited_is_not_passed_on() {
    let timed = Timed::new();
    let (_client, lock) = passing(&timed, 10, LONG);
    let held = lock.acquire().await.unwrap();
    let waiting = ByHand::begun(lock.acquire());
    assert!(held.hold().descriptor().is_none(), "this backend has none");
    let token = held.token().unwrap().get();
    held.release().await.unwrap();
    let next = waiting.output().await.unwrap();
    assert!(next.token().unwrap().get() > token + 1, "passed on");
}

#[tokio::test]
async fn a_section_that_would_begin_after_the_time_comes_from_the_server() {
    let timed = Timed::new();
    let (_client, lock) = passing(&timed, 100, Duration::from_secs(1));
    let theirs = timed.other().mutex(NAME).unwrap();
    for (pause, is_passed_on) in [(Duration::from_millis(999), true), (Duration::from_secs(1), false)] {
        let held = lock.acquire().await.unwrap();
        let mut stranger = ByHand::begun(theirs.acquire());
        let waiting = ByHand::begun(lock.acquire());
        timed.time.advance(pause);
        held.release().await.unwrap();
        if is_passed_on {
            waiting.woken().await;
        } else {
            stranger.woken().await;
        }
        assert_eq!((waiting.is_woken(), stranger.is_woken()), (is_passed_on, !is_passed_on));
        if !is_passed_on {
            stranger.poll().expect("woken and not served").unwrap().release().await.unwrap();
        }
        waiting.output().await.unwrap().release().await.unwrap();
        if is_passed_on {
            stranger.output().await.unwrap().release().await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_loss_ends_the_section_that_stands() {
    for told in [Notified::AtOnce, Notified::WhenAsked] {
        let timed = Timed::new();
        let (_client, lock) = passing(&timed, 10, LONG);
        let first = lock.acquire().await.unwrap();
        let second = ByHand::begun(lock.acquire());
        let ended = first.hold().clone();
        let second = passed_on(first, second).await;
        assert!(timed.server.lose(&name(NAME), Loss::Delete, told));
        if told == Notified::WhenAsked {
            timed.time.advance(LEASE / 4);
            eventually("a renewal finds it", || !second.hold().is_valid()).await;
        }
        assert!(!second.hold().is_valid());
        assert_eq!(second.lost().await, Some(LossReason::Deleted));
        assert_eq!(ended.end(), Some(HoldEnd::Released));
        assert_eq!(second.release().await.unwrap_err().kind(), ErrorKind::Lost);
    }
}

#[tokio::test]
async fn a_section_is_renewed_like_every_hold() {
    let timed = Timed::new();
    let (_client, lock) = passing(&timed, 10, LONG);
    let first = lock.acquire().await.unwrap();
    let second = ByHand::begun(lock.acquire());
    let second = passed_on(first, second).await;
    for _ in 0..10 {
        let before = second.hold().remaining().unwrap();
        timed.time.advance(LEASE / 4);
        eventually("a renewal", || second.hold().remaining() >= Some(before)).await;
    }
    second.release().await.unwrap();
    assert!(timed.server.is_empty());
}

#[tokio::test]
async fn a_lease_that_is_nearly_over_is_not_passed_on() {
    let timed = Timed::new();
    let (_client, lock) = passing(&timed, 10, LONG);
    let held = lock.acquire().await.unwrap();
    timed.server.faults().sever();
    // Renewals fail from now on.
    timed.time.advance(LEASE * 3 / 5);
    let waiting = ByHand::begun(lock.acquire());
    let release = ByHand::begun(held.release());
    assert!(!waiting.is_woken());
    timed.server.faults().heal();
    eventually("the release is repeated", || {
        timed.time.advance(Duration::from_millis(10));
        release.is_woken()
    })
    .await;
    release.output().await.unwrap();
    drop(waiting.output().await.unwrap());
}

#[tokio::test]
async fn a_waiter_with_other_options_and_a_reader_that_came_before_are_served_by_the_server() {
    let timed = Timed::new();
    let (client, lock) = passing(&timed, 10, LONG);
    let other = client.mutex_with(NAME, LockOptions::new().label("another")).unwrap();
    let held = lock.acquire().await.unwrap();
    let waiting = ByHand::begun(other.acquire());
    let before = held.token().unwrap();
    held.release().await.unwrap();
    let held = waiting.output().await.unwrap();
    assert!(held.token().unwrap().get() >= before.get() + 10);
    held.release().await.unwrap();

    let both = client.rw_lock(NAME).unwrap();
    let (read, write) = (both.read(), both.write());
    let held = write.acquire().await.unwrap();
    let reader = ByHand::begun(read.acquire());
    let writer = ByHand::begun(write.acquire());
    held.release().await.unwrap();
    let shared = reader.output().await.unwrap();
    assert!(!writer.is_woken());
    shared.release().await.unwrap();
    drop(writer.output().await.unwrap());
}

#[tokio::test]
async fn a_wait_that_is_dropped_when_the_lock_is_passed_to_it_leaves_nothing() {
    let timed = Timed::new();
    let (client, lock) = passing(&timed, 10, LONG);
    let held = lock.acquire().await.unwrap();
    let waiting = ByHand::begun(lock.acquire());
    held.release().await.unwrap();
    drop(waiting);
    client.idle().await;
    assert!(timed.server.is_empty());
    lock.acquire().await.unwrap().release().await.unwrap();
    client.close(SOON).await.unwrap();
}

#[tokio::test]
async fn the_option_of_a_url_is_read_and_refused_where_it_cannot_be_kept() {
    let connect = |url: &str| (DRIVER.connect)(LockUrl::parse(url).unwrap(), ClientBuilder::new());
    let fairness = async |url: &str| connect(url).await.unwrap().capabilities().fairness;
    assert_eq!(fairness("memory:handoff?local_handoff=100/10ms").await, Fairness::InBatches);
    assert_eq!(fairness("memory:handoff?local_handoff=1/10ms").await, Fairness::Fifo);
    assert_eq!(fairness("memory:handoff").await, Fairness::Fifo);
    for text in ["100", "/10ms", "-1/10ms", "100/10"] {
        let error = connect(&format!("memory:handoff?local_handoff={text}")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidOption, "{text}");
        assert!(error.to_string().contains("local_handoff"), "{error}");
    }
}

/// Both kinds of clients at once: no two are inside, and each token is higher than all before it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sections_of_several_clients_never_overlap_and_their_tokens_rise() {
    const TASKS: usize = 8;
    const SECTIONS: usize = 50;
    let server = MemoryServer::new();
    let passing = || {
        let options = MemoryOptions::new().lease(Duration::from_secs(60)).replies(Replies::Later);
        server.client_with(options, ClientBuilder::new().local_handoff(7, LONG)).unwrap()
    };
    let clients = [passing(), passing(), server.client().unwrap()];
    let inside = Arc::new(Mutex::new(Vec::new()));
    let tasks = clients.iter().flat_map(|client| std::iter::repeat_n(client, TASKS)).map(|client| {
        let (lock, inside) = (client.mutex(NAME).unwrap(), Arc::clone(&inside));
        tokio::spawn(async move {
            for section in 0..SECTIONS {
                let guard = lock.acquire().await.unwrap();
                inside.try_lock().expect("two are inside").push(guard.token().unwrap());
                if section % 2 == 0 {
                    guard.release().await.unwrap();
                }
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    let tokens = std::mem::take(&mut *inside.lock().unwrap());
    assert_eq!(tokens.len(), clients.len() * TASKS * SECTIONS);
    assert!(tokens.is_sorted_by(|one, next| one < next));
    for client in clients {
        client.idle().await;
    }
    assert!(server.is_empty());
}
