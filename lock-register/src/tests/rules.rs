//! One rule each.

use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use lock_core::{
    AcquireRequest, Backend, ClientBuilder, Clock, Downgraded, ErrorKind, Grant, GroupId, HolderId,
    InspectRequest, LeaseState, LockError, LossReason, Mode, Released, Term, Wait,
};

use super::store::MemoryStore;
use super::{LEASE, Machine, NAMES, POLL, poll, request};
use crate::{RegisterBackend, RegisterLease, RegisterOptions};

type Client = Arc<RegisterBackend<MemoryStore>>;
type Granted = Result<Option<Grant<RegisterLease<MemoryStore>>>, LockError>;

/// How long others keep a lease, and a little less.
const OVER: Duration = Duration::from_millis(10_200);
const NOT_OVER: Duration = Duration::from_millis(10_199);

fn exclusive(id: u128) -> AcquireRequest {
    request(id, Mode::Exclusive, Wait::Forever)
}

/// The answer of a client whose requests are answered at once.
fn now<T>(future: impl Future<Output = T>) -> T {
    match poll(&mut pin!(future)) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("it is not answered at once"),
    }
}

fn tries(client: &Client, id: u128) -> Granted {
    now(client.acquire(&request(id, Mode::Exclusive, Wait::Try)))
}

fn anchor(granted: Granted) -> lock_core::Moment {
    match granted.unwrap().unwrap().term {
        Term::Leased { anchor, .. } => anchor,
        Term::UntilReported => panic!("it has a lease"),
    }
}

/// The lease is over a lease after the answer that showed its last beat, however early that answer was asked for.
#[test]
fn a_lease_counts_from_the_answer_that_showed_its_beat() {
    let (holder, observer, store) = (Machine::new(), Machine::new(), MemoryStore::default());
    let (ours, theirs) = (holder.client(&store), observer.client(&store));
    store.slow_down();
    let try_of_theirs = request(2, Mode::Exclusive, Wait::Try);
    let mut first = Box::pin(theirs.acquire(&try_of_theirs));
    assert!(poll(&mut first).is_pending());
    let asked = store.open()[0];
    observer.time.advance(Duration::from_secs(1));
    store.speed_up();
    tries(&ours, 1).unwrap().unwrap();
    let carried = store.carry_out(asked);
    store.answer(carried);
    assert!(matches!(poll(&mut first), Poll::Ready(Ok(None))));
    observer.time.advance(NOT_OVER);
    assert!(tries(&theirs, 3).unwrap().is_none(), "a lease from when the answer was asked for");
    observer.time.advance(Duration::from_millis(1));
    assert!(tries(&theirs, 4).unwrap().is_some());
}

#[test]
fn a_beat_begins_the_lease_again() {
    let (holder, observer, store) = (Machine::new(), Machine::new(), MemoryStore::default());
    let (ours, theirs) = (holder.client(&store), observer.client(&store));
    let lease = [Arc::new(lease(tries(&ours, 1)))];
    for number in 2..6 {
        assert!(tries(&theirs, number).unwrap().is_none());
        observer.time.advance(NOT_OVER);
        assert_eq!(now(ours.renew(GroupId::new(1), &lease)).unwrap(), [LeaseState::Held]);
    }
    assert!(tries(&theirs, 7).unwrap().is_none());
    observer.time.advance(OVER);
    assert!(tries(&theirs, 8).unwrap().is_some());
    assert_eq!(now(ours.renew(GroupId::new(1), &lease)).unwrap(), [LeaseState::Lost(LossReason::Taken)]);
    assert_eq!(now(ours.release(&lease[0])).unwrap(), Released::WasLost(LossReason::Taken));
}

fn lease(granted: Granted) -> RegisterLease<MemoryStore> {
    let grant = granted.unwrap().unwrap();
    RegisterLease::new(Arc::clone(grant.lease.slot()), grant.lease.id())
}

/// Whether there is an object or not.
#[test]
fn a_write_that_comes_after_its_cancel_changes_nothing() {
    for is_first in [true, false] {
        let (machine, store) = (Machine::new(), MemoryStore::default());
        let client = machine.client(&store);
        if !is_first {
            now(client.release(&lease(tries(&client, 1)))).unwrap();
        }
        store.slow_down();
        let late = exclusive(7);
        let mut attempt = Box::pin(client.acquire(&late));
        assert!(poll(&mut attempt).is_pending());
        let read = store.carry_out(store.open()[0]);
        store.answer(read);
        assert!(poll(&mut attempt).is_pending());
        let write = store.open()[0];
        drop(attempt);
        store.speed_up();
        now(client.cancel(&late)).unwrap();
        store.carry_out(write);
        assert_eq!(store.ids(), (vec![], vec![]), "the first write: {is_first}");
    }
}

/// The exclusive entry is over when the write is repeated.
#[test]
fn a_downgrade_that_comes_after_its_loss_changes_nothing() {
    let (machine, store) = (Machine::new(), MemoryStore::default());
    let client = machine.client(&store);
    let held = lease(tries(&client, 1));
    let shared = request(7, Mode::Shared, Wait::Forever);
    store.slow_down();
    let mut downgrade = Box::pin(client.downgrade(&held, &shared));
    assert!(poll(&mut downgrade).is_pending());
    let read = store.carry_out(store.open()[0]);
    store.answer(read);
    assert!(poll(&mut downgrade).is_pending());
    let write = store.open()[0];
    drop(downgrade);
    store.speed_up();
    machine.time.advance(OVER);
    assert!(matches!(now(client.downgrade(&held, &shared)), Ok(Downgraded::WasLost(_))));
    store.carry_out(write);
    assert_eq!(store.ids(), (vec![], vec![]));
}

/// The store may refuse a write for another one that it is about to carry out: for one that this client does not wait for.
#[test]
fn a_refusal_says_nothing_of_an_earlier_write() {
    let (machine, store) = (Machine::new(), MemoryStore::default());
    let client = machine.client(&store);
    store.slow_down();
    let late = exclusive(7);
    let mut writes = Vec::new();
    for _ in 0..2 {
        let mut attempt = Box::pin(client.acquire(&late));
        assert!(poll(&mut attempt).is_pending());
        let read = store.carry_out(*store.open().last().unwrap());
        store.answer(read);
        assert!(poll(&mut attempt).is_pending());
        writes.push(*store.open().last().unwrap());
        if let [_, second] = *writes {
            store.refuse(second);
            assert!(poll(&mut attempt).is_pending(), "it begins again");
        }
    }
    store.speed_up();
    now(client.cancel(&late)).unwrap();
    store.carry_out(writes[0]);
    assert_eq!(store.ids(), (vec![], vec![]));
}

#[test]
fn a_cancel_writes_only_what_is_needed() {
    let (machine, store) = (Machine::new(), MemoryStore::default());
    let client = machine.client(&store);
    let _held = tries(&client, 1);
    assert!(tries(&client, 2).unwrap().is_none());
    let (_, before) = store.counts();
    now(client.cancel(&request(2, Mode::Exclusive, Wait::Try))).unwrap();
    assert_eq!(store.counts().1, before);
}

/// It would be repeated for as long as the store is away.
#[test]
fn a_cancel_of_what_was_never_written_asks_nothing() {
    let (machine, store) = (Machine::new(), MemoryStore::default());
    let client = machine.client(&store);
    store.slow_down();
    let wanted = exclusive(1);
    let mut attempt = Box::pin(client.acquire(&wanted));
    assert!(poll(&mut attempt).is_pending());
    drop(attempt);
    now(client.cancel(&wanted)).unwrap();
}

/// The grant counts from the waiter's last beat, which others have seen, and not from the release.
#[test]
fn a_waiter_whose_beat_is_old_beats_before_it_relies_on_its_grant() {
    let (holder, other, store) = (Machine::new(), Machine::new(), MemoryStore::default());
    let (ours, theirs) = (holder.client(&store), other.client(&store));
    let held = lease(tries(&ours, 1));
    let waiting = exclusive(2);
    let mut waiter = Box::pin(theirs.acquire(&waiting));
    assert!(poll(&mut waiter).is_pending());
    let entered = theirs.now();
    other.time.advance(POLL);
    assert!(poll(&mut waiter).is_pending());
    now(ours.release(&held)).unwrap();
    // It has a grant, and does not look for as long as its lease lasts, nearly.
    other.time.advance(LEASE * 9 / 10);
    let Poll::Ready(granted) = poll(&mut waiter) else { panic!("it has been granted") };
    assert_eq!(anchor(granted), entered.plus(POLL + LEASE * 9 / 10));
}

#[test]
fn a_waiter_that_looks_in_time_counts_from_its_last_beat() {
    let (holder, other, store) = (Machine::new(), Machine::new(), MemoryStore::default());
    let (ours, theirs) = (holder.client(&store), other.client(&store));
    let held = lease(tries(&ours, 1));
    let waiting = exclusive(2);
    let mut waiter = Box::pin(theirs.acquire(&waiting));
    assert!(poll(&mut waiter).is_pending());
    let entered = theirs.now();
    now(ours.release(&held)).unwrap();
    let (_, writes) = store.counts();
    other.time.advance(POLL);
    let Poll::Ready(granted) = poll(&mut waiter) else { panic!("it has been granted") };
    assert_eq!((anchor(granted), store.counts().1), (entered, writes));
}

/// The waiter is served a lease after its client saw the holder's last beat, although no other request is made.
#[test]
fn a_waiter_takes_the_lock_of_a_dead_holder() {
    let (holder, other, store) = (Machine::new(), Machine::new(), MemoryStore::default());
    let (ours, theirs) = (holder.client(&store), other.client(&store));
    let _dead = tries(&ours, 1);
    let waiting = exclusive(2);
    let mut waiter = Box::pin(theirs.acquire(&waiting));
    let (began, mut granted) = (theirs.now(), None);
    while granted.is_none() {
        if let Poll::Ready(answer) = poll(&mut waiter) {
            granted = Some(answer);
        }
        other.time.advance(Duration::from_millis(10));
    }
    let took = theirs.now().since(began);
    assert!(took >= OVER && took < OVER + POLL * 2, "{took:?}");
    assert_eq!(granted.unwrap().unwrap().unwrap().token.unwrap().get(), 2);
}

#[test]
fn an_operator_takes_the_lock_from_the_holder_that_was_seen() {
    let (holder, other, store) = (Machine::new(), Machine::new(), MemoryStore::default());
    let (ours, theirs) = (holder.client(&store), other.client(&store));
    let held = lease(tries(&ours, 1));
    let name = exclusive(1);
    let asked = InspectRequest::new(name.name().clone(), name.physical().clone());
    let status = now(theirs.inspect(&asked)).unwrap();
    assert_eq!((status.holders.len(), status.remaining), (1, Some(LEASE)));
    assert!(!now(theirs.break_holder(&asked, &HolderId::new("2"))).unwrap().taken_away);
    assert!(now(theirs.break_holder(&asked, &status.holders[0].id)).unwrap().taken_away);
    assert_eq!(now(ours.release(&held)).unwrap(), Released::WasLost(LossReason::Broken));
}

/// What is paid for: reads and writes.
#[test]
fn requests_are_as_few_as_the_page_says() {
    let (machine, other, store) = (Machine::new(), Machine::new(), MemoryStore::default());
    let client = machine.client(&store);
    assert_eq!(client.capabilities().polls_every, Some(POLL));
    let counted = |before: (u64, u64)| {
        let (reads, writes) = store.counts();
        (reads - before.0, writes - before.1)
    };
    let before = store.counts();
    let held = Arc::new(lease(tries(&client, 1)));
    now(client.release(&held)).unwrap();
    assert_eq!(counted(before), (1, 2), "a cycle");

    let held = Arc::new(lease(tries(&client, 2)));
    let before = store.counts();
    now(client.renew(GroupId::new(1), &[Arc::clone(&held)])).unwrap();
    assert_eq!(counted(before), (0, 1), "a renewal without waiters");

    let waiting = exclusive(3);
    let theirs = other.client(&store);
    let mut waiter = Box::pin(theirs.acquire(&waiting));
    let before = store.counts();
    assert!(poll(&mut waiter).is_pending());
    assert_eq!(counted(before), (1, 1), "a place in the queue");
    let before = store.counts();
    other.time.advance(POLL);
    assert!(poll(&mut waiter).is_pending());
    assert_eq!(counted(before), (1, 0), "a look");
    other.time.advance(LEASE / 4);
    let before = store.counts();
    assert!(poll(&mut waiter).is_pending());
    assert_eq!(counted(before), (1, 1), "a waiter's beat");
    let before = store.counts();
    now(client.renew(GroupId::new(1), &[Arc::clone(&held)])).unwrap();
    assert_eq!(counted(before), (1, 2), "a renewal after another client's write");
    let before = store.counts();
    now(client.release(&held)).unwrap();
    assert_eq!(counted(before), (1, 1), "a release that hands over");
}

/// By the lease and the pauses of the defaults, which are random between the half of them and the whole. So each count is nearly that of the
/// page, which is for an hour.
#[test]
fn an_hour_of_waiting_costs_what_the_page_says() {
    const STEP: Duration = Duration::from_millis(5);
    const PART: Duration = Duration::from_secs(300);
    let (machine, store) = (Machine::new(), MemoryStore::default());
    let client = || {
        let options = RegisterOptions::default();
        let capabilities = options.capabilities("memory store", NAMES, Duration::ZERO);
        RegisterBackend::new(store.clone(), machine.context.clone(), options, capabilities).unwrap()
    };
    let clients: Vec<_> = (0..12).map(|_| Arc::new(client())).collect();
    let held = [Arc::new(lease(tries(&clients[0], 1)))];
    let requests: Vec<_> = (2..13).map(exclusive).collect();
    let waiting = clients[1..].iter().zip(&requests);
    let mut waiters: Vec<_> = waiting.map(|(client, request)| Box::pin(client.acquire(request))).collect();
    let mut counts = [(0, 0); 12];
    let mut counted = |who: usize, before: (u64, u64)| {
        let (reads, writes) = store.counts();
        counts[who] = (counts[who].0 + reads - before.0, counts[who].1 + writes - before.1);
    };
    let (interval, mut passed) = (RegisterOptions::default().lease / 4, Duration::ZERO);
    while passed < PART {
        for (number, waiter) in waiters.iter_mut().enumerate() {
            let before = store.counts();
            assert!(poll(waiter).is_pending());
            counted(number + 1, before);
        }
        machine.time.advance(STEP);
        passed += STEP;
        if passed.as_nanos() % interval.as_nanos() == 0 {
            let before = store.counts();
            now(clients[0].renew(GroupId::new(1), &held)).unwrap();
            counted(0, before);
        }
    }
    let is_near = |count: u64, hourly: u64| (hourly * 90 / 1_200..=hourly * 110 / 1_200).contains(&count);
    for (who, reads) in [(0, 480), (1, 19_000 + 480), (3, 19_000 + 480), (11, 2_200 + 480)] {
        let (counted, written) = counts[who];
        assert!(is_near(counted, reads) && is_near(written, 480), "{who}: {:?}", counts[who]);
    }
}

/// Otherwise the store would refuse them.
#[test]
fn a_client_writes_as_often_as_the_store_allows() {
    let (machine, store) = (Machine::new(), MemoryStore::default());
    let pace = Duration::from_secs(1);
    store.set_pace(pace);
    let client = machine.client(&store);
    let held = Arc::new(lease(tries(&client, 1)));
    let mut release = Box::pin(client.release(&held));
    assert!(poll(&mut release).is_pending());
    machine.time.advance(Duration::from_nanos(999_999_999));
    assert!(poll(&mut release).is_pending());
    assert_eq!(store.counts().1, 1, "writes");
    machine.time.advance(Duration::from_nanos(1));
    assert!(poll(&mut release).is_ready());
    assert_eq!(store.counts().1, 2, "writes");
}

/// No wait is shorter than a lease because the first of those that wait is dead, too.
#[test]
fn dead_waiters_are_passed() {
    let (holder, other, store) = (Machine::new(), Machine::new(), MemoryStore::default());
    let (ours, theirs) = (holder.client(&store), other.client(&store));
    let _dead = tries(&ours, 1);
    let requests = [exclusive(2), exclusive(3)];
    let mut dead = Box::pin(ours.acquire(&requests[0]));
    assert!(poll(&mut dead).is_pending());
    let mut waiter = Box::pin(theirs.acquire(&requests[1]));
    assert!(poll(&mut waiter).is_pending());
    let mut passed = Duration::ZERO;
    while poll(&mut waiter).is_pending() {
        other.time.advance(Duration::from_millis(10));
        passed += Duration::from_millis(10);
    }
    assert!(passed < OVER + POLL * 2, "{passed:?}");
    assert_eq!(store.ids(), (vec![3], vec![]));
}

/// However many wait there: a hold whose renewals wait for theirs would end.
#[test]
fn what_is_held_passes_the_queue() {
    let (machine, store) = (Machine::new(), MemoryStore::default());
    let client = machine.client(&store);
    let held = [Arc::new(lease(tries(&client, 1)))];
    store.slow_down();
    let requests: Vec<_> = (2..12).map(exclusive).collect();
    let mut waiters: Vec<_> = requests.iter().map(|request| Box::pin(client.acquire(request))).collect();
    let mut all_wait = || waiters.iter_mut().all(|waiter| poll(waiter).is_pending());
    assert!(all_wait());
    let mut renewal = Box::pin(client.renew(GroupId::new(1), &held));
    let mut carried = 0;
    while poll(&mut renewal).is_pending() {
        let [asked] = *store.open() else { panic!("one request at a time: {:?}", store.open()) };
        let answer = store.carry_out(asked);
        store.answer(answer);
        carried += 1;
        assert!(all_wait());
    }
    assert_eq!(carried, 4, "one waiter reads and writes, and then the holder");
}

#[test]
fn a_store_that_contradicts_itself_is_refused() {
    let (machine, store) = (Machine::new(), MemoryStore::default());
    let client = machine.client(&store);
    store.slow_down();
    let wanted = exclusive(1);
    let mut attempt = Box::pin(client.acquire(&wanted));
    let error = (0..1_000).find_map(|_| {
        if let Poll::Ready(answer) = poll(&mut attempt) {
            return Some(answer.unwrap_err());
        }
        for asked in store.open() {
            store.refuse(asked);
            if store.open() == [asked] {
                let read = store.carry_out(asked);
                store.answer(read);
            }
        }
        machine.time.advance(POLL);
        None
    });
    let error = error.expect("it begins again for ever");
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Server, false), "{error}");
}

/// The store ends nothing by itself: clients that only try would find the lock taken for ever.
#[tokio::test]
async fn a_release_is_repeated_for_as_long_as_an_outage_lasts() {
    let (store, (clock, time)) = (MemoryStore::default(), Clock::manual());
    let building = ClientBuilder::new().clock(clock).build(|context| super::backend(&store, &context));
    let client = building.unwrap();
    let lock = client.mutex("room").unwrap();
    lock.lock().await.unwrap();
    store.slow_down();
    let outage = async {
        for _ in 0..40 {
            time.advance(LEASE / 10);
            tokio::task::yield_now().await;
        }
    };
    let (released, ()) = tokio::join!(lock.unlock(), outage);
    assert!(released.is_err(), "the store is away");
    store.speed_up();
    let is_free = async {
        while store.ids() != (vec![], vec![]) {
            time.advance(LEASE / 10);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), is_free).await.expect("the lock stays taken");
}
