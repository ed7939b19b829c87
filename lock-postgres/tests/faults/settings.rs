//! What a role, a database and another user have set, and what a client does all the same.

use conformance_tests::{Failure, Outcome};
use lock_core::{ErrorKind, FencingToken, LockClient};
use test_servers::{Data, ServerOptions};

use crate::stage::{LONG, PATIENCE, ROOM, Stage, Waiter, cases, connect, ensure, soon, with_options};

cases!("settings":
    of_a_role_change_nothing,
    of_two_search_paths_find_the_same_tokens,
    without_a_schema_are_an_error_that_says_what_to_do,
    of_another_encoding_than_the_label_end_no_wait,
);

async fn token(client: &LockClient, name: &str) -> Outcome<Option<FencingToken>> {
    let guard = client.mutex(name)?.acquire().await?;
    let token = guard.token();
    guard.release().await?;
    Ok(token)
}

/// The token is on the disk when the holder has it, under the name that it has.
async fn of_a_role_change_nothing() -> Outcome {
    const NAME: &str = "it's \\x41 \u{1F512}";
    let options = ServerOptions::new().user("locks", "secret", &[]);
    let stage = Stage::with(options.setting("wal_writer_delay", "10000ms")).await?;
    for setting in [
        "synchronous_commit=off",
        "standard_conforming_strings=off",
        "default_transaction_read_only=on",
        "search_path=elsewhere",
        "lock_timeout='1ms'",
    ] {
        stage.query(&format!("ALTER ROLE locks SET {setting}")).await?;
    }
    let client = stage.client("lease=10m&fencing=table").await?;
    let token = token(&client, NAME).await?.map(|token| token.to_string());
    stage.server.restart(Data::Kept).await?;
    let rows = stage.query("SELECT token,name FROM public.distlock_tokens_of_locks").await?;
    ensure!(rows == [[token, Some(NAME.to_owned())]], "{rows:?}");
    Ok(())
}

async fn of_two_search_paths_find_the_same_tokens() -> Outcome {
    let options = ServerOptions::new().user("locks", "secret", &[]).user("others", "secret", &[]);
    let stage = Stage::with(options).await?;
    for user in ["locks", "others"] {
        stage.query(&format!("CREATE SCHEMA {user} AUTHORIZATION {user}")).await?;
    }
    let one = stage.client("lease=10m&fencing=sequence").await?;
    let first = token(&one, ROOM).await?;
    stage.query("GRANT USAGE ON SEQUENCE public.distlock_tokens TO others").await?;
    let url = stage.url().replace("locks:", "others:");
    let other = connect(&with_options(&url, "lease=10m&fencing=sequence")).await?;
    let second = token(&other, ROOM).await?;
    ensure!(first < second, "{first:?} and then {second:?}");
    Ok(())
}

async fn without_a_schema_are_an_error_that_says_what_to_do() -> Outcome {
    let stage = Stage::new().await?;
    let url = with_options(&stage.url(), "lease=10m&fencing=sequence&schema=my%20locks");
    for (prepare, kind, words) in [
        ("SELECT 1", ErrorKind::InvalidOption, "CREATE SCHEMA"),
        ("CREATE SCHEMA \"my locks\"", ErrorKind::InvalidOption, "GRANT USAGE, CREATE"),
        ("GRANT USAGE ON SCHEMA \"my locks\" TO locks", ErrorKind::Denied, "GRANT CREATE ON SCHEMA"),
    ] {
        stage.query(prepare).await?;
        let error = connect(&url).await.err().ok_or_else(|| Failure::new("connected"))?;
        ensure!(error.kind() == kind && error.to_string().contains(words), "{prepare}: {error}");
    }
    stage.query("GRANT CREATE ON SCHEMA \"my locks\" TO locks").await?;
    let client = connect(&url).await?;
    ensure!(token(&client, ROOM).await?.is_some(), "no token");
    let schemas = stage.values("SELECT schemaname FROM pg_sequences").await?;
    ensure!(schemas == ["my locks"], "{schemas:?}");
    Ok(())
}

async fn of_another_encoding_than_the_label_end_no_wait() -> Outcome {
    let options = ServerOptions::new().user("locks", "secret", &[]);
    let stage = Stage::with(options).await?;
    stage.query("CREATE DATABASE latin OWNER locks ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0").await?;
    let address = stage.server.address();
    let url = format!("postgres://locks:secret@{address}/latin?tls=off&fencing=table");
    let holder = connect(&with_options(&url, LONG)).await?;
    let client = connect(&with_options(&url, "lease=10m&label=%F0%9F%94%92")).await?;
    let name = "gro\u{df} und \u{1F512}";
    let held = holder.mutex(name)?.acquire().await?;
    let waiter = Waiter::start(client.mutex(name)?);
    crate::stage::until("it waits", || async {
        Ok(holder
            .status(name)
            .await?
            .waiters
            .iter()
            .any(|waiter| waiter.label.as_deref() == Some("\u{1F512}")))
    })
    .await?;
    held.release().await?;
    let (guard, _) = waiter.granted().await?;
    let status = holder.status(name).await?;
    ensure!(status.holders.iter().any(|one| one.label.as_deref() == Some("\u{1F512}")), "{status:?}");
    guard.release().await?;
    soon("the close", client.close(PATIENCE)).await??;
    Ok(())
}
