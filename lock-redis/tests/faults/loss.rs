//! A hold that disappears from the server while its holder lives.

use conformance_tests::{Failure, Outcome};
use lock_core::{ErrorKind, FencingToken, HolderId, LossReason};

use crate::case::{cases, ensure};
use crate::event_recorder::EventRecorder;
use crate::stage::{FROZEN, INTERVAL, LONG, ROOM, Stage, Waiter, connect, key, soon, until, with_options};

cases!("loss":
    everything_is_flushed,
    a_flush_costs_no_waiter_its_wait,
    the_key_is_deleted,
    the_key_is_stolen,
    a_stolen_key_is_not_deleted_by_the_one_who_lost_it,
    a_release_reports_a_loss_that_was_not_noticed_before,
    lost_contact_and_its_return_are_reported_at_once,
    a_broken_hold_is_reported_at_once,
    a_break_before_the_holder_has_read_of_its_grant_counts,
);

/// The next renewal finds out.
async fn is_told(words: &[&str], expected: LossReason) -> Outcome {
    let stage = Stage::new().await?;
    let (client, time) = stage.frozen(FROZEN).await?;
    let lock = client.mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    let guard = lock.acquire().await?;
    let token = guard.token();
    stage.server.command(words).await?;
    time.advance(INTERVAL);
    let (reason, _) = recorder.abort().await?;
    ensure!(reason == expected, "{words:?} was told as {reason:?}");
    ensure!(soon("lost()", guard.lost()).await? == Some(expected) && !guard.hold().is_valid(), "no loss");
    let released = guard.release().await.map_err(|error| (error.kind(), error.loss()));
    ensure!(released == Err((ErrorKind::Lost, Some(expected))), "the release was answered {released:?}");
    client.idle().await;
    stage.server.command(&["DEL", &key(ROOM, 'l')]).await?;
    let again = soon("the lock", lock.acquire()).await??;
    ensure!(again.token() > token, "the token fell from {token:?} to {:?}", again.token());
    again.release().await?;
    ensure!(recorder.aborts() == 1, "{:?}", recorder.events());
    Ok(())
}

/// The fence is gone as well, but the tokens still rise.
async fn everything_is_flushed() -> Outcome {
    is_told(&["FLUSHALL"], LossReason::Deleted).await
}

async fn the_key_is_deleted() -> Outcome {
    is_told(&["DEL", &key(ROOM, 'l')], LossReason::Deleted).await
}

async fn the_key_is_stolen() -> Outcome {
    is_told(&["SET", &key(ROOM, 'l'), "thief 1 1 - {}"], LossReason::Taken).await
}

/// The waiters lose their places, and the one that asks again first is the first.
async fn a_flush_costs_no_waiter_its_wait() -> Outcome {
    let stage = Stage::new().await?;
    let holder = stage.client(LONG).await?;
    let held = holder.mutex(ROOM)?.acquire().await?;
    let (one, other) = (stage.client("lease=4s").await?, stage.client("lease=4s").await?);
    let first = Waiter::of(&one)?;
    stage.queued(1).await?;
    let second = Waiter::of(&other)?;
    stage.queued(2).await?;
    stage.server.command(&["FLUSHALL"]).await?;
    let served = |waiter: Waiter| async {
        let (guard, _) = waiter.granted().await?;
        Ok::<_, Failure>(guard.release().await?)
    };
    tokio::try_join!(served(first), served(second))?;
    drop(held);
    holder.idle().await;
    stage.nothing_is_left("after all of them").await
}

async fn a_stolen_key_is_not_deleted_by_the_one_who_lost_it() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client(LONG).await?;
    let guard = client.mutex(ROOM)?.acquire().await?;
    let theft = "thief 1 1 - {}";
    stage.server.command(&["SET", &key(ROOM, 'l'), theft]).await?;
    let released = guard.release().await.map_err(|error| (error.kind(), error.loss()));
    ensure!(released == Err((ErrorKind::Lost, Some(LossReason::Taken))), "answered {released:?}");
    client.idle().await;
    let left = stage.text(&["GET", &key(ROOM, 'l')]).await?;
    ensure!(left.as_deref() == Some(theft), "the key says {left:?}");
    Ok(())
}

async fn a_release_reports_a_loss_that_was_not_noticed_before() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client(LONG).await?;
    let lock = client.mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    let guard = lock.acquire().await?;
    stage.server.command(&["DEL", &key(ROOM, 'l')]).await?;
    let released = guard.release().await.map_err(|error| (error.kind(), error.loss()));
    ensure!(released == Err((ErrorKind::Lost, Some(LossReason::Deleted))), "answered {released:?}");
    // The owner itself ended the hold, so no listener hears of a loss.
    ensure!(recorder.aborts() == 0, "{:?}", recorder.events());
    Ok(())
}

/// The next renewal would be more than a minute away.
async fn lost_contact_and_its_return_are_reported_at_once() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let client = stage.client_at(proxy.address(), LONG).await?;
    let lock = client.mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    let guard = lock.acquire().await?;
    proxy.cut();
    recorder.suspect().await?;
    recorder.restored().await?;
    ensure!(guard.hold().is_valid() && recorder.aborts() == 0, "lost: {:?}", recorder.events());
    Ok(guard.release().await?)
}

/// By a message: no renewal is due.
async fn a_broken_hold_is_reported_at_once() -> Outcome {
    let stage = Stage::new().await?;
    let ((ours, _), operator) = (stage.frozen(FROZEN).await?, stage.client(LONG).await?);
    let lock = ours.mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    let guard = lock.acquire().await?;
    let status = operator.status(ROOM).await?;
    operator.break_holder(ROOM, &status.holders[0].id).await?;
    let (reason, _) = recorder.abort().await?;
    ensure!(reason == LossReason::Broken, "lost because {reason}");
    ensure!(!guard.hold().is_valid(), "a broken hold is valid");
    Ok(())
}

/// The grant and its break arrive together, at a client whose runtime was blocked during both.
async fn a_break_before_the_holder_has_read_of_its_grant_counts() -> Outcome {
    let stage = Stage::new().await?;
    let (first, last) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let held = first.mutex(ROOM)?.acquire().await?;
    let (stands_still, has_stopped) = tokio::sync::oneshot::channel();
    let (is_in_line, has_come_back) = tokio::sync::oneshot::channel();
    let (go_on, is_to_go_on) = std::sync::mpsc::channel::<()>();
    let url = with_options(&stage.server.url(), &format!("{LONG}&engine=caller"));
    let ours = tokio::task::spawn_blocking(move || {
        stand_still_while_waiting(&url, stands_still, &is_to_go_on, is_in_line)
    });
    has_stopped.await.map_err(|_| Failure::new("it never stood in line"))?;
    let last_in_line = Waiter::of(&last)?;
    stage.queued(2).await?;
    let (before, _) = stage.holder().await?.ok_or_else(|| Failure::new("the lock is free"))?;
    held.release().await?;
    let (granted, _) = stage.holder().await?.ok_or_else(|| Failure::new("the lock was not handed over"))?;
    ensure!(granted != before, "the lock was not handed over");
    last.break_holder(ROOM, &HolderId::new(&granted)).await?;
    let (guard, _) = last_in_line.granted().await?;
    go_on.send(()).map_err(|_| Failure::new("it did not stand still"))?;
    // The attempt is in the queue again, and not a holder: its turn comes only after this release.
    if has_come_back.await.is_ok() {
        guard.release().await?;
    }
    let token = soon("the grant", ours).await???;
    ensure!(token.is_some(), "no token");
    Ok(())
}

/// Waits for the lock on a runtime of one thread, which is blocked from the time when the attempt is in the queue until the
/// test lets it go on. Returns the token of the resulting hold.
fn stand_still_while_waiting(
    url: &str,
    stands_still: tokio::sync::oneshot::Sender<()>,
    go_on: &std::sync::mpsc::Receiver<()>,
    is_in_line: tokio::sync::oneshot::Sender<()>,
) -> Outcome<Option<FencingToken>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = connect(url).await?;
        let waiter = Waiter::of(&client)?;
        until("it waits", || async { Ok(client.status(ROOM).await?.waiters.len() == 1) }).await?;
        let _ = stands_still.send(());
        go_on.recv().map_err(|_| Failure::new("the test did not say to go on"))?;
        until("it is in line again", || async {
            ensure!(!waiter.is_finished(), "it believes that it holds what was taken from it");
            Ok(client.status(ROOM).await?.waiters.len() == 1)
        })
        .await?;
        let _ = is_in_line.send(());
        let (guard, _) = waiter.granted().await?;
        let token = guard.token();
        guard.release().await?;
        Ok(token)
    })
}
