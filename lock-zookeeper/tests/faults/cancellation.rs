//! Dropped futures: whatever request or answer was on its way, nothing stays at the server.

use std::time::Duration;

use conformance_tests::Outcome;
use lock_core::LockClient;
use test_servers::ZooKeeperRequest;

use crate::case::{cases, ensure};
use crate::stage::{LONG, ROOM, Stage, Waiter, soon};

cases!("cancellation":
    while_the_creation_is_on_its_way,
    while_the_answer_to_the_creation_is_on_its_way,
    while_the_listing_is_on_its_way,
    while_the_predecessor_is_looked_at,
);

async fn nothing_is_left(stage: &Stage, client: &LockClient, when: &str) -> Outcome {
    soon("the undoing", client.idle()).await?;
    stage.nothing_is_left_now(when).await?;
    stage.works(client).await
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
            Held::Request => soon("the request", proxy.is_held()).await?,
            Held::Answer => soon("the answer", proxy.is_held()).await?,
        }
        waiter.give_up().await?;
        // Both orders are right; this one is the rarer.
        tokio::time::sleep(Duration::from_millis(20)).await;
        proxy.let_go();
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
