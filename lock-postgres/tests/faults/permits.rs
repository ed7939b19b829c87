//! Permits of semaphores: a gate, and a lock for each permit.

use std::time::{Duration, Instant};

use conformance_tests::Outcome;
use lock_core::{ErrorKind, LockClient, LockGuard, Operation};
use test_servers::{Direction, Losing};

use crate::stage::{LONG, ROOM, Stage, WATCHFUL, Waiter, cases, ensure, poll_times, soon, until};

cases!("permits":
    each_is_a_lock_at_the_server,
    the_gate_is_free_while_no_one_waits,
    of_a_terminated_holder_are_free_at_once,
    a_terminated_head_lets_the_next_one_look,
    a_head_whom_nothing_reaches_lets_the_next_one_look,
    dropped_at_the_moment_of_the_grant_leave_nothing,
    a_cancelled_wait_begins_anew,
    the_reply_to_an_acquire_is_lost,
    the_reply_to_a_release_is_lost,
    another_number_is_refused_while_some_wait,
    the_number_is_free_again_after_a_crash_of_the_holder,
    those_of_one_client_pass_on_at_once,
    that_are_free_are_not_refused_while_another_passes_the_gate,
    a_try_takes_one_statement,
);

async fn permits(client: &LockClient, take: u32) -> Outcome<LockGuard> {
    Ok(soon("permits", client.semaphore(ROOM, 3)?.acquire(take)).await??)
}

fn waiter(client: &LockClient, take: u32) -> Outcome<Waiter> {
    Ok(Waiter::start(client.semaphore(ROOM, 3)?.permits(take)?))
}

/// Waits until this many wait, the one at the head included.
async fn queued(stage: &Stage, client: &LockClient, count: usize) -> Outcome {
    let semaphore = client.semaphore(ROOM, 3)?;
    // A busy server may not answer in time.
    let waits = || async { Ok(semaphore.status().await.is_ok_and(|status| status.waiters.len() == count)) };
    until(&format!("{count} wait"), waits).await?;
    ensure!(stage.waiters().await?.len() < count.max(1), "the head waits at the server");
    Ok(())
}

async fn nothing_is_held(stage: &Stage, when: &str) -> Outcome {
    until(&format!("{when}: nothing is held"), || async { Ok(stage.held().await? == 0) }).await
}

/// The process of the session that has the lock at this place behind the first one of the semaphore, which is the gate.
async fn process_of(stage: &Stage, offset: u32) -> Outcome<String> {
    let sessions = stage
        .values(&format!(
            "SELECT pid FROM pg_locks JOIN pg_database ON pg_database.oid=database \
             WHERE datname=current_database() AND locktype='advisory' AND granted AND objid::bigint%1024={offset}"
        ))
        .await?;
    Ok(sessions.concat())
}

async fn each_is_a_lock_at_the_server() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client(LONG).await?;
    let (one, two) = (permits(&client, 1).await?, permits(&client, 2).await?);
    // And two that say how many there are.
    ensure!(stage.held().await? == 3 + 2 * 2, "{} are held", stage.held().await?);
    ensure!(client.semaphore(ROOM, 3)?.try_acquire(1).await?.is_none(), "a fourth permit");
    one.release().await?;
    ensure!(stage.held().await? == 2 + 2, "{} are held", stage.held().await?);
    two.release().await?;
    ensure!(stage.held().await? == 0, "{} are held", stage.held().await?);
    Ok(())
}

async fn the_gate_is_free_while_no_one_waits() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client(LONG).await?;
    let held = permits(&client, 3).await?;
    ensure!(client.semaphore(ROOM, 3)?.try_acquire(1).await?.is_none(), "a fourth permit");
    ensure!(process_of(&stage, 0).await?.is_empty(), "the gate is held");
    let wait = client.semaphore(ROOM, 3)?.acquire_for(1, Duration::from_millis(50)).await;
    ensure!(wait.is_err_and(|error| error.kind() == ErrorKind::Busy), "a fourth permit");
    soon("the undoing", client.idle()).await?;
    ensure!(process_of(&stage, 0).await?.is_empty(), "the gate is held after a wait");
    Ok(held.release().await?)
}

async fn of_a_terminated_holder_are_free_at_once() -> Outcome {
    let stage = Stage::new().await?;
    let (ours, theirs) = (stage.client(WATCHFUL).await?, stage.client(LONG).await?);
    let lost = permits(&ours, 2).await?;
    let other = permits(&ours, 1).await?;
    let next = waiter(&theirs, 2)?;
    queued(&stage, &theirs, 1).await?;
    let process = lost.hold().id().to_string().split(' ').nth(1).unwrap_or_default().to_owned();
    stage.terminate(&process).await?;
    soon("the loss", lost.lost()).await?;
    let (guard, _) = next.granted().await?;
    ensure!(other.hold().is_valid(), "another holder was lost with it");
    drop(lost);
    guard.release().await?;
    other.release().await?;
    soon("the undoing", ours.idle()).await?;
    nothing_is_held(&stage, "at the end").await
}

async fn a_terminated_head_lets_the_next_one_look() -> Outcome {
    let stage = Stage::new().await?;
    let (holder, first, second) =
        (stage.client(LONG).await?, stage.client(LONG).await?, stage.client(LONG).await?);
    let held = permits(&holder, 2).await?;
    let large = waiter(&first, 3)?;
    queued(&stage, &holder, 1).await?;
    let small = waiter(&second, 1)?;
    queued(&stage, &holder, 2).await?;
    stage.terminate(&process_of(&stage, 0).await?).await?;
    // It waits again, at the end of the queue.
    let (guard, _) = small.granted().await?;
    guard.release().await?;
    held.release().await?;
    let (guard, _) = large.granted().await?;
    guard.release().await?;
    nothing_is_held(&stage, "at the end").await
}

async fn a_head_whom_nothing_reaches_lets_the_next_one_look() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let (holder, next) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let silent = stage.client_at(proxy.address(), "lease=3s").await?;
    let held = permits(&holder, 2).await?;
    let first = waiter(&silent, 3)?;
    queued(&stage, &holder, 1).await?;
    let second = waiter(&next, 1)?;
    queued(&stage, &holder, 2).await?;
    proxy.blackhole(Direction::ToServer);
    proxy.blackhole(Direction::ToClient);
    let (guard, _) = second.granted().await?;
    proxy.heal();
    guard.release().await?;
    held.release().await?;
    let (guard, _) = first.granted().await?;
    guard.release().await?;
    nothing_is_held(&stage, "at the end").await
}

async fn dropped_at_the_moment_of_the_grant_leave_nothing() -> Outcome {
    let stage = Stage::new().await?;
    let (holder, client) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let semaphore = client.semaphore(ROOM, 3)?;
    for round in 0..60 {
        let held = permits(&holder, 3).await?;
        let mut acquiring = Box::pin(semaphore.acquire(2));
        ensure!(poll_times(acquiring.as_mut(), 1).await?.is_none(), "a fourth permit");
        if round % 2 == 0 {
            queued(&stage, &holder, 1).await?;
        }
        let releasing = tokio::spawn(held.release());
        let began = Instant::now();
        while began.elapsed() < Duration::from_micros(round * 40) {
            std::hint::spin_loop();
        }
        drop(acquiring);
        soon("the release", releasing).await???;
        soon("the undoing", client.idle()).await?;
        ensure!(stage.held().await? == 0, "round {round}: {} are held", stage.held().await?);
    }
    permits(&client, 3).await?.release().await?;
    Ok(())
}

async fn a_cancelled_wait_begins_anew() -> Outcome {
    let stage = Stage::new().await?;
    let (holder, first, second) =
        (stage.client(LONG).await?, stage.client(LONG).await?, stage.client(LONG).await?);
    let held = permits(&holder, 2).await?;
    let waiters = [waiter(&first, 2)?, waiter(&second, 2)?];
    queued(&stage, &holder, 2).await?;
    for _ in 0..10 {
        // The head as well, in the middle of its look or between two.
        until("the head", || async {
            let process = process_of(&stage, 0).await?;
            if !process.is_empty() {
                stage.cancel(&process).await?;
            }
            Ok(!process.is_empty())
        })
        .await?;
        queued(&stage, &holder, 2).await?;
        stage.cancel_waiter().await?;
        queued(&stage, &holder, 2).await?;
    }
    held.release().await?;
    // In whatever order.
    let [first, second] = waiters.map(|waiter| {
        tokio::spawn(async move {
            let (guard, _) = waiter.granted().await?;
            Outcome::Ok(guard.release().await?)
        })
    });
    first.await??;
    second.await??;
    nothing_is_held(&stage, "at the end").await
}

async fn the_reply_to_an_acquire_is_lost() -> Outcome {
    for losing in [Losing::Cut, Losing::Silence] {
        let stage = Stage::new().await?;
        let proxy = stage.proxy()?;
        let client = stage.client_at(proxy.address(), "lease=10m&timeout=300ms").await?;
        let semaphore = client.semaphore(ROOM, 3)?;
        proxy.lose_reply(Operation::Acquire, losing);
        match semaphore.try_acquire(2).await {
            Ok(Some(guard)) => guard.release().await?,
            Ok(None) => ensure!(false, "{losing:?}: free permits were refused"),
            Err(error) => ensure!(error.is_retryable(), "{losing:?}: {error}"),
        }
        soon("the undoing", client.idle()).await?;
        nothing_is_held(&stage, "after the loss").await?;
        permits(&client, 3).await?.release().await?;
    }
    Ok(())
}

async fn the_reply_to_a_release_is_lost() -> Outcome {
    for losing in [Losing::Cut, Losing::Silence] {
        let stage = Stage::new().await?;
        let proxy = stage.proxy()?;
        let client = stage.client_at(proxy.address(), "lease=10m&timeout=300ms").await?;
        let guard = permits(&client, 2).await?;
        proxy.lose_reply(Operation::Release, losing);
        soon("the release", guard.release()).await??;
        soon("the undoing", client.idle()).await?;
        nothing_is_held(&stage, "after the release").await?;
        permits(&client, 3).await?.release().await?;
    }
    Ok(())
}

async fn another_number_is_refused_while_some_wait() -> Outcome {
    let stage = Stage::new().await?;
    let (holder, client, other) =
        (stage.client(LONG).await?, stage.client(LONG).await?, stage.client(LONG).await?);
    let held = permits(&holder, 3).await?;
    let waits = waiter(&client, 1)?;
    queued(&stage, &holder, 1).await?;
    let wait = Waiter::start(other.semaphore(ROOM, 5)?.permits(1)?);
    held.release().await?;
    let (guard, _) = waits.granted().await?;
    let refused = soon("the refusal", wait.granted()).await?.err().map(|failure| failure.to_string());
    let text = refused.unwrap_or_default();
    ensure!(text.contains('3') && text.contains('5'), "answered {text:?}");
    guard.release().await?;
    soon("another number", other.semaphore(ROOM, 5)?.acquire(5)).await??.release().await?;
    nothing_is_held(&stage, "at the end").await
}

async fn the_number_is_free_again_after_a_crash_of_the_holder() -> Outcome {
    let stage = Stage::new().await?;
    let (ours, theirs) = (stage.client(WATCHFUL).await?, stage.client(LONG).await?);
    let lost = permits(&ours, 1).await?;
    stage.terminate(&process_of(&stage, 1).await?).await?;
    let all = soon("another number", theirs.semaphore(ROOM, 200)?.acquire(200)).await??;
    ensure!(stage.held().await? == 202, "{} are held", stage.held().await?);
    all.release().await?;
    soon("the loss", lost.lost()).await?;
    drop(lost);
    nothing_is_held(&stage, "at the end").await
}

/// The head of this client's queue need not look: it hears of what is given back in its own process. Its clock stands still when that
/// happens, so no look is due.
async fn those_of_one_client_pass_on_at_once() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let observer = stage.client(LONG).await?;
    let (client, time) = stage.frozen_at(proxy.address(), "lease=10m&timeout=1m").await?;
    for _ in 0..10 {
        let held = permits(&client, 3).await?;
        let next = waiter(&client, 1)?;
        queued(&stage, &observer, 1).await?;
        // It knows that it is the head when it looks for the first time.
        let sent = proxy.requests(Operation::Acquire);
        until("a look", || async {
            time.advance(Duration::from_millis(1));
            Ok(proxy.requests(Operation::Acquire) > sent)
        })
        .await?;
        held.release().await?;
        let (guard, _) = next.granted().await?;
        guard.release().await?;
    }
    Ok(())
}

/// However long that takes: the server may stop the other session in the middle.
async fn that_are_free_are_not_refused_while_another_passes_the_gate() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let client = stage.client_at(proxy.address(), "lease=10m&timeout=60s").await?;
    let held = permits(&client, 1).await?;
    let mut other = stage.session().await?;
    let gate = "SELECT pg_advisory_lock((classid::bigint<<32)|(objid::bigint-1)) FROM pg_locks \
        JOIN pg_database ON pg_database.oid=database WHERE datname=current_database() AND objid::bigint%1024=1";
    other.query(gate).await?;
    let semaphore = client.semaphore(ROOM, 3)?;
    let trying = tokio::spawn(async move { semaphore.try_acquire(1).await });
    let sent = proxy.requests(Operation::Acquire);
    until("many tries", || async {
        Ok(trying.is_finished() || proxy.requests(Operation::Acquire) > sent + 10)
    })
    .await?;
    other.query("SELECT pg_advisory_unlock_all()").await?;
    let guard = soon("the answer", trying).await???;
    ensure!(guard.is_some(), "free permits were refused");
    drop(guard);
    Ok(held.release().await?)
}

/// Of the session that keeps the gate because permits are missing.
const MARK: u32 = 2;

/// Also beside one that waits: it has the gate, and says so.
async fn a_try_takes_one_statement() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let (holder, waiting) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let client = stage.client_at(proxy.address(), LONG).await?;
    let held = permits(&holder, 3).await?;
    let waiter = waiter(&waiting, 1)?;
    queued(&stage, &holder, 1).await?;
    until("it says so", || async { Ok(!process_of(&stage, MARK).await?.is_empty()) }).await?;
    ensure!(client.semaphore(ROOM, 3)?.try_acquire(1).await?.is_none(), "a fourth permit");
    let free = client.semaphore("another room", 3)?.try_acquire(1).await?;
    ensure!(free.is_some(), "a free permit was refused");
    let sent = proxy.requests(Operation::Acquire);
    ensure!(sent == 2, "a refused and a granted try took {sent} statements");
    drop(free);
    held.release().await?;
    let (guard, _) = waiter.granted().await?;
    guard.release().await?;
    nothing_is_held(&stage, "at the end").await
}
