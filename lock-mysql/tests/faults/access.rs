//! Users, and what they are not allowed to do.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use conformance_tests::{Failure, Outcome};
use lock_core::{ClientBuilder, ErrorKind, LockClient, LockError, Password, Secret};
use lock_kit::LockUrl;
use test_servers::{MySqlFlavour, ServerOptions};

use crate::case::{cases, ensure};
use crate::logs;
use crate::stage::{ENDED_SOON, GUEST, LONG, ROOM, Stage, Waiter, connect, reach, until, with_options};

cases!("access":
    a_wrong_password_is_refused_and_shown_nowhere,
    a_password_in_a_url_that_cannot_be_read_is_shown_nowhere,
    a_table_that_may_not_be_made_is_named,
    a_table_that_is_there_needs_no_permission_to_make_it,
    a_table_that_may_not_be_written_is_named,
    what_a_server_sets_for_everybody_is_set_right,
    a_server_without_innodb_has_locks,
    a_password_that_is_changed_in_its_file,
    a_password_of_the_program_is_asked_for_by_each_connection,
    a_database_that_is_not_there_is_named,
    a_server_that_is_not_there,
    a_server_that_is_offline_for_a_while_ends_no_wait,
);

fn refusal(answer: Result<LockClient, LockError>) -> Outcome<LockError> {
    answer.err().ok_or_else(|| Failure::new("the client was let in"))
}

async fn a_wrong_password_is_refused_and_shown_nowhere(flavour: MySqlFlavour) -> Outcome {
    let canary = "canary-5f1c";
    let stage = Stage::as_guest(flavour, "right-41d0", "", &[]).await?;
    let error = refusal(connect(&format!("mysql://guest:{canary}@{}", stage.place())).await)?;
    ensure!(error.kind() == ErrorKind::Denied && !error.is_retryable(), "{error:?}");
    let shown = format!("{error} {error:?} {error:#?}");
    ensure!(!shown.contains(canary), "{shown}");
    let client = connect(&with_options(&stage.url(), LONG)).await?;
    let guard = client.mutex(ROOM)?.acquire().await?;
    let shown = format!("{client:?} {client:#?} {guard:?}");
    guard.release().await?;
    for secret in [canary, "right-41d0"] {
        ensure!(!shown.contains(secret), "{shown}");
        ensure!(logs::lines_with(&[secret]).is_empty(), "{:?}", logs::lines_with(&[secret]));
    }
    Ok(())
}

/// If a user forgets to encode a slash or a question mark, the rest of the password ends up in another part of the URL.
async fn a_password_in_a_url_that_cannot_be_read_is_shown_nowhere(_: MySqlFlavour) -> Outcome {
    let canary = "canary-77d0";
    for url in [
        format!("mysql://app:12/{canary}@127.0.0.1:1/db"),
        format!("mysql://app:12?{canary}@127.0.0.1:1/db"),
        format!("mysql://app:{canary}@127.0.0.1:x/db"),
        format!("mysql://app:{canary}%@127.0.0.1:1/db"),
        format!("mysql://app:{canary}@127.0.0.1:1/db?unknown=1"),
        format!("mysql://app:{canary}@127.0.0.1:1/db?tls=on&extra_ca=/nonexistent"),
    ] {
        let error = refusal(connect(&url).await)?;
        let shown = format!("{error} {error:?} {error:#?}");
        ensure!(!shown.contains(canary), "{url}: {shown}");
    }
    ensure!(logs::lines_with(&[canary]).is_empty(), "{:?}", logs::lines_with(&[canary]));
    Ok(())
}

/// Gives the guest another password, and ends its connections.
async fn rotate(stage: &Stage, password: &str) -> Outcome {
    stage.server.query(&format!("ALTER USER {GUEST} IDENTIFIED BY '{password}'")).await?;
    let connections = "SELECT ID FROM information_schema.PROCESSLIST WHERE USER='guest'";
    for id in stage.server.query(connections).await?.into_iter().flatten().flatten() {
        stage.server.end_connection(&id).await?;
    }
    Ok(())
}

async fn a_password_that_is_changed_in_its_file(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::as_guest(flavour, "old-4d20", "", &[]).await?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("password");
    std::fs::write(&file, "old-4d20\n")?;
    let url = format!("mysql://guest@{}?password_file={}&{ENDED_SOON}", stage.place(), file.display());
    let client = reach(&url).await?;
    stage.works(&client).await?;
    rotate(&stage, "new-83e6").await?;
    until("the client knows that it is refused", || async {
        Ok(client.ping().await.is_err_and(|error| error.kind() == ErrorKind::Denied))
    })
    .await?;
    std::fs::remove_file(&file)?;
    until("the missing file is named", || async {
        Ok(client.ping().await.is_err_and(|error| error.to_string().contains(&*file.to_string_lossy())))
    })
    .await?;
    std::fs::write(&file, "new-83e6\n")?;
    until("contact", || async { Ok(client.ping().await.is_ok()) }).await?;
    stage.works(&client).await?;
    for secret in ["old-4d20", "new-83e6"] {
        ensure!(logs::lines_with(&[secret]).is_empty(), "{:?}", logs::lines_with(&[secret]));
    }
    Ok(())
}

async fn a_password_of_the_program_is_asked_for_by_each_connection(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::as_guest(flavour, "token-0-c1d9", "", &[]).await?;
    let number = Arc::new(AtomicU32::new(0));
    let issued = Arc::clone(&number);
    let token = Password::from_fn(move || {
        let token = format!("token-{}-c1d9", issued.load(Ordering::SeqCst));
        std::future::ready(Ok::<_, std::io::Error>(Secret::new(token)))
    });
    let builder = ClientBuilder::new().password(token).connect_timeout(Duration::from_mins(1));
    let url = LockUrl::parse(&format!("mysql://guest@{}?{ENDED_SOON}", stage.place()))?;
    let client = lock_mysql::connect(&url, builder).await?;
    stage.works(&client).await?;
    rotate(&stage, "token-1-c1d9").await?;
    until("the client knows that it is refused", || async {
        Ok(client.ping().await.is_err_and(|error| error.kind() == ErrorKind::Denied))
    })
    .await?;
    number.store(1, Ordering::SeqCst);
    until("contact", || async { Ok(client.ping().await.is_ok()) }).await?;
    stage.works(&client).await?;
    let shown = format!("{client:?} {client:#?}");
    ensure!(!shown.contains("c1d9") && logs::lines_with(&["c1d9"]).is_empty(), "{shown}");
    Ok(())
}

async fn a_table_that_may_not_be_made_is_named(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::as_guest(flavour, "secret", "locks", &[]).await?;
    stage.server.query("CREATE TABLE locks.other (a INT)").await?;
    stage.server.query(&format!("GRANT SELECT ON locks.other TO {GUEST}")).await?;
    let error = refusal(connect(&with_options(&stage.url(), "fencing=table")).await)?;
    ensure!(error.kind() == ErrorKind::Denied, "{error:?}");
    ensure!(error.to_string().contains("distlock_locks"), "{error}");
    Ok(())
}

async fn a_table_that_is_there_needs_no_permission_to_make_it(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::as_guest(flavour, "secret", "locks", &["SELECT, INSERT, UPDATE ON locks.*"]).await?;
    connect(&format!("mysql://maker:secret@{}/locks?fencing=table", stage.place())).await?;
    let client = stage.client("fencing=table").await?;
    let guard = client.mutex(ROOM)?.acquire().await?;
    ensure!(guard.token().is_some(), "no token");
    Ok(guard.release().await?)
}

async fn a_table_that_may_not_be_written_is_named(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::as_guest(flavour, "secret", "locks", &["SELECT ON locks.*"]).await?;
    connect(&format!("mysql://maker:secret@{}/locks?fencing=table", stage.place())).await?;
    let error = refusal(connect(&with_options(&stage.url(), "fencing=table")).await)?;
    ensure!(error.kind() == ErrorKind::Denied, "{error:?}");
    ensure!(error.to_string().contains("distlock_locks"), "{error}");
    Ok(())
}

/// Server settings that would end waits, hide answers, or prevent the writing of tokens.
async fn what_a_server_sets_for_everybody_is_set_right(flavour: MySqlFlavour) -> Outcome {
    let settings = "SET SESSION TRANSACTION READ ONLY; SET sql_select_limit=0, autocommit=0, wait_timeout=1";
    let stage = Stage::with_table(flavour).await?;
    stage.server.query(&format!("SET GLOBAL init_connect='{settings}'")).await?;
    for options in ["lease=10m", "lease=10m&fencing=table"] {
        let client = stage.client(options).await?;
        stage.works(&client).await?;
        ensure!(client.status(ROOM).await?.holders.is_empty(), "it is held");
    }
    Ok(())
}

async fn a_server_without_innodb_has_locks(flavour: MySqlFlavour) -> Outcome {
    if flavour == MySqlFlavour::MySql57 {
        // This server always has InnoDB.
        return Ok(());
    }
    let options = ServerOptions::new()
        .flavour(flavour)
        .setting("innodb", "OFF")
        .setting("default-storage-engine", "Aria");
    let stage = Stage::with(options).await?;
    stage.works(&stage.client(LONG).await?).await
}

async fn a_database_that_is_not_there_is_named(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::as_guest(flavour, "secret", "", &["ALL ON *.*"]).await?;
    let error = refusal(connect(&format!("mysql://guest:secret@{}/nowhere", stage.place())).await)?;
    ensure!(error.kind() == ErrorKind::InvalidOption, "{error:?}");
    ensure!(error.to_string().contains("nowhere"), "{error}");
    Ok(())
}

async fn a_server_that_is_not_there(_: MySqlFlavour) -> Outcome {
    let error = refusal(connect("mysql://app@127.0.0.1:1").await)?;
    ensure!(error.kind() == ErrorKind::Unreachable && error.is_retryable(), "{error:?}");
    Ok(())
}

/// Error 3032: an operator admits only administrators. MariaDB has no such mode.
async fn a_server_that_is_offline_for_a_while_ends_no_wait(flavour: MySqlFlavour) -> Outcome {
    if flavour == MySqlFlavour::MariaDb {
        return Ok(());
    }
    let stage = Stage::alone(flavour).await?;
    let client = stage.client("lease=4s").await?;
    let name = format!("room{}", stage.server.address().port());
    let mut session = stage.server.session().await?;
    session.query(&format!("SELECT GET_LOCK('distlock:{name}', 0)")).await?;
    // The client has to connect again, so its earlier connection does not matter.
    until("its connection is closed", || async { Ok(stage.connections().await? == 0) }).await?;
    session.query("SET GLOBAL offline_mode = 1").await?;
    let waiter = Waiter::start(client.mutex(name.as_str())?);
    let is_refused = || async {
        Ok(waiter.is_finished()
            || !logs::lines_with(&[name.as_str(), "failed and is repeated", "3032"]).is_empty())
    };
    until("it is refused", is_refused).await?;
    ensure!(!waiter.is_finished(), "the wait has ended");
    session.query("SET GLOBAL offline_mode = 0").await?;
    stage.queued(1).await?;
    session.query(&format!("SELECT RELEASE_LOCK('distlock:{name}')")).await?;
    let (guard, _) = waiter.granted().await?;
    Ok(guard.release().await?)
}
