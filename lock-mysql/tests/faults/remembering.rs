//! Slots that two clients use at the same moment.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use conformance_tests::Outcome;
use lock_core::{Operation, Remembered};
use test_servers::MySqlFlavour;

use crate::case::{cases, ensure};
use crate::middleman::{Middleman, Way};
use crate::stage::{LONG, ROOM, Stage, reach, soon, until};

cases!("remembering":
    a_slot_that_a_snapshot_does_not_show_is_found,
    a_deletion_that_is_sent_again_spares_the_slot_of_a_later_run,
    without_a_table_of_tokens_and_behind_a_lock_of_another_program,
);

const DAY: Duration = Duration::from_hours(24);

const REMEMBER: &str = "INSERT /*distlock remember*/";

/// `MariaDB` has such a moment whenever it commits a row; here a transaction makes it last.
async fn a_slot_that_a_snapshot_does_not_show_is_found(flavour: MySqlFlavour) -> Outcome {
    let stage =
        Stage::as_guest(flavour, "", "locks", &["CREATE, SELECT, INSERT, UPDATE, DELETE ON locks.*"]).await?;
    let options = format!("{LONG}&fencing=table");
    let url = |address| format!("mysql://guest@{address}/locks?tls=off&{options}");
    let is_first = AtomicBool::new(true);
    let snapshot = format!("START TRANSACTION WITH CONSISTENT SNAPSHOT;DO GET_LOCK('gate',600);{REMEMBER}");
    let route = move |text: &str| {
        let is_rewritten = text.contains(REMEMBER) && is_first.swap(false, Ordering::Relaxed);
        (Way::First, if is_rewritten { text.replacen(REMEMBER, &snapshot, 1) } else { text.to_owned() })
    };
    let middleman = Middleman::start(stage.server.address(), route).await?;
    let (ours, theirs) =
        (reach(&url(middleman.address())).await?, reach(&url(stage.server.address())).await?);
    // Creates the table.
    ensure!(theirs.remember(ROOM, "earlier", DAY).await? == Remembered::Now, "used before");
    let mut gate = stage.server.session().await?;
    gate.query("SELECT GET_LOCK('gate', 0)").await?;
    let asking = tokio::spawn(async move { ours.remember(ROOM, "slot", DAY).await });
    stage.queued(1).await?;
    ensure!(theirs.remember(ROOM, "slot", DAY).await? == Remembered::Now, "used before");
    gate.query("SELECT RELEASE_LOCK('gate')").await?;
    let answer = soon("an answer", asking).await???;
    ensure!(matches!(answer, Remembered::Already { .. }), "used twice: {answer:?}");
    Ok(())
}

/// The work runs again before the client knows that its slot is forgotten.
async fn a_deletion_that_is_sent_again_spares_the_slot_of_a_later_run(flavour: MySqlFlavour) -> Outcome {
    let rights = ["CREATE, SELECT, INSERT, UPDATE, DELETE ON locks.*"];
    let stage = Stage::as_guest(flavour, "secret", "locks", &rights).await?;
    let deletes = |text: &str| text.contains("DELETE /*distlock").then_some(Operation::Remember);
    let proxy = stage.server.proxy(deletes)?;
    let (ours, theirs) = (stage.client_at(proxy.address(), LONG).await?, stage.client(LONG).await?);
    ensure!(theirs.remember(ROOM, "slot", DAY).await? == Remembered::Now, "used before");
    // It asks again only on a connection that it has used before.
    ensure!(ours.remembered(ROOM, "slot").await?.is_some(), "not remembered");
    proxy.hold_reply(Operation::Remember);
    let forgetting = tokio::spawn(async move { ours.forget(ROOM, "slot").await });
    soon("the deletion", proxy.is_held()).await?;
    ensure!(theirs.remember(ROOM, "slot", DAY).await? == Remembered::Now, "it is not forgotten");
    proxy.cut();
    ensure!(soon("the answer", forgetting).await???, "it was not there to be forgotten");
    let again = theirs.remember(ROOM, "slot", DAY).await?;
    ensure!(matches!(again, Remembered::Already { .. }), "the slot of the later run is forgotten");
    Ok(())
}

/// The server gives up the statement after each second.
async fn without_a_table_of_tokens_and_behind_a_lock_of_another_program(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::with_table(flavour).await?;
    let proxy = stage.proxy()?;
    let client = stage.client_at(proxy.address(), LONG).await?;
    ensure!(client.remember(ROOM, "first", DAY).await? == Remembered::Now, "used before");
    let mut other = stage.server.session().await?;
    other.query("LOCK TABLES locks.distlock_slots WRITE").await?;
    let (waiting, before) = (client.clone(), proxy.requests(Operation::Remember));
    let remembering = tokio::spawn(async move { waiting.remember(ROOM, "second", DAY).await });
    until("it asks again", || async { Ok(proxy.requests(Operation::Remember) >= before + 3) }).await?;
    other.query("UNLOCK TABLES").await?;
    let remembered = soon("the slot", remembering).await???;
    ensure!(remembered == Remembered::Now, "{remembered:?}");
    Ok(())
}
