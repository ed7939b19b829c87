//! A lock on a real server, from end to end.
#![allow(clippy::unwrap_used)] // a test

use conformance_tests::servers::ZooKeeperServer;
use lock_core::{ClientBuilder, DistributedLockExt, LockUrl};
use std::time::Duration;

#[tokio::test(flavor = "multi_thread")]
async fn smoke() {
    let server = ZooKeeperServer::start().await.unwrap();
    let url = LockUrl::parse(&server.url()).unwrap();
    println!("{}", server.url());
    let one = lock_zookeeper::connect(&url, ClientBuilder::new()).await.unwrap();
    let other = lock_zookeeper::connect(&url, ClientBuilder::new()).await.unwrap();
    let a = one.lock("orders/42").unwrap();
    let b = other.lock("orders/42").unwrap();
    let guard = a.acquire().await.unwrap();
    println!("{:?} {:?}", guard.token(), guard.hold().remaining());
    assert!(b.try_acquire().await.unwrap().is_none());
    let waiting = tokio::spawn(async move { b.acquire().await.unwrap() });
    tokio::time::sleep(Duration::from_secs(12)).await;
    println!("{:#?}", one.status("orders/42").await.unwrap());
    println!("{:?} {:?}", guard.token(), guard.hold().remaining());
    guard.release().await.unwrap();
    let guard = waiting.await.unwrap();
    println!("{:?} {:?}", guard.token(), guard.hold().remaining());
    let status = one.status("orders/42").await.unwrap();
    println!("{:?}", one.break_holder("orders/42", &status.holders[0].id).await.unwrap());
    println!("{:?}", guard.hold().lost().await);
    let begun = std::time::Instant::now();
    for _ in 0..20 {
        a.acquire().await.unwrap().release().await.unwrap();
    }
    println!("cycle {:?}", begun.elapsed() / 20);
    one.close(Duration::from_secs(2)).await.unwrap();
    other.close(Duration::from_secs(2)).await.unwrap();
}
