//! A hundred holders when the primary is killed: which go on, which learn that they have lost, that no other client holds beside one, and
//! that the new primary lacks none, since the grants were durable.

use std::collections::BTreeSet;
use std::time::Duration;

use conformance_tests::{Outcome, ensure};
use lock_core::{HoldEnd, LockClient, LockGuard, LossReason};
use test_servers::RedisSentinels;
use tokio::task::JoinSet;

const HOLDERS: usize = 100;

/// Longer than it takes until another primary is known, and again each time that one wants a lock of a holder.
const LEASE: &str = "lease=30s";

/// For the pause of the new primary, and all that is left of a lost hold's lease.
const PATIENCE: Duration = Duration::from_secs(180);

pub(super) async fn run() -> Outcome {
    let sentinels = RedisSentinels::start(None).await?;
    let url = format!("{}?{LEASE}", sentinels.url());
    let holder = distlock::connect(&format!("{url}&durable=replicas:2")).await?;
    let other = distlock::connect(&url).await?;
    let mut guards = Vec::new();
    for number in 0..HOLDERS {
        guards.push(holder.mutex(name(number))?.acquire().await?);
    }
    let old = sentinels.primary().await?;
    old.kill()?;
    let promoted = sentinels.primary_after(old.address()).await?.address();
    let taken = take_all(&other, &guards).await?;
    let ends: Vec<_> = guards.iter().map(|guard| guard.hold().end()).collect();
    let told: BTreeSet<_> = (0..HOLDERS).filter(|&number| ends[number].is_some()).collect();
    println!(
        "of {HOLDERS} holders {} went on and {} were told of a loss; another client took {}",
        HOLDERS - told.len(),
        told.len(),
        taken.len()
    );
    let lacking = ends.iter().filter(|end| **end == Some(HoldEnd::Lost(LossReason::Deleted))).count();
    // A replica that is promoted after that one may have been copying all keys.
    let is_that = sentinels.primary().await?.address() == promoted;
    ensure!(lacking == 0 || !is_that, "the new primary lacks {lacking} holds, which both replicas had");
    ensure!(taken == told, "taken: {taken:?}, told: {told:?}");
    Ok(())
}

fn name(number: usize) -> String {
    format!("held {number}")
}

/// Waits for all of the locks. Returns those that it gets, each of them when its holder knows that it has lost it.
async fn take_all(other: &LockClient, guards: &[LockGuard]) -> Outcome<BTreeSet<usize>> {
    let mut waiters = JoinSet::new();
    for (number, guard) in guards.iter().enumerate() {
        let (lock, hold) = (other.mutex(name(number))?, guard.hold().clone());
        waiters.spawn(async move {
            let until = tokio::time::Instant::now() + PATIENCE;
            loop {
                // A wait that ends while the new primary grants nothing is an error.
                match lock.try_acquire_for(until.saturating_duration_since(tokio::time::Instant::now())).await
                {
                    Ok(Some(theirs)) => return Ok(Some((number, hold.is_valid(), theirs))),
                    Ok(None) => return Ok(None),
                    Err(error) if error.is_retryable() && tokio::time::Instant::now() < until => {}
                    Err(error) => return Err(error),
                }
            }
        });
    }
    let mut taken = Vec::new();
    for outcome in waiters.join_all().await {
        taken.extend(outcome?);
    }
    for (number, is_valid, _) in &taken {
        ensure!(!is_valid, "two hold lock {number}");
    }
    Ok(taken.into_iter().map(|(number, ..)| number).collect())
}
