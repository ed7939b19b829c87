//! Answers that arrive too late to count, or never.

use std::time::Duration;

use conformance_tests::faults::event_recorder::EventRecorder;
use conformance_tests::{Failure, Outcome};
use lock_core::{ClientBuilder, Clock, Operation};
use lock_kit::LockUrl;
use test_servers::{Direction, Losing};

use crate::stage::{LONG, ROOM, Stage, WATCHFUL, Waiter, cases, ensure, soon, until, with_options};

cases!("late":
    a_grant_that_arrives_after_the_lease_is_not_believed,
    a_grant_that_took_long_is_checked_first,
    a_grant_counts_from_before_its_request,
    a_late_grant_counts_from_before_its_check,
    the_reply_to_an_acquire_is_lost,
    the_reply_to_a_release_is_lost,
    a_break_whose_answer_is_lost_has_taken_the_lock,
    a_break_that_comes_late_spares_the_next_hold_of_the_session,
);

/// By then the server has ended the session, and another client has the lock.
async fn a_grant_that_arrives_after_the_lease_is_not_believed() -> Outcome {
    let stage = Stage::new().await?;
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

async fn a_grant_that_took_long_is_checked_first() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let holder = stage.client(LONG).await?;
    let client = stage.client_at(proxy.address(), "lease=6s").await?;
    let held = holder.mutex(ROOM)?.acquire().await?;
    let waiter = Waiter::of(&client)?;
    stage.queued(1).await?;
    // More than the lease: a waiting session is not idle.
    tokio::time::sleep(Duration::from_secs(7)).await;
    let checks = proxy.requests(Operation::Renew);
    held.release().await?;
    let (guard, _) = waiter.granted().await?;
    ensure!(proxy.requests(Operation::Renew) > checks, "it was believed without a check");
    ensure!(guard.hold().is_valid(), "granted, and over");
    Ok(guard.release().await?)
}

/// The server may have granted the lock as soon as it was asked.
async fn a_grant_counts_from_before_its_request() -> Outcome {
    // Less than half of a renewal interval, so that the grant is not checked.
    let late = Duration::from_secs(1);
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let (clock, time) = Clock::manual();
    let url = with_options(&stage.url_at(proxy.address()), "lease=16s");
    let client = lock_postgres::connect(&LockUrl::parse(&url)?, ClientBuilder::new().clock(clock)).await?;
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
async fn a_late_grant_counts_from_before_its_check() -> Outcome {
    let (lease, late) = (Duration::from_secs(8), Duration::from_millis(1500));
    let stage = Stage::new().await?;
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

async fn the_reply_to_an_acquire_is_lost() -> Outcome {
    for losing in [Losing::Cut, Losing::ResetHalfway, Losing::Silence] {
        let stage = Stage::new().await?;
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

async fn the_reply_to_a_release_is_lost() -> Outcome {
    for losing in [Losing::Cut, Losing::ResetHalfway, Losing::Silence] {
        let stage = Stage::new().await?;
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

/// The hold that it names has been released, and its session has the lock again.
async fn a_break_that_comes_late_spares_the_next_hold_of_the_session() -> Outcome {
    let ends = |statement: &str| {
        lock_postgres::operation_of(statement)
            .filter(|operation| *operation == Operation::Break && statement.contains("pg_terminate_backend"))
    };
    let stage = Stage::new().await?;
    let proxy = stage.server.proxy(ends)?;
    let options = "lease=10m&validation_interval=50ms&fencing=table";
    let (holder, breaker) = (stage.client(options).await?, stage.client_at(proxy.address(), options).await?);
    let lock = holder.mutex(ROOM)?;
    let guard = lock.acquire().await?;
    let id = guard.hold().id();
    proxy.hold_request(Operation::Break);
    let breaking = tokio::spawn(async move { breaker.break_holder(ROOM, &id).await });
    soon("the request", proxy.request_is_held()).await?;
    guard.release().await?;
    let next = lock.acquire().await?;
    proxy.let_requests_go();
    let broken = soon("the break", breaking).await???;
    ensure!(broken.taken_away != lock_core::TakenAway::Yes, "{broken:?}");
    Ok(next.release().await?)
}

/// Sent again, the statement finds the session gone.
async fn a_break_whose_answer_is_lost_has_taken_the_lock() -> Outcome {
    let ends = |statement: &str| {
        lock_postgres::operation_of(statement)
            .filter(|operation| *operation == Operation::Break && statement.contains("pg_terminate_backend"))
    };
    let stage = Stage::new().await?;
    let proxy = stage.server.proxy(ends)?;
    let (holder, breaker) = (stage.client(WATCHFUL).await?, stage.client_at(proxy.address(), LONG).await?);
    let guard = holder.mutex(ROOM)?.acquire().await?;
    proxy.lose_reply(Operation::Break, Losing::Cut);
    let broken = breaker.break_holder(ROOM, &guard.hold().id()).await?;
    ensure!(broken.taken_away == lock_core::TakenAway::Yes, "{broken:?}");
    soon("the loss", guard.lost()).await?;
    Ok(())
}
