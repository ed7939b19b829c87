//! A release and the attempt of the next task of the same client, which leave together.

use std::sync::Arc;
use std::time::Duration;

use conformance_tests::{Failure, Outcome};
use lock_core::{DistributedLock, ErrorKind, LockClient, LockGuard, Operation};
use test_servers::{Direction, Losing, ServerOptions, TcpProxy};

use crate::case::{cases, ensure};
use crate::event_recorder::{Event, EventRecorder};
use crate::stage::{LONG, ROOM, Stage, Waiter, drop_after, poll_times, soon, until};

cases!("pipelining":
    a_section_of_one_of_many_tasks_takes_one_round_trip,
    the_attempt_leaves_before_the_answer_to_the_release,
    waiters_of_other_clients_keep_their_turn,
    the_release_is_lost,
    the_attempt_is_lost,
    the_reply_to_the_release_is_lost,
    the_reply_to_the_attempt_is_lost,
    the_release_is_refused,
    the_scripts_are_forgotten,
    both_arrive_late_on_an_old_connection,
    futures_that_are_dropped,
    the_waiter_is_dropped_while_the_answers_are_on_their_way,
);

const WAYS: [Losing; 3] = [Losing::Cut, Losing::ResetHalfway, Losing::Silence];

/// A client whose unanswered requests fail soon.
const IMPATIENT: &str = "lease=60s&timeout=300ms";

/// A client that keeps its connection, however long it is not answered.
const PATIENT: &str = "lease=5m&timeout=50s";

async fn stage() -> Outcome<(Stage, TcpProxy, LockClient)> {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let client = stage.client_at(proxy.address(), IMPATIENT).await?;
    Ok((stage, proxy, client))
}

/// A task that waits in the queue of its client.
async fn waiter(lock: &Arc<dyn DistributedLock>) -> Waiter {
    let waiter = Waiter::start(Arc::clone(lock));
    // The runtime of a case has one thread, and polls the new task first.
    tokio::task::yield_now().await;
    waiter
}

fn token(guard: &LockGuard) -> Outcome<u64> {
    guard.token().map(lock_core::FencingToken::get).ok_or_else(|| Failure::new("there is no token"))
}

/// Releases `held` while a task waits, and checks what that task gets.
async fn passes_on(stage: &Stage, lock: &Arc<dyn DistributedLock>, held: LockGuard, way: &str) -> Outcome {
    let before = token(&held)?;
    let recorder = EventRecorder::of(lock);
    let next = waiter(lock).await;
    let released = soon("the release", held.release()).await?;
    ensure!(released.is_ok(), "{way}: {released:?}");
    let (guard, _) = next.granted().await?;
    let after = token(&guard)?;
    ensure!(after > before, "{way}: {before} and then {after}");
    let at_server = stage.holder().await?.map(|(_, token)| token);
    ensure!(at_server == Some(after), "{way}: the server has {at_server:?}, and the client {after}");
    ensure!(guard.hold().is_valid() && recorder.aborts() == 0, "{way}: lost: {:?}", recorder.events());
    soon("the release", guard.release()).await??;
    ensure!(recorder.aborts() == 0, "{way}: lost: {:?}", recorder.events());
    stage.nothing_is_left(way).await
}

async fn calls_and_reads(stage: &Stage) -> Outcome<(u64, u64)> {
    Ok((stage.calls().await?, stage.info("stats", "total_reads_processed:").await?))
}

/// The server reads both at once.
async fn a_section_of_one_of_many_tasks_takes_one_round_trip() -> Outcome {
    let (tasks, each) = (64, 5);
    let stage = Stage::new().await?;
    let client = stage.client(&format!("{LONG}&engine=caller")).await?;
    let lock = client.mutex(ROOM)?;
    stage.works(&client).await?;
    let before = calls_and_reads(&stage).await?;
    let mut working = tokio::task::JoinSet::new();
    for _ in 0..tasks {
        let lock = Arc::clone(&lock);
        working.spawn(async move {
            for _ in 0..each {
                lock.acquire().await?.release().await?;
            }
            Ok::<_, lock_core::LockError>(())
        });
    }
    while let Some(done) = soon("the sections", working.join_next()).await? {
        done??;
    }
    let after = calls_and_reads(&stage).await?;
    let (sections, calls, reads) = (tasks * each, after.0 - before.0, after.1 - before.1);
    ensure!(calls == 2 * sections, "{calls} calls for {sections} sections");
    ensure!(reads * 4 <= sections * 5, "{reads} round trips for {sections} sections");
    Ok(())
}

async fn the_attempt_leaves_before_the_answer_to_the_release() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let client = stage.client_at(proxy.address(), PATIENT).await?;
    let lock = client.mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    let held = lock.acquire().await?;
    let before = token(&held)?;
    let next = waiter(&lock).await;
    let asked = proxy.requests(Operation::Acquire);
    proxy.hold_reply(Operation::Release);
    let releasing = tokio::spawn(held.release());
    soon("the reply", proxy.is_held()).await?;
    until("the attempt has left", || async { Ok(proxy.requests(Operation::Acquire) > asked) }).await?;
    until("the server has granted it", || async {
        Ok(stage.holder().await?.is_some_and(|(_, token)| token > before))
    })
    .await?;
    ensure!(!releasing.is_finished() && !next.is_finished(), "the release has not been answered");
    proxy.let_go();
    soon("the release", releasing).await???;
    let (guard, _) = next.granted().await?;
    until("all events have arrived", || async { Ok(recorder.events().len() >= 3) }).await?;
    ensure!(
        recorder.events() == [Event::Acquired, Event::Released, Event::Acquired],
        "in another order: {:?}",
        recorder.events()
    );
    guard.release().await?;
    Ok(())
}

async fn waiters_of_other_clients_keep_their_turn() -> Outcome {
    let stage = Stage::new().await?;
    let (client, other) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let lock = client.mutex(ROOM)?;
    let held = lock.acquire().await?;
    let next = waiter(&lock).await;
    let stranger = Waiter::of(&other)?;
    stage.queued(1).await?;
    held.release().await?;
    let (strange, _) = stranger.granted().await?;
    stage.queued(1).await?;
    ensure!(!next.is_finished(), "two have the lock");
    let before = token(&strange)?;
    strange.release().await?;
    let (guard, _) = next.granted().await?;
    ensure!(token(&guard)? > before, "{} after {before}", token(&guard)?);
    guard.release().await?;
    stage.nothing_is_left("after both").await
}

/// The attempt may arrive before the release that is sent again.
async fn the_release_is_lost() -> Outcome {
    let (stage, proxy, client) = stage().await?;
    let lock = client.mutex(ROOM)?;
    for way in WAYS {
        let held = soon("the lock", lock.acquire()).await??;
        proxy.lose_request(Operation::Release, way);
        passes_on(&stage, &lock, held, &format!("{way:?}")).await?;
    }
    Ok(())
}

/// The connection ends between the two.
async fn the_attempt_is_lost() -> Outcome {
    let (stage, proxy, client) = stage().await?;
    let lock = client.mutex(ROOM)?;
    for way in WAYS {
        let held = soon("the lock", lock.acquire()).await??;
        proxy.lose_request(Operation::Acquire, way);
        passes_on(&stage, &lock, held, &format!("{way:?}")).await?;
    }
    Ok(())
}

async fn the_reply_to_the_release_is_lost() -> Outcome {
    let (stage, proxy, client) = stage().await?;
    let lock = client.mutex(ROOM)?;
    for way in WAYS {
        let held = soon("the lock", lock.acquire()).await??;
        proxy.lose_reply(Operation::Release, way);
        passes_on(&stage, &lock, held, &format!("{way:?}")).await?;
    }
    Ok(())
}

async fn the_reply_to_the_attempt_is_lost() -> Outcome {
    let (stage, proxy, client) = stage().await?;
    let lock = client.mutex(ROOM)?;
    for way in WAYS {
        let held = soon("the lock", lock.acquire()).await??;
        proxy.lose_reply(Operation::Acquire, way);
        passes_on(&stage, &lock, held, &format!("{way:?}")).await?;
    }
    Ok(())
}

/// The attempt queues behind the hold that still stands, and the release is repeated until it succeeds.
async fn the_release_is_refused() -> Outcome {
    let stage =
        Stage::with(ServerOptions::new().user("locks", "pw", &["~distlock:* &distlock:* +@all"])).await?;
    let client = stage.client(LONG).await?;
    let lock = client.mutex(ROOM)?;
    let held = lock.acquire().await?;
    let before = token(&held)?;
    let next = waiter(&lock).await;
    // It needs the second one when it is repeated, and hands the lock off.
    stage.server.command(&["ACL", "SETUSER", "locks", "-del", "-pubsub"]).await?;
    let released = soon("the release", held.release()).await?;
    let is_denied =
        released.as_ref().is_err_and(|error| error.kind() == ErrorKind::Denied && !error.is_retryable());
    ensure!(is_denied, "the release ended with {released:?}");
    stage.queued(1).await?;
    ensure!(lock.try_acquire().await?.is_none() && !next.is_finished(), "two have the lock");
    stage.server.command(&["ACL", "SETUSER", "locks", "+del", "+pubsub"]).await?;
    let (guard, _) = next.granted().await?;
    ensure!(token(&guard)? > before, "{before}, and then {}", token(&guard)?);
    guard.release().await?;
    stage.nothing_is_left("after both").await
}

async fn the_scripts_are_forgotten() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client(LONG).await?;
    let lock = client.mutex(ROOM)?;
    for _ in 0..3 {
        let held = lock.acquire().await?;
        stage.server.command(&["SCRIPT", "FLUSH"]).await?;
        passes_on(&stage, &lock, held, "forgotten").await?;
    }
    Ok(())
}

/// The client gave both up while they were on their way, and sent them again over another connection.
async fn both_arrive_late_on_an_old_connection() -> Outcome {
    let stage = Stage::new().await?;
    let (old, new) = (stage.proxy()?, stage.proxy()?);
    let switch = TcpProxy::start(old.address())?;
    let client = stage.client_at(switch.address(), IMPATIENT).await?;
    let lock = client.mutex(ROOM)?;
    let held = lock.acquire().await?;
    let before = token(&held)?;
    let next = waiter(&lock).await;
    let asked = old.requests(Operation::Acquire);
    old.blackhole(Direction::ToServer);
    switch.turn_to(new.address());
    let releasing = tokio::spawn(held.release());
    until("both are on their way", || async {
        Ok(old.requests(Operation::Release) == 1 && old.requests(Operation::Acquire) > asked)
    })
    .await?;
    soon("the release", releasing).await???;
    let (guard, _) = next.granted().await?;
    let after = token(&guard)?;
    ensure!(after > before, "{before}, and then {after}");
    old.heal();
    until("what was on its way has arrived", || async { Ok(old.connections() == 0) }).await?;
    let at_server = stage.holder().await?.map(|(_, token)| token);
    ensure!(at_server == Some(after), "the new hold has ended: {at_server:?}");
    guard.release().await?;
    stage.nothing_is_left("after both").await
}

/// Drops the release and the next wait a little later each time, from before they are sent until after they are answered.
async fn futures_that_are_dropped() -> Outcome {
    let stage = Stage::new().await?;
    for options in [LONG.to_owned(), format!("{LONG}&engine=caller")] {
        let client = stage.client(&options).await?;
        let lock = client.mutex(ROOM)?;
        for step in 0..100 {
            let dropped_after = Duration::from_micros(step * 20);
            let held = lock.acquire().await?;
            let mut second = Box::pin(lock.acquire());
            ensure!(poll_times(second.as_mut(), 1).await?.is_none(), "a held lock was given");
            let third = waiter(&lock).await;
            drop_after(held.release(), dropped_after).await?;
            drop_after(second, dropped_after).await?;
            let (guard, _) = third.granted().await?;
            soon("the release", guard.release()).await??;
            soon("the undoing", client.idle()).await?;
            stage.nothing_is_left(format_args!("{options}, dropped after {dropped_after:?}")).await?;
        }
    }
    Ok(())
}

async fn the_waiter_is_dropped_while_the_answers_are_on_their_way() -> Outcome {
    let (stage, proxy, _) = stage().await?;
    let client = stage.client_at(proxy.address(), "lease=60s&timeout=5s").await?;
    let patient = stage.client_at(proxy.address(), PATIENT).await?;
    for (client, polls) in [(&patient, 0), (&patient, 1), (&client, 1)] {
        let lock = client.mutex(ROOM)?;
        let held = lock.acquire().await?;
        let next = waiter(&lock).await;
        let asked = proxy.requests(Operation::Acquire);
        proxy.hold_reply(Operation::Release);
        let mut releasing = Box::pin(held.release());
        poll_times(releasing.as_mut(), polls).await?;
        drop(releasing);
        soon("the reply", proxy.is_held()).await?;
        until("the attempt has left", || async { Ok(proxy.requests(Operation::Acquire) > asked) }).await?;
        next.give_up().await?;
        proxy.let_go();
        soon("the undoing", client.idle()).await?;
        stage.nothing_is_left("both were dropped").await?;
        stage.works(client).await?;
    }
    Ok(())
}
