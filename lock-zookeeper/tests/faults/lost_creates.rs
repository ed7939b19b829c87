//! The connection is lost before, during and after the creation of a node, whether or not the server has carried it out. The client
//! holds the lock exactly once, no second node stays, and other clients get the lock.

use conformance_tests::Outcome;
use lock_core::{ErrorKind, LockClient};
use test_servers::{Losing, NodeKind, TcpProxy, ZooKeeperRequest};

use crate::case::{cases, ensure};
use crate::stage::{IMPATIENT, LONG, LOSSES, Loss, Lost, ROOM, Stage, Waiter, connect_patiently, soon};

cases!("lost_creates":
    of_a_free_lock,
    of_a_free_lock_with_its_directory,
    of_a_free_lock_in_a_missing_folder,
    of_a_held_lock,
    of_a_try_for_a_free_lock,
    of_a_try_for_a_held_lock,
    and_of_everything_that_finds_out_what_came_of_it,
);

const CREATE: ZooKeeperRequest = ZooKeeperRequest::Create;

async fn stage() -> Outcome<(Stage, TcpProxy, LockClient, LockClient)> {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let client = stage.client_at(proxy.address(), IMPATIENT).await?;
    let other = stage.client(LONG).await?;
    stage.works(&other).await?;
    Ok((stage, proxy, client, other))
}

/// The client gets the lock with one node; then the other client gets it.
async fn is_held_once(stage: &Stage, client: &LockClient, other: &LockClient, when: Loss) -> Outcome {
    let guard = soon("the lock", client.mutex(ROOM)?.acquire()).await??;
    stage.is_held_by(&guard, format_args!("{when:?}")).await?;
    let nodes = stage.nodes().await?;
    ensure!(nodes.len() == 1, "{when:?}: {nodes:?}");
    ensure!(other.mutex(ROOM)?.try_acquire().await?.is_none(), "{when:?}: held twice");
    guard.release().await?;
    stage.nothing_is_left(format_args!("{when:?}")).await?;
    stage.works(other).await
}

async fn of_a_free_lock() -> Outcome {
    let (stage, proxy, client, other) = stage().await?;
    for loss in LOSSES {
        let asked = proxy.requests(CREATE);
        loss.of_next(&proxy, CREATE);
        is_held_once(&stage, &client, &other, loss).await?;
        let asked = proxy.requests(CREATE) - asked;
        // The client finds a node that was created, and does not create it again.
        let expected = if loss.0 == Lost::Request { 2 } else { 1 };
        ensure!(asked == expected, "{loss:?}: asked {asked} times");
    }
    Ok(())
}

/// The first request is answered that there is no directory; the second is lost.
async fn second_is_lost(stage: &Stage, proxy: &TcpProxy, loss: Loss) -> Outcome {
    let client = stage.client_at(proxy.address(), IMPATIENT).await?;
    let other = stage.client(LONG).await?;
    proxy.hold_reply(CREATE);
    let waiter = Waiter::of(&client)?;
    soon("the first answer", proxy.is_held()).await?;
    loss.of_next(proxy, CREATE);
    proxy.let_go();
    let (guard, _) = waiter.granted().await?;
    stage.is_held_by(&guard, format_args!("{loss:?}")).await?;
    ensure!(stage.nodes().await?.len() == 1, "{loss:?}: {:?}", stage.nodes().await?);
    guard.release().await?;
    stage.nothing_is_left(format_args!("{loss:?}")).await?;
    stage.works(&other).await
}

async fn of_a_free_lock_with_its_directory() -> Outcome {
    let proxy = Stage::new().await?.proxy()?;
    for loss in LOSSES {
        let stage = Stage::new().await?;
        stage.server.create(&stage.root, b"", NodeKind::Lasting).await?;
        second_is_lost(&stage, &proxy, loss).await?;
    }
    Ok(())
}

async fn of_a_free_lock_in_a_missing_folder() -> Outcome {
    let proxy = Stage::new().await?.proxy()?;
    for loss in LOSSES {
        let mut stage = Stage::new().await?;
        stage.root += "/a/b/c";
        second_is_lost(&stage, &proxy, loss).await?;
    }
    Ok(())
}

/// A client that came later stays behind.
async fn of_a_held_lock() -> Outcome {
    let (stage, proxy, client, other) = stage().await?;
    let last = stage.client(LONG).await?;
    for loss in LOSSES {
        let held = other.mutex(ROOM)?.acquire().await?;
        loss.of_next(&proxy, CREATE);
        let waiter = stage.in_line(&client, 2).await?;
        let place = stage.path(1).await?;
        let behind = stage.in_line(&last, 3).await?;
        held.release().await?;
        let (guard, _) = waiter.granted().await?;
        stage.is_held_by(&guard, format_args!("{loss:?}")).await?;
        ensure!(stage.path(0).await? == place, "{loss:?}: it has lost its place");
        ensure!(!behind.is_finished(), "{loss:?}: the next has it, too");
        guard.release().await?;
        let (guard, _) = behind.granted().await?;
        guard.release().await?;
        stage.nothing_is_left(format_args!("{loss:?}")).await?;
    }
    Ok(())
}

/// The try is an error, and nothing stays behind.
async fn of_a_try_for_a_free_lock() -> Outcome {
    let (stage, proxy, client, other) = stage().await?;
    let lock = client.mutex(ROOM)?;
    for loss in LOSSES {
        loss.of_next(&proxy, CREATE);
        let tried = soon("the answer", lock.try_acquire()).await?;
        let tried = tried.map(|guard| guard.is_some()).map_err(|error| error.kind());
        ensure!(tried == Err(ErrorKind::Unreachable), "{loss:?}: {tried:?}");
        soon("the undoing", client.idle()).await?;
        stage.nothing_is_left_now(format_args!("{loss:?}")).await?;
        stage.works(&other).await?;
        soon("contact", lock.acquire()).await??.release().await?;
    }
    Ok(())
}

async fn of_a_try_for_a_held_lock() -> Outcome {
    let (stage, proxy, client, other) = stage().await?;
    let lock = client.mutex(ROOM)?;
    let held = other.mutex(ROOM)?.acquire().await?;
    for loss in LOSSES {
        loss.of_next(&proxy, CREATE);
        let tried = soon("the answer", lock.try_acquire()).await?;
        let tried = tried.map(|guard| guard.is_some()).map_err(|error| error.kind());
        ensure!(tried == Err(ErrorKind::Unreachable), "{loss:?}: {tried:?}");
        soon("the undoing", client.idle()).await?;
        stage.nodes_are(1).await?;
        stage.is_held_by(&held, format_args!("{loss:?}")).await?;
    }
    Ok(held.release().await?)
}

/// The request and the requests that look for its outcome are lost in turn.
async fn and_of_everything_that_finds_out_what_came_of_it() -> Outcome {
    let (stage, proxy, client, other) = stage().await?;
    for losing in [Losing::Cut, Losing::ResetHalfway] {
        let loss = Loss(Lost::Answer, losing);
        for request in [CREATE, ZooKeeperRequest::Sync, ZooKeeperRequest::List, ZooKeeperRequest::Exists] {
            loss.of_next(&proxy, request);
        }
        is_held_once(&stage, &client, &other, loss).await?;
    }
    // Here the clean-up has to find out the outcome.
    for loss in LOSSES {
        let client = connect_patiently(&stage.url_at(proxy.address(), IMPATIENT)).await?;
        let lock = client.mutex(ROOM)?;
        loss.of_next(&proxy, CREATE);
        loss.of_next(&proxy, ZooKeeperRequest::Sync);
        loss.of_next(&proxy, ZooKeeperRequest::List);
        if loss.0 == Lost::Answer {
            loss.of_next(&proxy, ZooKeeperRequest::Delete);
        }
        let tried = soon("the answer", lock.try_acquire()).await?;
        ensure!(tried.is_err(), "{loss:?}: {:?}", tried.map(|guard| guard.is_some()));
        soon("the undoing", client.idle()).await?;
        stage.nothing_is_left_now(format_args!("{loss:?}")).await?;
        proxy.heal();
    }
    stage.works(&other).await
}
