//! Dropped futures: whatever request or answer was on its way, nothing stays at the server.

use std::time::Duration;

use conformance_tests::Outcome;
use lock_core::LockClient;
use test_servers::{Direction, ZooKeeperRequest};

use crate::case::{cases, ensure};
use crate::stage::{LONG, ROOM, Stage, Waiter, drop_after, poll_times, soon, until};

cases!("cancellation":
    at_any_moment_of_an_acquire,
    after_each_poll_of_an_acquire_of_a_free_lock,
    after_each_poll_of_an_acquire_of_a_held_lock,
    after_each_poll_of_a_release,
    while_the_creation_is_on_its_way,
    while_the_answer_to_the_creation_is_on_its_way,
    while_the_listing_is_on_its_way,
    while_the_predecessor_is_looked_at,
    while_the_news_of_the_grant_is_on_its_way,
    while_there_is_no_contact,
);

async fn nothing_is_left(stage: &Stage, client: &LockClient, when: &str) -> Outcome {
    soon("the undoing", client.idle()).await?;
    stage.nothing_is_left_now(when).await?;
    stage.works(client).await
}

async fn after_each_poll_of_an_acquire_of_a_free_lock() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client(LONG).await?;
    let lock = client.mutex(ROOM)?;
    for polls in 0.. {
        let mut acquiring = Box::pin(lock.acquire());
        let ready = poll_times(acquiring.as_mut(), polls).await?;
        drop(acquiring);
        if let Some(ready) = ready {
            ready?.release().await?;
            break;
        }
        nothing_is_left(&stage, &client, &format!("dropped after {polls} polls")).await?;
    }
    Ok(())
}

async fn after_each_poll_of_an_acquire_of_a_held_lock() -> Outcome {
    let stage = Stage::new().await?;
    let (holder, client) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let lock = client.mutex(ROOM)?;
    for polls in 0..2 {
        let held = holder.mutex(ROOM)?.acquire().await?;
        let mut acquiring = Box::pin(lock.acquire());
        ensure!(poll_times(acquiring.as_mut(), polls).await?.is_none(), "a held lock was given");
        if polls > 0 {
            stage.nodes_are(2).await?;
        }
        drop(acquiring);
        soon("the undoing", client.idle()).await?;
        let nodes = stage.nodes().await?;
        ensure!(nodes.len() == 1, "{nodes:?}");
        held.release().await?;
        nothing_is_left(&stage, &client, &format!("dropped after {polls} polls")).await?;
    }
    Ok(())
}

/// The future is dropped a little later each time, from before the request is sent until after the answer is read.
async fn at_any_moment_of_an_acquire() -> Outcome {
    let stage = Stage::new().await?;
    let (client, other) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let lock = client.mutex(ROOM)?;
    for step in 0..150 {
        let dropped_after = Duration::from_micros(step * 30);
        let held = if step % 2 == 0 { None } else { Some(other.mutex(ROOM)?.acquire().await?) };
        drop_after(lock.acquire(), dropped_after).await?;
        drop(held);
        soon("the release", other.idle()).await?;
        soon("the undoing", client.idle()).await?;
        stage.nothing_is_left_now(format_args!("dropped after {dropped_after:?}")).await?;
    }
    nothing_is_left(&stage, &client, "at the end").await
}

/// The first poll ends the hold, and the caller does not have to wait for the rest.
async fn after_each_poll_of_a_release() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client(LONG).await?;
    let lock = client.mutex(ROOM)?;
    for polls in 0..3 {
        let guard = lock.acquire().await?;
        let mut releasing = Box::pin(guard.release());
        let ready = poll_times(releasing.as_mut(), polls).await?;
        drop(releasing);
        ready.transpose()?;
        nothing_is_left(&stage, &client, &format!("dropped after {polls} polls")).await?;
    }
    Ok(())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Held {
    Request,
    Answer,
}

/// The message is on its way when the future is dropped, once for a free lock and once for a held one.
async fn while_on_its_way(request: ZooKeeperRequest, message: Held) -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let (holder, client) = (stage.client(LONG).await?, stage.client_at(proxy.address(), LONG).await?);
    stage.works(&client).await?;
    let only_when_held = request != ZooKeeperRequest::Create;
    for is_held in [true, false] {
        if only_when_held && !is_held {
            continue;
        }
        let held = if is_held { Some(holder.mutex(ROOM)?.acquire().await?) } else { None };
        match message {
            Held::Request => proxy.hold_request(request),
            Held::Answer => proxy.hold_reply(request),
        }
        let waiter = Waiter::of(&client)?;
        match message {
            Held::Request => soon("the request", proxy.request_is_held()).await?,
            Held::Answer => soon("the answer", proxy.reply_is_held()).await?,
        }
        waiter.give_up().await?;
        tokio::time::sleep(Duration::from_millis(20)).await;
        proxy.let_requests_go();
        soon("the undoing", client.idle()).await?;
        let nodes = stage.nodes().await?;
        ensure!(nodes.len() == usize::from(is_held), "{request:?} {message:?}: {nodes:?}");
        if let Some(held) = held {
            stage.is_held_by(&held, "after the undoing").await?;
            held.release().await?;
        }
        nothing_is_left(&stage, &client, &format!("{request:?} {message:?}")).await?;
    }
    Ok(())
}

async fn while_the_creation_is_on_its_way() -> Outcome {
    while_on_its_way(ZooKeeperRequest::Create, Held::Request).await
}

async fn while_the_answer_to_the_creation_is_on_its_way() -> Outcome {
    while_on_its_way(ZooKeeperRequest::Create, Held::Answer).await
}

async fn while_the_listing_is_on_its_way() -> Outcome {
    while_on_its_way(ZooKeeperRequest::List, Held::Request).await?;
    while_on_its_way(ZooKeeperRequest::List, Held::Answer).await
}

async fn while_the_predecessor_is_looked_at() -> Outcome {
    while_on_its_way(ZooKeeperRequest::Read, Held::Request).await?;
    while_on_its_way(ZooKeeperRequest::Read, Held::Answer).await
}

/// The lock has become free, and the waiter is dropped just as it receives the event.
async fn while_the_news_of_the_grant_is_on_its_way() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let (holder, client) = (stage.client(LONG).await?, stage.client_at(proxy.address(), LONG).await?);
    let next = stage.client(LONG).await?;
    let held = holder.mutex(ROOM)?.acquire().await?;
    let waiter = stage.in_line(&client, 2).await?;
    let last = stage.in_line(&next, 3).await?;
    proxy.blackhole(Direction::ToClient);
    held.release().await?;
    stage.nodes_are(2).await?;
    waiter.give_up().await?;
    proxy.heal();
    let (guard, _) = last.granted().await?;
    guard.release().await?;
    nothing_is_left(&stage, &client, "the grant was on its way").await
}

async fn while_there_is_no_contact() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let (holder, client) = (stage.client(LONG).await?, stage.client_at(proxy.address(), LONG).await?);
    let held = holder.mutex(ROOM)?.acquire().await?;
    let waiter = stage.in_line(&client, 2).await?;
    let connected = proxy.requests(ZooKeeperRequest::Connect);
    proxy.sever();
    waiter.give_up().await?;
    tokio::time::sleep(Duration::from_millis(500)).await;
    ensure!(stage.nodes().await?.len() == 2, "it is gone although no client asked for it");
    proxy.heal();
    until("contact", || async { Ok(proxy.requests(ZooKeeperRequest::Connect) > connected) }).await?;
    stage.nodes_are(1).await?;
    soon("the undoing", client.idle()).await?;
    held.release().await?;
    nothing_is_left(&stage, &client, "there was no contact").await
}
