//! Silent connections that do not end: what is sent arrives late or never.

use conformance_tests::Outcome;
use lock_core::Operation;

use crate::stage::{LONG, ROOM, Stage, Waiter, cases, ensure, soon, until};

cases!("silence":
    a_wait_that_the_server_has_forgotten_begins_anew,
    a_connection_that_is_given_up_ends_at_the_server,
);

/// Its session has ended at the server, which the client does not learn.
async fn a_wait_that_the_server_has_forgotten_begins_anew() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let holder = stage.client(LONG).await?;
    // The client looks at the wait after an interval of a few seconds.
    let client = stage.client_at(proxy.address(), "lease=20s").await?;
    let held = holder.mutex(ROOM)?.acquire().await?;
    let waiter = Waiter::of(&client)?;
    stage.queued(1).await?;
    let before = stage.waiters().await?;
    proxy.cut_at_server();
    until("another session waits", || async {
        let now = stage.waiters().await?;
        Ok(now.len() == 1 && now != before)
    })
    .await?;
    ensure!(held.hold().is_valid() && !waiter.is_finished(), "the lock was given twice");
    held.release().await?;
    let (guard, _) = waiter.granted().await?;
    Ok(guard.release().await?)
}

/// The server does not learn from the connection itself that the client has given it up, and its lease outlasts the case.
async fn a_connection_that_is_given_up_ends_at_the_server() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let ours = stage.client_at(proxy.address(), "lease=10m&timeout=200ms").await?;
    let theirs = stage.client(LONG).await?;
    let guard = ours.mutex(ROOM)?.acquire().await?;
    let waiter = Waiter::of(&theirs)?;
    stage.queued(1).await?;
    proxy.hold_request(Operation::Release);
    drop(guard);
    soon("the release", proxy.is_held()).await?;
    let (next, _) = waiter.granted().await?;
    next.release().await?;
    proxy.let_go();
    stage.works(&ours).await
}
