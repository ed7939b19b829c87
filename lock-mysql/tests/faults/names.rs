//! Lock names that a server would fold or cut off.

use conformance_tests::Outcome;
use test_servers::MySqlFlavour;

use crate::case::{cases, ensure};
use crate::stage::{LONG, Stage};

cases!("names":
    names_that_a_server_takes_for_one_are_different_locks,
    an_empty_prefix_meets_other_programs,
    prefixes_keep_apart,
);

async fn names_that_a_server_takes_for_one_are_different_locks(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let (ours, theirs) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let long = "x".repeat(60);
    let names = [
        "a",
        "A",
        "\u{e1}",
        "\u{c1}",
        "a ",
        " a",
        "a\t",
        "a\0",
        "a\0b",
        "a%",
        "a_",
        "a'",
        "a\\",
        "a`",
        "\u{1F512}",
        "\u{1F511}",
        "ss",
        "\u{df}",
        "i",
        "\u{131}",
        "I",
        "\u{130}",
        "k",
        "\u{212a}",
    ];
    let mut names: Vec<_> = names.into_iter().map(str::to_owned).collect();
    names.extend((0..5).map(|number| format!("{long}{number}")));
    names.push("x".repeat(512));
    let mut guards = Vec::new();
    for name in &names {
        let guard = ours.mutex(name)?.try_acquire().await?;
        ensure!(guard.is_some(), "{name:?} is taken for another");
        guards.push(guard);
    }
    for name in &names {
        ensure!(theirs.mutex(name)?.try_acquire().await?.is_none(), "{name:?} is not the same elsewhere");
    }
    Ok(())
}

async fn an_empty_prefix_meets_other_programs(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let client = stage.client("lease=10m&prefix=").await?;
    let mut session = stage.server.session().await?;
    session.query("SELECT GET_LOCK('orders/42', 0)").await?;
    ensure!(client.mutex("orders/42")?.try_acquire().await?.is_none(), "another client holds it");
    session.query("SELECT RELEASE_LOCK('orders/42')").await?;
    ensure!(client.mutex("orders/42")?.try_acquire().await?.is_some(), "it is free");
    Ok(())
}

async fn prefixes_keep_apart(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let (one, other) =
        (stage.client("lease=10m&prefix=one").await?, stage.client("lease=10m&prefix=two").await?);
    let guard = one.mutex("room")?.acquire().await?;
    ensure!(other.mutex("room")?.try_acquire().await?.is_some(), "the prefixes do not keep apart");
    Ok(guard.release().await?)
}
