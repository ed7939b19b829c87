//! Waits end at their time limit, whatever a server makes of fractions of a second.

use std::time::{Duration, Instant};

use conformance_tests::{Failure, Outcome};
use lock_core::{LockClient, LockError};
use test_servers::{Direction, MySqlFlavour};

use crate::case::{cases, ensure};
use crate::stage::{LONG, ROOM, Stage, Waiter, soon, until};

cases!("timeouts":
    fractions_of_a_second,
    the_longest_wait,
    short_waits_far_from_the_server,
    a_wait_is_longer_than_statements_may_take,
);

/// How much later than the machine itself a wait may end. One that was rounded to whole seconds would end later by more.
const LATE: Duration = Duration::from_millis(100);

/// How often a busy machine may be late.
const TIMES: usize = 8;

async fn fractions_of_a_second(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let (holder, client) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let held = holder.mutex(ROOM)?.acquire().await?;
    let lock = client.mutex(ROOM)?;
    for milliseconds in [0, 30, 250, 400, 500, 750, 1499, 2500] {
        let wait = Duration::from_millis(milliseconds);
        let (mut best, mut of_the_machine) = (Duration::MAX, Duration::MAX);
        for _ in 0..TIMES {
            let began = Instant::now();
            let answer = lock.try_acquire_for(wait).await;
            let took = began.elapsed();
            // If the server does not answer for a second, the machine has kept it from answering.
            let is_late = answer.as_ref().is_err_and(LockError::is_retryable);
            ensure!(is_late || matches!(answer, Ok(None)), "a wait for a lock that is held: {answer:?}");
            ensure!(took >= wait, "a wait of {wait:?} took {took:?}");
            best = best.min(took);
            soon("the undoing", client.idle()).await?;
            if best < wait + LATE {
                break;
            }
            of_the_machine = of_the_machine.min(sleep_and_round_trip(&client, wait).await);
        }
        ensure!(
            best < wait + LATE || best < of_the_machine + LATE,
            "a wait of {wait:?} took {best:?}, a sleep and a round trip took {of_the_machine:?}, and all longer the other times"
        );
    }
    held.release().await?;
    stage.works(&client).await
}

/// How long the machine takes for what a wait consists of at least.
async fn sleep_and_round_trip(client: &LockClient, wait: Duration) -> Duration {
    let began = Instant::now();
    tokio::time::sleep(wait).await;
    match client.ping().await {
        Ok(()) => began.elapsed(),
        // No measure: any wait is shorter.
        Err(_) => Duration::from_mins(1),
    }
}

async fn the_longest_wait(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let (holder, client) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let held = holder.mutex(ROOM)?.acquire().await?;
    let lock = client.mutex(ROOM)?;
    let waiter = tokio::spawn(async move { lock.try_acquire_for(Duration::MAX).await });
    stage.queued(1).await?;
    held.release().await?;
    let guard = soon("the grant", waiter).await???;
    ensure!(guard.is_some(), "the longest wait was refused");
    Ok(())
}

/// How long an answer takes: longer than a busy machine delays it.
const FAR: Duration = Duration::from_millis(400);

/// Waits that end before the client could have opened another connection to check them.
async fn short_waits_far_from_the_server(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let proxy = stage.proxy()?;
    let holder = stage.client(LONG).await?;
    let held = holder.mutex(ROOM)?.acquire().await?;
    proxy.delay(Direction::ToClient, FAR);
    let mut answers = Vec::new();
    for _ in 0..TIMES {
        let client = stage.client_at(proxy.address(), LONG).await?;
        let lock = client.mutex(ROOM)?;
        // As long as three answers take; opening a connection takes longer.
        let wait = FAR * 3;
        let began = Instant::now();
        let answer = lock.try_acquire_for(wait).await;
        let took = began.elapsed();
        soon("the undoing", client.idle()).await?;
        if matches!(answer, Ok(None)) && took < wait + FAR / 2 {
            return Ok(held.release().await?);
        }
        answers.push(format!("{answer:?} after {took:?}"));
    }
    Err(Failure::new(format!("none of the waits knew at its end that the lock is held: {answers:?}")))
}

/// If the server ended long statements, a waiter would start again, behind all others.
async fn a_wait_is_longer_than_statements_may_take(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::alone(flavour).await?;
    stage
        .server
        .query(match flavour {
            MySqlFlavour::MariaDb => "SET GLOBAL max_statement_time = 1",
            MySqlFlavour::MySql57 => "SET GLOBAL max_execution_time = 1000",
        })
        .await?;
    let (holder, client) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let held = holder.mutex(ROOM)?.acquire().await?;
    let waiter = Waiter::of(&client)?;
    stage.queued(1).await?;
    let longest = "SELECT IFNULL(MAX(TIME),0) FROM information_schema.PROCESSLIST WHERE STATE='User lock'";
    until("it waits for three seconds", || async { Ok(stage.number(longest).await? >= 3) }).await?;
    held.release().await?;
    let (guard, _) = waiter.granted().await?;
    Ok(guard.release().await?)
}
