//! Answers that arrive too late to count.

use std::time::Duration;

use conformance_tests::{Failure, Outcome};
use lock_core::Operation;
use test_servers::{Direction, MySqlFlavour};

use crate::case::{cases, ensure};
use crate::event_recorder::EventRecorder;
use crate::logs;
use crate::stage::{FROZEN, INTERVAL, LONG, ROOM, Stage, Waiter, as_time_passes, soon, until};

cases!("late":
    the_reply_to_a_check_is_late,
    a_grant_that_is_being_checked_is_not_given_up,
    a_grant_whose_answer_is_slow_is_not_given_up,
    a_grant_that_comes_before_the_end_of_its_wait_is_given_back,
    the_end_of_a_wait_that_comes_before_its_grant_leaves_the_lock_to_others,
    a_release_is_answered_when_the_lock_is_free,
    a_release_that_is_sent_again_spares_the_next_hold,
    what_is_sent_again_does_not_stand_behind_the_wait_of_another,
);

/// What was held when the client sent the check is held until then plus the lease, and no longer.
async fn the_reply_to_a_check_is_late(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let proxy = stage.proxy()?;
    let client = stage.client_at(proxy.address(), "lease=16s").await?;
    let lock = client.mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    let guard = lock.acquire().await?;
    proxy.delay(Direction::ToClient, Duration::from_secs(5));
    recorder.suspect().await?;
    proxy.heal();
    recorder.restored().await?;
    ensure!(guard.hold().is_valid() && recorder.aborts() == 0, "{:?}", recorder.events());
    guard.release().await?;
    stage.works(&client).await
}

/// A check of the server finds that it no longer knows the wait.
async fn a_grant_that_is_being_checked_is_not_given_up(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let proxy = stage.proxy()?;
    let holder = stage.client(LONG).await?;
    let (client, time) = stage.frozen_at(proxy.address(), FROZEN).await?;
    let held = holder.mutex(ROOM)?.acquire().await?;
    let waiter = Waiter::of(&client)?;
    stage.queued(1).await?;
    time.advance(INTERVAL);
    until("the first look", || async { Ok(proxy.requests(Operation::Inspect) > 0) }).await?;
    let (looks, waits) = (proxy.requests(Operation::Inspect), proxy.requests(Operation::Acquire));
    // The wait has lasted longer than an interval, so the client checks its grant.
    proxy.hold_reply(Operation::Renew);
    held.release().await?;
    soon("the check", proxy.is_held()).await?;
    // The wait is due again after two intervals; then a tenth of a second lies between two looks.
    time.advance(INTERVAL * 2);
    let looked = || async { Ok(proxy.requests(Operation::Inspect) >= looks + 5) };
    as_time_passes(&time, "looks", until("it was looked at often", looked)).await??;
    proxy.let_go();
    let (guard, _) = waiter.granted().await?;
    ensure!(proxy.requests(Operation::Acquire) == waits, "it was given up, and acquired again");
    Ok(guard.release().await?)
}

/// Like an answer that the network has to send again.
async fn a_grant_whose_answer_is_slow_is_not_given_up(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let proxy = stage.proxy()?;
    let holder = stage.client(LONG).await?;
    let (client, time) = stage.frozen_at(proxy.address(), FROZEN).await?;
    let held = holder.mutex(ROOM)?.acquire().await?;
    proxy.hold_reply(Operation::Acquire);
    let waiter = Waiter::of(&client)?;
    stage.queued(1).await?;
    let waits = proxy.requests(Operation::Acquire);
    held.release().await?;
    soon("the grant", proxy.is_held()).await?;
    // The first check comes after an interval; later checks are a tenth of a second apart.
    time.advance(INTERVAL);
    let looked = || async { Ok(proxy.requests(Operation::Inspect) >= 5) };
    as_time_passes(&time, "looks", until("it was looked at often", looked)).await??;
    proxy.let_go();
    let (guard, _) = waiter.granted().await?;
    ensure!(proxy.requests(Operation::Acquire) == waits, "it was given up, and acquired again");
    Ok(guard.release().await?)
}

/// The server grants the lock, and gets the `KILL QUERY` after that.
async fn a_grant_that_comes_before_the_end_of_its_wait_is_given_back(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let proxy = stage.proxy()?;
    let (holder, (client, _time)) =
        (stage.client(LONG).await?, stage.frozen_at(proxy.address(), FROZEN).await?);
    let held = holder.mutex(ROOM)?.acquire().await?;
    let theirs = stage.holder().await?;
    let lock = client.mutex(ROOM)?;
    let waiting = tokio::spawn(async move { lock.acquire().await.map(drop) });
    stage.queued(1).await?;
    proxy.hold_request(Operation::Cancel);
    waiting.abort();
    soon("the end of the wait", proxy.is_held()).await?;
    held.release().await?;
    let is_granted = || async { Ok(stage.holder_of(ROOM).await?.is_some_and(|holder| holder != theirs)) };
    until("the grant", is_granted).await?;
    proxy.let_go();
    soon("the undoing", client.idle()).await?;
    ensure!(stage.holder_of(ROOM).await?.is_none() && stage.waiting().await? == 0, "something is left");
    stage.works(&client).await
}

/// The server ends the wait, and another client has the lock before the first learns of it.
async fn the_end_of_a_wait_that_comes_before_its_grant_leaves_the_lock_to_others(
    flavour: MySqlFlavour,
) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let proxy = stage.proxy()?;
    let (holder, (client, _time)) =
        (stage.client(LONG).await?, stage.frozen_at(proxy.address(), FROZEN).await?);
    let held = holder.mutex(ROOM)?.acquire().await?;
    proxy.hold_reply(Operation::Acquire);
    let lock = client.mutex(ROOM)?;
    let waiting = tokio::spawn(async move { lock.acquire().await.map(drop) });
    stage.queued(1).await?;
    waiting.abort();
    stage.queued(0).await?;
    soon("the reply to the wait", proxy.is_held()).await?;
    held.release().await?;
    let next = holder.mutex(ROOM)?.acquire().await?;
    proxy.let_go();
    soon("the undoing", client.idle()).await?;
    ensure!(next.hold().is_valid() && stage.holder_of(ROOM).await?.is_some(), "the next hold has ended");
    next.release().await?;
    stage.works(&client).await
}

/// The connection has ended for the client, but not for the server, which learns nothing of it.
async fn a_release_is_answered_when_the_lock_is_free(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let proxy = stage.proxy()?;
    let client = stage.client_at(proxy.address(), "lease=10m&timeout=300ms").await?;
    let guard = client.mutex(ROOM)?.acquire().await?;
    proxy.hold_request(Operation::Release);
    let released = soon("the release", guard.release()).await?;
    let holder = stage.holder_of(ROOM).await?;
    ensure!(released.is_err() || holder.is_none(), "released, and held by {holder:?}");
    soon("the undoing", client.idle()).await?;
    let holder = stage.holder_of(ROOM).await?;
    ensure!(holder.is_none(), "undone, and held by {holder:?}");
    proxy.heal();
    stage.works(&client).await
}

/// The repeated release comes to a connection on which the same client has the lock again.
async fn a_release_that_is_sent_again_spares_the_next_hold(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let proxy = stage.proxy()?;
    // The only space left is on the connection where the lock has been.
    let options = "lease=10m&timeout=300ms&max_connections=2&locks_per_connection=2";
    let client = stage.client_at(proxy.address(), options).await?;
    let name = format!("room{}", proxy.address().port());
    let lock = client.mutex(name.as_str())?;
    let guard = lock.acquire().await?;
    let mut others = Vec::new();
    for other in ["one", "two", "three"] {
        others.push(client.mutex(other)?.acquire().await?);
    }
    proxy.hold_reply(Operation::Release);
    let releasing = tokio::spawn(guard.release());
    // The client waits longer before each repetition, and eventually long enough.
    let failed = || async { Ok(logs::lines_with(&["a release failed", name.as_str()]).len() >= 7) };
    until("it has failed often", failed).await?;
    proxy.let_go();
    let again = soon("the lock", lock.acquire()).await??;
    soon("the undoing", client.idle()).await?;
    // An error reports that the server did not answer in time.
    let _ = releasing.await?;
    again
        .release()
        .await
        .map_err(|error| Failure::new(format!("the next hold was released with it: {error}")))?;
    Ok(())
}

/// The server finally answers the statement on a silent connection, and then another attempt waits on it, for another lock.
async fn what_is_sent_again_does_not_stand_behind_the_wait_of_another(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let proxy = stage.proxy()?;
    let holder = stage.client(LONG).await?;
    let held = holder.mutex("another room")?.acquire().await?;
    // There is only one connection to wait on: the silent one.
    let options = "lease=10m&timeout=300ms&max_connections=2&locks_per_connection=2";
    let client = stage.client_at(proxy.address(), options).await?;
    let name = format!("room{}", proxy.address().port());
    let first = client.mutex("first")?.acquire().await?;
    proxy.hold_reply(Operation::Acquire);
    let attempt = Waiter::start(client.mutex(name.as_str())?);
    soon("the attempt", proxy.is_held()).await?;
    let releasing = tokio::spawn(first.release());
    let second = client.mutex("second")?.acquire().await?;
    let other = Waiter::start(client.mutex("another room")?);
    // The client waits longer before each repetition, and eventually long enough.
    let failed = || async { Ok(logs::lines_with(&["an attempt failed", name.as_str()]).len() >= 8) };
    until("it has failed often", failed).await?;
    proxy.let_go();
    stage.queued(1).await?;
    let (guard, _) = attempt.granted().await?;
    soon("the repeated release", client.idle()).await?;
    // An error reports that the server did not answer in time.
    let _ = releasing.await?;
    ensure!(!other.is_finished(), "a lock was given that another has");
    guard.release().await?;
    second.release().await?;
    held.release().await?;
    let (guard, _) = other.granted().await?;
    Ok(guard.release().await?)
}
