//! Where tokens come from.

use std::time::Duration;

use conformance_tests::{Failure, Outcome};
use lock_core::{ErrorKind, FencingToken, LockClient, LockError, Operation, Remembered, Reserving};
use test_servers::{Data, Direction, Losing, TcpProxy};

use crate::stage::{LONG, PATIENCE, ROOM, Stage, Waiter, cases, connect, ensure, soon, with_options};

cases!("tokens":
    rise_across_a_crash_of_the_server,
    of_holds_in_a_row_belong_to_no_other_grant,
    that_cannot_be_created_are_an_error_that_says_what_to_do,
    of_a_table_are_not_ahead_of_the_clock_with_local_handoff,
    of_a_table_rise_above_what_is_there,
    of_a_table_show_the_name,
    tables_of_a_later_release_are_refused,
    a_slot_is_remembered_across_a_crash_of_the_server,
    a_cancelled_statement_uses_a_slot_at_most_once,
    a_deletion_that_is_sent_again_spares_the_slot_of_a_later_run,
    the_record_of_an_earlier_holder_is_not_that_of_the_next,
    of_a_released_hold_are_in_no_status,
    that_are_blocked_cost_no_hold,
    come_from_no_session_that_may_be_cancelled_late,
    that_are_refused_without_asking_say_nothing_of_the_way_to_the_server,
    that_no_standby_has_are_not_given_and_cost_no_hold,
);

async fn next(client: &LockClient) -> Outcome<Option<u64>> {
    let guard = client.mutex(ROOM)?.acquire().await?;
    let token = guard.token().map(FencingToken::get);
    guard.release().await?;
    Ok(token)
}

async fn rise_across_a_crash_of_the_server() -> Outcome {
    let stage = Stage::alone().await?;
    for fencing in ["clock", "sequence", "table"] {
        let client = stage.client(&format!("lease=10m&fencing={fencing}")).await?;
        let mut last = None;
        for round in 0..20 {
            if round % 10 == 9 {
                stage.server.restart(Data::Kept).await?;
            }
            let token = next(&client).await?;
            ensure!(token > last, "{fencing}: {last:?} was followed by {token:?} in round {round}");
            last = token;
        }
        client.close(PATIENCE).await?;
    }
    let none = stage.client("lease=10m&fencing=none").await?;
    ensure!(next(&none).await?.is_none(), "a token, although none was wanted");
    Ok(())
}

/// Whether the lock was free or waited for, and wherever the wait was.
async fn of_holds_in_a_row_belong_to_no_other_grant() -> Outcome {
    let stage = Stage::new().await?;
    for fencing in ["sequence", "table"] {
        let options = format!("lease=10m&fencing={fencing}");
        let series = stage.client(&format!("{options}&local_handoff=100/1h")).await?;
        let other = stage.client(&options).await?;
        let first = next(&series).await?;
        let held = other.mutex(ROOM)?.acquire().await?;
        let second = held.token().map(FencingToken::get);
        ensure!(second >= first.map(|first| first + 100), "{options}: {first:?} and then {second:?}");
        let waiter = Waiter::of(&series)?;
        stage.queued(1).await?;
        held.release().await?;
        let (guard, _) = waiter.granted().await?;
        let third = guard.token().map(FencingToken::get);
        guard.release().await?;
        let last = next(&other).await?;
        ensure!(second < third, "{options}: {second:?} and then {third:?}");
        ensure!(last >= third.map(|third| third + 100), "{options}: {third:?} and then {last:?}");
    }
    let none = stage.client("lease=10m&fencing=none&local_handoff=100/1h").await?;
    let (guard, waiter) = (none.mutex(ROOM)?.acquire().await?, Waiter::of(&none)?);
    guard.release().await?;
    let (guard, _) = waiter.granted().await?;
    ensure!(guard.token().is_none(), "a token, although none was wanted");
    guard.release().await?;
    let url = with_options(&stage.url(), "fencing=clock&local_handoff=100/1h");
    let error = connect(&url).await.err().map(|error| error.to_string()).unwrap_or_default();
    ensure!(error.contains("fencing=sequence"), "it does not say what to do: {error}");
    Ok(())
}

/// The sequence belongs to an administrator.
async fn that_cannot_be_created_are_an_error_that_says_what_to_do() -> Outcome {
    let stage = Stage::new().await?;
    stage.query("CREATE SEQUENCE distlock_tokens; CREATE TABLE distlock_tokens_of_locks (key bigint PRIMARY KEY, token bigint NOT NULL, name text NOT NULL, attempt text, process integer, session bigint, since bigint, holder text)").await?;
    for fencing in ["sequence", "table"] {
        let url = with_options(&stage.url(), &format!("fencing={fencing}"));
        let error = connect(&url).await.err();
        let text = error.as_ref().map(ToString::to_string).unwrap_or_default();
        ensure!(error.map(|error| error.kind()) == Some(ErrorKind::Denied), "{fencing}: answered {text}");
        ensure!(text.contains("permission"), "{fencing}: {text}");
    }
    stage.query("GRANT USAGE ON distlock_tokens TO locks; GRANT SELECT, INSERT, UPDATE ON distlock_tokens_of_locks TO locks").await?;
    for fencing in ["sequence", "table"] {
        let client = stage.client(&format!("lease=10m&fencing={fencing}")).await?;
        ensure!(next(&client).await?.is_some(), "{fencing}: no token");
    }
    Ok(())
}

/// A server that replaces this one and lacks the rows goes on with its clock.
async fn of_a_table_are_not_ahead_of_the_clock_with_local_handoff() -> Outcome {
    let stage = Stage::new().await?;
    let options = "lease=10m&fencing=table";
    let Reserving::AtMost(most) = stage.client(options).await?.capabilities().reserving else {
        return Err(Failure::new("no tokens in a row"));
    };
    let client = stage.client(&format!("{options}&local_handoff={most}/1h")).await?;
    let mut last = None;
    for round in 0..=300 {
        if round == 300 {
            stage.query("DELETE FROM distlock_tokens_of_locks").await?;
        }
        let token = next(&client).await?;
        ensure!(token > last, "{last:?} was followed by {token:?} in round {round}");
        last = token;
    }
    Ok(())
}

/// A server whose clock was ahead has left it.
async fn of_a_table_rise_above_what_is_there() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client("lease=10m&fencing=table").await?;
    next(&client).await?;
    stage.query("UPDATE distlock_tokens_of_locks SET token=token*2").await?;
    let left = stage.values("SELECT token FROM distlock_tokens_of_locks").await?;
    let token = next(&client).await?;
    ensure!(token.map(|token| token - 1) == left[0].parse().ok(), "{left:?} was followed by {token:?}");
    Ok(())
}

async fn of_a_table_show_the_name() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client("lease=10m&fencing=table").await?;
    let guard = client.mutex("it's a \"name\" \\ with \u{1F512}")?.acquire().await?;
    let rows = stage.query("SELECT key,token,name FROM distlock_tokens_of_locks").await?;
    let name = "it's a \"name\" \\ with \u{1F512}";
    let token = guard.token().map(|token| token.to_string());
    ensure!(rows == [[Some(lock_postgres::key(name).to_string()), token, Some(name.to_owned())]], "{rows:?}");
    Ok(guard.release().await?)
}

async fn tables_of_a_later_release_are_refused() -> Outcome {
    let stage = Stage::new().await?;
    let table = with_options(&stage.url(), "lease=10m&fencing=table");
    let client = stage.client("lease=10m&fencing=table").await?;
    client.remember(ROOM, "a", DAY).await?;
    stage.query("COMMENT ON TABLE distlock_slots IS 'distlock layout 2'").await?;
    let kind = client.remember(ROOM, "b", DAY).await.map_err(|error| error.kind());
    ensure!(kind == Err(ErrorKind::Unsupported), "a slot of a later release was answered {kind:?}");
    stage.query("COMMENT ON TABLE distlock_tokens_of_locks IS 'distlock layout 2'").await?;
    let error = connect(&table).await.err();
    let text = error.as_ref().map(ToString::to_string).unwrap_or_default();
    ensure!(error.map(|error| error.kind()) == Some(ErrorKind::Unsupported), "answered {text}");
    ensure!(text.contains("later release"), "{text}");
    Ok(())
}

const DAY: Duration = Duration::from_hours(24);

async fn a_slot_is_remembered_across_a_crash_of_the_server() -> Outcome {
    let stage = Stage::alone().await?;
    let client = stage.client(LONG).await?;
    ensure!(client.remember(ROOM, "a", DAY).await? == Remembered::Now, "used before");
    stage.server.restart(Data::Kept).await?;
    let again = stage.client("lease=10m&fencing=table").await?;
    let answer = again.remember(ROOM, "a", DAY).await?;
    ensure!(matches!(answer, Remembered::Already { .. }), "forgotten: {answer:?}");
    Ok(())
}

async fn a_cancelled_statement_uses_a_slot_at_most_once() -> Outcome {
    let stage = Stage::new().await?;
    let clients =
        [stage.client("lease=10m&fencing=table").await?, stage.client("lease=10m&fencing=table").await?];
    clients[0].remember(ROOM, "first", DAY).await?;
    let mut administrator = stage.session().await?;
    let cancelling = tokio::spawn(async move {
        for _ in 0..400 {
            administrator
                .query("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE usename='locks' AND state='active' AND datname=current_database()")
                .await?;
        }
        Outcome::Ok(())
    });
    for round in 0..50 {
        let slot = format!("slot {round}");
        let (one, other) =
            tokio::join!(clients[0].remember(ROOM, &*slot, DAY), clients[1].remember(ROOM, &*slot, DAY));
        let used = [&one, &other].into_iter().filter(|answer| matches!(answer, Ok(Remembered::Now))).count();
        let failed = [&one, &other].into_iter().filter(|answer| answer.is_err()).count();
        ensure!(used == 1 || used == 0 && failed > 0, "round {round}: {one:?} and {other:?}");
    }
    cancelling.await?
}

/// The work runs again before the client knows that its slot is forgotten.
async fn a_deletion_that_is_sent_again_spares_the_slot_of_a_later_run() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage
        .server
        .proxy(|text| text.contains("DELETE FROM distlock_slots").then_some(Operation::Remember))?;
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

/// The row stays when a lock is released; it belongs to the session that has written it.
async fn the_record_of_an_earlier_holder_is_not_that_of_the_next() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client("lease=10m&fencing=table&label=earlier").await?;
    let guard = client.mutex(ROOM)?.acquire().await?;
    let status = client.status(ROOM).await?;
    let holder = status.holders.first().ok_or_else(|| Failure::new("no holder"))?;
    ensure!(holder.id == guard.hold().id() && holder.token == guard.token(), "{holder:?}");
    ensure!(holder.label.as_deref() == Some("earlier"), "{holder:?}");
    guard.release().await?;
    let mut other = stage.session().await?;
    other.query(&format!("SELECT pg_advisory_lock({})", lock_postgres::key(ROOM))).await?;
    let status = client.status(ROOM).await?;
    let holder = status.holders.first().ok_or_else(|| Failure::new("no holder"))?;
    ensure!(holder.label.is_none() && holder.token.is_none(), "{holder:?}");
    Ok(())
}

/// The same session may have the lock again, and no record of that hold yet.
async fn of_a_released_hold_are_in_no_status() -> Outcome {
    let stage = Stage::new().await?;
    let (client, observer) =
        (stage.client("lease=10m&fencing=table").await?, stage.client("lease=10m&fencing=table").await?);
    let lock = client.mutex(ROOM)?;
    let mut guard = lock.acquire().await?;
    for _ in 0..300 {
        let id = guard.hold().id().to_string();
        guard.release().await?;
        let (status, next) = tokio::join!(observer.status(ROOM), lock.acquire());
        let late = status?.holders.into_iter().find(|holder| holder.id.to_string() == id);
        ensure!(late.is_none(), "the status names a hold that had been released: {late:?}");
        guard = next?;
    }
    Ok(guard.release().await?)
}

/// Another program has locked the table, which a refusal reads for the holder's name.
async fn that_are_blocked_cost_no_hold() -> Outcome {
    let stage = Stage::new().await?;
    let (client, other) =
        (stage.client("lease=12s&fencing=table").await?, stage.client("lease=10m&fencing=table").await?);
    let held = client.mutex("held")?.acquire().await?;
    // The table has a row of it, which is ended before the next attempt on that connection.
    client.mutex("recorded")?.acquire().await?.release().await?;
    let taken = other.mutex(ROOM)?.acquire().await?;
    let mut administrator = stage.session().await?;
    administrator.query("BEGIN").await?;
    administrator.query("LOCK TABLE distlock_tokens_of_locks IN ACCESS EXCLUSIVE MODE").await?;
    ensure!(client.mutex(ROOM)?.try_acquire().await?.is_none(), "a lock that another client holds");
    for free in ["free", "recorded"] {
        let error = client.mutex(free)?.try_acquire().await.err();
        let error = error.ok_or_else(|| Failure::new("a token that is not in the table"))?;
        ensure!(error.is_retryable(), "{free}: {error}");
    }
    // Only a hold that is checked is valid for so long.
    let lost = tokio::time::timeout(Duration::from_secs(13), held.lost()).await;
    ensure!(lost.is_err(), "the other hold is lost: {lost:?}");
    administrator.query("ROLLBACK").await?;
    taken.release().await?;
    stage.works(&client).await?;
    Ok(held.release().await?)
}

/// The answer to a cancellation is lost: it is sent again, and it is not known when the first one counts.
async fn come_from_no_session_that_may_be_cancelled_late() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let client = stage.client_at(proxy.address(), "lease=10m&fencing=table").await?;
    let held = client.mutex("held")?.acquire().await?;
    may_be_cancelled_late(&stage, &proxy, &client).await?;
    let guard = client.mutex(ROOM)?.try_acquire().await?;
    let guard = guard.ok_or_else(|| Failure::new("a free lock was refused"))?;
    let sessions = [stage.holder_of("held").await?, stage.holder_of(ROOM).await?];
    ensure!(sessions[0] != sessions[1], "both are held by {sessions:?}");
    guard.release().await?;
    Ok(held.release().await?)
}

/// Makes the session such a one on which the client has its locks: the answer to a cancellation is lost.
async fn may_be_cancelled_late(stage: &Stage, proxy: &TcpProxy, client: &LockClient) -> Outcome {
    let mut administrator = stage.session().await?;
    administrator.query("BEGIN").await?;
    administrator.query("LOCK TABLE distlock_tokens_of_locks IN ACCESS EXCLUSIVE MODE").await?;
    proxy.lose_reply(Operation::Cancel, Losing::Cut);
    let error = client.mutex(ROOM)?.try_acquire().await.err();
    ensure!(error.as_ref().is_some_and(LockError::is_retryable), "{error:?}");
    soon("the undoing", client.idle()).await?;
    administrator.query("ROLLBACK").await.map(drop)
}

async fn that_are_refused_without_asking_say_nothing_of_the_way_to_the_server() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    proxy.delay(Direction::ToClient, Duration::from_millis(50));
    let client = stage.client_at(proxy.address(), "lease=10m&timeout=10s&fencing=table").await?;
    let _held = client.mutex("held")?.acquire().await?;
    may_be_cancelled_late(&stage, &proxy, &client).await?;
    // Refused on that session.
    client.mutex(ROOM)?.acquire().await?.release().await?;
    // They are spread over several sessions, as the server is far away.
    let tries = (0..100).map(|number| {
        let lock = client.mutex(format!("room {number}"));
        tokio::spawn(async move { lock?.try_acquire().await })
    });
    let (tries, mut guards): (Vec<_>, _) = (tries.collect(), Vec::new());
    for attempt in tries {
        guards.push(soon("an answer", attempt).await???);
    }
    let sessions = "SELECT count(DISTINCT pid) FROM pg_locks JOIN pg_database ON pg_database.oid=database \
                    WHERE datname=current_database() AND locktype='advisory'";
    ensure!(stage.number(sessions).await? > 2, "all of them are on one session");
    Ok(())
}

/// A commit waits for the standby, and takes effect at the primary alone when its wait is cancelled.
async fn that_no_standby_has_are_not_given_and_cost_no_hold() -> Outcome {
    for fencing in ["table", "sequence"] {
        let stage = Stage::alone().await?;
        let (client, other) =
            (stage.client(&format!("lease=12s&fencing={fencing}")).await?, stage.client(LONG).await?);
        let (held, taken) = (client.mutex("held")?.acquire().await?, other.mutex("taken")?.acquire().await?);
        let waiter = Waiter::start(client.mutex("taken")?);
        stage.queued(1).await?;
        stage.query("ALTER SYSTEM SET synchronous_standby_names='absent'").await?;
        stage.query("SELECT pg_reload_conf()").await?;
        let lock = client.mutex(ROOM)?;
        // A sequence writes only now and then.
        let error = loop {
            match lock.try_acquire().await {
                Err(error) => break error,
                Ok(guard) => guard.ok_or_else(|| Failure::new("a free lock was refused"))?.release().await?,
            }
        };
        ensure!(error.is_retryable(), "{fencing}: {error}");
        taken.release().await?;
        // Only a hold that is checked is valid for so long.
        let lost = tokio::time::timeout(Duration::from_secs(13), held.lost()).await;
        ensure!(lost.is_err(), "{fencing}: the other hold is lost: {lost:?}");
        ensure!(fencing == "sequence" || !waiter.is_finished(), "a token that no standby has was given");
        stage.query("ALTER SYSTEM RESET synchronous_standby_names").await?;
        stage.query("SELECT pg_reload_conf()").await?;
        waiter.granted().await?.0.release().await?;
        stage.works(&client).await?;
        held.release().await?;
    }
    Ok(())
}
