//! Users and missing permissions, quotas, and a server that throttles.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use conformance_tests::{Failure, Outcome};
use lock_core::{ClientBuilder, ErrorKind, LockError, LockStatus, Password, Secret};
use lock_kit::LockUrl;
use test_servers::{Access, NodeKind, ServerOptions, ZooKeeperRequest};

use crate::case::{cases, ensure};
use crate::logs;
use crate::stage::{LONG, ROOM, Stage, connect, connect_patiently, refusal, release_patiently, soon, until};

cases!("access":
    nodes_of_their_creator_are_closed_to_others,
    behind_a_node_that_may_not_be_read,
    a_directory_of_another_user_is_refused_at_once,
    another_password_is_another_user,
    where_the_directory_may_not_be_written_to,
    where_nothing_may_be_created,
    where_nothing_may_be_listed,
    where_some_semaphores_may_not_be_listed,
    where_nothing_may_be_deleted,
    a_refused_release_blocks_no_client_for_long,
    a_refused_cancel_blocks_no_client_for_long,
    a_release_that_is_refused_is_repeated_until_it_is_permitted,
    a_permission_that_is_taken_away_while_holding_and_waiting,
    a_quota_that_is_used_up,
    a_server_that_has_too_much_to_do,
    sasl_lets_its_users_in,
    sasl_refuses_a_wrong_password_once,
    a_password_is_read_again_for_each_session,
    a_password_of_the_program_is_asked_for_by_each_session,
    passwords_are_shown_nowhere,
);

/// A session short enough to wait for its end, and long enough for a busy machine to keep it.
const SOON_OVER: &str = "session_timeout=9s";

const CREATORS: &str = "session_timeout=60s&acl=creator";

/// Checks that a try and a wait get a permanent refusal that contains a remedy.
async fn is_denied(client: &lock_core::LockClient, name: &str) -> Outcome<LockError> {
    let lock = client.mutex(name)?;
    let tried = refusal(soon("the answer to a try", lock.try_acquire()).await?.map(drop))?;
    let waited = refusal(soon("the answer to a wait", lock.acquire()).await?.map(drop))?;
    for error in [&tried, &waited] {
        ensure!(error.kind() == ErrorKind::Denied && !error.is_retryable(), "{error:?}");
        ensure!(error.to_string().contains("zookeeper.md"), "{error}");
    }
    soon("the undoing", client.idle()).await?;
    Ok(waited)
}

async fn room_with(stage: &Stage, access: &Access) -> Outcome {
    stage.server.create(&stage.directory(ROOM), b"", NodeKind::Lasting).await?;
    stage.server.set_access(&stage.directory(ROOM), access).await
}

fn everybody(rights: &str) -> Access {
    Access::new().grant(rights, "world", "anyone")
}

async fn nodes_of_their_creator_are_closed_to_others() -> Outcome {
    let stage = Stage::new().await?;
    room_with(&stage, &Access::anybody()).await?;
    let one = connect_patiently(&stage.url_as("one:right", CREATORS)).await?;
    let other = connect_patiently(&stage.url_as("other:right", CREATORS)).await?;
    let guard = one.mutex(ROOM)?.acquire().await?;
    // The node's data says who holds the lock, and `other` may not read it. That the node exists, and since when, is no secret.
    let theirs = other.status(ROOM).await?;
    ensure!(theirs.holders.len() == 1 && theirs.holders[0].pid.is_none(), "{theirs:?}");
    let own = one.status(ROOM).await?;
    ensure!(own.holders[0].pid == Some(std::process::id()), "{own:?}");
    // The right to delete belongs to the directory.
    let broken = other.break_holder(ROOM, &own.holders[0].id).await?;
    ensure!(broken.taken_away, "{broken:?}");
    soon("the loss", guard.lost()).await?;
    Ok(())
}

async fn behind_a_node_that_may_not_be_read() -> Outcome {
    let stage = Stage::new().await?;
    room_with(&stage, &Access::anybody()).await?;
    let one = connect_patiently(&stage.url_as("one:right", CREATORS)).await?;
    let other = connect_patiently(&stage.url_as("other:right", CREATORS)).await?;
    let nobody = stage.client(LONG).await?;
    for _ in 0..2 {
        let held = one.mutex(ROOM)?.acquire().await?;
        ensure!(other.mutex(ROOM)?.try_acquire().await?.is_none(), "held twice");
        let second = stage.in_line(&other, 2).await?;
        let third = stage.in_line(&nobody, 3).await?;
        held.release().await?;
        let (guard, _) = second.granted().await?;
        stage.is_held_by(&guard, "behind the first").await?;
        ensure!(!third.is_finished(), "both hold");
        guard.release().await?;
        let (guard, _) = third.granted().await?;
        guard.release().await?;
    }
    // A waiter that gives up has a node that the others may not read either.
    let held = one.mutex(ROOM)?.acquire().await?;
    let second = stage.in_line(&other, 2).await?;
    let third = stage.in_line(&nobody, 3).await?;
    second.give_up().await?;
    stage.nodes_are(2).await?;
    ensure!(!third.is_finished(), "both hold");
    held.release().await?;
    let (guard, _) = third.granted().await?;
    Ok(guard.release().await?)
}

async fn a_directory_of_another_user_is_refused_at_once() -> Outcome {
    let stage = Stage::new().await?;
    let one = connect_patiently(&stage.url_as("one:right", CREATORS)).await?;
    stage.works(&one).await?;
    let guard = one.mutex(ROOM)?.acquire().await?;
    for other in [connect_patiently(&stage.url_as("other:right", CREATORS)).await?, stage.client(LONG).await?]
    {
        is_denied(&other, ROOM).await?;
        let looked = refusal(other.status(ROOM).await)?;
        ensure!(looked.kind() == ErrorKind::Denied, "{looked:?}");
    }
    let own = one.status(ROOM).await?;
    let other = connect_patiently(&stage.url_as("other:right", CREATORS)).await?;
    let broken = refusal(other.break_holder(ROOM, &own.holders[0].id).await)?;
    ensure!(broken.kind() == ErrorKind::Denied, "{broken:?}");
    stage.is_held_by(&guard, "after all that").await?;
    Ok(guard.release().await?)
}

/// With the scheme `digest` no server refuses a user.
async fn another_password_is_another_user() -> Outcome {
    let stage = Stage::new().await?;
    stage.works(&connect_patiently(&stage.url_as("me:right-word", CREATORS)).await?).await?;
    let wrong = connect_patiently(&stage.url_as("me:wrong-word", CREATORS)).await?;
    let error = is_denied(&wrong, ROOM).await?;
    let shown = format!("{error} {error:?} {error:#?} {wrong:?} {wrong:#?}");
    ensure!(!shown.contains("wrong-word"), "{shown}");
    stage.works(&connect_patiently(&stage.url_as("me:right-word", CREATORS)).await?).await
}

/// The client cannot write the directory's data, so it lists the directory instead.
async fn where_the_directory_may_not_be_written_to() -> Outcome {
    let stage = Stage::new().await?;
    room_with(&stage, &everybody("crd")).await?;
    let (client, other) = (stage.client(LONG).await?, stage.client(LONG).await?);
    for _ in 0..2 {
        let guard = soon("the lock", client.mutex(ROOM)?.acquire()).await??;
        stage.is_held_by(&guard, "in a directory that may not be written to").await?;
        ensure!(other.mutex(ROOM)?.try_acquire().await?.is_none(), "held twice");
        let waiter = stage.in_line(&other, 2).await?;
        guard.release().await?;
        let (guard, _) = waiter.granted().await?;
        stage.is_held_by(&guard, "after the first").await?;
        guard.release().await?;
        let tried = client.mutex(ROOM)?.try_acquire().await?;
        ensure!(tried.is_some(), "free, and not given");
        drop(tried);
        soon("the release", client.idle()).await?;
        stage.nothing_is_left_now("at the end").await?;
    }
    Ok(())
}

async fn where_nothing_may_be_created() -> Outcome {
    let stage = Stage::new().await?;
    room_with(&stage, &everybody("rwda")).await?;
    let proxy = stage.proxy()?;
    let client = stage.client_at(proxy.address(), LONG).await?;
    is_denied(&client, ROOM).await?;
    // The try and the wait each use at most both ways of creating a node.
    let asked = proxy.requests(ZooKeeperRequest::Create);
    ensure!(asked <= 4, "asked {asked} times");
    // The same where the client may not create a directory.
    stage.server.set_access(&stage.root, &everybody("rwda")).await?;
    is_denied(&client, "another room").await?;
    Ok(())
}

/// The client gets a free lock, but cannot wait for a held one; nothing stays behind.
async fn where_nothing_may_be_listed() -> Outcome {
    let stage = Stage::new().await?;
    room_with(&stage, &everybody("cwd")).await?;
    let (client, other) = (stage.client(LONG).await?, stage.client(LONG).await?);
    stage.works(&client).await?;
    let guard = client.mutex(ROOM)?.acquire().await?;
    is_denied(&other, ROOM).await?;
    stage.is_held_by(&guard, "after the refusal").await?;
    let nodes = stage.nodes().await?;
    ensure!(nodes.len() == 1, "{nodes:?}");
    Ok(guard.release().await?)
}

/// A list says of which semaphores it cannot tell, and tells of all others what is true.
async fn where_some_semaphores_may_not_be_listed() -> Outcome {
    const EACH: usize = 4;
    let stage = Stage::new().await?;
    let client = stage.client(LONG).await?;
    let mut guards = Vec::new();
    for number in 0..EACH {
        guards.push(client.mutex(format!("held-{number}"))?.acquire().await?);
        guards.push(client.semaphore(format!("gate-{number}"), 2)?.acquire(1).await?);
        let queue = format!("{}/locks", stage.directory(&format!("gate-{number}")));
        stage.server.set_access(&queue, &Access::new().grant("cdwa", "world", "anyone")).await?;
    }
    let found = client.list().await?;
    ensure!(found.failures.len() == EACH && found.locks.len() == EACH, "{found:?}");
    ensure!(found.failures.iter().all(|error| error.kind() == ErrorKind::Denied), "{found:?}");
    let is_held = |lock: &LockStatus| lock.name.as_str().starts_with("held-") && lock.holders.len() == 1;
    ensure!(found.locks.iter().all(is_held), "{found:?}");
    drop(guards);
    Ok(())
}

/// The release is refused, and reports it; the node ends with the session.
async fn where_nothing_may_be_deleted() -> Outcome {
    let stage = Stage::new().await?;
    room_with(&stage, &everybody("crwa")).await?;
    let client = stage.client(SOON_OVER).await?;
    let guard = client.mutex(ROOM)?.acquire().await?;
    let released = soon("the release", guard.release()).await?;
    let error = refusal(released)?;
    ensure!(error.kind() == ErrorKind::Denied, "{error:?}");
    let _ = soon("the end", client.close(std::time::Duration::from_secs(2))).await?;
    stage.nothing_is_left("the session has ended").await
}

/// The session ends for this purpose, even if the caller keeps a handle of the ended hold.
async fn a_refused_release_blocks_no_client_for_long() -> Outcome {
    let stage = Stage::new().await?;
    let directory = stage.directory(ROOM);
    room_with(&stage, &everybody("crwa")).await?;
    let (client, other) = (stage.client(SOON_OVER).await?, stage.client(LONG).await?);
    let guard = client.mutex(ROOM)?.acquire().await?;
    let ended = guard.hold().clone();
    let waiter = stage.in_line(&other, 2).await?;
    let error = refusal(soon("the release", guard.release()).await?)?;
    ensure!(error.kind() == ErrorKind::Denied, "{error:?}");
    let (next, _) = waiter.granted().await?;
    ensure!(!ended.is_valid(), "both hold");
    stage.server.set_access(&directory, &Access::anybody()).await?;
    next.release().await?;
    stage.works(&client).await
}

/// Also if it is unknown whether there is anything to remove.
async fn a_refused_cancel_blocks_no_client_for_long() -> Outcome {
    let stage = Stage::new().await?;
    let directory = stage.directory(ROOM);
    let foreign = format!("{directory}/_c_somebody-lock-");
    room_with(&stage, &Access::anybody()).await?;
    let proxy = stage.proxy()?;
    let client = stage.client_at(proxy.address(), SOON_OVER).await?;
    let other = stage.client(LONG).await?;
    for is_doubtful in [false, true] {
        stage.server.set_access(&directory, &everybody("crwa")).await?;
        let held = stage.server.create(&foreign, b"", NodeKind::Numbered).await?;
        if is_doubtful {
            proxy.hold_reply(ZooKeeperRequest::Create);
        }
        let dropped = stage.in_line(&client, 2).await?;
        let waiter = stage.in_line(&other, 3).await?;
        dropped.give_up().await?;
        proxy.let_go();
        stage.server.delete(&held).await?;
        let (next, _) = waiter.granted().await?;
        stage.server.set_access(&directory, &Access::anybody()).await?;
        next.release().await?;
        stage.works(&client).await?;
    }
    Ok(())
}

/// For longer than a lease would last. Another lock keeps the session alive; the handles of the ended hold that the caller keeps do
/// not.
async fn a_release_that_is_refused_is_repeated_until_it_is_permitted() -> Outcome {
    let stage = Stage::new().await?;
    room_with(&stage, &everybody("crwa")).await?;
    let client = stage.client("session_timeout=18s").await?;
    let kept = client.mutex("another room")?.acquire().await?;
    let guard = client.mutex(ROOM)?.acquire().await?;
    let (hold, lost) = (guard.hold().clone(), guard.lost());
    let error = refusal(soon("the release", guard.release()).await?)?;
    ensure!(error.kind() == ErrorKind::Denied, "{error:?}");
    tokio::time::sleep(Duration::from_secs(26)).await;
    ensure!(kept.hold().is_valid(), "the session has ended");
    ensure!(stage.nodes().await?.len() == 1, "it has gone without permission");
    stage.server.set_access(&stage.directory(ROOM), &everybody("crwda")).await?;
    stage.nothing_is_left("the permission is back").await?;
    ensure!(hold.end().is_some() && lost.await.is_none(), "{hold:?}");
    ensure!(kept.hold().is_valid(), "the other lock is lost");
    Ok(kept.release().await?)
}

async fn a_permission_that_is_taken_away_while_holding_and_waiting() -> Outcome {
    let stage = Stage::new().await?;
    room_with(&stage, &Access::anybody()).await?;
    // Long enough for a busy machine, and shorter than the wait below, in which an unused session would end.
    let session = "session_timeout=24s";
    let (one, other) = (stage.client(session).await?, stage.client(session).await?);
    let held = one.mutex(ROOM)?.acquire().await?;
    let waiter = stage.in_line(&other, 2).await?;
    // A client that already has a node continues, and may release.
    stage.server.set_access(&stage.directory(ROOM), &everybody("d")).await?;
    tokio::time::sleep(Duration::from_secs(25)).await;
    stage.is_held_by(&held, "without permission").await?;
    held.release().await?;
    let (guard, _) = waiter.granted().await?;
    guard.release().await?;
    stage.nothing_is_left("at the end").await?;
    is_denied(&one, ROOM).await?;
    Ok(())
}

async fn a_quota_that_is_used_up() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client(LONG).await?;
    let guard = client.mutex(ROOM)?.acquire().await?;
    // The folder, the lock's directory, and the holder's node.
    let limits = "count=-1,bytes=-1=;byteHardLimit=-1;countHardLimit=3";
    for (name, text) in [("zookeeper_limits", limits), ("zookeeper_stats", "count=3,bytes=0")] {
        let path = format!("/zookeeper/quota{}/{name}", stage.root);
        stage.server.create(&path, text.as_bytes(), NodeKind::Lasting).await?;
    }
    let other = stage.client(LONG).await?;
    for waits in [false, true] {
        let lock = other.mutex(ROOM)?;
        let answer = if waits {
            soon("the answer", lock.acquire()).await?.map(drop)
        } else {
            soon("the answer", lock.try_acquire()).await?.map(drop)
        };
        let error = refusal(answer)?;
        ensure!(error.kind() == ErrorKind::Server && !error.is_retryable(), "{error:?}");
        ensure!(error.to_string().contains("quota"), "{error}");
    }
    stage.is_held_by(&guard, "after the refusal").await?;
    guard.release().await?;
    stage.works(&other).await
}

/// The server refuses requests that have waited for longer than a millisecond, and handles one request at a time.
async fn a_server_that_has_too_much_to_do() -> Outcome {
    let options = ServerOptions::new()
        .property("zookeeper.request_throttle_max_requests", "1")
        .property("zookeeper.request_throttle_stall_time", "20")
        .property("zookeeper.throttled_op_wait_time", "1");
    let stage = Stage::with(options).await?;
    let refused = || async {
        let figures = stage.server.figures().await?;
        let refused = figures.get("zk_throttled_ops").and_then(|count| count.parse::<u64>().ok());
        refused.ok_or_else(|| Failure::new(format!("it does not count them: {figures:?}")))
    };
    let is_inside = Arc::new(AtomicBool::new(false));
    let is_enough = Arc::new(AtomicBool::new(false));
    let mut users = Vec::new();
    for _ in 0..6 {
        let client = stage.client(LONG).await?;
        let (is_inside, is_enough) = (Arc::clone(&is_inside), Arc::clone(&is_enough));
        users.push(tokio::spawn(async move {
            while !is_enough.load(Ordering::SeqCst) {
                let guard = soon("the lock", client.mutex(ROOM)?.acquire()).await??;
                ensure!(!is_inside.swap(true, Ordering::SeqCst), "two hold");
                tokio::task::yield_now().await;
                is_inside.store(false, Ordering::SeqCst);
                release_patiently(&client, guard).await?;
            }
            Outcome::Ok(())
        }));
    }
    until("it has refused some", || async { Ok(refused().await? > 20) }).await?;
    is_enough.store(true, Ordering::SeqCst);
    for user in users {
        soon("the user", user).await???;
    }
    Ok(())
}

fn users_of_sasl() -> ServerOptions {
    ServerOptions::new().user("app", "p@ss/wo:rd%", &["sasl"]).user("other", "word", &["sasl"])
}

async fn sasl_lets_its_users_in() -> Outcome {
    let stage = Stage::sharing_logins(users_of_sasl()).await?;
    let proxy = stage.proxy()?;
    let app = stage.client_at(proxy.address(), CREATORS).await?;
    stage.works(&app).await?;
    let other = connect_patiently(&stage.url_as("other:word", "auth=sasl&acl=creator")).await?;
    is_denied(&other, ROOM).await?;
    let guard = app.mutex(ROOM)?.acquire().await?;
    // The client authenticates itself on every new connection.
    let connected = proxy.requests(ZooKeeperRequest::Connect);
    proxy.cut();
    until("a new connection", || async { Ok(proxy.requests(ZooKeeperRequest::Connect) > connected) }).await?;
    until("contact", || async { Ok(app.status(ROOM).await.is_ok()) }).await?;
    stage.is_held_by(&guard, "in the new connection").await?;
    guard.release().await?;
    stage.works(&app).await
}

async fn sasl_refuses_a_wrong_password_once() -> Outcome {
    let stage = Stage::sharing_logins(users_of_sasl()).await?;
    for login in ["app:wrong-opening", "nobody:wrong-opening"] {
        let url = stage.url_as(login, "auth=sasl&session_timeout=6s");
        let error = refusal(soon("the answer", connect_patiently(&url)).await?)?;
        ensure!(error.kind() == ErrorKind::Denied && !error.is_retryable(), "{error:?}");
        let shown = format!("{error} {error:?} {error:#?}");
        ensure!(!shown.contains("wrong-opening"), "{shown}");
    }
    Ok(())
}

async fn a_password_is_read_again_for_each_session() -> Outcome {
    let stage = Stage::sharing_logins(users_of_sasl()).await?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("password");
    std::fs::write(&file, "word\n")?;
    let options = format!("auth=sasl&{SOON_OVER}&password_file={}", file.display());
    let client = connect_patiently(&stage.url_as("other", &options)).await?;
    let guard = client.mutex(ROOM)?.acquire().await?;
    let session = stage.session(0).await?;
    std::fs::write(&file, "wrong-word\n")?;
    stage.server.close_session(session).await?;
    soon("the loss", guard.lost()).await?;
    until("the client knows that it is refused", || async {
        Ok(client.ping().await.is_err_and(|error| error.kind() == ErrorKind::Denied))
    })
    .await?;
    std::fs::write(&file, "word\n")?;
    until("contact", || async { Ok(client.ping().await.is_ok()) }).await?;
    drop(guard);
    stage.works(&client).await
}

/// The servers' users cannot be changed while they run, so the program gives a wrong password in between.
async fn a_password_of_the_program_is_asked_for_by_each_session() -> Outcome {
    let stage = Stage::sharing_logins(users_of_sasl()).await?;
    let is_right = Arc::new(AtomicBool::new(true));
    let asked = Arc::clone(&is_right);
    let password = Password::from_fn(move || {
        let password = if asked.load(Ordering::SeqCst) { "word" } else { "wrong-word" };
        std::future::ready(Ok::<_, std::io::Error>(Secret::new(password)))
    });
    let builder = ClientBuilder::new().password(password).connect_timeout(Duration::from_secs(60));
    let url = LockUrl::parse(&stage.url_as("other", &format!("auth=sasl&{SOON_OVER}")))?;
    let client = lock_zookeeper::connect(&url, builder).await?;
    let guard = client.mutex(ROOM)?.acquire().await?;
    let session = stage.session(0).await?;
    is_right.store(false, Ordering::SeqCst);
    stage.server.close_session(session).await?;
    soon("the loss", guard.lost()).await?;
    until("the client knows that it is refused", || async {
        Ok(client.ping().await.is_err_and(|error| error.kind() == ErrorKind::Denied))
    })
    .await?;
    is_right.store(true, Ordering::SeqCst);
    until("contact", || async { Ok(client.ping().await.is_ok()) }).await?;
    drop(guard);
    stage.works(&client).await
}

async fn passwords_are_shown_nowhere() -> Outcome {
    let stage = Stage::new().await?;
    let secret = "canary-in-the-mine";
    stage.server.create(&stage.root, b"", NodeKind::Lasting).await?;
    for (number, options) in
        ["acl=creator", "acl=creator&session_timeout=soon", "auth=sasl&session_timeout=2s"]
            .into_iter()
            .enumerate()
    {
        let url = stage.url_as(&format!("me:{secret}"), options);
        let client = connect(&url).await;
        let shown = format!("{client:?} {client:#?}");
        ensure!(!shown.contains(secret), "{shown}");
        let Ok(client) = client else { continue };
        let guard = client.mutex(format!("room-{number}"))?.acquire().await?;
        let shown = format!("{guard:?} {:?}", client.status(guard.hold().name().as_str()).await?);
        ensure!(!shown.contains(secret), "{shown}");
        guard.release().await?;
    }
    for url in [
        format!("zookeeper://app:12/{secret}@127.0.0.1:1/x"),
        format!("zookeeper://app:12?{secret}@127.0.0.1:1/x"),
        format!("zookeeper://app:{secret}@127.0.0.1:x/x?session_timeout=1s"),
        format!("zookeeper://app:{secret}@127.0.0.1:1/x?unknown=1"),
        format!("zookeeper://app:{secret}@127.0.0.1:1/"),
        format!("zookeeper://app:{secret}@127.0.0.1:1/x?session_timeout=1s"),
    ] {
        let error = refusal(soon("the answer", connect(&url)).await?)?;
        let shown = format!("{error} {error:?} {error:#?}");
        ensure!(!shown.contains(secret), "{url}: {shown}");
    }
    let logged = [
        logs::lines_with(&[secret]),
        logs::lines_with(&["wrong-opening"]),
        logs::lines_with(&["wrong-word"]),
    ]
    .concat();
    ensure!(logged.is_empty(), "{logged:?}");
    Ok(())
}
