//! Silent connections that do not end: what is sent arrives late or never.

use conformance_tests::Outcome;
use lock_core::ErrorKind;
use test_servers::{Direction, MySqlFlavour};

use crate::case::{cases, ensure};
use crate::stage::{FROZEN, INTERVAL, LONG, ROOM, Stage, Waiter, as_time_passes, soon, until};

cases!("silence":
    a_wait_that_the_server_has_forgotten_begins_anew,
    an_unused_connection_may_be_silent,
);

/// Its connection has ended at the server, which the client does not learn. All checks find that another client holds the lock.
async fn a_wait_that_the_server_has_forgotten_begins_anew(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let proxy = stage.proxy()?;
    let holder = stage.client(LONG).await?;
    let (client, time) = stage.frozen_at(proxy.address(), FROZEN).await?;
    let held = holder.mutex(ROOM)?.acquire().await?;
    let waiter = Waiter::of(&client)?;
    stage.queued(1).await?;
    proxy.cut_at_server();
    stage.queued(0).await?;
    // The client checks the wait, and looks a few more times before it believes the answer.
    time.advance(INTERVAL);
    as_time_passes(&time, "another wait", stage.queued(1)).await??;
    ensure!(held.hold().is_valid() && !waiter.is_finished(), "the lock was given twice");
    held.release().await?;
    let (guard, _) = waiter.granted().await?;
    Ok(guard.release().await?)
}

/// The client replaces a silent connection without holds.
async fn an_unused_connection_may_be_silent(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let proxy = stage.proxy()?;
    let client = stage.client_at(proxy.address(), "lease=10m&timeout=300ms").await?;
    stage.works(&client).await?;
    proxy.blackhole(Direction::ToClient);
    let kind = client.mutex(ROOM)?.try_acquire().await.map(drop).map_err(|error| error.kind());
    ensure!(kind == Err(ErrorKind::Unreachable), "a try was answered {kind:?}");
    proxy.heal();
    soon("the undoing", client.idle()).await?;
    until("the lock is free", || async { Ok(stage.holder_of(ROOM).await?.is_none()) }).await?;
    stage.works(&client).await
}
