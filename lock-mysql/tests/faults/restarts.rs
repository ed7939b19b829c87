//! Servers that are started again, and know nothing of locks then.

use conformance_tests::Outcome;
use conformance_tests::servers::MySqlFlavour;
use lock_core::{DistributedLockExt, LossReason};

use crate::case::{cases, ensure};
use crate::diary::Diary;
use crate::stage::{LONG, ROOM, Stage, WATCHFUL, Waiter, soon};

cases!("restarts":
    while_held_and_the_holder_is_told,
    while_somebody_waits_and_the_wait_goes_on,
    while_nothing_is_held_and_nobody_notices,
);

async fn while_held_and_the_holder_is_told(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let client = stage.client(WATCHFUL).await?;
    let lock = client.lock(ROOM)?;
    let diary = Diary::of(&lock);
    let guard = lock.acquire().await?;
    stage.server.restart().await?;
    let (reason, _) = diary.abort().await?;
    ensure!(reason == LossReason::ConnectionLost, "lost because {reason}");
    drop(guard);
    soon("the undoing", client.idle()).await?;
    stage.works(&client).await
}

async fn while_somebody_waits_and_the_wait_goes_on(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let (holder, client) = (stage.client(WATCHFUL).await?, stage.client(LONG).await?);
    let lock = holder.lock(ROOM)?;
    let held = lock.acquire().await?;
    let waiter = Waiter::of(&client)?;
    stage.queued(1).await?;
    stage.server.restart().await?;
    let (guard, _) = waiter.granted().await?;
    soon("the loss", held.lost()).await?;
    ensure!(guard.token() > held.token(), "{:?} was followed by {:?}", held.token(), guard.token());
    drop(held);
    soon("the undoing", holder.idle()).await?;
    ensure!(guard.hold().is_valid(), "the next hold has ended");
    guard.release().await?;
    stage.works(&holder).await
}

async fn while_nothing_is_held_and_nobody_notices(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let client = stage.client(LONG).await?;
    stage.works(&client).await?;
    stage.server.restart().await?;
    let guard = client.lock(ROOM)?.try_acquire().await?;
    ensure!(guard.is_some(), "a free lock was refused");
    Ok(())
}
