//! Grants and the ends of waits, in the same moment, many times.

use std::time::Duration;

use conformance_tests::Outcome;
use conformance_tests::servers::MySqlFlavour;
use lock_core::DistributedLockExt;

use crate::case::{cases, ensure};
use crate::stage::{LONG, ROOM, Stage, soon};

cases!("races":
    a_grant_that_races_the_end_of_the_wait,
);

const ROUNDS: u32 = 5000;

/// Whichever comes first: the lock is had or not, by exactly one, and nothing is left.
async fn a_grant_that_races_the_end_of_the_wait(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let (holder, client) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let (their_lock, our_lock) = (holder.lock(ROOM)?, client.lock(ROOM)?);
    let (mut granted, mut refused) = (0, 0);
    // Long enough to be queued, and tuned so that about half of the waits end before the grant.
    let mut wait = Duration::from_micros(1500);
    for round in 0..ROUNDS {
        let held = their_lock.acquire().await?;
        let release = async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            held.release().await
        };
        let (ours, released) = tokio::join!(our_lock.try_acquire_for(wait), release);
        released?;
        match ours {
            Ok(Some(guard)) => {
                granted += 1;
                wait = wait.saturating_sub(Duration::from_micros(20));
                ensure!(guard.hold().is_valid(), "round {round}: granted, and lost");
                guard.release().await?;
            }
            Ok(None) => {
                refused += 1;
                wait += Duration::from_micros(20);
            }
            // Nothing was heard of the lock before so short a wait was over.
            Err(error) if error.is_retryable() => wait += Duration::from_micros(20),
            Err(error) => return Err(error.into()),
        }
    }
    soon("the undoing", client.idle()).await?;
    ensure!(stage.waiting().await? == 0 && stage.holder_of(ROOM).await?.is_none(), "something is left");
    ensure!(granted > ROUNDS / 20, "granted {granted} times, refused {refused} times: no race");
    stage.works(&client).await
}
