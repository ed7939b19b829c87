//! Two clients that each want the other's lock.

use std::time::Duration;

use conformance_tests::Outcome;
use test_servers::MySqlFlavour;

use crate::case::{cases, ensure};
use crate::stage::{LONG, Stage, soon};

cases!("crossing":
    two_locks_in_opposite_order,
    a_hold_outlives_a_deadlock_of_another_owner,
);

/// The server sees no deadlock, because a waiter's connection holds no lock: the waits end at their own time limits.
async fn two_locks_in_opposite_order(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let (ours, theirs) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let (our_left, their_right) =
        (ours.mutex("left")?.acquire().await?, theirs.mutex("right")?.acquire().await?);
    let (our_right, their_left) = (ours.mutex("right")?, theirs.mutex("left")?);
    let wait = Duration::from_secs(10);
    let (one, other) = tokio::join!(our_right.try_acquire_for(wait), their_left.try_acquire_for(wait));
    for answer in [one, other] {
        ensure!(matches!(answer, Ok(None)), "a wait that nothing could end was answered {answer:?}");
    }
    ensure!(our_left.hold().is_valid() && their_right.hold().is_valid(), "a hold was lost");
    for name in ["left", "right"] {
        ensure!(stage.holder_of(name).await?.is_some(), "{name} is free");
    }
    our_left.release().await?;
    their_right.release().await?;
    soon("the undoing", async { tokio::join!(ours.idle(), theirs.idle()) }).await?;
    ensure!(stage.waiting().await? == 0, "a client waits");
    Ok(())
}

/// Another program, which holds and waits in one session, makes the server find a deadlock that involves one of our locks.
async fn a_hold_outlives_a_deadlock_of_another_owner(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let client = stage.client(LONG).await?;
    let guard = client.mutex("ours")?.acquire().await?;
    let (mut one, mut other) = (stage.server.session().await?, stage.server.session().await?);
    one.query("SELECT GET_LOCK('one', 0)").await?;
    other.query("SELECT GET_LOCK('other', 0)").await?;
    let waiting = tokio::spawn(async move { one.query("SELECT GET_LOCK('other', 60)").await.map(drop) });
    stage.queued(1).await?;
    let found = other.query("SELECT GET_LOCK('one', 60)").await;
    ensure!(found.is_err(), "the server found no deadlock: {found:?}");
    drop(other);
    soon("the other's turn", waiting).await???;
    ensure!(guard.hold().is_valid() && stage.holder_of("ours").await?.is_some(), "the hold has ended");
    Ok(guard.release().await?)
}
