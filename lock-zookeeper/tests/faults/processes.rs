//! A process that waits and is paused, and behind which no other waits.

use conformance_tests::Outcome;

use crate::case::{cases, ensure};
use crate::helper::Helper;
use crate::stage::{LONG, ROOM, Stage};

cases!("processes":
    a_waiter_that_stood_still_across_its_grant_without_other_waiters,
);

const SHORT: &str = "session_timeout=12s";

async fn a_waiter_that_stood_still_across_its_grant_without_other_waiters() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client(LONG).await?;
    let held = client.mutex(ROOM)?.acquire().await?;
    let mut sleeper = Helper::start(&stage.url(SHORT), ROOM).await?;
    stage.nodes_are(2).await?;
    let dead = stage.path(1).await?;
    sleeper.stop().await?;
    held.release().await?;
    stage.is_gone(&dead).await?;
    sleeper.resume().await?;
    sleeper.acquired().await?;
    let nodes = stage.nodes().await?;
    ensure!(nodes.len() == 1, "it holds by {nodes:?}");
    Ok(())
}
