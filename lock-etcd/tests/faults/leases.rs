//! The lease of a client: operators that revoke it, servers that stand still, restart or compact.

use std::time::{Duration, Instant};

use conformance_tests::Outcome;
use lock_core::{LockGuard, LossReason};
use test_servers::{Data, EtcdRequest};

use crate::case::{cases, ensure};
use crate::event_recorder::EventRecorder;
use crate::stage::{
    LONG, PREFIX, ROOM, Stage, Waiter, lease_of, reach_frozen, seconds_left, soon, until, with_options,
};

cases!("leases":
    a_revoked_lease_is_a_loss_at_once_and_another_follows,
    a_waiter_whose_lease_is_revoked_waits_again,
    waiters_whose_keys_go_with_the_holders_have_nothing,
    a_server_that_stands_still_for_longer_than_the_lease,
    a_server_that_restarts_gives_the_whole_length_again,
    a_server_without_its_data,
    a_client_that_did_nothing_has_a_free_lock_at_once,
    a_lease_counts_from_the_sending_of_its_keep_alive,
    a_compaction_disturbs_no_waiter,
    a_waiter_finds_out_what_was_compacted_while_it_was_cut_off,
);

async fn a_revoked_lease_is_a_loss_at_once_and_another_follows() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client(LONG).await?;
    let lock = client.mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    let guard = lock.acquire().await?;
    let revoked = Instant::now();
    stage.server.command(&["lease", "revoke", &stage.lease_of_holder().await?]).await?;
    let (reason, lost) = recorder.abort().await?;
    ensure!(matches!(reason, LossReason::Deleted | LossReason::SessionClosed), "lost because {reason}");
    ensure!(lost - revoked < Duration::from_secs(30), "told {:?} later", lost - revoked);
    drop(guard);
    let again = soon("the lock", lock.acquire()).await??;
    again.release().await?;
    stage.is_free(&client, "then").await
}

async fn a_waiter_whose_lease_is_revoked_waits_again() -> Outcome {
    let stage = Stage::new().await?;
    let (holder, client) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let guard = holder.mutex(ROOM)?.acquire().await?;
    let waiter = Waiter::of(&client)?;
    stage.in_line(2).await?;
    let place = stage.line().await?[1].clone();
    stage.server.command(&["lease", "revoke", lease_of(&place)]).await?;
    until("another place", || async {
        let line = stage.line().await?;
        Ok(line.len() == 2 && line[1] != place)
    })
    .await?;
    ensure!(!waiter.is_finished(), "granted beside the holder");
    guard.release().await?;
    Ok(waiter.granted().await?.0.release().await?)
}

/// One revision deletes all keys, and names that of the last waiter last.
async fn waiters_whose_keys_go_with_the_holders_have_nothing() -> Outcome {
    let stage = Stage::new().await?;
    let clients = [stage.client(LONG).await?, stage.client(LONG).await?, stage.client(LONG).await?];
    let lock = clients[0].mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    let guard = lock.acquire().await?;
    let mut waiters = Vec::new();
    for client in &clients[1..] {
        waiters.push(Waiter::of(client)?);
        stage.in_line(waiters.len() + 1).await?;
    }
    stage.server.command(&["del", "--prefix", &format!("{PREFIX}/{ROOM}/")]).await?;
    let (reason, _) = recorder.abort().await?;
    ensure!(reason == LossReason::Deleted, "lost because {reason}");
    drop(guard);
    // Each asks again, and only the first of them has it.
    stage.in_line(2).await?;
    until("one is granted", || async { Ok(waiters.iter().any(Waiter::is_finished)) }).await?;
    let (first, last): (Vec<_>, Vec<_>) = waiters.into_iter().partition(Waiter::is_finished);
    ensure!(first.len() == 1, "{} are granted", first.len());
    for waiter in first.into_iter().chain(last) {
        let guard = waiter.granted().await?.0;
        ensure!(guard.hold().is_valid(), "granted without a key");
        guard.release().await?;
    }
    stage.is_free(&clients[0], "then").await
}

/// When it goes on, it answers keep-alives that it got long ago. The holder has stopped before.
async fn a_server_that_stands_still_for_longer_than_the_lease() -> Outcome {
    let stage = Stage::new().await?;
    let (client, other) = (stage.client("lease=3s").await?, stage.client(LONG).await?);
    let lock = client.mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    let guard = lock.acquire().await?;
    let waiter = Waiter::of(&other)?;
    stage.in_line(2).await?;
    stage.server.stop()?;
    let (reason, lost) = recorder.abort().await?;
    ensure!(reason == LossReason::Expired, "lost because {reason}");
    // The rest of the lease, which the client does not use.
    tokio::time::sleep(Duration::from_secs(1)).await;
    stage.server.resume()?;
    let (next, granted) = waiter.granted().await?;
    ensure!(lost < granted && !guard.hold().is_valid(), "both held for {:?}", lost - granted);
    next.release().await?;
    ensure!(recorder.aborts() == 1, "{:?}", recorder.events());
    stage.is_free(&client, "then").await
}

/// The client is cut off, so it is not a keep-alive that does this.
async fn a_server_that_restarts_gives_the_whole_length_again() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.server.proxy()?;
    let client = stage.client_at(proxy.address(), LONG).await?;
    let lock = client.mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    let guard = lock.acquire().await?;
    let key = guard.hold().id().to_string();
    proxy.sever();
    until("a part is over", || async {
        Ok(seconds_left(&stage.server, &key).await.is_ok_and(|left| left < 297))
    })
    .await?;
    let began = Instant::now();
    stage.server.restart(Data::Kept).await?;
    let (left, took) = (seconds_left(&stage.server, &key).await?, began.elapsed());
    ensure!(left + took.as_secs() >= 299, "{left} s are left {took:?} after the restart began");
    proxy.heal();
    recorder.restored().await?;
    ensure!(guard.hold().is_valid() && recorder.aborts() == 0, "{:?}", recorder.events());
    Ok(guard.release().await?)
}

async fn a_server_without_its_data() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client(LONG).await?;
    let lock = client.mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    let guard = lock.acquire().await?;
    stage.server.restart(Data::Lost).await?;
    let (reason, _) = recorder.abort().await?;
    ensure!(matches!(reason, LossReason::Deleted | LossReason::SessionClosed), "lost because {reason}");
    drop(guard);
    stage.is_free(&client, "then").await
}

/// Most of its lease is the abort margin, and a hold has to begin with the rest of it.
async fn a_client_that_did_nothing_has_a_free_lock_at_once() -> Outcome {
    let stage = Stage::new().await?;
    let url = with_options(&stage.server.url(PREFIX), "lease=5m&abort_margin=200s&timeout=20s");
    let (client, time) = reach_frozen(&url).await?;
    // What the lease's grant proves is over for a hold. A keep-alive is due, and its answer comes after that to the creation of the key.
    time.advance(Duration::from_secs(110));
    // A grant that had ended would keep the lock for a margin, which does not pass within the patience. The time goes on for what a busy
    // server may fail to do at first.
    let goes_on = async {
        loop {
            tokio::time::sleep(Duration::from_millis(100)).await;
            time.advance(Duration::from_millis(100));
        }
    };
    let lock = client.mutex(ROOM)?;
    let guard = tokio::select! {
        guard = soon("the lock", lock.acquire()) => guard??,
        never = goes_on => never,
    };
    ensure!(guard.hold().is_valid(), "it has ended already");
    Ok(guard.release().await?)
}

/// And not from an answer that was late: the next hold begins with what is left of it.
async fn a_lease_counts_from_the_sending_of_its_keep_alive() -> Outcome {
    const LATE: Duration = Duration::from_secs(10);
    let stage = Stage::new().await?;
    let proxy = stage.server.proxy()?;
    let url = stage.server.url_at(&[proxy.address()], PREFIX);
    let (client, time) = reach_frozen(&with_options(&url, "lease=5m&timeout=50s")).await?;
    let first = client.mutex(ROOM)?.acquire().await?;
    let left = |guard: &LockGuard| guard.hold().remaining().unwrap_or_default();
    let whole = left(&first);
    proxy.hold_reply(EtcdRequest::KeepAlive);
    // A quarter of the lease, and a little more.
    time.advance(Duration::from_secs(76));
    soon("a keep-alive", proxy.is_held()).await?;
    time.advance(LATE);
    proxy.let_go();
    until("the first is renewed", || async { Ok(left(&first) + LATE * 2 > whole) }).await?;
    let second = client.mutex("another room")?.acquire().await?;
    ensure!(left(&second) + LATE <= whole, "{:?} of {whole:?} are left", left(&second));
    second.release().await?;
    Ok(first.release().await?)
}

/// Compacts up to now.
async fn compact(stage: &Stage) -> Outcome {
    let answer = stage.server.command(&["put", "other", "x", "-w", "fields"]).await?;
    let revision = answer.lines().find_map(|line| line.strip_prefix("\"Revision\" : ")).unwrap_or("0");
    stage.server.command(&["compact", revision]).await.map(drop)
}

async fn a_compaction_disturbs_no_waiter() -> Outcome {
    let stage = Stage::new().await?;
    let (client, other) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let lock = client.mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    let guard = lock.acquire().await?;
    // The hold is watched from its grant on, which is compacted before.
    compact(&stage).await?;
    let waiter = Waiter::of(&other)?;
    stage.in_line(2).await?;
    compact(&stage).await?;
    soon("the release", guard.release()).await??;
    ensure!(recorder.aborts() == 0, "{:?}", recorder.events());
    Ok(waiter.granted().await?.0.release().await?)
}

async fn a_waiter_finds_out_what_was_compacted_while_it_was_cut_off() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.server.proxy()?;
    let (client, other) = (stage.client(LONG).await?, stage.client_at(proxy.address(), LONG).await?);
    let guard = client.mutex(ROOM)?.acquire().await?;
    let waiter = Waiter::of(&other)?;
    stage.in_line(2).await?;
    proxy.sever();
    guard.release().await?;
    compact(&stage).await?;
    ensure!(!waiter.is_finished(), "granted without contact");
    proxy.heal();
    Ok(waiter.granted().await?.0.release().await?)
}
