//! Cases: processes that are killed while they hold locks in other ways than with a guard.

use crate::{Outcome, ensure};
use lock_core::LockOptions;

use super::exclusion::quit;
use crate::case::{Need, cases};
use crate::harness::Ability;
use crate::stage::Stage;
use crate::worker::{Entered, LockUse};

const HOUR: u64 = 3_600_000;

cases!("killed":
    in_a_body [Need::Ability(Ability::SeparateProcesses)],
    as_a_leader [Need::Ability(Ability::SeparateProcesses)],
    as_a_leader_with_a_value [Need::Ability(Ability::SeparateProcesses), Need::Values],
    with_several_locks [Need::Ability(Ability::SeparateProcesses)],
    in_a_slot_which_has_run [Need::Ability(Ability::SeparateProcesses), Need::Remembering],
    in_a_pause_which_goes_on [Need::Ability(Ability::SeparateProcesses), Need::Remembering],
);

/// One process is inside and another one waits; the first is killed, and the second comes in.
async fn next_comes_in(stage: &Stage, killed: LockUse, next: LockUse) -> Outcome {
    let mut workers = stage.workers(2).await?;
    let entered = workers[0].enter("room", killed).await?;
    ensure!(entered == Entered::Inside, "the lock of no one was refused");
    workers[1].go_to("room", next)?;
    workers[0].kill()?;
    let entered = workers[1].entered().await?;
    ensure!(entered == Entered::Inside, "the lock of a killed process was refused");
    let observer = stage.client().await?;
    stage.is_held(&observer, "room").await?;
    workers[1].leave().await?;
    workers.remove(0);
    stage.becomes_free(&observer, "room").await?;
    quit(workers).await
}

async fn in_a_body(stage: &Stage) -> Outcome {
    next_comes_in(stage, LockUse::Body, LockUse::Body).await
}

async fn as_a_leader(stage: &Stage) -> Outcome {
    next_comes_in(stage, LockUse::Leader(String::new()), LockUse::Leader(String::new())).await
}

async fn as_a_leader_with_a_value(stage: &Stage) -> Outcome {
    let mut workers = stage.workers(2).await?;
    let observer = stage.client().await?;
    let value = async || stage.holder(&observer, "room").await.map(|leader| leader.value);
    workers[0].enter("room", LockUse::Leader("first".to_owned())).await?;
    let seen = value().await?;
    ensure!(seen.as_deref() == Some("first"), "the value of the leader is {seen:?}");
    workers[1].go_to("room", LockUse::Leader("second".to_owned()))?;
    workers[0].kill()?;
    workers[1].entered().await?;
    let seen = value().await?;
    ensure!(seen.as_deref() == Some("second"), "the value of the next leader is {seen:?}");
    workers[1].leave().await?;
    workers.remove(0);
    quit(workers).await
}

async fn with_several_locks(stage: &Stage) -> Outcome {
    let with = |other: &str| LockUse::With(vec![other.to_owned()]);
    next_comes_in(stage, with("hall"), with("hall")).await?;
    stage.becomes_free(&stage.client().await?, "hall").await
}

async fn in_a_slot_which_has_run(stage: &Stage) -> Outcome {
    let mut workers = stage.workers(2).await?;
    let slot = || LockUse::Slot("12:07".to_owned());
    workers[0].enter("room", slot()).await?;
    workers[1].go_to("room", slot())?;
    workers[0].kill()?;
    let entered = workers[1].entered().await?;
    ensure!(entered == Entered::Refused, "a slot ran in two processes");
    let entered = workers[1].enter("room", LockUse::Slot("12:08".to_owned())).await?;
    ensure!(entered == Entered::Inside, "the next slot did not run");
    workers[1].leave().await?;
    workers.remove(0);
    quit(workers).await
}

async fn in_a_pause_which_goes_on(stage: &Stage) -> Outcome {
    let mut workers = stage.workers(1).await?;
    workers[0].enter("room", LockUse::Pause(HOUR)).await?;
    workers[0].kill()?;
    let client = stage.client().await?;
    stage.becomes_free(&client, "room").await?;
    let paused = client.mutex_with("room", LockOptions::new().at_least(stage.patience()))?;
    ensure!(stage.tried(&paused).await?.is_none(), "the pause ended with the process of its holder");
    Ok(())
}
