//! Other programs that use named locks, and operators who inspect and break locks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use conformance_tests::{Failure, Outcome};
use lock_core::{Breaking, ErrorKind, Inspection, LockError, Operation};
use lock_kit::LockUrl;
use test_servers::{MySqlFlavour, ServerOptions};

use crate::case::{cases, ensure};
use crate::middleman::{Middleman, Way};
use crate::stage::{KILLABLE, LONG, ROOM, Stage, Waiter, frozen, soon, until};

cases!("strangers":
    a_lock_of_another_program_is_shown_and_waited_for,
    a_waiter_of_another_program_is_shown,
    without_a_table_the_session_is_shown_and_can_be_broken,
    a_break_of_a_session_that_lives_on_is_not_confirmed,
    a_break_of_a_lock_that_is_released_meanwhile_ends_no_session,
    with_a_table_a_reader_is_broken_beside_a_later_one,
    with_a_table_a_break_that_comes_late_spares_the_next_hold_of_the_connection,
    a_break_of_another_users_session_is_denied,
    with_a_table_the_other_locks_of_a_broken_holder_are_named,
    a_holder_is_known_after_many_numbers_were_minted,
);

async fn a_lock_of_another_program_is_shown_and_waited_for(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::with_table(flavour).await?;
    for options in [LONG, "lease=10m&fencing=table"] {
        let client = stage.client(options).await?;
        stage.works(&client).await?;
        let mut session = stage.server.session().await?;
        session.query("SELECT GET_LOCK('distlock:room', 0)").await?;
        let status = client.status(ROOM).await?;
        ensure!(status.holders.len() == 1, "{status:?}");
        ensure!(status.holders[0].token.is_none() && status.holders[0].pid.is_none(), "{status:?}");
        let waiter = Waiter::of(&client)?;
        stage.queued(1).await?;
        session.query("SELECT RELEASE_LOCK('distlock:room')").await?;
        waiter.granted().await?.0.release().await?;
    }
    Ok(())
}

async fn a_waiter_of_another_program_is_shown(flavour: MySqlFlavour) -> Outcome {
    // The server shows other users' connections only with this privilege.
    let stage = Stage::as_guest(flavour, "secret", "", &["PROCESS ON *.*"]).await?;
    let client = stage.client(LONG).await?;
    let guard = client.mutex(ROOM)?.acquire().await?;
    let mut session = stage.server.session().await?;
    let waiting = tokio::spawn(async move {
        session.query("SELECT GET_LOCK('distlock:room', 60)").await?;
        Outcome::Ok(session)
    });
    stage.queued(1).await?;
    let status = client.status(ROOM).await?;
    ensure!(status.waiters.len() == 1 && status.waiters[0].pid.is_none(), "{status:?}");
    guard.release().await?;
    soon("its turn", waiting).await???;
    Ok(())
}

async fn without_a_table_the_session_is_shown_and_can_be_broken(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let (ours, operator) = (stage.client(KILLABLE).await?, stage.client(LONG).await?);
    let capabilities = operator.capabilities();
    ensure!(capabilities.inspection == Inspection::Sessions, "{capabilities:?}");
    ensure!(capabilities.breaking == Breaking::Sessions, "{capabilities:?}");
    let guard = ours.mutex(ROOM)?.acquire().await?;
    let waiter = Waiter::of(&operator)?;
    stage.queued(1).await?;
    let status = operator.status(ROOM).await?;
    let us = lock_core::HolderInfo::of_this_process();
    ensure!(status.holders.len() == 1 && status.waiters.len() == 1, "{status:?}");
    ensure!(status.waiters[0].pid == Some(us.pid), "{status:?}");
    ensure!(status.holders[0].host.is_some(), "{status:?}");
    let holder = status.holders[0].id.clone();
    let broken = operator.break_holder(ROOM, &holder).await?;
    ensure!(broken.taken_away && broken.also_lost.is_none(), "{broken:?}");
    soon("the loss", guard.lost()).await?;
    let (next, _) = waiter.granted().await?;
    let broken = operator.break_holder(ROOM, &holder).await?;
    ensure!(!broken.taken_away && next.hold().is_valid(), "{broken:?}");
    Ok(next.release().await?)
}

/// As with a session of MySQL 5.7 that does not learn that it was killed.
async fn a_break_of_a_session_that_lives_on_is_not_confirmed(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let kills = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&kills);
    let middleman = Middleman::start(stage.server.address(), move |text| {
        let is_kill = text.starts_with("KILL ");
        (Way::First, if is_kill { format!("DO {}", counted.fetch_add(1, Relaxed)) } else { text.to_owned() })
    })
    .await?;
    let guard = stage.client(LONG).await?.mutex(ROOM)?.acquire().await?;
    let (builder, time) = frozen();
    let operator = lock_mysql::connect(&LockUrl::parse(&middleman.url(LONG))?, builder).await?;
    let holder = guard.hold().id();
    let breaking = tokio::spawn(async move { operator.break_holder(ROOM, &holder).await });
    until("the command", || async { Ok(kills.load(Relaxed) > 0) }).await?;
    // Slowly until then: the time of a request must not pass while the server does not answer for a moment.
    until("the command again", || async {
        time.advance(Duration::from_millis(5));
        Ok(kills.load(Relaxed) > 1)
    })
    .await?;
    until("the end of the break", || async {
        time.advance(Duration::from_secs(1));
        Ok(breaking.is_finished())
    })
    .await?;
    let error = breaking.await?.err().ok_or_else(|| Failure::new("the break was confirmed"))?;
    ensure!(error.kind() == ErrorKind::Unconfirmed, "{error:?}");
    ensure!(error.to_string().contains("when the holder's lease ends"), "{error}");
    ensure!(guard.hold().is_valid(), "the hold has ended");
    Ok(guard.release().await?)
}

/// The holder releases the lock between the look and the command, and has another one on that connection.
async fn a_break_of_a_lock_that_is_released_meanwhile_ends_no_session(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let proxy = stage.server.proxy(|text| text.starts_with("KILL ").then_some(Operation::Break))?;
    let (ours, operator) = (stage.client(LONG).await?, stage.client_at(proxy.address(), LONG).await?);
    let guard = ours.mutex(ROOM)?.acquire().await?;
    let other = ours.mutex("another")?.acquire().await?;
    ensure!(stage.holder_of("another").await? == stage.holder_of(ROOM).await?, "on two connections");
    let holder = guard.hold().id();
    proxy.hold_request(Operation::Break);
    let breaking = tokio::spawn(async move { operator.break_holder(ROOM, &holder).await });
    soon("the command", proxy.is_held()).await?;
    guard.release().await?;
    proxy.let_go();
    let broken = soon("the answer", breaking).await???;
    ensure!(!broken.taken_away, "{broken:?}");
    Ok(other.release().await?)
}

async fn with_a_table_a_break_that_comes_late_spares_the_next_hold_of_the_connection(
    flavour: MySqlFlavour,
) -> Outcome {
    let stage = Stage::with_table(flavour).await?;
    let ends = |text: &str| text.contains("KILL CONNECTION").then_some(Operation::Break);
    let (proxy, options) = (stage.server.proxy(ends)?, format!("{LONG}&fencing=table"));
    let (ours, operator) = (stage.client(&options).await?, stage.client_at(proxy.address(), &options).await?);
    let lock = ours.mutex(ROOM)?;
    let guard = lock.acquire().await?;
    let (connection, holder) = (stage.holder_of(ROOM).await?, guard.hold().id());
    proxy.hold_request(Operation::Break);
    let breaking = tokio::spawn(async move { operator.break_holder(ROOM, &holder).await });
    soon("the command", proxy.is_held()).await?;
    guard.release().await?;
    let next = lock.acquire().await?;
    ensure!(stage.holder_of(ROOM).await? == connection, "it is on another connection");
    proxy.let_go();
    let broken = soon("the answer", breaking).await???;
    ensure!(!broken.taken_away, "{broken:?}");
    Ok(next.release().await?)
}

/// The gate names the connection of the last writer, and has the token of the last reader.
async fn with_a_table_a_reader_is_broken_beside_a_later_one(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::with_table(flavour).await?;
    let (ours, theirs) = (
        stage.client(&format!("{KILLABLE}&fencing=table")).await?,
        stage.client(&format!("{LONG}&fencing=table")).await?,
    );
    let lock = ours.rw_lock(ROOM)?;
    lock.write().acquire().await?.release().await?;
    let first = lock.read().acquire().await?;
    let later = theirs.rw_lock(ROOM)?.read().acquire().await?;
    let broken = theirs.break_holder(ROOM, &first.hold().id()).await?;
    ensure!(broken.taken_away, "{broken:?}");
    soon("the loss", first.hold().lost()).await?;
    Ok(later.release().await?)
}

async fn a_break_of_another_users_session_is_denied(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let mut session = stage.server.session().await?;
    session.query("SELECT GET_LOCK('distlock:room', 0)").await?;
    let client = stage.client(LONG).await?;
    let holder = client.status(ROOM).await?.holders[0].id.clone();
    let error = client.break_holder(ROOM, &holder).await.err();
    ensure!(error.as_ref().map(LockError::kind) == Some(ErrorKind::Denied), "answered {error:?}");
    ensure!(stage.holder_of(ROOM).await?.is_some(), "the session has ended");
    Ok(())
}

async fn with_a_table_the_other_locks_of_a_broken_holder_are_named(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::with_table(flavour).await?;
    let ours = stage.client(&format!("{KILLABLE}&fencing=table")).await?;
    let operator = stage.client("lease=10m&fencing=table").await?;
    let guard = ours.mutex(ROOM)?.acquire().await?;
    let names = ["Another Room", "and one more"];
    let others = [ours.mutex(names[0])?.acquire().await?, ours.mutex(names[1])?.acquire().await?];
    let released = ours.mutex("released")?.acquire().await?;
    released.release().await?;
    let holder = operator.status(ROOM).await?.holders[0].id.clone();
    let broken = operator.break_holder(ROOM, &holder).await?;
    ensure!(broken.taken_away && broken.also_lost.is_some(), "{broken:?}");
    let also_lost: Vec<_> = broken.also_lost.iter().flatten().map(|name| name.as_str().to_owned()).collect();
    ensure!(also_lost == names, "also lost: {also_lost:?}");
    for guard in [&guard, &others[0], &others[1]] {
        soon("the loss", guard.lost()).await?;
    }
    Ok(())
}

async fn a_holder_is_known_after_many_numbers_were_minted(flavour: MySqlFlavour) -> Outcome {
    let rights = ["CREATE, SELECT, INSERT, UPDATE ON locks.*"];
    let options = ServerOptions::new().flavour(flavour).database("locks").user("app", "secret", &rights);
    let stage = Stage::with(options).await?;
    // By then it is past the first second after its start.
    stage.server.query("SELECT SLEEP(2)").await?;
    let ours = stage.client("lease=10m&fencing=table").await?;
    let guard = ours.mutex(ROOM)?.acquire().await?;
    // More numbers than the server has for one second: from now on it seems to have started in the next second.
    stage.server.query("SELECT BENCHMARK(17000000, UUID_SHORT())").await?;
    let operator = stage.client("lease=10m&fencing=table").await?;
    let status = operator.status(ROOM).await?;
    ensure!(status.holders.len() == 1 && status.holders[0].token == guard.token(), "{status:?}");
    Ok(guard.release().await?)
}
