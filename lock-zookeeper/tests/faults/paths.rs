//! Directories that are missing, are removed or have other children; lock names that are no node names; sequence numbers at their
//! end.

use std::time::Duration;

use conformance_tests::Outcome;
use lock_core::ErrorKind;
use test_servers::{NodeKind, ServerOptions};

use crate::case::{cases, ensure};
use crate::stage::{LONG, ROOM, Stage, Waiter, connect_patiently, refusal, soon, until};

cases!("paths":
    missing_directories_are_made_and_removed_by_the_server,
    directories_that_are_removed_all_the_time,
    children_that_are_none_of_ours,
    numbers_of_other_programs_are_refused,
    contenders_of_curator_count,
    contenders_of_kazoo_count_on_request,
    names_that_are_no_names_of_nodes,
    numbers_at_their_end,
    numbers_past_their_end_do_not_come_first,
    a_folder_that_belongs_to_a_session,
);

/// A server that removes empty directories at once, and the topmost of the missing directories.
async fn quick() -> Outcome<(Stage, String)> {
    let options = ServerOptions::new().property("znode.container.checkIntervalMs", "30");
    let mut stage = Stage::sharing(options).await?;
    let missing = stage.root.clone();
    stage.root += "/so/far";
    Ok((stage, missing))
}

async fn missing_directories_are_made_and_removed_by_the_server() -> Outcome {
    let (stage, missing) = quick().await?;
    let client = stage.client(LONG).await?;
    stage.works(&client).await?;
    // All of them are containers.
    stage.is_gone(&missing).await?;
    stage.works(&client).await
}

async fn directories_that_are_removed_all_the_time() -> Outcome {
    let (stage, missing) = quick().await?;
    let mut users = Vec::new();
    for _ in 0..3 {
        let client = stage.client(LONG).await?;
        users.push(tokio::spawn(async move {
            for round in 0..40 {
                let guard = soon("the lock", client.mutex(ROOM)?.acquire()).await??;
                ensure!(guard.hold().is_valid(), "a hold that is none");
                guard.release().await?;
                // Sometimes long enough for the server to remove everything, and sometimes just about.
                tokio::time::sleep(Duration::from_millis(round % 8 * 12)).await;
            }
            Outcome::Ok(())
        }));
    }
    for user in users {
        // All rounds together take longer than one may.
        user.await??;
    }
    stage.is_gone(&missing).await
}

async fn children_that_are_none_of_ours() -> Outcome {
    let stage = Stage::new().await?;
    let directory = stage.directory(ROOM);
    for name in [
        "notes",
        "lock-",
        "lock-12",
        "lock-000000000x",
        "_c_0-lock-",
        "locks",
        "leases",
        "x-000000001",
        "lease-0000000000",
        "latch-0000000000",
    ] {
        stage.server.create(&format!("{directory}/{name}"), b"", NodeKind::Lasting).await?;
    }
    let (client, other) = (stage.client(LONG).await?, stage.client(LONG).await?);
    for _ in 0..2 {
        let guard = soon("the lock", client.mutex(ROOM)?.acquire()).await??;
        ensure!(other.mutex(ROOM)?.try_acquire().await?.is_none(), "held twice");
        let status = other.status(ROOM).await?;
        ensure!(status.holders.len() == 1 && status.waiters.is_empty(), "{status:?}");
        let waiter = Waiter::of(&other)?;
        let waits = || async { Ok(client.status(ROOM).await.is_ok_and(|status| status.waiters.len() == 1)) };
        until("it waits", waits).await?;
        guard.release().await?;
        let (guard, _) = waiter.granted().await?;
        guard.release().await?;
        let guard = client.mutex(ROOM)?.try_acquire().await?;
        ensure!(guard.is_some(), "free, and not given");
    }
    Ok(())
}

/// From their creators' view these nodes may hold the lock: those of ZooKeeper's own recipe do.
async fn numbers_of_other_programs_are_refused() -> Outcome {
    let stage = Stage::new().await?;
    let (client, other) = (stage.client(LONG).await?, stage.client(LONG).await?);
    stage.works(&client).await?;
    for prefix in ["x-72057594037927936-", "", "n_", "0123456789abcdef__lock__", "0123456789abcdef__rlock__"]
    {
        let path = format!("{}/{prefix}", stage.directory(ROOM));
        let theirs = stage.server.create(&path, b"", NodeKind::Numbered).await?;
        let name = theirs.rsplit('/').next().unwrap_or_default();
        let lock = client.mutex(ROOM)?;
        let tried = refusal(soon("the answer to a try", lock.try_acquire()).await?.map(drop))?;
        let waited = refusal(soon("the answer to a wait", lock.acquire()).await?.map(drop))?;
        let looked = refusal(client.status(ROOM).await)?;
        for error in [tried, waited, looked] {
            ensure!(error.kind() == ErrorKind::Server && !error.is_retryable(), "{error:?}");
            ensure!(error.to_string().contains(name) && error.to_string().contains("accept="), "{error}");
        }
        soon("the undoing", client.idle()).await?;
        stage.nothing_is_left_now(prefix).await?;
        stage.server.delete(&theirs).await?;
        // A foreign node that comes later finds the lock held; its program decides what to do then.
        let guard = soon("the lock", lock.acquire()).await??;
        let later = stage.server.create(&path, b"", NodeKind::Numbered).await?;
        let status = other.status(ROOM).await?;
        ensure!(status.holders.len() == 1, "{prefix}: {status:?}");
        refusal(other.mutex(ROOM)?.try_acquire().await.map(drop))?;
        stage.is_held_by(&guard, prefix).await?;
        guard.release().await?;
        stage.server.delete(&later).await?;
    }
    stage.works(&client).await
}

/// Whatever text comes before `lock-` and a number.
async fn contenders_of_curator_count() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client(LONG).await?;
    for prefix in ["_c_1f3c2a4b-9c1e-4e0f-8a52-4f9f3f0e6a11-lock-", "lock-", "x-lock-"] {
        let path = format!("{}/{prefix}", stage.directory(ROOM));
        let theirs = stage.server.create(&path, b"", NodeKind::Numbered).await?;
        ensure!(client.mutex(ROOM)?.try_acquire().await?.is_none(), "{prefix}: held twice");
        stage.nodes_are(1).await?;
        let waiter = stage.in_line(&client, 2).await?;
        stage.server.delete(&theirs).await?;
        let (guard, _) = waiter.granted().await?;
        // The client does not wait for a node that comes later.
        let later = stage.server.create(&path, b"", NodeKind::Numbered).await?;
        stage.is_held_by(&guard, prefix).await?;
        guard.release().await?;
        stage.server.delete(&later).await?;
    }
    Ok(())
}

async fn contenders_of_kazoo_count_on_request() -> Outcome {
    let stage = Stage::new().await?;
    let (client, careless) = (stage.client("accept=kazoo").await?, stage.client(LONG).await?);
    for prefix in ["0123456789abcdef__lock__", "0123456789abcdef__rlock__"] {
        let path = format!("{}/{prefix}", stage.directory(ROOM));
        let theirs = stage.server.create(&path, b"", NodeKind::Numbered).await?;
        ensure!(client.mutex(ROOM)?.try_acquire().await?.is_none(), "{prefix}: held twice");
        refusal(careless.mutex(ROOM)?.try_acquire().await.map(drop))?;
        soon("the undoing", careless.idle()).await?;
        let waiter = stage.in_line(&client, 1).await?;
        stage.is_watched(std::slice::from_ref(&theirs), stage.session(0).await?).await?;
        ensure!(!waiter.is_finished(), "{prefix}: both hold");
        stage.server.delete(&theirs).await?;
        let (guard, _) = waiter.granted().await?;
        guard.release().await?;
    }
    Ok(())
}

/// Each name is a lock of its own, the same for every client.
async fn names_that_are_no_names_of_nodes() -> Outcome {
    let stage = Stage::new().await?;
    let (client, other) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let long = "long-".repeat(100);
    let longer = format!("{long}x");
    let names = [
        "orders/42",
        "orders%2F42",
        "orders",
        "/",
        "//",
        ".",
        "..",
        "...",
        "./x",
        "zookeeper",
        "a b",
        "\u{1F512}",
        "\u{e000}",
        "\u{fffd}",
        "schloß",
        "%",
        "%2E",
        "_c_x-lock-0000000000",
        &long,
        &longer,
    ];
    let mut guards = Vec::new();
    for name in names {
        let guard = soon(name, client.mutex(name)?.try_acquire()).await??;
        guards.push(guard.ok_or_else(|| {
            conformance_tests::Failure::new(format!("{name:?} is another one's directory"))
        })?);
        ensure!(other.mutex(name)?.try_acquire().await?.is_none(), "{name:?}: held twice");
        ensure!(other.status(name).await?.holders.len() == 1, "{name:?} has no holder");
    }
    for guard in guards {
        guard.release().await?;
    }
    let children = stage.server.children(&stage.root).await?.unwrap_or_default();
    ensure!(children.len() == names.len(), "{children:?}");
    Ok(())
}

/// The session of the only ephemeral node in the directory of the lock `room`.
async fn own_session(stage: &Stage) -> Outcome<i64> {
    for position in 0..stage.nodes().await?.len() {
        if let Some(session) = stage.node(position).await?.session {
            return Ok(session);
        }
    }
    Err(conformance_tests::Failure::new("no node belongs to a session"))
}

/// The counter sticks, so several nodes have the same number. Then only the order of creation counts, and nothing in the names.
async fn numbers_at_their_end() -> Outcome {
    let stage = Stage::new().await?;
    let directory = stage.directory(ROOM);
    let (client, other) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let end = |letter: char| format!("{directory}/_c_{letter}-lock-2147483647");
    for letter in ['m', 'a', 'z'] {
        stage.server.create(&end(letter), b"", NodeKind::Lasting).await?;
    }
    let first = stage.in_line(&client, 4).await?;
    let session = own_session(&stage).await?;
    let second = stage.in_line(&other, 5).await?;
    // Our nodes have the lowest numbers, and came last.
    let mut before = ['a', 'z', 'm'].map(end).to_vec();
    for letter in ['a', 'z', 'm'] {
        stage.is_watched(&before, session).await?;
        before.remove(0);
        ensure!(!first.is_finished() && !second.is_finished(), "it holds before {letter}");
        stage.server.delete(&end(letter)).await?;
    }
    let (guard, _) = first.granted().await?;
    ensure!(!second.is_finished(), "both hold");
    guard.release().await?;
    let (guard, _) = second.granted().await?;
    guard.release().await?;
    stage.works(&client).await
}

/// A number below zero is one of the last, and its node comes after the nodes that were there before.
async fn numbers_past_their_end_do_not_come_first() -> Outcome {
    let stage = Stage::new().await?;
    let directory = stage.directory(ROOM);
    let (client, other) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let held = client.mutex(ROOM)?.acquire().await?;
    let late = format!("{directory}/_c_x-lock--2147483648");
    stage.server.create(&late, b"", NodeKind::Lasting).await?;
    let waiter = stage.in_line(&other, 3).await?;
    let first = [stage.path(0).await?];
    let status = client.status(ROOM).await?;
    let holder = status.holders.first().map(|holder| holder.token);
    ensure!(holder == Some(held.token()) && status.waiters.len() == 2, "{status:?}");
    stage.server.delete(&late).await?;
    stage.is_watched(&first, stage.session(1).await?).await?;
    ensure!(!waiter.is_finished() && held.hold().is_valid(), "both hold");
    let late = format!("{directory}/_c_y-lock--2147483648");
    stage.server.create(&late, b"", NodeKind::Lasting).await?;
    held.release().await?;
    // It came when the waiter was already in the queue.
    let (guard, _) = waiter.granted().await?;
    ensure!(client.mutex(ROOM)?.try_acquire().await?.is_none(), "held twice");
    guard.release().await?;
    ensure!(client.mutex(ROOM)?.try_acquire().await?.is_none(), "given while another stands before it");
    stage.server.delete(&late).await?;
    until("all are gone", || async { Ok(stage.nodes().await?.is_empty()) }).await?;
    let guard = client.mutex(ROOM)?.try_acquire().await?;
    ensure!(guard.is_some(), "free, and not given");
    Ok(())
}

/// A node of a session cannot have children, and trying again does not help.
async fn a_folder_that_belongs_to_a_session() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client(LONG).await?;
    let guard = client.mutex(ROOM)?.acquire().await?;
    let path = stage.path(0).await?;
    let url = stage.server.url_of(&[stage.server.address()], &path, &[]);
    let below = connect_patiently(&url).await?;
    for waits in [true, false] {
        let lock = below.mutex("x")?;
        let answer = if waits {
            soon("the answer", lock.acquire()).await?.map(drop)
        } else {
            soon("the answer", lock.try_acquire()).await?.map(drop)
        };
        let error = refusal(answer)?;
        ensure!(!error.is_retryable() && error.to_string().contains("folder"), "{error:?}");
    }
    guard.release().await?;
    Ok(())
}
