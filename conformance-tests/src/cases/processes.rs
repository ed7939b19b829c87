//! Cases: processes that are killed or stopped.

use std::time::Duration;

use crate::{Outcome, ensure};

use super::exclusion::quit;
use super::order::take_turns;
use crate::case::{Need, cases};
use crate::harness::Ability;
use crate::stage::Stage;
use crate::worker::{Visit, Worker};

cases!("processes":
    a_killed_holder_lets_the_next_in [Need::Ability(Ability::SeparateProcesses)],
    a_killed_waiter_leaves_the_queue [Need::Ability(Ability::SeparateProcesses), Need::Holder, Need::Order],
    a_killed_head_of_the_queue_leaves_it [Need::Ability(Ability::SeparateProcesses)],
    a_killed_holder_and_head_together [Need::Ability(Ability::SeparateProcesses)],
    a_dead_holder_frees_the_lock_at_once [Need::Ability(Ability::SeparateProcesses), Need::Ability(Ability::SeenDeaths)],
    a_dead_waiter_leaves_the_queue_at_once [Need::Ability(Ability::SeparateProcesses), Need::Ability(Ability::SeenDeaths), Need::Order],
    a_waiter_that_stood_still_across_its_grant_does_not_believe_in_it [Need::Ability(Ability::SeparateProcesses), Need::Lease, Need::Order],
    a_stopped_holder_holds_or_learns_of_the_loss [Need::Ability(Ability::SeparateProcesses)],
    a_stopped_waiter_does_not_keep_the_others_from_their_deadlines [Need::Ability(Ability::SeparateProcesses)],
    processes_killed_in_the_middle_of_everything [Need::Ability(Ability::SeparateProcesses)],
);

/// Creates a holder, and this number of waiters behind it in order.
async fn queue(stage: &Stage, waiters: usize) -> Outcome<Vec<Worker>> {
    let observer = stage.client().await?;
    let mut workers = stage.workers(waiters + 1).await?;
    workers[0].acquire("room").await?;
    for (before, worker) in workers[1..].iter_mut().enumerate() {
        worker.ask("room")?;
        stage.queued(&observer, "room", before + 1).await?;
    }
    Ok(workers)
}

fn rises(earlier: Visit, later: Visit) -> Outcome {
    let rises = earlier.token.zip(later.token).is_none_or(|(earlier, later)| earlier < later);
    ensure!(rises, "{:?} was followed by {:?}", earlier.token, later.token);
    Ok(())
}

async fn a_killed_holder_lets_the_next_in(stage: &Stage) -> Outcome {
    let mut workers = stage.workers(2).await?;
    let observer = stage.client().await?;
    let killed = workers[0].acquire("room").await?;
    workers[1].ask("room")?;
    stage.queued(&observer, "room", 1).await?;
    workers[0].kill()?;
    let next = workers[1].granted("room").await?;
    rises(killed, next)?;
    stage.is_held(&observer, "room").await?;
    workers[1].release("room").await?;
    workers.remove(0);
    stage.becomes_free(&observer, "room").await?;
    quit(workers).await
}

async fn a_killed_waiter_leaves_the_queue(stage: &Stage) -> Outcome {
    let observer = stage.client().await?;
    let mut workers = queue(stage, 3).await?;
    let mut killed = workers.remove(2);
    killed.kill()?;
    stage.queued(&observer, "room", 2).await?;
    take_turns("room", &mut workers).await?;
    quit(workers).await
}

async fn a_killed_head_of_the_queue_leaves_it(stage: &Stage) -> Outcome {
    let mut workers = queue(stage, 2).await?;
    let mut killed = workers.remove(1);
    killed.kill()?;
    workers[0].release("room").await?;
    workers[1].granted("room").await?;
    workers[1].release("room").await?;
    quit(workers).await
}

/// The holder is dead, and so is the next waiter.
/// The lease outlasts the case.
async fn a_dead_holder_frees_the_lock_at_once(stage: &Stage) -> Outcome {
    a_killed_holder_lets_the_next_in(stage).await
}

/// The lease outlasts the case.
async fn a_dead_waiter_leaves_the_queue_at_once(stage: &Stage) -> Outcome {
    a_killed_waiter_leaves_the_queue(stage).await
}

/// The grant waits for the process in the socket, and is outdated when the process continues.
async fn a_waiter_that_stood_still_across_its_grant_does_not_believe_in_it(stage: &Stage) -> Outcome {
    let observer = stage.client().await?;
    let mut workers = queue(stage, 2).await?;
    workers[1].stop()?;
    workers[0].release("room").await?;
    workers[2].granted("room").await?;
    workers[1].resume()?;
    // It waits again.
    stage.queued(&observer, "room", 1).await?;
    let standing = workers[2].standing("room").await?;
    ensure!(standing.is_valid, "both have the lock: {standing:?}");
    workers[2].release("room").await?;
    workers[1].granted("room").await?;
    workers[1].release("room").await?;
    quit(workers).await
}

async fn a_killed_holder_and_head_together(stage: &Stage) -> Outcome {
    let mut workers = queue(stage, 2).await?;
    let [holder, head, next] = &mut workers[..] else { return Ok(()) };
    holder.stop()?;
    head.kill()?;
    holder.kill()?;
    next.granted("room").await?;
    next.release("room").await?;
    workers.drain(..2);
    quit(workers).await
}

/// Without a lease the lock stays held. With a lease it passes on, and the holder learns of the loss when it runs
/// again.
async fn a_stopped_holder_holds_or_learns_of_the_loss(stage: &Stage) -> Outcome {
    let mut workers = stage.workers(2).await?;
    let stopped = workers[0].acquire("room").await?;
    workers[0].stop()?;
    if stage.harness().lease().is_none() {
        let refused = workers[1].try_acquire_for("room", Duration::from_secs(5)).await?;
        ensure!(refused.is_none(), "the lock of a stopped process was granted to another");
        workers[0].resume()?;
        let standing = workers[0].standing("room").await?;
        ensure!(standing.is_valid && standing.losses == 0, "{standing:?}");
        workers[0].release("room").await?;
    } else {
        let next = workers[1].acquire("room").await?;
        rises(stopped, next)?;
        workers[0].resume()?;
        let loss = workers[0].lost().await?;
        ensure!(loss.at > next.acquired, "told at {} while it was stopped", loss.at);
        let standing = workers[0].standing("room").await?;
        ensure!(!standing.is_valid && standing.losses == 1, "{standing:?}");
        workers[0].release_lost("room").await?;
        let standing = workers[1].standing("room").await?;
        ensure!(standing.is_valid, "what the stopped holder did cost the next one its hold: {standing:?}");
        workers[1].release("room").await?;
    }
    let last = workers[1].acquire("room").await?;
    rises(stopped, last)?;
    workers[1].release("room").await?;
    quit(workers).await
}

async fn a_stopped_waiter_does_not_keep_the_others_from_their_deadlines(stage: &Stage) -> Outcome {
    let observer = stage.client().await?;
    let mut workers = queue(stage, 2).await?;
    workers[1].stop()?;
    workers[0].release("room").await?;
    // The server may or may not grant it to the stopped process. If processes share a gate, the process may have been
    // stopped inside it. In any case the next one that asks gets an answer in time.
    let wait = Duration::from_millis(300);
    let mut shortest = Duration::MAX;
    // A busy machine may be late now and then, but not each time.
    for _ in 0..3 {
        let began = tokio::time::Instant::now();
        if workers[0].try_acquire_past_a_block("room", wait).await?.is_some() {
            workers[0].release("room").await?;
        }
        shortest = shortest.min(began.elapsed());
    }
    let in_time = shortest < wait + Duration::from_secs(5);
    ensure!(in_time, "a wait of {wait:?} took {shortest:?}, and longer the other times");
    workers[1].resume()?;
    // The one that was stopped may lose its turn to the other.
    let turn = async |worker: &mut Worker| {
        worker.granted("room").await?;
        worker.release("room").await
    };
    if let [_, stopped, other] = &mut workers[..] {
        tokio::try_join!(turn(stopped), turn(other))?;
    }
    stage.becomes_free(&observer, "room").await?;
    quit(workers).await
}

/// The others continue, and the lock never has two holders, whatever the killed processes were doing.
async fn processes_killed_in_the_middle_of_everything(stage: &Stage) -> Outcome {
    let observer = stage.client().await?;
    let mut survivors = stage.workers(2).await?;
    for worker in &mut survivors {
        worker.cycle("room", None, stage.rounds(150))?;
    }
    for round in 0..u64::from(stage.rounds(10)) {
        let mut victim = stage.worker().await?;
        victim.cycle("room", None, u32::MAX)?;
        // Any moment will do: the case is about whatever the victim is doing then.
        tokio::time::sleep(Duration::from_millis(5 + round * 3 % 11)).await;
        victim.kill()?;
    }
    let visits = super::exclusion::histories(&mut survivors).await?;
    super::exclusion::check_history("room", &visits, stage)?;
    quit(survivors).await?;
    stage.becomes_free(&observer, "room").await
}
