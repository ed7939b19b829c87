//! Grants and releases that count when replicas have them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use conformance_tests::{Failure, Outcome};
use lock_core::{DistributedLock, ErrorKind, LockClient, LockError, Operation};
use test_servers::{RedisServer, ServerOptions, Value};

use crate::case::{cases, ensure};
use crate::event_recorder::EventRecorder;
use crate::stage::{
    FROZEN, INTERVAL, LONG, ROOM, Stage, Waiter, connect, key, outlast, read_side, soon, until, with_options,
};

cases!("replicas":
    a_grant_waits_for_the_replicas,
    a_release_waits_for_the_replicas,
    a_grant_that_too_few_have_is_undone,
    a_grant_whose_script_was_forgotten_is_asked_about_again,
    a_lock_that_is_handed_over_is_believed_in_when_replicas_have_it,
    a_release_that_too_few_have_is_reported_and_keeps_the_lock_from_no_other,
    a_missing_replica_costs_no_hold,
    many_grants_share_a_question,
    a_primary_that_is_demoted_meanwhile_grants_nothing,
    all_are_those_that_were_in_sync_at_one_time,
    what_durable_grants_need_is_checked_at_once,
    a_replica_is_no_reason_to_give_up,
    info_that_is_refused_meanwhile_costs_no_hold,
);

/// A client gives up a replica that does not answer after half of the timeout.
const SHORT: &str = "lease=5m&timeout=12s";

/// A primary, and as many replicas that are in sync with it.
async fn with_replicas(count: usize, options: ServerOptions) -> Outcome<(Stage, Vec<RedisServer>)> {
    let stage = Stage::with(options.setting("repl-diskless-sync-delay", "0")).await?;
    let mut replicas = Vec::new();
    for _ in 0..count {
        replicas.push(add_replica(&stage).await?);
    }
    Ok((stage, replicas))
}

async fn add_replica(stage: &Stage) -> Outcome<RedisServer> {
    let before = in_sync(stage).await?;
    let port = stage.server.address().port();
    let options = ServerOptions::new().setting("replicaof", &format!("127.0.0.1 {port}"));
    let replica = RedisServer::start_with(options).await?;
    until("the replica is in sync", || async { Ok(in_sync(stage).await? == before + 1) }).await?;
    Ok(replica)
}

async fn in_sync(stage: &Stage) -> Outcome<usize> {
    let info = stage.text(&["INFO", "replication"]).await?.unwrap_or_default();
    Ok(info.matches("state=online").count())
}

async fn has_hold(server: &RedisServer) -> Outcome<bool> {
    Ok(server.command(&["EXISTS", &key(ROOM, 'l')]).await? == Value::Integer(1))
}

/// How often clients have asked what replicas have.
async fn questions(stage: &Stage) -> Outcome<u64> {
    stage.info("commandstats", "cmdstat_wait:calls=").await
}

/// Waits until the waiter has had two answers that too few replicas have the grant: it asks again after each. Newer servers do not
/// count a `WAIT` that ends in vain.
async fn asks_again(stage: &Stage, waiter: &Waiter) -> Outcome {
    let before = stage.calls().await?;
    until("it asks again", || async {
        ensure!(!waiter.is_finished(), "granted although a replica lacks it");
        Ok(stage.calls().await? >= before + 3)
    })
    .await?;
    ensure!(stage.holder().await?.is_some() && !waiter.is_finished(), "granted although a replica lacks it");
    Ok(())
}

async fn failure(client: &LockClient, name: &str) -> Outcome<LockError> {
    match soon("the answer", client.mutex(name)?.try_acquire()).await? {
        Err(error) => Ok(error),
        Ok(answer) => Err(Failure::new(format!("the answer is {answer:?}"))),
    }
}

async fn a_grant_waits_for_the_replicas() -> Outcome {
    let (stage, replicas) = with_replicas(2, ServerOptions::new()).await?;
    let client = stage.client(&format!("{SHORT}&durable=replicas:2")).await?;
    replicas[1].stop()?;
    let waiter = Waiter::of(&client)?;
    asks_again(&stage, &waiter).await?;
    replicas[1].resume()?;
    let (guard, _) = waiter.granted().await?;
    for replica in &replicas {
        ensure!(has_hold(replica).await?, "a replica lacks the hold");
    }
    Ok(guard.release().await?)
}

async fn a_release_waits_for_the_replicas() -> Outcome {
    let (stage, replicas) = with_replicas(2, ServerOptions::new()).await?;
    let client = stage.client(&format!("{FROZEN}&durable=replicas:2")).await?;
    let guard = soon("the lock", client.mutex(ROOM)?.acquire()).await??;
    replicas[1].stop()?;
    let releasing = tokio::spawn(guard.release());
    until("it waits", || async { Ok(stage.info("clients", "blocked_clients:").await? == 1) }).await?;
    ensure!(!releasing.is_finished() && stage.holder().await?.is_none(), "it waits before the release");
    replicas[1].resume()?;
    soon("the end of the release", releasing).await???;
    for replica in &replicas {
        ensure!(!has_hold(replica).await?, "a replica has the hold");
    }
    Ok(())
}

async fn a_grant_that_too_few_have_is_undone() -> Outcome {
    let (stage, replicas) = with_replicas(2, ServerOptions::new()).await?;
    let client = stage.client(&format!("{SHORT}&durable=replicas:2")).await?;
    replicas[0].stop()?;
    let read = read_side(&client)?;
    let (lock, permits) = (client.mutex("other")?, client.semaphore("permits", 3)?.permits(1)?);
    let tries = async { tokio::join!(lock.try_acquire(), read.try_acquire(), permits.try_acquire()) };
    for answer in <[_; 3]>::from(soon("the answers", tries).await?) {
        let error = answer.err().ok_or_else(|| Failure::new("granted although a replica lacks it"))?;
        ensure!(error.kind() == ErrorKind::Server && error.is_retryable(), "{error:?}");
        ensure!(error.to_string().contains("1 of 2 replicas"), "{error}");
    }
    soon("the undoing", client.idle()).await?;
    stage.nothing_is_left("after the refusal").await?;
    replicas[0].resume()?;
    stage.works(&client).await
}

/// The first question was answered before the script was called.
async fn a_grant_whose_script_was_forgotten_is_asked_about_again() -> Outcome {
    let (stage, replicas) = with_replicas(1, ServerOptions::new()).await?;
    let client = stage.client(&format!("{SHORT}&durable=all")).await?;
    stage.works(&client).await?;
    until("it has all that was written before", || async {
        let offset = stage.info("replication", "master_repl_offset:").await?;
        let info = stage.text(&["INFO", "replication"]).await?.unwrap_or_default();
        Ok(info.contains(&format!(",offset={offset},")))
    })
    .await?;
    replicas[0].stop()?;
    stage.server.command(&["SCRIPT", "FLUSH"]).await?;
    let error = failure(&client, ROOM).await?;
    ensure!(error.to_string().contains("0 of 1 replicas"), "{error}");
    Ok(())
}

/// The first time all replicas have it: that says nothing of the second grant.
async fn a_lock_that_is_handed_over_is_believed_in_when_replicas_have_it() -> Outcome {
    let (stage, replicas) = with_replicas(2, ServerOptions::new()).await?;
    let holder = stage.client(LONG).await?;
    let client = stage.client(&format!("{SHORT}&durable=replicas:2")).await?;
    let held = holder.mutex(ROOM)?.acquire().await?;
    let first = Waiter::of(&client)?;
    stage.queued(1).await?;
    held.release().await?;
    first.granted().await?.0.release().await?;

    let held = holder.mutex(ROOM)?.acquire().await?;
    let second = Waiter::of(&client)?;
    stage.queued(1).await?;
    replicas[0].stop()?;
    held.release().await?;
    asks_again(&stage, &second).await?;
    replicas[0].resume()?;
    let _guard = second.granted().await?;
    ensure!(has_hold(&replicas[0]).await?, "a replica lacks the hold");
    Ok(())
}

async fn a_release_that_too_few_have_is_reported_and_keeps_the_lock_from_no_other() -> Outcome {
    let (stage, replicas) = with_replicas(2, ServerOptions::new()).await?;
    let client = stage.client(&format!("{SHORT}&durable=replicas:2")).await?;
    let guard = soon("the lock", client.mutex(ROOM)?.acquire()).await??;
    let next = Waiter::of(&client)?;
    replicas[0].stop()?;
    let error = soon("the release", guard.release()).await?.err();
    let error = error.ok_or_else(|| Failure::new("a replica does not have the release"))?;
    ensure!(error.kind() == ErrorKind::Unconfirmed && !error.is_retryable(), "{error:?}");
    ensure!(error.to_string().contains("1 of 2 replicas"), "{error}");
    replicas[0].resume()?;
    next.granted().await?.0.release().await?;
    soon("the undoing", client.idle()).await?;
    stage.nothing_is_left("after the releases").await
}

/// Were each attempt to stop the connection for itself, a renewal would come too late.
async fn a_missing_replica_costs_no_hold() -> Outcome {
    let (stage, replicas) = with_replicas(2, ServerOptions::new()).await?;
    let client = stage.client("lease=12s&durable=replicas:2").await?;
    let lock = client.mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    let guard = soon("the lock", lock.acquire()).await??;
    replicas[0].stop()?;
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(15) {
        let all: Vec<_> = (0..50)
            .map(|number| Ok(tokio::spawn(try_once(client.mutex(format!("other{number}"))?))))
            .collect::<Outcome<_>>()?;
        for one in all {
            ensure!(!matches!(one.await?, Ok(true)), "granted although a replica lacks it");
        }
    }
    ensure!(guard.hold().is_valid() && recorder.aborts() == 0, "{:?}", recorder.events());
    Ok(())
}

/// Whether it is granted. What an earlier try has left may refuse it.
async fn try_once(lock: Arc<dyn DistributedLock>) -> Result<bool, LockError> {
    lock.try_acquire().await.map(|guard| guard.is_some())
}

/// All are behind the first, which stops the connection.
async fn many_grants_share_a_question() -> Outcome {
    let (stage, replicas) = with_replicas(1, ServerOptions::new()).await?;
    let proxy = stage.proxy()?;
    let client = stage.client_at(proxy.address(), &format!("{FROZEN}&durable=all")).await?;
    let before = questions(&stage).await?;
    replicas[0].stop()?;
    let waiters: Vec<_> = (0..50)
        .map(|number| Ok(Waiter::start(client.mutex(format!("room{number}"))?)))
        .collect::<Outcome<_>>()?;
    until("all are sent", || async { Ok(proxy.requests(Operation::Acquire) == 50) }).await?;
    replicas[0].resume()?;
    let mut guards = Vec::new();
    for waiter in waiters {
        guards.push(waiter.granted().await?.0);
    }
    let asked = questions(&stage).await? - before;
    ensure!(asked <= 25, "asked {asked} times");
    Ok(())
}

async fn a_primary_that_is_demoted_meanwhile_grants_nothing() -> Outcome {
    let (stage, replicas) = with_replicas(2, ServerOptions::new()).await?;
    let client = stage.client(&format!("{SHORT}&durable=replicas:2")).await?;
    replicas[0].stop()?;
    let lock = client.mutex(ROOM)?;
    let trying = tokio::spawn(async move { lock.try_acquire().await });
    until("it is asked", || async { Ok(stage.holder().await?.is_some()) }).await?;
    let port = replicas[1].address().port().to_string();
    stage.server.command(&["REPLICAOF", "127.0.0.1", &port]).await?;
    let error = soon("the answer", trying).await??.err();
    let error = error.ok_or_else(|| Failure::new("granted by a server that is no primary"))?;
    ensure!(error.is_retryable(), "{error}");
    Ok(())
}

async fn all_are_those_that_were_in_sync_at_one_time() -> Outcome {
    let (stage, replicas) = with_replicas(1, ServerOptions::new()).await?;
    let client = stage.client(&format!("{SHORT}&durable=all")).await?;
    stage.works(&client).await?;
    let added = add_replica(&stage).await?;
    stage.works(&client).await?;
    added.kill()?;
    until("it is missed", || async { Ok(in_sync(&stage).await? == 1) }).await?;
    let error = failure(&client, ROOM).await?;
    ensure!(error.to_string().contains("1 of 2 replicas"), "{error}");
    stage.works(&stage.client(&format!("{SHORT}&durable=all")).await?).await?;
    // One is needed at least.
    replicas[0].kill()?;
    until("it is missed", || async { Ok(in_sync(&stage).await? == 0) }).await?;
    let error = failure(&stage.client(&format!("{SHORT}&durable=all")).await?, ROOM).await?;
    ensure!(error.to_string().contains("0 of 1 replicas"), "{error}");
    Ok(())
}

async fn what_durable_grants_need_is_checked_at_once() -> Outcome {
    for (refused, option, said) in
        [("-wait", "replicas:1", "redis.md"), ("-info", "all", "durable=all need it")]
    {
        let rights = format!("~distlock:* &distlock:* +@all {refused}");
        let (stage, _) = with_replicas(0, ServerOptions::new().user("app", "pw", &[&rights])).await?;
        let connected = connect(&with_options(&stage.server.url(), &format!("durable={option}"))).await;
        let error = connected.err().ok_or_else(|| Failure::new(format!("let in with {refused}")))?;
        ensure!(error.kind() == ErrorKind::Denied && error.to_string().contains(said), "{error}");
    }
    Ok(())
}

/// The primary may be known by that name soon.
async fn a_replica_is_no_reason_to_give_up() -> Outcome {
    let (_stage, replicas) = with_replicas(1, ServerOptions::new()).await?;
    let connected = connect(&with_options(&replicas[0].url(), "durable=replicas:1")).await;
    let error = connected.err().ok_or_else(|| Failure::new("let in by a replica"))?;
    ensure!(error.is_retryable(), "{error:?}");
    Ok(())
}

async fn info_that_is_refused_meanwhile_costs_no_hold() -> Outcome {
    let (stage, _replicas) = with_replicas(1, ServerOptions::new()).await?;
    let (client, time) = stage.frozen(&format!("{FROZEN}&durable=all")).await?;
    let guard = soon("the lock", client.mutex(ROOM)?.acquire()).await??;
    stage.server.command(&["ACL", "SETUSER", "default", "-info"]).await?;
    outlast(&time, INTERVAL, [&guard], async || Ok(())).await
}
