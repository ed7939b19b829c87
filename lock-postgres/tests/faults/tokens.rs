//! Where tokens come from.

use std::time::Duration;

use conformance_tests::Outcome;
use lock_core::{ErrorKind, FencingToken, LockClient};

use crate::stage::{ROOM, Stage, cases, connect, ensure, with_options};

cases!("tokens":
    rise_across_a_crash_of_the_server,
    that_cannot_be_created_are_an_error_that_says_what_to_do,
    of_a_table_show_the_name,
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
                stage.server.restart().await?;
            }
            let token = next(&client).await?;
            ensure!(token > last, "{fencing}: {last:?} was followed by {token:?} in round {round}");
            last = token;
        }
        client.close(Duration::from_secs(5)).await?;
    }
    let none = stage.client("lease=10m&fencing=none").await?;
    ensure!(next(&none).await?.is_none(), "a token, although none was wanted");
    Ok(())
}

/// The sequence belongs to an administrator.
async fn that_cannot_be_created_are_an_error_that_says_what_to_do() -> Outcome {
    let stage = Stage::new().await?;
    stage.query("CREATE SEQUENCE distlock_tokens; CREATE TABLE distlock_tokens_of_locks (key bigint PRIMARY KEY, token bigint NOT NULL, name text NOT NULL)").await?;
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
