//! Proxies that spread one connection over several: behind them, a lock belongs to no client.

use std::sync::atomic::{AtomicUsize, Ordering};

use conformance_tests::{Failure, Outcome};
use lock_core::{ErrorKind, LossReason, Operation};
use test_servers::MySqlFlavour;

use crate::case::{cases, ensure};
use crate::event_recorder::EventRecorder;
use crate::middleman::{Carrier, Middleman, Way, url_without_password};
use crate::stage::{LONG, ROOM, Stage, WATCHFUL, Waiter, connect, reach, soon, until};

cases!("spreading":
    one_statement_here_and_one_there_is_refused,
    after_connecting_gives_no_lock,
    after_the_grant_is_a_loss,
    of_one_connection_over_two_clients_is_refused,
);

async fn one_statement_here_and_one_there_is_refused(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let turns = AtomicUsize::new(0);
    let middleman = Middleman::start(stage.server.address(), move |text| {
        let is_even = turns.fetch_add(1, Ordering::Relaxed).is_multiple_of(2);
        (if is_even { Way::First } else { Way::Second }, text.to_owned())
    })
    .await?;
    let answer = connect(&middleman.url(LONG)).await;
    let error = answer.err().ok_or_else(|| Failure::new("the client was let in"))?;
    ensure!(error.kind() == ErrorKind::Unsupported && !error.is_retryable(), "{error:?}");
    Ok(())
}

/// If the statements of two clients came to one connection of the server, both would get the lock there.
async fn after_connecting_gives_no_lock(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let middleman = middleman_that_spreads(&stage, Operation::Acquire).await?;
    let client = reach(&middleman.url(LONG)).await?;
    let answer = soon("an answer", client.mutex(ROOM)?.try_acquire()).await?;
    ensure!(!matches!(answer, Ok(Some(_))), "a lock was given that another connection has");
    soon("the undoing", client.idle()).await?;
    until("the lock is free", || async { Ok(stage.holder_of(ROOM).await?.is_none()) }).await
}

async fn after_the_grant_is_a_loss(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let middleman = middleman_that_spreads(&stage, Operation::Renew).await?;
    let client = reach(&middleman.url(WATCHFUL)).await?;
    let lock = client.mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    let guard = lock.acquire().await?;
    let waiter = Waiter::of(&reach(&url_without_password(stage.server.address(), LONG)).await?)?;
    // The hold ends before the lock is free.
    let (next, _) = waiter.granted().await?;
    ensure!(!guard.hold().is_valid(), "two hold the lock");
    next.release().await?;
    let (reason, _) = recorder.abort().await?;
    ensure!(reason == LossReason::ConnectionLost, "lost because {reason}");
    drop(guard);
    soon("the undoing", client.idle()).await?;
    ensure!(stage.holder_of(ROOM).await?.is_none(), "lost, and held");
    Ok(())
}

/// As with a connection pool: both clients would get the lock, because to the server they are one.
async fn of_one_connection_over_two_clients_is_refused(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let carrier = Carrier::start(stage.server.address()).await?;
    let client = reach(&carrier.url(LONG)).await?;
    let guard = client.mutex(ROOM)?.acquire().await?;
    let answer = connect(&carrier.url(LONG)).await;
    let error = answer.err().ok_or_else(|| Failure::new("a second client was let in"))?;
    ensure!(error.kind() == ErrorKind::Unsupported && !error.is_retryable(), "{error:?}");
    Ok(guard.release().await?)
}

/// A proxy that sends statements for `operation` on the second connection, and all others on the first.
async fn middleman_that_spreads(stage: &Stage, operation: Operation) -> Outcome<Middleman> {
    Middleman::start(stage.server.address(), move |text| {
        let is_spread = lock_mysql::operation_of(text) == Some(operation);
        (if is_spread { Way::Second } else { Way::First }, text.to_owned())
    })
    .await
}
