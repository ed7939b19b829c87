//! Branches of one owner that wait for the same lock: what one gets, the others have.

use crate::support::{ByHand, SOON, eventually, name};
use lock_core::{ErrorKind, LockClient, LossReason, Owner, Wait};
use lock_memory::{Loss, MemoryServer, Told as Notice};

const NAME: &str = "orders/42";

/// Two branches of one owner, to which the server has granted the lock. None has seen that.
macro_rules! granted_to_two {
    ($server:expr, $client:expr) => {{
        let theirs = $server.client().unwrap().mutex(NAME).unwrap().acquire().await.unwrap();
        let (lock, owner) = ($client.mutex(NAME).unwrap(), Owner::new());
        let first = ByHand::begun({
            let lock = lock.clone();
            async move { lock.acquire_as(owner, Wait::Forever).await }
        });
        let second = ByHand::begun({
            let lock = lock.clone();
            async move { lock.acquire_as(owner, Wait::Forever).await }
        });
        theirs.release().await.unwrap();
        eventually("it is granted", || lock.is_locked()).await;
        (lock, first, second)
    }};
}

fn clients() -> (MemoryServer, LockClient) {
    let server = MemoryServer::new();
    let client = server.client().unwrap();
    (server, client)
}

#[tokio::test(flavor = "multi_thread")]
async fn whichever_looks_first_they_have_one_hold_and_the_last_gives_it_back() {
    let (server, client) = clients();
    let (lock, first, second) = granted_to_two!(server, client);
    // The grant is for the first, and the second looks.
    let second = second.output().await.unwrap().unwrap();
    let first = first.output().await.unwrap().unwrap();
    assert_eq!((first.hold(), lock.hold_count_of(first.owner())), (second.hold(), 2));
    first.release().await.unwrap();
    assert!(second.hold().is_valid());
    second.release().await.unwrap();
    assert!(server.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_leaves_before_it_has_looked_ends_its_entry() {
    let (server, client) = clients();
    let (_, first, second) = granted_to_two!(server, client);
    let second = second.output().await.unwrap().unwrap();
    drop(first);
    second.release().await.unwrap();
    client.idle().await;
    assert!(server.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn each_learns_of_a_loss_of_the_hold_that_the_other_has_seen() {
    let (server, client) = clients();
    let (_, first, second) = granted_to_two!(server, client);
    let second = second.output().await.unwrap().unwrap();
    assert!(server.lose(&name(NAME), Loss::Delete, Notice::AtOnce));
    assert_eq!(second.release().await.unwrap_err().loss(), Some(LossReason::Deleted));
    assert_eq!(first.output().await.unwrap_err().loss(), Some(LossReason::Deleted));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_close_ends_one_and_leaves_the_other_its_grant() {
    let (server, client) = clients();
    let (_, first, second) = granted_to_two!(server, client);
    let closing = ByHand::begun(client.close(SOON));
    let first = first.output().await.unwrap().unwrap();
    assert_eq!(second.output().await.unwrap_err().kind(), ErrorKind::Closed);
    first.release().await.unwrap();
    closing.output().await.unwrap();
    assert!(server.is_empty());
}
