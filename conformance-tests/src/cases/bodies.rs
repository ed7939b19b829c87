//! Cases: bodies under a lock.

use std::future::pending;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::{Failure, Outcome, ensure};
use lock_core::{ErrorKind, Hold, LockError, LockOptions};
use tokio::sync::Notify;

use super::waiting::refused_in_time;
use crate::case::{Need, cases};
use crate::harness::{Ability, Removal};
use crate::stage::Stage;

cases!("bodies":
    a_body_and_what_it_calls_are_one_owner_across_locks,
    a_body_does_not_run_while_another_client_has_the_lock,
    bodies_of_two_clients_exclude_each_other,
    a_deleted_hold_stops_its_body [Need::Ability(Ability::Removal(Removal::Deletion))],
    a_body_that_may_finish_outlasts_its_hold [Need::Ability(Ability::Removal(Removal::Deletion))],
    a_broken_hold_stops_its_body [Need::Breaking, Need::Holder],
    a_body_that_is_dropped_gives_the_lock_back,
    the_status_shows_the_id_of_a_hold [Need::Holder],
);

async fn a_body_and_what_it_calls_are_one_owner_across_locks(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let (room, hall) = (ours.mutex("room")?, ours.mutex("hall")?);
    let innermost = async |again: Hold| Ok::<_, LockError>(again.id());
    let inside = room.with_lock(async |hold| {
        let again = hall.with_lock(async |_| room.with_lock(innermost).await).await?;
        ensure!(again == hold.id(), "the inner body has a hold of its own");
        stage.is_held(&theirs, "room").await?;
        stage.is_free(&theirs, "hall").await
    });
    stage.soon("the bodies", inside).await??;
    stage.is_free(&theirs, "room").await
}

async fn a_body_does_not_run_while_another_client_has_the_lock(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let held = theirs.mutex("room")?.acquire().await?;
    let runs = AtomicU32::new(0);
    let body = async |_| {
        runs.fetch_add(1, Ordering::SeqCst);
        Ok::<_, LockError>(())
    };
    let lock = ours.mutex("room")?;
    ensure!(lock.try_with_lock(body).await?.is_none(), "a body ran beside another client's hold");
    let refused = refused_in_time(Duration::from_millis(50), |wait| lock.with_lock_for(wait, body)).await;
    let kind = refused.map_err(|error| error.kind());
    ensure!(kind == Err(ErrorKind::Busy), "the wait for a held lock ended with {kind:?}");
    ensure!(runs.load(Ordering::SeqCst) == 0, "a body ran beside another client's hold");
    held.release().await?;
    lock.with_lock_for(stage.patience(), body).await?;
    ensure!(runs.load(Ordering::SeqCst) == 1, "the body of a free lock did not run");
    Ok(())
}

async fn bodies_of_two_clients_exclude_each_other(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?.mutex("room")?, stage.client().await?.mutex("room")?);
    let inside = AtomicU32::new(0);
    let many = async |lock: std::sync::Arc<dyn lock_core::DistributedLock>| {
        for _ in 0..stage.rounds(20) {
            lock.with_lock(async |_| {
                let others = inside.fetch_add(1, Ordering::SeqCst);
                tokio::task::yield_now().await;
                inside.fetch_sub(1, Ordering::SeqCst);
                ensure!(others == 0, "two bodies ran at once");
                Ok(())
            })
            .await?;
        }
        Ok::<_, Failure>(())
    };
    let (first, second) = tokio::join!(many(ours), many(theirs));
    first.and(second)
}

async fn a_deleted_hold_stops_its_body(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let lock = ours.mutex("room")?;
    let body = lock.with_lock(async |_| {
        stage.harness().take_away(lock.name(), Removal::Deletion).await?;
        pending::<Outcome>().await
    });
    is_lost(stage.soon("the end of the body", body).await?)?;
    stage.becomes_free(&theirs, "room").await
}

async fn a_body_that_may_finish_outlasts_its_hold(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let lock = ours.mutex_with("room", LockOptions::new().finish_body_on_loss())?;
    let mut has_finished = false;
    let body = lock.with_lock(async |hold| {
        stage.harness().take_away(lock.name(), Removal::Deletion).await?;
        hold.lost().await;
        has_finished = true;
        Outcome::Ok(())
    });
    is_lost(stage.soon("the end of the body", body).await?)?;
    ensure!(has_finished, "the body was dropped at the loss");
    stage.becomes_free(&theirs, "room").await
}

async fn a_broken_hold_stops_its_body(stage: &Stage) -> Outcome {
    let (ours, operator) = (stage.client().await?, stage.client().await?);
    let body = ours.mutex("room")?;
    let body = body.with_lock(async |hold| {
        operator.break_holder("room", &hold.id()).await?;
        pending::<Outcome>().await
    });
    is_lost(stage.soon("the end of the body", body).await?)?;
    stage.becomes_free(&operator, "room").await
}

fn is_lost(outcome: Outcome) -> Outcome {
    let text = outcome.err().map(|failure| failure.to_string()).unwrap_or_default();
    ensure!(text.contains("the lock was lost"), "the body of a lost hold ended with {text:?}");
    Ok(())
}

async fn a_body_that_is_dropped_gives_the_lock_back(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let lock = ours.mutex("room")?;
    let entered = Notify::new();
    let body = lock.with_lock(async |_| {
        lock.lock().await?;
        entered.notify_one();
        pending::<Outcome>().await
    });
    tokio::select! {
        ended = body => return ended.and(Err(Failure::new("a body without an end has ended"))),
        entered = stage.soon("the body", entered.notified()) => entered?,
    }
    ours.idle().await;
    stage.is_free(&theirs, "room").await
}

async fn the_status_shows_the_id_of_a_hold(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let guard = ours.mutex("room")?.acquire().await?;
    let (shown, id) = (stage.holder(&theirs, "room").await?.id, guard.hold().id());
    ensure!(shown == id, "the hold {id} is shown as {shown}");
    Ok(())
}
