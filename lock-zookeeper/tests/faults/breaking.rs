//! Holds that an operator breaks.

use std::time::{Duration, Instant};

use conformance_tests::{Failure, Outcome};
use lock_core::{HolderId, LossReason};
use test_servers::{Access, NodeKind, ZooKeeperRequest};

use crate::case::{cases, ensure};
use crate::event_recorder::EventRecorder;
use crate::helper::Helper;
use crate::stage::{LONG, NO_LONGER_NEW, ROOM, Stage, as_time_passes, connect_patiently, soon, until};

cases!("breaking":
    a_broken_hold_is_reported_as_broken_at_once,
    a_broken_hold_is_its_holders_until_the_abort_margin_is_over,
    a_hold_that_is_broken_twice_is_its_holders_for_as_long,
    a_hold_of_which_nothing_may_be_read_is_its_holders_until_it_has_stopped,
    a_holder_that_stands_still_keeps_a_broken_lock_no_longer_than_its_margin,
    the_hold_of_a_foreign_program_is_broken,
    who_does_not_hold_is_not_broken,
    a_break_that_arrives_late_breaks_no_other_holder,
    a_break_whose_second_half_arrives_late_breaks_no_other_holder,
    a_break_overwrites_nothing_that_the_holder_has_written_meanwhile,
    a_break_looks_again_at_what_has_changed_before_it_removes_it,
);

/// A holder learns of the break before its node goes, even while it is busy. Only its watch can tell: its clock stands still, so no
/// heartbeat is due.
async fn a_broken_hold_is_reported_as_broken_at_once() -> Outcome {
    let stage = Stage::new().await?;
    let ((ours, time), (operator, operators)) = (stage.frozen(LONG).await?, stage.frozen(LONG).await?);
    let third = stage.client(LONG).await?;
    let lock = ours.mutex(ROOM)?;
    for is_new in [true, false, true, false] {
        let recorder = EventRecorder::of(&lock);
        let guard = soon("the lock", lock.acquire()).await??;
        let waiter = stage.in_line(&third, 2).await?;
        let holder = HolderId::new(stage.nodes().await?[0].as_str());
        if !is_new {
            time.advance(NO_LONGER_NEW);
            stage.is_watched(&[stage.path(0).await?], stage.session(0).await?).await?;
        }
        let (path, breaks, broken) = (stage.path(0).await?, operator.clone(), holder.clone());
        let breaking = tokio::spawn(async move { breaks.break_holder(ROOM, &broken).await });
        // A hold that is new is not watched before the clock moves.
        if is_new {
            until("the mark", || async {
                let node = stage.server.node(&path).await?;
                Ok(node.is_none_or(|node| String::from_utf8_lossy(&node.data).contains("broken")))
            })
            .await?;
            time.advance(NO_LONGER_NEW);
        }
        let (reason, _) = recorder.abort().await?;
        ensure!(reason == LossReason::Broken && !guard.hold().is_valid(), "{reason:?}");
        // The operator's clock stands still until then, so that it leaves the holder time to learn of the break.
        let broken = as_time_passes(&operators, "the answer", breaking).await???;
        ensure!(broken.taken_away, "{broken:?}");
        let (next, _) = waiter.granted().await?;
        stage.is_held_by(&next, "after the break").await?;
        // The same command once more finds another holder.
        let again = operator.break_holder(ROOM, &holder).await?;
        ensure!(!again.taken_away, "{again:?}");
        drop(guard);
        soon("the rest", ours.idle()).await?;
        stage.is_held_by(&next, "after the second order").await?;
        next.release().await?;
    }
    Ok(())
}

/// Longer than the time that a holder gets if it has not asked for any.
const MARGIN: Duration = Duration::from_secs(5);

const SLOW_TO_STOP: &str = "session_timeout=60s&abort_margin=5s";

/// So that it finishes its writes before another client has the lock.
async fn a_broken_hold_is_its_holders_until_the_abort_margin_is_over() -> Outcome {
    let stage = Stage::new().await?;
    let ((ours, time), (operator, operators)) =
        (stage.frozen(SLOW_TO_STOP).await?, stage.frozen(LONG).await?);
    let third = stage.client(LONG).await?;
    let lock = ours.mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    let guard = soon("the lock", lock.acquire()).await??;
    time.advance(NO_LONGER_NEW);
    let waiter = stage.in_line(&third, 2).await?;
    let holder = HolderId::new(stage.nodes().await?[0].as_str());
    let breaking = tokio::spawn(async move { operator.break_holder(ROOM, &holder).await });
    let (reason, _) = recorder.abort().await?;
    ensure!(reason == LossReason::Broken && !guard.hold().is_valid(), "{reason:?}");
    for time in [&time, &operators] {
        time.advance(MARGIN.saturating_sub(Duration::from_nanos(1)));
    }
    // What the holder has asked for before this is done.
    ours.ping().await?;
    ensure!(stage.nodes().await?.len() == 2 && !waiter.is_finished(), "it had less than its margin");
    let (next, _) = as_time_passes(&time, "the grant", waiter.granted()).await??;
    let broken = soon("the answer", breaking).await???;
    ensure!(broken.taken_away, "{broken:?}");
    stage.is_held_by(&next, "after the break").await?;
    Ok(next.release().await?)
}

/// The second operator finds out what the first one has overwritten.
async fn a_hold_that_is_broken_twice_is_its_holders_for_as_long() -> Outcome {
    let stage = Stage::new().await?;
    let (ours, operator) = (stage.client(SLOW_TO_STOP).await?, stage.client(LONG).await?);
    let third = stage.client(LONG).await?;
    let guard = soon("the lock", ours.mutex(ROOM)?.acquire()).await??;
    let waiter = stage.in_line(&third, 2).await?;
    let holder = HolderId::new(stage.nodes().await?[0].as_str());
    let began = Instant::now();
    let first = tokio::spawn({
        let (operator, holder) = (operator.clone(), holder.clone());
        async move { operator.break_holder(ROOM, &holder).await }
    });
    soon("the loss", guard.lost()).await?;
    let status = operator.status(ROOM).await?;
    ensure!(status.holders[0].pid == Some(std::process::id()), "nothing is known of it: {status:?}");
    let second = operator.break_holder(ROOM, &holder).await?;
    let first = soon("the first order", first).await???;
    ensure!(first.taken_away && second.taken_away, "{first:?} {second:?}");
    let (next, granted) = waiter.granted().await?;
    ensure!(granted >= began + MARGIN, "another had it {:?} later", granted - began);
    Ok(next.release().await?)
}

/// The servers' digest of the user `one` with the password `right`.
const ONE: &str = "one:25t/edoTCqPAqf44bC6R0TuAIaY=";

/// The operator may write the mark into the holder's node, but may not read how long the holder needs to stop.
async fn a_hold_of_which_nothing_may_be_read_is_its_holders_until_it_has_stopped() -> Outcome {
    let stage = Stage::new().await?;
    let ours = connect_patiently(&stage.url_as("one:right", SLOW_TO_STOP)).await?;
    let operator = stage.client(LONG).await?;
    let lock = ours.mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    let guard = soon("the lock", lock.acquire()).await??;
    let access = Access::new().grant("cdrwa", "digest", ONE).grant("w", "world", "anyone");
    stage.server.set_access(&stage.path(0).await?, &access).await?;
    let holder = HolderId::new(stage.nodes().await?[0].as_str());
    let began = Instant::now();
    let broken = soon("the answer", operator.break_holder(ROOM, &holder)).await??;
    let took = began.elapsed();
    ensure!(broken.taken_away, "{broken:?}");
    let (reason, _) = recorder.abort().await?;
    ensure!(reason == LossReason::Broken && !guard.hold().is_valid(), "{reason:?}");
    ensure!(took >= MARGIN, "another could have had it {took:?} later");
    stage.works(&operator).await
}

/// Neither the holder nor its session does anything about the break.
async fn a_holder_that_stands_still_keeps_a_broken_lock_no_longer_than_its_margin() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client(LONG).await?;
    let mut sleeper = Helper::start(&stage.url("session_timeout=60s&abort_margin=1s"), ROOM).await?;
    sleeper.acquired().await?;
    let waiter = stage.in_line(&client, 2).await?;
    sleeper.stop().await?;
    let holder = HolderId::new(stage.nodes().await?[0].as_str());
    let began = Instant::now();
    let broken = soon("the answer", client.break_holder(ROOM, &holder)).await??;
    ensure!(broken.taken_away, "{broken:?}");
    let (next, granted) = waiter.granted().await?;
    // Its session would have ended after a minute.
    ensure!(granted < began + Duration::from_secs(60), "another had it {:?} later", granted - began);
    sleeper.resume().await?;
    let reason = sleeper.lost().await?;
    // It learns of both at once.
    let sound = [LossReason::Broken, LossReason::Deleted].map(|reason| reason.to_string());
    ensure!(sound.contains(&reason), "lost because {reason}");
    stage.is_held_by(&next, "beside the one that runs again").await?;
    Ok(next.release().await?)
}

async fn the_hold_of_a_foreign_program_is_broken() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client(LONG).await?;
    let prefix = format!("{}/_c_somebody-lock-", stage.directory(ROOM));
    stage.server.create(&prefix, b"10.0.0.7", NodeKind::Numbered).await?;
    let waiter = stage.in_line(&client, 2).await?;
    let status = client.status(ROOM).await?;
    ensure!(status.holders.len() == 1 && status.waiters.len() == 1, "{status:?}");
    ensure!(status.holders[0].host.as_deref() == Some("10.0.0.7"), "{status:?}");
    let broken = client.break_holder(ROOM, &status.holders[0].id).await?;
    ensure!(broken.taken_away, "{broken:?}");
    let (guard, _) = waiter.granted().await?;
    Ok(guard.release().await?)
}

async fn who_does_not_hold_is_not_broken() -> Outcome {
    let stage = Stage::new().await?;
    let (first, second) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let held = first.mutex(ROOM)?.acquire().await?;
    let waiter = stage.in_line(&second, 2).await?;
    let nodes = stage.nodes().await?;
    for id in [nodes[1].as_str(), "_c_nobody-lock-0000000000", "..", ""] {
        let broken = first.break_holder(ROOM, &HolderId::new(id)).await?;
        ensure!(!broken.taken_away, "{id:?}: {broken:?}");
    }
    ensure!(stage.nodes().await? == nodes, "a client has lost a place");
    held.release().await?;
    let (guard, _) = waiter.granted().await?;
    Ok(guard.release().await?)
}

/// The holder has gone by itself when the command arrives.
async fn a_break_that_arrives_late_breaks_no_other_holder() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let (first, second) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let (operator, _operators) = stage.frozen_at(proxy.address(), LONG).await?;
    let held = first.mutex(ROOM)?.acquire().await?;
    let waiter = stage.in_line(&second, 2).await?;
    let holder = HolderId::new(stage.nodes().await?[0].as_str());
    proxy.hold_request(ZooKeeperRequest::Change);
    let breaking = tokio::spawn(async move { operator.break_holder(ROOM, &holder).await });
    soon("the order", proxy.is_held()).await?;
    held.release().await?;
    let (next, _) = waiter.granted().await?;
    proxy.let_go();
    let broken = soon("the answer", breaking).await???;
    ensure!(!broken.taken_away, "{broken:?}");
    stage.is_held_by(&next, "after the order").await?;
    Ok(next.release().await?)
}

/// The holder has learned of the break and has gone before the request to delete its node arrives.
async fn a_break_whose_second_half_arrives_late_breaks_no_other_holder() -> Outcome {
    let stage = Stage::new().await?;
    let (slow, late) = (stage.proxy()?, stage.proxy()?);
    let (first, second) = (stage.client_at(slow.address(), LONG).await?, stage.client(LONG).await?);
    let (operator, operators) = stage.frozen_at(late.address(), LONG).await?;
    let lock = first.mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    let held = lock.acquire().await?;
    let waiter = stage.in_line(&second, 2).await?;
    let holder = HolderId::new(stage.nodes().await?[0].as_str());
    slow.hold_request(ZooKeeperRequest::Delete);
    late.hold_request(ZooKeeperRequest::Delete);
    let breaking = tokio::spawn(async move { operator.break_holder(ROOM, &holder).await });
    let (reason, aborted) = recorder.abort().await?;
    ensure!(reason == LossReason::Broken, "{reason:?}");
    soon("the holder's own order", slow.is_held()).await?;
    as_time_passes(&operators, "the second half", late.is_held()).await?;
    slow.let_go();
    let (next, granted) = waiter.granted().await?;
    ensure!(aborted < granted, "another had the lock before the abort");
    late.let_go();
    let broken = soon("the answer", breaking).await???;
    ensure!(broken.taken_away, "{broken:?}");
    drop(held);
    stage.is_held_by(&next, "after the order").await?;
    Ok(next.release().await?)
}

/// The mark comes on top of what the holder says of itself by then.
async fn a_break_overwrites_nothing_that_the_holder_has_written_meanwhile() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let (ours, time) = stage.frozen(LONG).await?;
    let (operator, operators) = stage.frozen_at(proxy.address(), LONG).await?;
    let leadership = soon("the lock", ours.election(ROOM)?.campaign("before")).await??;
    let holder = HolderId::new(stage.nodes().await?[0].as_str());
    proxy.hold_request(ZooKeeperRequest::Change);
    let breaking = tokio::spawn(async move { operator.break_holder(ROOM, &holder).await });
    soon("the mark", proxy.is_held()).await?;
    soon("what the holder writes", leadership.proclaim("meanwhile")).await??;
    proxy.let_go();
    let path = stage.path(0).await?;
    until("the mark", || async {
        let node =
            stage.server.node(&path).await?.ok_or_else(|| Failure::new("it is gone without a mark"))?;
        let text = String::from_utf8_lossy(&node.data).into_owned();
        ensure!(text.contains("meanwhile"), "the break has overwritten what the holder wrote: {text}");
        Ok(text.contains("broken"))
    })
    .await?;
    // Only now the holder may learn of it.
    time.advance(NO_LONGER_NEW);
    let broken = as_time_passes(&operators, "the answer", breaking).await???;
    ensure!(broken.taken_away, "{broken:?}");
    Ok(())
}

async fn a_break_looks_again_at_what_has_changed_before_it_removes_it() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let operator = stage.client_at(proxy.address(), LONG).await?;
    let prefix = format!("{}/_c_somebody-lock-", stage.directory(ROOM));
    let path = stage.server.create(&prefix, b"10.0.0.7", NodeKind::Numbered).await?;
    let holder = HolderId::new(path.rsplit('/').next().unwrap_or_default());
    let asked = proxy.requests(ZooKeeperRequest::Delete);
    proxy.hold_request(ZooKeeperRequest::Delete);
    let breaking = tokio::spawn(async move { operator.break_holder(ROOM, &holder).await });
    soon("the removal", proxy.is_held()).await?;
    stage.server.write(&path, b"10.0.0.8").await?;
    proxy.let_go();
    let broken = soon("the answer", breaking).await???;
    ensure!(broken.taken_away && stage.server.node(&path).await?.is_none(), "{broken:?}");
    let asked = proxy.requests(ZooKeeperRequest::Delete) - asked;
    ensure!(asked == 2, "it was removed with {asked} requests: unseen as it was");
    Ok(())
}
