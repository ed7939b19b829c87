//! One rule each, through the core.

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, UNIX_EPOCH};

use lock_core::{
    Backend, ClientBuilder, Clock, HolderId, InspectRequest, LockClient, LockError, LockKind, LossReason,
    Mode, Owner, Wait,
};

use super::request;
use super::store::{BEGAN, Failure, MemoryStore};
use crate::{EntriesBackend, Place, Rest, Traces, Waiting, wait};

fn client(store: &MemoryStore) -> LockClient {
    let store = store.clone();
    ClientBuilder::new().abort_margin(Duration::ZERO).build(move |context| store.client(context)).unwrap()
}

#[tokio::test]
async fn the_first_in_line_holds_and_the_next_one_is_told() {
    let store = MemoryStore::default();
    let (ours, theirs) = (client(&store), client(&store));
    let held = ours.mutex("room").unwrap().acquire().await.unwrap();
    assert!(theirs.mutex("room").unwrap().try_acquire().await.unwrap().is_none());
    assert_eq!(store.names().len(), 1, "a try leaves nothing");
    let theirs_waits = theirs.mutex("room").unwrap();
    let waiting = tokio::spawn(async move { theirs_waits.acquire().await });
    while store.names().len() < 2 {
        tokio::task::yield_now().await;
    }
    let status = ours.status("room").await.unwrap();
    assert_eq!((status.holders.len(), status.waiters.len()), (1, 1));
    let first = held.token();
    held.release().await.unwrap();
    let next = waiting.await.unwrap().unwrap();
    assert!(next.token() > first);
    next.release().await.unwrap();
    assert_eq!(store.names().len(), 0);
}

#[tokio::test]
async fn a_holder_learns_why_it_has_lost_the_lock() {
    let store = MemoryStore::default();
    let (ours, operator) = (client(&store), client(&store));
    for expected in [LossReason::Broken, LossReason::Deleted] {
        let held = ours.mutex("room").unwrap().acquire().await.unwrap();
        let name = store.names()[0].clone();
        match expected {
            LossReason::Broken => {
                let broken = operator.break_holder("room", &HolderId::new(&*name)).await.unwrap();
                assert!(broken.taken_away);
            }
            _ => store.delete(&name),
        }
        assert_eq!(held.lost().await, Some(expected));
        drop(held);
        ours.idle().await;
    }
}

#[tokio::test]
async fn since_when_it_is_held_outlasts_what_the_holder_writes() {
    let began = UNIX_EPOCH.checked_add(Duration::from_millis(BEGAN));
    let store = MemoryStore::default();
    let client = client(&store);
    let since = async || client.status("room").await.unwrap().holders[0].since;
    let leader = client.election("room").unwrap().campaign("box-1").await.unwrap();
    assert_eq!(since().await, began);
    leader.proclaim("box-2").await.unwrap();
    assert_eq!(since().await, began);
    leader.resign().await.unwrap();
    let (lock, owner) = (client.rw_lock("room").unwrap(), Owner::new());
    let writer = lock.write().acquire_as(owner, Wait::Forever).await.unwrap().unwrap();
    let reader = lock.read().acquire_as(owner, Wait::Try).await.unwrap().unwrap();
    writer.release().await.unwrap();
    let status = client.status("room").await.unwrap();
    assert_eq!((status.holders[0].mode, status.holders[0].since), (Mode::Shared, began));
    reader.release().await.unwrap();
}

#[tokio::test]
async fn the_hold_of_another_program_is_broken_at_once_and_no_other() {
    let store = MemoryStore::default();
    let operator = client(&store);
    store.add_foreign("foreign");
    let status = operator.status("room").await.unwrap();
    assert_eq!(status.holders[0].id, HolderId::new("foreign"));
    let other = operator.break_holder("room", &HolderId::new("other")).await.unwrap();
    assert!(!other.taken_away && store.names() == ["foreign"]);
    let broken = operator.break_holder("room", &HolderId::new("foreign")).await.unwrap();
    assert!(broken.taken_away && store.names().is_empty());
}

/// What has changed since it was read is not removed unseen.
#[test]
fn a_break_looks_again_at_what_has_changed() {
    let (store, mut backend) = (MemoryStore::default(), None);
    let opened = ClientBuilder::new().build(|context| {
        backend = Some(EntriesBackend::new(store.open_client(context.clone()))?);
        store.client(context)
    });
    let (_client, backend) = (opened.unwrap(), backend.unwrap());
    store.add_foreign("foreign");
    store.be_slow(true);
    let line = InspectRequest::found("room", LockKind::Lock).unwrap();
    let id = HolderId::new("foreign");
    let mut breaking = pin!(backend.break_holder(&line, &id));
    let mut steps = 0;
    let broken = loop {
        if let Poll::Ready(broken) = breaking.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            break broken.unwrap();
        }
        for number in store.open() {
            if steps == 1 {
                store.write("foreign", b"changed");
            }
            steps += 1;
            store.carry_out(number, true);
        }
    };
    assert!(broken.taken_away && store.names().is_empty(), "{:?}", store.names());
    assert_eq!(steps, 4, "a look and a removal, twice");
}

#[test]
fn a_request_that_may_still_arrive_is_remembered_until_the_end() {
    let traces = Traces::default();
    traces.about_to_create();
    assert_eq!(traces.rest(), Rest::Unknown);
    traces.made(1);
    assert_eq!(traces.rest(), Rest::Known, "the first request was answered");
    let traces = Traces::default();
    traces.about_to_create();
    traces.about_to_create();
    traces.made(1);
    assert_eq!(traces.rest(), Rest::Unknown, "the first one may create another entry");
    traces.created_nothing();
    assert_eq!(traces.rest(), Rest::Unknown, "the last one says nothing of the first");
    traces.gone();
    assert_eq!(traces.rest(), Rest::Nothing);
}

/// A store that shows the line, and reports no change of it.
struct Mute {
    looks: usize,
}

impl Waiting for Mute {
    type Failure = Failure;

    async fn look(&mut self) -> Result<Option<Place>, Failure> {
        self.looks += 1;
        Ok(None)
    }

    async fn until_changed(&mut self) -> Result<Place, Failure> {
        Err(Failure::Lost)
    }

    async fn in_contact(&mut self) -> Result<Place, LockError> {
        Ok(Place::Kept)
    }
}

#[test]
fn a_store_that_refuses_each_watch_is_asked_less_and_less_often() {
    let (clock, time) = Clock::manual();
    let (request, mut mute) = (request(1, Mode::Exclusive, Wait::Forever), Mute { looks: 0 });
    {
        let mut waiting = pin!(wait(&mut mute, &request, &clock));
        for _ in 0..1_000 {
            let waits = waiting.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert!(matches!(waits, Poll::Pending));
            time.advance(Duration::from_millis(10));
        }
    }
    assert!(mute.looks < 50, "{} looks in ten seconds", mute.looks);
}
