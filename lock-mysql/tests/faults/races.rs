//! Grants and the ends of waits at the same moment, many times.

use std::time::Duration;

use conformance_tests::Outcome;
use test_servers::MySqlFlavour;

use crate::case::{cases, ensure};
use crate::stage::{LONG, ROOM, Stage, soon};

cases!("races":
    a_grant_that_races_the_end_of_the_wait,
);

const ROUNDS: u32 = 2000;

/// Each of the two outcomes has to occur at least once in this many rounds on average; other outcomes may occur at most that often.
const SHARE: u32 = 20;

/// The fraction by which the wait becomes longer or shorter for the next round.
const STEP: u32 = 64;

/// Whichever comes first, exactly one client has the lock or none does, and nothing is left.
async fn a_grant_that_races_the_end_of_the_wait(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let (holder, client) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let (their_lock, our_lock) = (holder.mutex(ROOM)?, client.mutex(ROOM)?);
    let (mut granted, mut refused, mut unknown) = (0, 0, 0);
    // Adapted to the speed of this machine, so that about half of the waits end before the grant.
    let mut wait = Duration::from_millis(4);
    for round in 0..ROUNDS {
        let held = their_lock.acquire().await?;
        let release = async {
            tokio::time::sleep(wait / 2).await;
            held.release().await
        };
        let (ours, released) = tokio::join!(our_lock.try_acquire_for(wait), release);
        released?;
        match ours {
            Ok(Some(guard)) => {
                granted += 1;
                wait -= wait / STEP;
                ensure!(guard.hold().is_valid(), "round {round}: granted, and lost");
                guard.release().await?;
            }
            Ok(None) => {
                refused += 1;
                wait += wait / STEP;
            }
            // The client learned nothing of the lock before so short a wait was over.
            Err(error) if error.is_retryable() => {
                unknown += 1;
                wait += wait / STEP;
            }
            Err(error) => return Err(error.into()),
        }
    }
    soon("the undoing", client.idle()).await?;
    ensure!(stage.waiting().await? == 0 && stage.holder_of(ROOM).await?.is_none(), "something is left");
    let counts =
        format!("granted {granted} times, refused {refused}, unknown {unknown}; the last wait {wait:?}");
    ensure!(granted.min(refused) > ROUNDS / SHARE && unknown < ROUNDS / SHARE, "no race: {counts}");
    stage.works(&client).await
}
