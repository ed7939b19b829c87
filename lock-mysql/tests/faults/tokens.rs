//! Fencing tokens from each of their sources.

use conformance_tests::{Failure, Outcome};
use lock_core::{ErrorKind, Fencing, FencingToken, Reserving};
use test_servers::{Data, MySqlFlavour};

use crate::case::{cases, ensure};
use crate::stage::{ROOM, Stage, soon};

cases!("tokens":
    of_the_clock_rise_across_a_restart,
    of_the_table_rise_across_a_restart_and_above_what_is_there,
    of_the_table_rise_although_it_has_lost_its_rows,
    of_the_table_are_not_ahead_of_the_clock_with_local_handoff,
    are_left_out_on_request,
    that_cannot_be_written_down_cost_no_other_lock,
    without_their_table_are_an_error_that_says_what_to_do,
    are_written_down_with_the_longest_names,
);

async fn of_the_clock_rise_across_a_restart(flavour: MySqlFlavour) -> Outcome {
    rise_across_a_restart(flavour, "lease=10m&fencing=uuid", Fencing::WhileServerLives).await
}

async fn of_the_table_rise_across_a_restart_and_above_what_is_there(flavour: MySqlFlavour) -> Outcome {
    rise_across_a_restart(flavour, "lease=10m&fencing=table", Fencing::Durable).await?;
    let stage = Stage::with_table(flavour).await?;
    let client = stage.client("lease=10m&fencing=table").await?;
    let lock = client.mutex(ROOM)?;
    let first = lock.acquire().await?;
    let token = first.token();
    first.release().await?;
    // As if a clock had gone back.
    stage.server.query("UPDATE locks.distlock_locks SET token = token + 1000000000000").await?;
    let next = lock.acquire().await?;
    let least = token.map(|token| FencingToken::new(token.get() + 1_000_000_000_000));
    ensure!(next.token() > least, "{least:?} was followed by {:?}", next.token());
    Ok(next.release().await?)
}

/// Like a server that replaces another one and lacks its last writes.
async fn of_the_table_rise_although_it_has_lost_its_rows(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::with_table(flavour).await?;
    let client = stage.client("lease=10m&fencing=table").await?;
    let lock = client.mutex(ROOM)?;
    let mut last = None;
    for _ in 0..5 {
        let guard = lock.acquire().await?;
        ensure!(guard.token() > last, "{last:?} was followed by {:?}", guard.token());
        last = guard.token();
        guard.release().await?;
        stage.server.query("DELETE FROM locks.distlock_locks").await?;
    }
    Ok(())
}

/// A server that replaces this one and lacks the rows goes on with its clock.
async fn of_the_table_are_not_ahead_of_the_clock_with_local_handoff(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::with_table(flavour).await?;
    let options = "lease=10m&fencing=table";
    let Reserving::AtMost(most) = stage.client(options).await?.capabilities().reserving else {
        return Err(Failure::new("no tokens in a row"));
    };
    let client = stage.client(&format!("{options}&local_handoff={most}/1h")).await?;
    let lock = client.mutex(ROOM)?;
    let mut last = None;
    for round in 0..=300 {
        if round == 300 {
            stage.server.query("DELETE FROM locks.distlock_locks").await?;
        }
        let guard = lock.acquire().await?;
        ensure!(guard.token() > last, "{last:?} was followed by {:?} in round {round}", guard.token());
        last = guard.token();
        guard.release().await?;
    }
    Ok(())
}

async fn rise_across_a_restart(flavour: MySqlFlavour, options: &str, fencing: Fencing) -> Outcome {
    let stage = Stage::with_table(flavour).await?;
    let client = stage.client(options).await?;
    ensure!(client.capabilities().fencing == fencing, "{:?}", client.capabilities());
    let lock = client.mutex(ROOM)?;
    let mut last = None;
    for round in 0..20 {
        // The server counts anew from the second of its start, which may be the same second as that of the previous start.
        if round % 4 == 3 {
            stage.server.restart(Data::Kept).await?;
        }
        let guard = soon("the lock", lock.acquire()).await??;
        ensure!(guard.token() > last, "{last:?} was followed by {:?}", guard.token());
        last = guard.token();
        guard.release().await?;
    }
    Ok(())
}

async fn are_left_out_on_request(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let client = stage.client("lease=10m&fencing=none").await?;
    ensure!(client.capabilities().fencing == Fencing::None, "{:?}", client.capabilities());
    let guard = client.mutex(ROOM)?.acquire().await?;
    ensure!(guard.token().is_none(), "{:?}", guard.token());
    Ok(guard.release().await?)
}

/// An operator makes a backup, changes the table, or reads it with a lock.
async fn that_cannot_be_written_down_cost_no_other_lock(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::with_table(flavour).await?;
    let client = stage.client("lease=10m&fencing=table&timeout=10s").await?;
    let innocent = client.mutex("innocent")?.acquire().await?;
    let connection = stage.holder_of("innocent").await?;
    client.mutex(ROOM)?.acquire().await?.release().await?;
    for (lock, unlock) in [
        ("FLUSH TABLES WITH READ LOCK", "UNLOCK TABLES"),
        ("LOCK TABLES locks.distlock_locks WRITE", "UNLOCK TABLES"),
        ("BEGIN; SELECT * FROM locks.distlock_locks FOR UPDATE", "ROLLBACK"),
    ] {
        let mut session = stage.server.session().await?;
        for statement in lock.split("; ") {
            session.query(statement).await?;
        }
        let answer = soon("an answer", client.mutex(ROOM)?.try_acquire()).await?;
        let Err(error) = answer else { return Err(Failure::new(format!("{lock}: {answer:?}"))) };
        ensure!(error.is_retryable() && error.kind() == ErrorKind::Server, "{lock}: {error:?}");
        session.query(unlock).await?;
        soon("the undoing", client.idle()).await?;
        stage.works(&client).await?;
        ensure!(innocent.hold().is_valid(), "{lock}: the other lock is lost");
        ensure!(stage.holder_of("innocent").await? == connection, "{lock}: the other lock has moved");
    }
    Ok(innocent.release().await?)
}

async fn without_their_table_are_an_error_that_says_what_to_do(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::with_table(flavour).await?;
    let options = "lease=10m&fencing=table";
    let client = stage.client(options).await?;
    stage.works(&client).await?;
    stage.server.query("DROP TABLE locks.distlock_locks").await?;
    let answer = soon("an answer", client.mutex(ROOM)?.try_acquire()).await?;
    let Err(error) = answer else { return Err(Failure::new(format!("without a table: {answer:?}"))) };
    ensure!(error.to_string().contains("connect anew"), "{error}");
    stage.works(&stage.client(options).await?).await?;
    stage.works(&client).await
}

async fn are_written_down_with_the_longest_names(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::with_table(flavour).await?;
    let label = "%0a".repeat(256);
    let client = stage.client(&format!("lease=10m&fencing=table&label={label}")).await?;
    let name = "\u{1}".repeat(512);
    let guard = client.mutex(name.as_str())?.acquire().await?;
    let status = client.status(name.as_str()).await?;
    ensure!(status.holders.len() == 1 && status.holders[0].label == Some("\n".repeat(256)), "{status:?}");
    Ok(guard.release().await?)
}
