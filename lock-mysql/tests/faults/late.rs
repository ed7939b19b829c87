//! Answers that arrive too late to count.

use std::time::Duration;

use conformance_tests::{Failure, Outcome};
use lock_core::{ClientBuilder, Clock, Operation};
use lock_kit::LockUrl;
use test_servers::{Direction, Losing, MySqlFlavour};

use crate::case::{cases, ensure};
use crate::event_recorder::EventRecorder;
use crate::logs;
use crate::stage::{KILLABLE, LONG, ROOM, Stage, Waiter, soon, until, with_options};

cases!("late":
    a_grant_that_arrives_after_the_lease_is_not_believed,
    a_grant_that_took_long_is_checked_first,
    the_reply_to_an_acquire_is_lost,
    the_reply_to_a_release_is_lost,
    a_break_whose_answer_is_lost_has_taken_the_lock,
    the_reply_to_a_check_is_late,
    a_grant_counts_from_before_its_request,
    a_late_grant_counts_from_before_its_check,
    a_grant_that_is_being_checked_is_not_given_up,
    a_grant_whose_answer_is_slow_is_not_given_up,
    a_release_is_answered_when_the_lock_is_free,
    a_release_that_is_sent_again_spares_the_next_hold,
    what_is_sent_again_does_not_stand_behind_the_wait_of_another,
);

/// By then the server has ended the session, and another client has the lock.
async fn a_grant_that_arrives_after_the_lease_is_not_believed(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let proxy = stage.proxy()?;
    let (holder, next) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let slow = stage.client_at(proxy.address(), "lease=6s").await?;
    let held = holder.mutex(ROOM)?.acquire().await?;
    proxy.hold_reply(Operation::Acquire);
    let first = Waiter::of(&slow)?;
    stage.queued(1).await?;
    let second = Waiter::of(&next)?;
    stage.queued(2).await?;
    held.release().await?;
    soon("the grant", proxy.reply_is_held()).await?;
    let (guard, _) = second.granted().await?;
    ensure!(!first.is_finished(), "a grant that has not arrived was believed");
    proxy.let_replies_go();
    // It waits again.
    stage.queued(1).await?;
    ensure!(guard.hold().is_valid() && !first.is_finished(), "both have the lock");
    guard.release().await?;
    let (guard, _) = first.granted().await?;
    guard.release().await?;
    stage.works(&slow).await
}

async fn a_grant_that_took_long_is_checked_first(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let proxy = stage.proxy()?;
    let holder = stage.client(LONG).await?;
    let client = stage.client_at(proxy.address(), "lease=8s").await?;
    let held = holder.mutex(ROOM)?.acquire().await?;
    let waiter = Waiter::of(&client)?;
    stage.queued(1).await?;
    // More than a renewal interval, and more than the lease.
    tokio::time::sleep(Duration::from_secs(9)).await;
    let checks = proxy.requests(Operation::Renew);
    held.release().await?;
    let (guard, _) = waiter.granted().await?;
    ensure!(proxy.requests(Operation::Renew) > checks, "it was believed without a check");
    ensure!(guard.hold().is_valid(), "granted, and over");
    Ok(guard.release().await?)
}

async fn the_reply_to_an_acquire_is_lost(flavour: MySqlFlavour) -> Outcome {
    for losing in [Losing::Cut, Losing::ResetHalfway, Losing::Silence] {
        let stage = Stage::new(flavour).await?;
        let proxy = stage.proxy()?;
        let client = stage.client_at(proxy.address(), "lease=10m&timeout=300ms").await?;
        for name in [ROOM, "another room"] {
            proxy.lose_reply(Operation::Acquire, losing);
            let tried = client.mutex(name)?.try_acquire().await;
            match tried {
                Ok(Some(guard)) => guard.release().await?,
                Ok(None) => ensure!(false, "{losing:?}: a free lock was refused"),
                Err(error) => ensure!(error.is_retryable(), "{losing:?}: {error}"),
            }
            soon("the undoing", client.idle()).await?;
            let free = || async { Ok(stage.holder_of(name).await?.is_none()) };
            until(&format!("{losing:?}: the lock is free"), free).await?;
        }
        stage.works(&client).await?;
    }
    Ok(())
}

async fn the_reply_to_a_release_is_lost(flavour: MySqlFlavour) -> Outcome {
    for losing in [Losing::Cut, Losing::ResetHalfway, Losing::Silence] {
        let stage = Stage::new(flavour).await?;
        let proxy = stage.proxy()?;
        let client = stage.client_at(proxy.address(), "lease=10m&timeout=300ms").await?;
        let lock = client.mutex(ROOM)?;
        let recorder = EventRecorder::of(&lock);
        let guard = lock.acquire().await?;
        proxy.lose_reply(Operation::Release, losing);
        soon("the release", guard.release()).await??;
        soon("the undoing", client.idle()).await?;
        ensure!(recorder.aborts() == 0, "{losing:?}: {:?}", recorder.events());
        ensure!(stage.holder_of(ROOM).await?.is_none(), "{losing:?}: released, and held");
        stage.works(&client).await?;
    }
    Ok(())
}

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

/// The server may have granted the lock as soon as it was asked.
async fn a_grant_counts_from_before_its_request(flavour: MySqlFlavour) -> Outcome {
    // Less than a renewal interval, so that the grant is not checked.
    let late = Duration::from_secs(1);
    let stage = Stage::new(flavour).await?;
    let proxy = stage.proxy()?;
    // A client waits for the end of the second in which its server has started. This one does so by a clock that passes.
    stage.client(LONG).await?;
    let (clock, time) = Clock::manual();
    let url = with_options(&stage.url_at(proxy.address()), "lease=16s");
    let client = lock_mysql::connect(&LockUrl::parse(&url)?, ClientBuilder::new().clock(clock)).await?;
    let guard = client.mutex(ROOM)?.acquire().await?;
    let whole = guard.hold().remaining();
    guard.release().await?;
    proxy.hold_reply(Operation::Acquire);
    let lock = client.mutex(ROOM)?;
    let trying = tokio::spawn(async move { lock.try_acquire().await });
    soon("the grant", proxy.reply_is_held()).await?;
    time.advance(late);
    proxy.let_replies_go();
    let guard = soon("the lock", trying).await???.ok_or_else(|| Failure::new("a free lock was refused"))?;
    let remaining = guard.hold().remaining();
    ensure!(remaining.map(|left| left + late) == whole, "{remaining:?} of {whole:?} are left after {late:?}");
    Ok(guard.release().await?)
}

/// The lock was held when the client sent the check. When the answer arrived, it may already have been free.
async fn a_late_grant_counts_from_before_its_check(flavour: MySqlFlavour) -> Outcome {
    let (lease, late) = (Duration::from_secs(8), Duration::from_millis(1500));
    let stage = Stage::new(flavour).await?;
    let proxy = stage.proxy()?;
    let holder = stage.client(LONG).await?;
    let client = stage.client_at(proxy.address(), "lease=8s").await?;
    let held = holder.mutex(ROOM)?.acquire().await?;
    let waiter = Waiter::of(&client)?;
    stage.queued(1).await?;
    // More than a renewal interval, so that the client checks the grant.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    proxy.hold_reply(Operation::Renew);
    held.release().await?;
    soon("the check", proxy.reply_is_held()).await?;
    tokio::time::sleep(late).await;
    // No later check extends the hold.
    proxy.blackhole(Direction::ToServer);
    proxy.let_replies_go();
    let (guard, _) = waiter.granted().await?;
    let remaining = guard.hold().remaining();
    ensure!(
        remaining.is_some_and(|remaining| remaining + late <= lease),
        "{remaining:?} of {lease:?} are left {late:?} after the check was sent"
    );
    proxy.heal();
    drop(guard);
    soon("the undoing", client.idle()).await
}

/// A check of the server finds that it no longer knows the wait.
async fn a_grant_that_is_being_checked_is_not_given_up(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let proxy = stage.proxy()?;
    let holder = stage.client(LONG).await?;
    let client = stage.client_at(proxy.address(), "lease=32s&timeout=6s").await?;
    let held = holder.mutex(ROOM)?.acquire().await?;
    let waiter = Waiter::of(&client)?;
    stage.queued(1).await?;
    // The client has checked the wait, and will check again after two intervals of eight seconds each.
    until("the first look", || async { Ok(proxy.requests(Operation::Inspect) > 0) }).await?;
    let (looks, waits) = (proxy.requests(Operation::Inspect), proxy.requests(Operation::Acquire));
    // By then the wait has lasted longer than an interval, so the client checks its grant.
    tokio::time::sleep(Duration::from_millis(200)).await;
    proxy.hold_reply(Operation::Renew);
    held.release().await?;
    soon("the check", proxy.reply_is_held()).await?;
    let looked = || async { Ok(proxy.requests(Operation::Inspect) >= looks + 5) };
    until("it was looked at often", looked).await?;
    proxy.let_replies_go();
    let (guard, _) = waiter.granted().await?;
    ensure!(proxy.requests(Operation::Acquire) == waits, "it was given up, and acquired again");
    Ok(guard.release().await?)
}

/// Like an answer that the network has to send again.
async fn a_grant_whose_answer_is_slow_is_not_given_up(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let proxy = stage.proxy()?;
    let holder = stage.client(LONG).await?;
    let client = stage.client_at(proxy.address(), "lease=32s&timeout=6s").await?;
    let held = holder.mutex(ROOM)?.acquire().await?;
    proxy.hold_reply(Operation::Acquire);
    let waiter = Waiter::of(&client)?;
    stage.queued(1).await?;
    let waits = proxy.requests(Operation::Acquire);
    held.release().await?;
    soon("the grant", proxy.reply_is_held()).await?;
    // The first check comes after an interval of eight seconds; later checks are a tenth of a second apart.
    let looked = || async { Ok(proxy.requests(Operation::Inspect) >= 5) };
    until("it was looked at often", looked).await?;
    proxy.let_replies_go();
    let (guard, _) = waiter.granted().await?;
    ensure!(proxy.requests(Operation::Acquire) == waits, "it was given up, and acquired again");
    Ok(guard.release().await?)
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
    proxy.let_replies_go();
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
    soon("the attempt", proxy.reply_is_held()).await?;
    let releasing = tokio::spawn(first.release());
    let second = client.mutex("second")?.acquire().await?;
    let other = Waiter::start(client.mutex("another room")?);
    // The client waits longer before each repetition, and eventually long enough.
    let failed = || async { Ok(logs::lines_with(&["an attempt failed", name.as_str()]).len() >= 8) };
    until("it has failed often", failed).await?;
    proxy.let_replies_go();
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

/// Sent again, the statement finds the connection gone.
async fn a_break_whose_answer_is_lost_has_taken_the_lock(flavour: MySqlFlavour) -> Outcome {
    let ends = |statement: &str| {
        lock_mysql::operation_of(statement)
            .filter(|operation| *operation == Operation::Break && statement.contains("KILL"))
    };
    let stage = Stage::new(flavour).await?;
    let proxy = stage.server.proxy(ends)?;
    let (holder, breaker) = (stage.client(KILLABLE).await?, stage.client_at(proxy.address(), LONG).await?);
    let guard = holder.mutex(ROOM)?.acquire().await?;
    proxy.lose_reply(Operation::Break, Losing::Cut);
    let broken = breaker.break_holder(ROOM, &guard.hold().id()).await?;
    ensure!(broken.taken_away == lock_core::TakenAway::Yes, "{broken:?}");
    soon("the loss", guard.lost()).await?;
    Ok(())
}
