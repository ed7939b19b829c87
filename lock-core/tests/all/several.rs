//! Several locks at once: all or nothing, in one order, lost together.

use std::sync::Arc;
use std::time::Duration;

use crate::support::{ByHand, DropAfter, LEASE, Recorder, SOON, Timed, Told, eventually, name, next};
use lock_core::{
    ClientBuilder, DistributedLock, ErrorKind, Hold, HoldEnd, LockClient, LossReason, Mode, MultiLock,
    Operation, Owner, Wait,
};
use lock_memory::faults::{Fault, Gate};
use lock_memory::{Loss, MemoryOptions, MemoryServer, Replies, Told as ToldBy};

const BOTH: [&str; 2] = ["account/7", "account/9"];

fn client_of(server: &MemoryServer) -> (LockClient, Arc<dyn DistributedLock>) {
    let client = server.client().unwrap();
    let both = client.mutex_all(BOTH).unwrap();
    (client, both)
}

#[tokio::test]
async fn all_are_held_or_none() {
    let server = MemoryServer::new();
    let (ours, both) = client_of(&server);
    let theirs = server.client().unwrap();
    let held = theirs.mutex("account/9").unwrap().acquire().await.unwrap();
    assert!(both.try_acquire().await.unwrap().is_none());
    ours.idle().await;
    assert!(theirs.mutex("account/7").unwrap().try_acquire().await.unwrap().is_some(), "given back");
    held.release().await.unwrap();
    theirs.idle().await;

    let guard = both.try_acquire().await.unwrap().unwrap();
    for name in BOTH {
        assert!(theirs.mutex(name).unwrap().try_acquire().await.unwrap().is_none(), "{name}");
    }
    guard.release().await.unwrap();
    assert!(server.is_empty());
}

#[tokio::test]
async fn one_deadline_covers_all_and_nothing_is_kept_after_it() {
    let timed = Timed::new();
    let theirs = timed.other();
    let first = theirs.mutex("account/7").unwrap().acquire().await.unwrap();
    let _second = theirs.mutex("account/9").unwrap().acquire().await.unwrap();
    let both = timed.client.mutex_all(BOTH).unwrap();
    let mut waiting = ByHand::begun(both.try_acquire_for(Duration::from_secs(5)));
    timed.time.advance(Duration::from_secs(3));
    first.release().await.unwrap();
    eventually("it waits for the second", || {
        let _ = waiting.poll();
        timed.server.waiting_for(&name("account/9")) == 1
    })
    .await;
    timed.time.advance(Duration::from_secs(2));
    assert!(waiting.output().await.unwrap().is_none());
    timed.client.idle().await;
    assert!(theirs.mutex("account/7").unwrap().try_acquire().await.unwrap().is_some(), "given back");
}

#[tokio::test(flavor = "multi_thread")]
async fn opposite_orders_do_not_wait_for_each_other() {
    let server = MemoryServer::new();
    let transfers = [["a", "b"], ["b", "a"], ["c", "a"], ["b", "c"]].map(|names| {
        let options = MemoryOptions::new().replies(Replies::Later);
        let client = server.client_with(options, ClientBuilder::new()).unwrap();
        tokio::spawn(async move {
            for _ in 0..200 {
                let both = client.mutex_all(names).unwrap();
                let guard =
                    tokio::time::timeout(SOON, both.acquire()).await.expect("they wait for each other");
                guard.unwrap().release().await.unwrap();
            }
        })
    });
    for transfer in transfers {
        transfer.await.unwrap();
    }
    assert!(server.is_empty());
}

#[tokio::test]
async fn the_order_of_several_clients_is_by_name_and_then_by_server() {
    let (red, blue) = (MemoryServer::new(), MemoryServer::new());
    let client = |server: &MemoryServer, address: &str| {
        server.client_with(MemoryOptions::new(), ClientBuilder::new().server(address)).unwrap()
    };
    let (red, blue) = (client(&red, "red"), client(&blue, "blue"));
    let locks = || [red.mutex("x").unwrap(), blue.mutex("y").unwrap(), blue.mutex("x").unwrap()];
    let mut backwards = locks();
    backwards.reverse();
    for locks in [locks(), backwards] {
        let guard = MultiLock::of(locks).unwrap().acquire().await.unwrap();
        let servers: Vec<_> = guard.hold().parts().iter().map(|part| part.name().to_string()).collect();
        assert_eq!(servers, ["x", "x", "y"]);
        let blue_first = blue.mutex("x").unwrap().hold_of(guard.owner()).unwrap();
        assert_eq!(guard.hold().parts()[0].token(), blue_first.token());
        guard.release().await.unwrap();
    }
}

#[test]
fn an_empty_list_is_an_error_and_so_are_two_clients_of_one_lock_and_several_in_one() {
    let server = MemoryServer::new();
    let (ours, theirs) = (server.client().unwrap(), server.client().unwrap());
    let none: [&str; 0] = [];
    let of_two = MultiLock::of([ours.mutex("a").unwrap(), theirs.mutex("a").unwrap()]);
    // It would have a place by its own name, and its parts others: two callers could wait for each other.
    let nested = MultiLock::of([ours.mutex_all(["a", "z"]).unwrap(), ours.mutex("m").unwrap()]);
    for refused in [ours.mutex_all(none), MultiLock::of([]), of_two, nested] {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error}");
    }
    assert_eq!(ours.mutex_all(["a", ""]).unwrap_err().kind(), ErrorKind::InvalidName);
}

#[tokio::test]
async fn two_sides_of_one_lock_are_refused_and_one_of_them_counts_once() {
    let client = MemoryServer::new().client().unwrap();
    let (catalog, render) = (client.rw_lock("a").unwrap(), client.semaphore("a", 3).unwrap());
    let one_permit = || render.permits(1).unwrap();
    let clashes = [
        [catalog.read(), catalog.write()],
        [catalog.read(), client.mutex("a").unwrap()],
        [one_permit(), one_permit()],
        [one_permit(), render.permits(2).unwrap()],
    ];
    for clash in clashes {
        assert_eq!(MultiLock::of(clash).unwrap_err().kind(), ErrorKind::InvalidOption);
    }
    let reading = MultiLock::of([catalog.read(), catalog.read(), one_permit()]).unwrap();
    let guard = reading.acquire().await.unwrap();
    assert_eq!(guard.hold().parts().iter().map(Hold::mode).filter(|mode| *mode == Mode::Shared).count(), 1);
    assert!(catalog.read().try_acquire().await.unwrap().is_some(), "it reads");
    assert!(catalog.write().try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
}

#[tokio::test]
async fn an_acquisition_that_is_refused_names_the_lock_and_its_holder() {
    let server = MemoryServer::new();
    let (_, both) = client_of(&server);
    let theirs = server.client().unwrap();
    let _held = theirs.mutex("account/9").unwrap().acquire().await.unwrap();
    let error = both.acquire_for(Duration::ZERO).await.unwrap_err();
    assert_eq!((error.kind(), error.name()), (ErrorKind::Busy, Some(both.name())));
    assert!(error.to_string().contains("\"account/9\""), "{error}");
    assert_eq!(error.holder().and_then(|holder| holder.pid), Some(std::process::id()));
}

#[tokio::test]
async fn a_listener_stays_although_no_one_uses_the_locks() {
    let client = MemoryServer::new().client().unwrap();
    let told = Recorder::listen(&client.mutex_all(BOTH).unwrap());
    let (removed, nothing) = Recorder::new();
    drop(client.mutex_all(BOTH).unwrap().add_listener(removed));
    for number in 0..100 {
        // The client forgets locks that are not in use.
        drop(client.mutex_all([format!("other/{number}"), "another".to_owned()]).unwrap());
    }
    client.mutex_all(BOTH).unwrap().acquire().await.unwrap().release().await.unwrap();
    assert_eq!((next(&told), next(&told)), (Told::Acquired, Told::Released));
    assert!(nothing.try_recv().is_err());
}

#[tokio::test]
async fn equal_names_count_once() {
    let (client, both) = client_of(&MemoryServer::new());
    let again = client.mutex_all(["account/9", "account/7", "account/9"]).unwrap();
    let same = MultiLock::of([client.mutex("a").unwrap(), client.mutex("a").unwrap()]).unwrap();
    assert_eq!((both.name(), same.name().as_str()), (again.name(), "a"));
    let guard = again.acquire().await.unwrap();
    assert_eq!(guard.hold().parts().len(), 2);
    assert_eq!(client.mutex("account/9").unwrap().hold_count_of(guard.owner()), 1);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn locks_of_the_same_names_are_the_same_lock() {
    let server = MemoryServer::new();
    let (client, both) = client_of(&server);
    both.lock().await.unwrap();
    drop(both);
    assert_eq!(server.len(), 2, "a lock that is dropped stays held");
    client.mutex_all(BOTH).unwrap().unlock().await.unwrap();
    assert!(server.is_empty());
}

#[test]
fn a_name_that_would_be_too_long_names_the_first_and_counts_the_rest() {
    let client = MemoryServer::new().client().unwrap();
    let names: Vec<_> = (0..100).map(|number| format!("account/{number:03}")).collect();
    assert_eq!(client.mutex_all(&names).unwrap().name().as_str(), "account/000 + 99 more");
    let longest = "x".repeat(512);
    assert_eq!(client.mutex_all([longest.as_str(), "y"]).unwrap().name().as_str(), longest);
}

#[tokio::test]
async fn the_owner_enters_again_and_may_enter_one_alone() {
    let server = MemoryServer::new();
    let (client, both) = client_of(&server);
    both.lock().await.unwrap();
    both.lock().await.unwrap();
    assert_eq!(both.hold_count(), 2);
    let one = client.mutex("account/7").unwrap();
    assert!(one.try_lock().await.unwrap());
    both.unlock().await.unwrap();
    both.unlock().await.unwrap();
    assert_eq!(both.unlock().await.unwrap_err().kind(), ErrorKind::NotOwner);
    assert_eq!((both.is_held(), one.is_held(), server.len()), (false, true, 1));
    one.unlock().await.unwrap();

    let guard = both.acquire().await.unwrap();
    let second = guard.reenter().unwrap();
    guard.release().await.unwrap();
    assert_eq!(server.len(), 2);
    drop(second);
    client.idle().await;
    assert!(server.is_empty());
}

#[tokio::test]
async fn a_scope_releases_what_was_locked_in_it() {
    let server = MemoryServer::new();
    let (client, both) = client_of(&server);
    Owner::new()
        .scope(async {
            both.lock().await.unwrap();
            both.lock().await.unwrap();
            both.unlock().await.unwrap();
            assert!(both.is_held());
        })
        .await;
    client.idle().await;
    assert!(server.is_empty() && !both.is_locked());
}

#[tokio::test]
async fn a_scope_does_not_release_again_what_was_unlocked_in_it() {
    let (client, both) = client_of(&MemoryServer::new());
    let owner = Owner::new();
    let in_scope = async {
        both.lock().await.unwrap();
        let guard = both.acquire_as(owner, Wait::Forever).await.unwrap();
        both.unlock().await.unwrap();
        guard.unwrap()
    };
    let guard = owner.scope(in_scope).await;
    client.idle().await;
    assert!(guard.hold().is_valid());
}

#[tokio::test]
async fn each_lock_has_its_own_token() {
    let (client, both) = client_of(&MemoryServer::new());
    let guard = both.acquire().await.unwrap();
    assert_eq!(guard.token(), None);
    let tokens = BOTH.map(|name| guard.hold().token_of(name).unwrap());
    assert_ne!(tokens[0], tokens[1]);
    guard.release().await.unwrap();
    let alone = client.mutex("account/7").unwrap().acquire().await.unwrap();
    assert!(alone.token() > Some(tokens[0]));
    assert_eq!(alone.hold().token_of("account/7"), alone.token());
    assert_eq!(alone.hold().token_of("account/9"), None);
}

#[tokio::test]
async fn the_loss_of_one_is_the_loss_of_all_and_the_others_wait_for_the_owner() {
    let server = MemoryServer::new();
    let (client, both) = client_of(&server);
    let told = Recorder::listen(&both);
    let guard = both.acquire().await.unwrap();
    assert_eq!(next(&told), Told::Acquired);
    assert!(server.lose(&name("account/9"), Loss::Expire, ToldBy::AtOnce));
    assert_eq!(guard.lost().await, Some(LossReason::Expired));
    assert_eq!(next(&told), Told::Abort(LossReason::Expired));
    assert!(!guard.hold().is_valid() && !both.is_locked());
    assert_eq!(server.len(), 1, "nothing else enters the other while the holder stops");
    assert_eq!(guard.reenter().unwrap_err().kind(), ErrorKind::Lost);

    let error = guard.release().await.unwrap_err();
    assert_eq!((error.kind(), error.loss()), (ErrorKind::Lost, Some(LossReason::Expired)));
    assert!(error.to_string().contains("\"account/9\" was lost"), "{error}");
    client.idle().await;
    assert!(server.is_empty());
    both.acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn an_owner_learns_of_a_loss_once() {
    let server = MemoryServer::new();
    let (client, both) = client_of(&server);
    both.lock().await.unwrap();
    server.lose(&name("account/7"), Loss::Delete, ToldBy::AtOnce);
    assert!(!both.is_held());
    assert_eq!(both.lock().await.unwrap_err().kind(), ErrorKind::Lost);
    client.idle().await;
    assert!(server.is_empty());
    both.lock().await.unwrap();
    both.unlock().await.unwrap();
}

/// The deadline counts even if no thread has noticed yet that it has passed.
#[tokio::test]
async fn it_is_valid_for_no_longer_than_each_of_its_locks() {
    let timed = Timed::new();
    let other = timed.other();
    let mixed = MultiLock::of([timed.client.mutex("a").unwrap(), other.mutex("b").unwrap()]).unwrap();
    let guard = mixed.acquire().await.unwrap();
    let remaining = guard.hold().remaining().expect("one of them has a lease");
    assert!(remaining <= LEASE && remaining > LEASE / 2, "{remaining:?}");
    timed.server.faults().sever();
    timed.time.advance(LEASE);
    assert!(!guard.hold().is_valid());
    assert_eq!(guard.lost().await, Some(LossReason::Expired));
    timed.server.faults().heal();
    drop(guard);
    // What failed while the server was away is repeated after a pause.
    let client = timed.client.clone();
    let idle = tokio::spawn(async move { client.idle().await });
    eventually("all is given back", || {
        timed.time.advance(LEASE / 4);
        idle.is_finished()
    })
    .await;
    other.idle().await;
}

#[tokio::test]
async fn a_loss_while_it_waits_for_the_rest_begins_the_wait_anew() {
    let server = MemoryServer::new();
    let (client, both) = client_of(&server);
    let theirs = server.client().unwrap();
    let held = theirs.mutex("account/9").unwrap().acquire().await.unwrap();
    let waiting = tokio::spawn(async move { both.acquire().await });
    let (first, second) = (name("account/7"), name("account/9"));
    eventually("it waits for the second", || server.waiting_for(&second) == 1).await;
    assert!(server.lose(&first, Loss::Delete, ToldBy::AtOnce));
    eventually("it waits again", || {
        server.len() == 2 && server.waiting_for(&second) == 1 && client.mutex(BOTH[0]).unwrap().is_locked()
    })
    .await;
    held.release().await.unwrap();
    let guard = tokio::time::timeout(SOON, waiting).await.unwrap().unwrap().unwrap();
    assert!(guard.hold().is_valid());
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_part_that_is_unlocked_too_often_is_no_success() {
    let (client, both) = client_of(&MemoryServer::new());
    both.lock().await.unwrap();
    client.mutex("account/7").unwrap().unlock().await.unwrap();
    assert!(!both.is_held(), "the lock is free for others");
    assert_eq!(both.unlock().await.unwrap_err().kind(), ErrorKind::NotOwner);
    client.idle().await;
    assert!(!client.mutex("account/9").unwrap().is_locked());
}

#[tokio::test]
async fn a_loss_that_only_the_release_finds_is_a_loss() {
    let server = MemoryServer::new();
    let (_client, both) = client_of(&server);
    let told = Recorder::listen(&both);
    let guard = both.acquire().await.unwrap();
    let hold = guard.hold().clone();
    server.lose(&name("account/7"), Loss::Delete, ToldBy::WhenAsked);
    let error = guard.release().await.unwrap_err();
    assert_eq!(error.loss(), Some(LossReason::Deleted), "{error}");
    assert_eq!(hold.end(), Some(HoldEnd::Lost(LossReason::Deleted)));
    assert_eq!((next(&told), next(&told)), (Told::Acquired, Told::Released));
}

#[tokio::test]
async fn the_guards_work_without_a_runtime() {
    let server = MemoryServer::new();
    let (client, both) = client_of(&server);
    let guard =
        std::thread::spawn(move || crate::support::futures_block_on(both.acquire())).join().unwrap().unwrap();
    let hold = guard.hold().clone();
    server.lose(&name("account/7"), Loss::Delete, ToldBy::AtOnce);
    assert_eq!(hold.end(), Some(HoldEnd::Lost(LossReason::Deleted)), "lost with its part, without a task");
    std::thread::spawn(move || drop(guard)).join().unwrap();
    client.idle().await;
    assert!(server.is_empty());
}

const MOST_POLLS: usize = 16;

#[derive(Debug, Clone, Copy)]
enum Server {
    Prompt,
    Remote,
    SlowRequest(Operation),
    SlowReply(Operation),
    HeldByAnother,
}

async fn at_every_poll(
    operation: impl AsyncFn(&Arc<dyn DistributedLock>, usize) -> bool,
    servers: &[Server],
) {
    for behaviour in servers {
        for polls in 0..MOST_POLLS {
            let case = format!("{behaviour:?}, dropped after {polls} polls");
            let server = MemoryServer::new();
            let replies = if matches!(behaviour, Server::Prompt) { Replies::AtOnce } else { Replies::Later };
            let options = MemoryOptions::new().replies(replies);
            let client = server.client_with(options, ClientBuilder::new()).unwrap();
            let both = client.mutex_all(BOTH).unwrap();
            let gate = Gate::new();
            let mut stranger = None;
            match behaviour {
                Server::SlowRequest(operation) => {
                    server.faults().inject(*operation, Fault::Delay(gate.clone()));
                }
                Server::SlowReply(operation) => {
                    server.faults().inject(*operation, Fault::DelayReply(gate.clone()));
                }
                Server::HeldByAnother => {
                    let theirs = server.client().unwrap().mutex(BOTH[1]).unwrap();
                    stranger = Some(theirs.acquire().await.unwrap());
                }
                Server::Prompt | Server::Remote => {}
            }
            let limited = tokio::time::timeout(Duration::from_millis(20), operation(&both, polls));
            let is_over = limited.await.unwrap_or(true);
            gate.open();
            if let Some(stranger) = stranger {
                stranger.release().await.unwrap();
            }
            tokio::time::timeout(SOON, client.idle()).await.unwrap_or_else(|_| panic!("{case}: never idle"));
            assert!(!both.is_locked() && server.is_empty(), "{case}: something is left");
            let after = tokio::time::timeout(SOON, both.acquire()).await;
            after
                .unwrap_or_else(|_| panic!("{case}: the next waits for ever"))
                .unwrap()
                .release()
                .await
                .unwrap();
            if is_over {
                break;
            }
            assert!(polls + 1 < MOST_POLLS, "{case}: it never completes");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_at_any_poll_an_acquisition_leaves_nothing() {
    let servers = [
        Server::Prompt,
        Server::Remote,
        Server::SlowRequest(Operation::Acquire),
        Server::SlowReply(Operation::Acquire),
        Server::HeldByAnother,
    ];
    at_every_poll(async |both, polls| DropAfter::new(polls, both.acquire()).await.is_some(), &servers).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_at_any_poll_a_release_leaves_nothing() {
    let servers = [
        Server::Prompt,
        Server::Remote,
        Server::SlowRequest(Operation::Release),
        Server::SlowReply(Operation::Release),
    ];
    let release = async |both: &Arc<dyn DistributedLock>, polls| {
        let guard = both.acquire().await.unwrap();
        DropAfter::new(polls, guard.release()).await.is_some()
    };
    at_every_poll(release, &servers).await;
}
