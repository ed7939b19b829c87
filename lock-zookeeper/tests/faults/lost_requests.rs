//! The connection is lost during any other request of an attempt or a hold, whether or not the server has carried it out.

use std::time::Duration;

use conformance_tests::Outcome;
use lock_core::{ErrorKind, LockClient};
use test_servers::{Losing, NodeKind, TcpProxy, ZooKeeperRequest};

use crate::case::{cases, ensure};
use crate::event_recorder::EventRecorder;
use crate::stage::{IMPATIENT, LONG, LOSSES, Loss, ROOM, Stage, Waiter, soon, until};

cases!("lost_requests":
    of_a_release,
    of_a_cancel,
    of_a_try_that_steps_back,
    of_a_heartbeat_on_a_connection_that_is_dead,
    of_a_heartbeat,
    of_a_listing,
    of_the_watch_over_the_predecessor,
    of_a_look_at_several_predecessors,
    of_a_connection_anew,
);

/// Long enough for a hold to survive a connection that is dead without notice.
const PATIENT: &str = "session_timeout=30s";

async fn stage(options: &str) -> Outcome<(Stage, TcpProxy, LockClient, LockClient)> {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let client = stage.client_at(proxy.address(), options).await?;
    let other = stage.client(LONG).await?;
    stage.works(&other).await?;
    Ok((stage, proxy, client, other))
}

/// A repeated release finds nothing, which is not a loss.
///
/// The caller of a release waits as long as the hold would have lasted, and ten seconds at most. With a session of 15 seconds the
/// client library takes six to find the connection dead. A release right after a heartbeat leaves four to connect again; on a busy
/// machine that may take longer, and the client continues after the answer.
async fn of_a_release() -> Outcome {
    let (stage, proxy, client, other) = stage("session_timeout=15s").await?;
    let just_renewed = Duration::from_secs(9);
    let lock = client.mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    for loss in LOSSES {
        let guard = soon("the lock", lock.acquire()).await??;
        let waiter = stage.in_line(&other, 2).await?;
        until("it is renewed", || async { Ok(guard.hold().remaining() > Some(just_renewed)) }).await?;
        loss.of_next(&proxy, ZooKeeperRequest::Delete);
        let released = soon("the release", guard.release()).await?.map_err(|error| error.kind());
        let is_late = loss.1 == Losing::Silence && released == Err(ErrorKind::Unconfirmed);
        ensure!(released == Ok(()) || is_late, "{loss:?}: {released:?}");
        let (next, _) = waiter.granted().await?;
        soon("the rest", client.idle()).await?;
        stage.is_held_by(&next, format_args!("{loss:?}")).await?;
        next.release().await?;
        stage.nothing_is_left(format_args!("{loss:?}")).await?;
    }
    ensure!(recorder.aborts() == 0, "{:?}", recorder.events());
    Ok(())
}

async fn of_a_cancel() -> Outcome {
    let (stage, proxy, client, other) = stage(IMPATIENT).await?;
    let held = other.mutex(ROOM)?.acquire().await?;
    for loss in LOSSES {
        let waiter = stage.in_line(&client, 2).await?;
        loss.of_next(&proxy, ZooKeeperRequest::Delete);
        waiter.give_up().await?;
        stage.nodes_are(1).await?;
        soon("the cancel", client.idle()).await?;
        // The next waiter gets the lock: nothing is stuck.
        stage.is_held_by(&held, format_args!("{loss:?}")).await?;
    }
    held.release().await?;
    stage.nothing_is_left_now("at the end").await?;
    stage.works(&client).await
}

/// The try answers "not acquired", and its node does not block other clients.
async fn of_a_try_that_steps_back() -> Outcome {
    let (stage, proxy, client, other) = stage(IMPATIENT).await?;
    for loss in LOSSES {
        let held = other.mutex(ROOM)?.acquire().await?;
        soon("contact", async {
            while client.mutex("another room")?.try_acquire().await.is_err() {}
            Outcome::Ok(())
        })
        .await??;
        loss.of_next(&proxy, ZooKeeperRequest::Delete);
        let tried = soon("the answer", client.mutex(ROOM)?.try_acquire()).await?;
        ensure!(matches!(tried, Ok(None) | Err(_)), "{loss:?}: given twice");
        stage.nodes_are(1).await?;
        held.release().await?;
        stage.works(&other).await?;
    }
    stage.works(&client).await
}

async fn of_a_heartbeat() -> Outcome {
    heartbeats_are_lost(24, |losing| losing != Losing::Silence).await
}

/// Only the client library can tell that the connection is dead, after 0.4 of a session. That is close to the limit of a hold whose
/// last heartbeat was a sixth of a session earlier; with a session of 60 seconds, the longest that the server
/// grants, the rest is four and a half.
async fn of_a_heartbeat_on_a_connection_that_is_dead() -> Outcome {
    heartbeats_are_lost(60, |losing| losing == Losing::Silence).await
}

async fn heartbeats_are_lost(session: u64, which: impl Fn(Losing) -> bool) -> Outcome {
    let (stage, proxy, client, _other) = stage(&format!("session_timeout={session}s")).await?;
    let lock = client.mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    let guard = lock.acquire().await?;
    for loss in LOSSES.into_iter().filter(|loss| which(loss.1)) {
        let connected = proxy.requests(ZooKeeperRequest::Connect);
        loss.of_next(&proxy, ZooKeeperRequest::Check);
        until("it has connected again", || async {
            ensure!(guard.hold().is_valid(), "{loss:?}: lost");
            Ok(proxy.requests(ZooKeeperRequest::Connect) > connected)
        })
        .await?;
        until("it was renewed", || async {
            Ok(guard.hold().remaining() > Some(Duration::from_secs(session / 2)))
        })
        .await?;
        stage.is_held_by(&guard, format_args!("{loss:?}")).await?;
    }
    recorder.restored().await?;
    ensure!(recorder.aborts() == 0, "lost: {:?}", recorder.events());
    guard.release().await?;
    stage.nothing_is_left_now("after the release").await
}

/// The waiter, which is in the queue, gets the lock after the holder and before the waiter behind it.
async fn is_served(stage: &Stage, waiter: Waiter, held: lock_core::LockGuard, when: Loss) -> Outcome {
    let place = stage.path(1).await?;
    let last = stage.client(LONG).await?;
    let behind = stage.in_line(&last, 3).await?;
    held.release().await?;
    let (guard, _) = waiter.granted().await?;
    stage.is_held_by(&guard, format_args!("{when:?}")).await?;
    ensure!(stage.path(0).await? == place, "{when:?}: it has lost its place");
    guard.release().await?;
    let (guard, _) = behind.granted().await?;
    guard.release().await?;
    stage.nothing_is_left(format_args!("{when:?}")).await
}

async fn of_a_listing() -> Outcome {
    let (stage, proxy, client, other) = stage(IMPATIENT).await?;
    for loss in LOSSES {
        let held = other.mutex(ROOM)?.acquire().await?;
        let asked = proxy.requests(ZooKeeperRequest::List);
        loss.of_next(&proxy, ZooKeeperRequest::List);
        let waiter = stage.in_line(&client, 2).await?;
        until("it was lost", || async { Ok(proxy.requests(ZooKeeperRequest::List) > asked) }).await?;
        is_served(&stage, waiter, held, loss).await?;
    }
    Ok(())
}

/// The client has listed the directory, and next reads the predecessor.
async fn of_the_watch_over_the_predecessor() -> Outcome {
    let (stage, proxy, client, other) = stage(IMPATIENT).await?;
    for loss in LOSSES {
        let held = other.mutex(ROOM)?.acquire().await?;
        proxy.hold_reply(ZooKeeperRequest::List);
        let waiter = stage.in_line(&client, 2).await?;
        soon("the listing", proxy.is_held()).await?;
        let asked = proxy.requests(ZooKeeperRequest::Read);
        loss.of_next(&proxy, ZooKeeperRequest::Read);
        proxy.let_go();
        until("it was lost", || async { Ok(proxy.requests(ZooKeeperRequest::Read) > asked) }).await?;
        is_served(&stage, waiter, held, loss).await?;
    }
    Ok(())
}

async fn of_a_look_at_several_predecessors() -> Outcome {
    let (stage, proxy, client, other) = stage(IMPATIENT).await?;
    let foreign = format!("{}/_c_somebody-lock-", stage.directory(ROOM));
    for loss in LOSSES {
        for _ in 0..4 {
            stage.server.create(&foreign, b"", NodeKind::Numbered).await?;
        }
        let waiter = stage.in_line(&client, 5).await?;
        let asked = proxy.requests(ZooKeeperRequest::ReadMany);
        loss.of_next(&proxy, ZooKeeperRequest::ReadMany);
        // Whichever of the two nearest is watched, it goes, and the client checks the others.
        for position in [3, 2] {
            stage.server.delete(&stage.path(position).await?).await?;
        }
        until("it was lost", || async { Ok(proxy.requests(ZooKeeperRequest::ReadMany) > asked) }).await?;
        let held = Waiter::of(&other)?;
        stage.nodes_are(4).await?;
        for _ in 0..2 {
            ensure!(!waiter.is_finished(), "{loss:?}: it holds behind others");
            stage.server.delete(&stage.path(0).await?).await?;
        }
        let (guard, _) = waiter.granted().await?;
        stage.is_held_by(&guard, format_args!("{loss:?}")).await?;
        guard.release().await?;
        let (guard, _) = held.granted().await?;
        guard.release().await?;
        stage.nothing_is_left(format_args!("{loss:?}")).await?;
    }
    Ok(())
}

/// The connection that replaces a lost one is lost as well, or its watches are.
async fn of_a_connection_anew() -> Outcome {
    let (stage, proxy, client, other) = stage(PATIENT).await?;
    let lock = client.mutex("another room")?;
    let recorder = EventRecorder::of(&lock);
    let mine = lock.acquire().await?;
    for request in [ZooKeeperRequest::Connect, ZooKeeperRequest::SetWatches] {
        for loss in LOSSES.into_iter().filter(|loss| loss.1 != Losing::Silence) {
            let held = other.mutex(ROOM)?.acquire().await?;
            let waiter = stage.in_line(&client, 2).await?;
            let connected = proxy.requests(ZooKeeperRequest::Connect);
            loss.of_next(&proxy, request);
            proxy.cut();
            until("it has connected again", || async {
                Ok(proxy.requests(ZooKeeperRequest::Connect) >= connected + 2)
            })
            .await?;
            is_served(&stage, waiter, held, loss).await?;
        }
    }
    ensure!(mine.hold().is_valid() && recorder.aborts() == 0, "lost: {:?}", recorder.events());
    Ok(mine.release().await?)
}
