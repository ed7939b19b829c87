//! Cases: a wait that ends without the lock names the holder in its error.

use std::time::Duration;

use crate::{Failure, Outcome, ensure};
use lock_core::{ErrorKind, HolderInfo, Inspection, LockClient, Participant};

use super::waiting::refused_in_time;
use crate::case::{Need, cases};
use crate::stage::{Stage, has_tokens};

cases!("busy":
    a_refused_try_names_the_holder [Need::Sessions],
    a_wait_that_ends_names_the_holder [Need::Sessions],
    a_try_after_a_change_names_the_next_holder [Need::Sessions],
);

const NAME: &str = "room";

/// The holder that the error of a wait of this length names. A server that knows only sessions may not say which one.
async fn named(client: &LockClient, wait: Duration) -> Outcome<Option<Participant>> {
    let lock = client.mutex(NAME)?;
    let Err(error) = refused_in_time(wait, |wait| lock.acquire_for(wait)).await else {
        return Err(Failure::new("acquired although another client holds it"));
    };
    ensure!(error.kind() == ErrorKind::Busy, "{error}");
    let knows_holders = client.capabilities().inspection >= Inspection::HolderAndOwnQueue;
    ensure!(error.holder().is_some() || !knows_holders, "it names no holder: {error}");
    Ok(error.holder().cloned())
}

/// Checks that the error names the holder as the status shows it, and what the holder says about itself where the backend has
/// room for that.
async fn is_named(stage: &Stage, observer: &LockClient, named: Option<Participant>, label: &str) -> Outcome {
    let Some(named) = named else { return Ok(()) };
    let shown = stage.holder(observer, NAME).await?;
    ensure!(named.id == shown.id, "{named:?} is shown as {shown:?}");
    if observer.capabilities().inspection >= Inspection::HolderAndOwnQueue {
        let us = HolderInfo::of_this_process();
        ensure!(named.host.as_deref() == Some(&us.host), "its host is {:?}", named.host);
        ensure!(named.pid == Some(us.pid), "its process is {:?}", named.pid);
        ensure!(named.label.as_deref() == Some(label), "it is called {:?}", named.label);
        if has_tokens(observer) {
            ensure!(named.token.is_none() || named.token == shown.token, "its token is {:?}", named.token);
        }
    }
    Ok(())
}

async fn labelled(stage: &Stage, label: &str) -> Outcome<LockClient> {
    stage.client_with(stage.builder().label(label)).await
}

async fn a_refused_try_names_the_holder(stage: &Stage) -> Outcome {
    let (ours, theirs) = (labelled(stage, "the holder").await?, stage.client().await?);
    let guard = ours.mutex(NAME)?.acquire().await?;
    for _ in 0..3 {
        let holder = named(&theirs, Duration::ZERO).await?;
        is_named(stage, &theirs, holder, "the holder").await?;
    }
    guard.release().await?;
    stage.is_free(&theirs, NAME).await
}

async fn a_wait_that_ends_names_the_holder(stage: &Stage) -> Outcome {
    let (ours, theirs) = (labelled(stage, "the holder").await?, stage.client().await?);
    let guard = ours.mutex(NAME)?.acquire().await?;
    // Long enough for any server to answer once.
    let holder = named(&theirs, Duration::from_secs(2)).await?;
    is_named(stage, &theirs, holder, "the holder").await?;
    // What a wait has asked for is undone in the background.
    stage.soon("the undoing", theirs.idle()).await?;
    guard.release().await?;
    stage.is_free(&theirs, NAME).await
}

async fn a_try_after_a_change_names_the_next_holder(stage: &Stage) -> Outcome {
    let (first, second) = (labelled(stage, "first").await?, labelled(stage, "second").await?);
    let theirs = stage.client().await?;
    for _ in 0..2 {
        for (client, label) in [(&first, "first"), (&second, "second")] {
            let guard = client.mutex(NAME)?.acquire().await?;
            let holder = named(&theirs, Duration::ZERO).await?;
            is_named(stage, &theirs, holder, label).await?;
            guard.release().await?;
        }
    }
    Ok(())
}
