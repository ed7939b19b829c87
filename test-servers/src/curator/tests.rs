#![allow(clippy::unwrap_used, reason = "a test says by a panic what is wrong")]

use super::super::{ZooKeeperServer, left_out};
use super::*;

const SESSION: Duration = Duration::from_secs(10);
const LOCK: &str = "/locks/door";

#[tokio::test]
async fn the_java_program_locks_and_releases() {
    if left_out("zookeeper").or_else(|| left_out("curator")).is_some() {
        return;
    }
    let server = ZooKeeperServer::start().await.unwrap();
    let address = server.plain_address().to_string();
    let (one, other) = tokio::try_join!(
        CuratorPeer::connected_to(&address, SESSION),
        CuratorPeer::connected_to(&address, SESSION)
    )
    .unwrap();

    let hold = one.acquire(CuratorLock::Mutex, LOCK).await.unwrap();
    assert!(
        other.acquire_within(CuratorLock::Mutex, LOCK, Duration::from_millis(100)).await.unwrap().is_none()
    );
    assert_eq!(server.children(LOCK).await.unwrap().unwrap().len(), 1);
    let (released, acquired) = tokio::join!(one.release(hold), other.acquire(CuratorLock::Mutex, LOCK));
    released.unwrap();
    other.release(acquired.unwrap()).await.unwrap();
}

#[tokio::test]
async fn errors_of_java_are_reported() {
    if left_out("zookeeper").or_else(|| left_out("curator")).is_some() {
        return;
    }
    let server = ZooKeeperServer::start().await.unwrap();
    let peer = CuratorPeer::connected_to(&server.plain_address().to_string(), SESSION).await.unwrap();
    let waiting = peer.acquire(CuratorLock::Mutex, "/locks/door/");
    let failure = waiting.await.unwrap_err().to_string();
    assert!(failure.contains("mutex") && failure.contains("IllegalArgument"), "{failure}");

    let hold = peer.acquire(CuratorLock::Mutex, LOCK).await.unwrap();
    peer.kill().unwrap();
    let failure = peer.release(hold).await.unwrap_err().to_string();
    assert!(failure.contains("has ended"), "{failure}");
}
