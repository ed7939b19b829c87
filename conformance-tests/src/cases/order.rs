//! Cases: first come, first served.

use crate::{Failure, Outcome, ensure};

use super::exclusion::quit;
use crate::case::{Need, cases};
use crate::probe::ByHand;
use crate::stage::Stage;
use crate::worker::Worker;

cases!("order":
    clients_are_served_in_the_order_of_their_arrival [Need::Order],
    tasks_of_one_client_are_served_in_the_order_of_their_arrival,
    a_waiter_that_gives_up_leaves_the_others_in_order [Need::Order],
    a_cancelled_head_leaves_its_place_to_its_client [Need::Order],
    a_single_try_takes_no_place,
);

const WAITERS: usize = 6;

async fn clients_are_served_in_the_order_of_their_arrival(stage: &Stage) -> Outcome {
    let observer = stage.client().await?;
    let mut workers = stage.workers(WAITERS + 1).await?;
    workers[0].acquire("door").await?;
    for (before, worker) in workers[1..].iter_mut().enumerate() {
        worker.ask("door")?;
        stage.queued(&observer, "door", before + 1).await?;
    }
    take_turns("door", &mut workers).await?;
    stage.is_free(&observer, "door").await?;
    quit(workers).await
}

/// The first worker holds the lock, and the others wait for it in this order: each releases when it has acquired it.
pub(super) async fn take_turns(name: &str, workers: &mut [Worker]) -> Outcome {
    let Some((first, others)) = workers.split_first_mut() else { return Ok(()) };
    first.release(name).await?;
    for worker in others {
        // No other worker is asked: if another got the lock, this never completes.
        worker.granted(name).await?;
        worker.release(name).await?;
    }
    Ok(())
}

async fn tasks_of_one_client_are_served_in_the_order_of_their_arrival(stage: &Stage) -> Outcome {
    let client = stage.client().await?;
    let lock = client.mutex("door")?;
    let mut held = lock.acquire().await?;
    let mut waiting: Vec<_> = (0..100).map(|_| ByHand::new(lock.acquire())).collect();
    for waiter in &mut waiting {
        ensure!(waiter.poll().is_none(), "a lock that is held was granted to another task");
    }
    for number in 0..waiting.len() {
        held.release().await?;
        let served = stage.soon("the next in the queue", waiting[number].wants_poll()).await;
        served?;
        held = waiting[number]
            .poll()
            .ok_or_else(|| Failure::new(format!("waiter {number} was woken and not served")))??;
        if let Some(next) = waiting.get_mut(number + 1) {
            ensure!(next.poll().is_none(), "waiter {} was served with {number}", number + 1);
        }
    }
    Ok(held.release().await?)
}

async fn a_waiter_that_gives_up_leaves_the_others_in_order(stage: &Stage) -> Outcome {
    let clients =
        [stage.client().await?, stage.client().await?, stage.client().await?, stage.client().await?];
    let locks = [
        clients[0].mutex("door")?,
        clients[1].mutex("door")?,
        clients[2].mutex("door")?,
        clients[3].mutex("door")?,
    ];
    let held = locks[0].acquire().await?;
    let mut first = ByHand::new(locks[1].acquire());
    let mut second = ByHand::new(locks[2].acquire());
    let mut third = ByHand::new(locks[3].acquire());
    for (before, waiter) in [&mut first, &mut second, &mut third].into_iter().enumerate() {
        ensure!(waiter.poll().is_none(), "a lock that is held was granted");
        stage.queued(&clients[0], "door", before + 1).await?;
    }
    drop(second);
    stage.queued(&clients[0], "door", 2).await?;
    held.release().await?;
    for waiter in [first, third] {
        let mut waiter = waiter;
        stage.soon("the next in the queue", waiter.wants_poll()).await?;
        let held = waiter.poll().ok_or_else(|| Failure::new("woken and not served"))??;
        held.release().await?;
    }
    stage.is_free(&clients[0], "door").await
}

/// The attempt passes from one local waiter to the next, and with it the place at the server.
async fn a_cancelled_head_leaves_its_place_to_its_client(stage: &Stage) -> Outcome {
    let (holder, ours, theirs) = (stage.client().await?, stage.client().await?, stage.client().await?);
    let held = holder.mutex("door")?.acquire().await?;
    let our_lock = ours.mutex("door")?;
    let their_lock = theirs.mutex("door")?;
    let mut cancelled = ByHand::new(our_lock.acquire());
    ensure!(cancelled.poll().is_none(), "a lock that is held was granted");
    stage.queued(&holder, "door", 1).await?;
    let mut stranger = ByHand::new(their_lock.acquire());
    ensure!(stranger.poll().is_none(), "a lock that is held was granted");
    stage.queued(&holder, "door", 2).await?;
    let mut inheriting = ByHand::new(our_lock.acquire());
    ensure!(inheriting.poll().is_none(), "a lock that is held was granted");
    drop(cancelled);
    held.release().await?;
    stage.soon("the next waiter's turn", inheriting.wants_poll()).await?;
    let inherited =
        inheriting.poll().ok_or_else(|| Failure::new("the next waiter was woken and not served"))??;
    ensure!(stranger.poll().is_none(), "both were served");
    inherited.release().await?;
    stage.soon("the stranger's turn", stranger.wants_poll()).await?;
    let last = stranger.poll().ok_or_else(|| Failure::new("the stranger was woken and not served"))??;
    Ok(last.release().await?)
}

async fn a_single_try_takes_no_place(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let held = ours.mutex("door")?.acquire().await?;
    let lock = theirs.mutex("door")?;
    for _ in 0..20 {
        ensure!(lock.try_acquire().await?.is_none(), "a lock that is held was granted");
        ensure!(!lock.try_lock().await?, "a lock that is held was granted");
    }
    if let Some(status) = stage.status(&ours, "door").await? {
        ensure!(status.waiters.is_empty(), "those who tried once wait: {:?}", status.waiters);
    }
    held.release().await?;
    stage.is_free(&ours, "door").await
}
