//! Tests of what is asked beside, or behind, what this client has at the server.

use std::time::Duration;

use super::{Asked, NAME, World};
use crate::support::ByHand;
use lock_core::Released;

#[tokio::test]
async fn nothing_is_asked_beside_an_own_lease() {
    let world = World::new();
    let lock = world.client.mutex(NAME).unwrap();
    let holder = ByHand::begun(lock.acquire());
    world.attempt().await.1.send(Ok(Some(world.grant()))).unwrap();
    let holder = holder.output().await.unwrap();
    let next = ByHand::begun(lock.acquire());
    assert!(world.asked().await.is_empty(), "it queues behind a lease of its own client");
    let releasing = ByHand::begun(holder.release());
    let Asked::Release(done) = world.only().await else { panic!("it is not released") };
    done.send(Ok(Released::Clean)).unwrap();
    releasing.output().await.unwrap();
    world.attempt().await.1.send(Ok(Some(world.grant()))).unwrap();
    drop(next.output().await.unwrap());
}

#[tokio::test]
async fn a_try_is_not_refused_by_an_answer_to_an_earlier_call() {
    let world = World::new();
    let lock = world.client.mutex(NAME).unwrap();
    let first = ByHand::begun(lock.try_acquire());
    let (_, answer) = world.attempt().await;
    // The other holder leaves after the server has looked, and before the second call.
    world.time.advance(Duration::from_millis(1));
    let second = ByHand::begun(lock.try_acquire());
    drop(first);
    answer.send(Ok(None)).unwrap();
    world.attempt().await.1.send(Ok(Some(world.grant()))).unwrap();
    assert!(second.output().await.unwrap().is_some(), "a free lock was refused");
}
