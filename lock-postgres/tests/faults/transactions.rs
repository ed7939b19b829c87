//! Locks inside the user's own transaction, of each client crate.

use std::time::Duration;

use conformance_tests::{Failure, Outcome};
use lock_core::{ErrorKind, LockError, LockName};
use lock_postgres::in_transaction;

use crate::libraries::{Connection, Library, Transaction, with};
use crate::stage::{LONG, ROOM, Stage, cases, ensure, soon, until};

cases!(on Library, "transactions":
    exclude_clients_and_each_other,
    go_on_after_a_wait_that_was_too_long,
    wait_for_the_lock,
    have_raw_keys_of_other_programs,
    free_the_lock_when_they_are_dropped,
    free_what_a_dropped_future_took,
    refuse_the_names_that_a_client_refuses,
    get_no_lock_after_a_failure,
    get_no_lock_after_their_end,
    get_no_lock_at_a_standby,
    go_on_after_a_deadlock,
    learn_of_the_end_of_the_session,
    learn_of_the_end_of_the_connection,
);

const SHORT: Option<Duration> = Some(Duration::from_millis(200));

/// Longer than any case.
const MINUTES: Option<Duration> = Some(Duration::from_mins(10));

async fn exclude_clients_and_each_other(library: Library) -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client(LONG).await?;
    let (mut one, mut another) = (library.connect(&stage.url()).await?, library.connect(&stage.url()).await?);
    let mut first = one.begin().await?;
    ensure!(first.try_acquire(ROOM).await?, "a free lock was refused");
    let mut second = another.begin().await?;
    ensure!(!second.try_acquire(ROOM).await?, "two have the lock");
    ensure!(client.mutex(ROOM)?.try_acquire().await?.is_none(), "a client has the lock, too");
    first.commit().await?;
    let guard = client.mutex(ROOM)?.acquire().await?;
    ensure!(!second.try_acquire(ROOM).await?, "two have the lock");
    let with_a_prefix =
        with!(&mut second, inner => in_transaction(inner, ROOM).prefix("mine").try_acquire().await);
    ensure!(with_a_prefix?, "another lock was refused");
    guard.release().await?;
    ensure!(second.wait(ROOM, None).await?, "a free lock was refused");
    ensure!(client.mutex(ROOM)?.try_acquire().await?.is_none(), "a client has the lock, too");
    second.rollback().await?;
    stage.works(&client).await
}

async fn go_on_after_a_wait_that_was_too_long(library: Library) -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client(LONG).await?;
    let guard = client.mutex(ROOM)?.acquire().await?;
    let mut connection = library.connect(&stage.url()).await?;
    let mut transaction = connection.begin().await?;
    transaction.execute("SET LOCAL lock_timeout='7s';CREATE TEMP TABLE kept (number int)").await?;
    ensure!(!transaction.wait(ROOM, SHORT).await?, "two have the lock");
    ensure!(transaction.limit().await? == "7s", "the limit is another");
    guard.release().await?;
    ensure!(transaction.wait(ROOM, SHORT).await?, "a free lock was refused");
    ensure!(transaction.limit().await? == "7s", "the limit is another");
    ensure!(client.mutex(ROOM)?.try_acquire().await?.is_none(), "a client has the lock, too");
    transaction.execute("INSERT INTO kept VALUES (1)").await?;
    transaction.commit().await?;
    stage.works(&client).await
}

async fn wait_for_the_lock(library: Library) -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client(LONG).await?;
    let guard = client.mutex(ROOM)?.acquire().await?;
    let mut connection = library.connect(&stage.url()).await?;
    let mut unlimited = library.connect(&stage.url()).await?;
    let waiting = tokio::spawn(async move {
        let mut transaction = connection.begin().await?;
        let is_ours = transaction.wait(ROOM, MINUTES).await?;
        transaction.commit().await?;
        Outcome::Ok(is_ours)
    });
    stage.queued(1).await?;
    // Whatever limit the role has for its own waits.
    let without_limit = tokio::spawn(async move {
        let mut transaction = unlimited.begin().await?;
        transaction.execute("SET LOCAL lock_timeout='1ms'").await?;
        let is_ours = transaction.wait(ROOM, None).await?;
        transaction.commit().await?;
        Outcome::Ok(is_ours)
    });
    stage.queued(2).await?;
    guard.release().await?;
    ensure!(soon("the lock", waiting).await???, "the lock was refused");
    ensure!(soon("the lock", without_limit).await???, "the lock was refused");
    stage.works(&client).await
}

async fn have_raw_keys_of_other_programs(library: Library) -> Outcome {
    const KEY: i64 = -4711;
    let stage = Stage::new().await?;
    let client = stage.client("lease=10m&keys=raw").await?;
    let lock = client.mutex(KEY.to_string())?;
    let guard = lock.acquire().await?;
    let mut other = stage.session().await?;
    let rows = other.query(&format!("SELECT pg_try_advisory_lock({KEY})")).await?;
    ensure!(rows == [[Some("f".to_owned())]], "another program has the lock, too");
    let mut connection = library.connect(&stage.url()).await?;
    let mut transaction = connection.begin().await?;
    let tried = with!(&mut transaction, inner => in_transaction(inner, ROOM).key(KEY).try_acquire().await);
    ensure!(!tried?, "two have the lock");
    guard.release().await?;
    let tried = with!(&mut transaction, inner => in_transaction(inner, ROOM).key(KEY).try_acquire().await);
    ensure!(tried?, "a free lock was refused");
    ensure!(lock.try_acquire().await?.is_none(), "two have the lock");
    ensure!(client.status(&KEY.to_string()).await?.holders.len() == 1, "the status shows no holder");
    let kind = client.mutex(ROOM)?.try_acquire().await.map(drop).map_err(|error| error.kind());
    ensure!(kind == Err(ErrorKind::InvalidName), "a name that is no number was answered {kind:?}");
    Ok(())
}

async fn free_the_lock_when_they_are_dropped(library: Library) -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client(LONG).await?;
    let mut connection = library.connect(&stage.url()).await?;
    let mut transaction = connection.begin().await?;
    ensure!(transaction.wait(ROOM, None).await?, "a free lock was refused");
    drop(transaction);
    // A library may roll back only when the connection is used again.
    connection.begin().await?.commit().await?;
    stage.works(&client).await
}

/// The server does not notice that a future was dropped.
async fn free_what_a_dropped_future_took(library: Library) -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client(LONG).await?;
    for limit in [None, MINUTES] {
        let guard = client.mutex(ROOM)?.acquire().await?;
        let mut connection = library.connect(&stage.url()).await?;
        let mut transaction = connection.begin().await?;
        tokio::select! {
            answer = transaction.wait(ROOM, limit) => {
                return Err(Failure::new(format!("two have the lock: {answer:?}")));
            }
            queued = stage.queued(1) => queued?,
        }
        guard.release().await?;
        until("the transaction has the lock", || async { Ok(stage.held().await? == 1) }).await?;
        soon("the rollback", transaction.rollback()).await??;
        ensure!(stage.held().await? == 0, "the lock is held");
        stage.works(&client).await?;
    }
    Ok(())
}

async fn refuse_the_names_that_a_client_refuses(library: Library) -> Outcome {
    let stage = Stage::new().await?;
    let mut connection = library.connect(&stage.url()).await?;
    let mut transaction = connection.begin().await?;
    let longest = "x".repeat(LockName::MAX_LENGTH);
    for name in ["", &format!("{longest}x")] {
        for error in transaction.refusals(name).await? {
            ensure!(error.kind() == ErrorKind::InvalidName, "{name:?} was answered {error}");
        }
    }
    ensure!(transaction.try_acquire(&longest).await?, "a free lock was refused");
    ensure!(stage.held().await? == 1, "another lock is held, too");
    transaction.commit().await
}

async fn get_no_lock_after_a_failure(library: Library) -> Outcome {
    let stage = Stage::new().await?;
    let mut connection = library.connect(&stage.url()).await?;
    let mut transaction = connection.begin().await?;
    // Even a savepoint of this name is the user's.
    transaction.execute("SAVEPOINT distlock").await?;
    ensure!(transaction.execute("SELECT 1/0").await.is_err(), "the server divides by nothing");
    for error in transaction.refusals(ROOM).await? {
        let is_said = error.kind() == ErrorKind::Server && error.to_string().contains("25P02");
        ensure!(is_said && !error.is_retryable(), "answered {error}");
    }
    ensure!(transaction.execute("SELECT 1").await.is_err(), "the transaction goes on");
    transaction.rollback().await?;
    ensure!(stage.held().await? == 0, "the lock is held");
    Ok(())
}

/// A library does not know what statements of the user have done to the transaction.
async fn get_no_lock_after_their_end(library: Library) -> Outcome {
    let stage = Stage::new().await?;
    let mut connection = library.connect(&stage.url()).await?;
    let mut transaction = connection.begin().await?;
    transaction.execute("COMMIT").await?;
    for error in transaction.refusals(ROOM).await? {
        let is_said = error.kind() == ErrorKind::Server && error.to_string().contains("25P01");
        ensure!(is_said && !error.is_retryable(), "answered {error}");
    }
    transaction.rollback().await
}

async fn get_no_lock_at_a_standby(library: Library) -> Outcome {
    let stage = Stage::alone().await?;
    stage.server.restart_as_standby().await?;
    let mut connection = library.connect(&stage.url()).await?;
    let mut transaction = connection.begin().await?;
    for error in transaction.refusals(ROOM).await? {
        let is_said = error.kind() == ErrorKind::Unreachable && error.to_string().contains("standby");
        ensure!(is_said, "answered {error}");
    }
    ensure!(stage.held().await? == 0, "the lock is held");
    transaction.commit().await
}

async fn go_on_after_a_deadlock(library: Library) -> Outcome {
    let stage = Stage::new().await?;
    let (mut one, mut another) = (library.connect(&stage.url()).await?, library.connect(&stage.url()).await?);
    let (mut first, mut second) = (one.begin().await?, another.begin().await?);
    let is_ours = first.try_acquire("left").await? && second.try_acquire("right").await?;
    ensure!(is_ours, "a free lock was refused");
    let both = async { tokio::join!(is_undone(first, "right"), is_undone(second, "left")) };
    let undone = soon("the end of the deadlock", both).await?;
    let undone = (undone.0?, undone.1?);
    ensure!(undone.0 != undone.1, "undone: {undone:?}");
    Ok(())
}

/// Whether the server ends the wait because of a deadlock. The transaction then goes on.
async fn is_undone(mut transaction: Transaction<'_>, name: &str) -> Outcome<bool> {
    match transaction.wait(name, MINUTES).await {
        Ok(is_ours) => ensure!(is_ours, "the wait was too long"),
        Err(error) => {
            let is_said = error.to_string().contains("40P01") && error.is_retryable();
            ensure!(is_said, "answered {error}");
            transaction.execute("SELECT 1").await?;
            transaction.commit().await?;
            return Ok(true);
        }
    }
    transaction.commit().await?;
    Ok(false)
}

async fn learn_of_the_end_of_the_session(library: Library) -> Outcome {
    let stage = Stage::new().await?;
    let _guard = stage.client(LONG).await?.mutex(ROOM)?.acquire().await?;
    for limit in [None, MINUTES] {
        let mut connection = library.connect(&stage.url()).await?;
        let error = error_of_a_wait(&stage, &mut connection, limit, end_waits(&stage)).await?;
        ensure!(error.to_string().contains("57P01"), "answered {error}");
    }
    Ok(())
}

async fn learn_of_the_end_of_the_connection(library: Library) -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let _guard = stage.client(LONG).await?.mutex(ROOM)?.acquire().await?;
    for limit in [None, MINUTES] {
        let mut connection = library.connect(&stage.url_at(proxy.address())).await?;
        let cut = async {
            proxy.cut();
            Ok(())
        };
        error_of_a_wait(&stage, &mut connection, limit, cut).await?;
        // The server does not notice by itself that a plain session's client has gone while it waits.
        end_waits(&stage).await?;
        stage.queued(0).await?;
    }
    Ok(())
}

async fn end_waits(stage: &Stage) -> Outcome {
    for process in stage.waiters().await? {
        stage.terminate(&process).await?;
    }
    Ok(())
}

/// The error of a wait during which something happens.
async fn error_of_a_wait(
    stage: &Stage,
    connection: &mut Connection,
    limit: Option<Duration>,
    event: impl Future<Output = Outcome>,
) -> Outcome<LockError> {
    let mut transaction = connection.begin().await?;
    let happening = async {
        stage.queued(1).await?;
        event.await
    };
    let (answer, happened) = tokio::join!(soon("an error", transaction.wait(ROOM, limit)), happening);
    happened?;
    let error = answer?.err().ok_or_else(|| Failure::new("two have the lock"))?;
    ensure!(error.kind() == ErrorKind::Unreachable && error.is_retryable(), "answered {error}");
    Ok(error)
}
