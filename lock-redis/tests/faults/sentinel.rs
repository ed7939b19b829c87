//! A primary behind sentinels: another server takes its place, with and without what it had granted, while clients hold and wait.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use conformance_tests::{Failure, Outcome};
use lock_core::{ErrorKind, LockClient, LockGuard, LossReason, Operation};
use lock_kit::LockUrl;
use test_servers::{
    Data, Direction, RedisSentinels, RedisServer, SayingSentinel, ServerOptions, TcpProxy, Value,
    sentinel_url,
};

use crate::case::{cases, ensure};
use crate::event_recorder::EventRecorder;
use crate::stage::{
    FROZEN, LONG, ROOM, Waiter, connect, frozen, key, longest_belief, proxy_of, reach, soon, takes_nothing,
    until, with_options,
};

cases!("sentinel":
    a_killed_primary_takes_no_hold_with_it_that_a_replica_has,
    a_holder_that_is_cut_off_stops_before_another_begins,
    a_primary_that_stood_still_grants_nothing,
    a_new_primary_grants_nothing_at_first,
    a_hold_that_the_new_primary_lacks_is_over_before_another_begins,
    a_hold_that_is_lost_in_a_restart_is_over_before_another_begins,
    a_primary_that_begins_anew_grants_nothing_at_first,
    a_primary_that_is_promoted_again_grants_nothing_at_first,
    what_a_server_grants_after_another_was_the_primary_does_not_count,
    an_answer_that_comes_when_the_primary_is_no_longer_relied_on_does_not_count,
    a_hold_that_was_cut_off_for_long_does_not_go_on_at_a_new_primary,
    a_minority_may_be_wrong_or_away,
    a_connection_ends_when_no_majority_names_its_server,
    what_is_wrong_with_the_sentinels_is_said,
    a_primary_without_messages_is_refused,
    a_key_of_another_program_stays,
    sentinels_have_a_password_and_users_of_their_own,
    a_grant_waits_for_the_replicas_of_the_primary,
);

/// As if clients had used the server for long, with leases of this many seconds.
async fn settle(server: &RedisServer, lease: u64) -> Outcome {
    server.note_primary("distlock", longest_belief(lease)).await
}

/// Sentinels that are told what to say, and the URL of the primary that they name.
fn saying(servers: &[Option<SocketAddr>]) -> Outcome<(Vec<SayingSentinel>, String)> {
    let all = servers.iter().map(|server| SayingSentinel::start(*server)).collect::<Outcome<Vec<_>>>()?;
    let url = sentinel_url(all.iter().map(SayingSentinel::address));
    Ok((all, url))
}

async fn client(url: &str, options: &str) -> Outcome<LockClient> {
    reach(&with_options(url, options)).await
}

async fn has(server: &RedisServer, key: &str) -> Outcome<bool> {
    Ok(server.command(&["EXISTS", key]).await? == Value::Integer(1))
}

async fn a_killed_primary_takes_no_hold_with_it_that_a_replica_has() -> Outcome {
    let sentinels = RedisSentinels::start(None).await?;
    let old = sentinels.primary().await?;
    settle(old, 30).await?;
    let holder = client(&sentinels.url(), "lease=30s").await?;
    let other = client(&sentinels.url(), "lease=30s").await?;
    let names = ["kept", "kept too", "lost"];
    let mut all = Vec::new();
    for name in names {
        let lock = holder.mutex(name)?;
        let recorder = EventRecorder::of(&lock);
        all.push((lock.acquire().await?, recorder, Waiter::start(other.mutex(name)?)));
    }
    for replica in sentinels.servers().iter().filter(|server| server.address() != old.address()) {
        let record = key("lost", 'l');
        until("it has the last hold", || has(replica, &record)).await?;
        // As if that write had not arrived.
        replica.command(&["CONFIG", "SET", "replica-read-only", "no"]).await?;
        replica.command(&["DEL", &record]).await?;
    }
    old.kill()?;
    let new = sentinels.primary_after(old.address()).await?;
    for (name, (guard, recorder, waiter)) in names.iter().zip(&all) {
        if *name == "lost" {
            let (reason, _) = recorder.abort().await?;
            ensure!(reason == LossReason::Deleted, "{name} was lost because {reason}");
        } else {
            recorder.restored().await?;
            ensure!(guard.hold().is_valid() && recorder.aborts() == 0, "{name}: {:?}", recorder.events());
            let record = new.command(&["GET", &key(name, 'l')]).await?;
            let token = guard.token().map(|token| token.get().to_string()).unwrap_or_default();
            ensure!(record.as_text().is_some_and(|hold| hold.contains(&token)), "{name}: {record:?}");
        }
        ensure!(!waiter.is_finished(), "{name} was granted while the earlier hold may last");
    }
    ensure!(takes_nothing(&other, "another").await?, "a new primary granted a lock at once");
    Ok(())
}

/// The old primary is still one, and the holder reaches it, but not the sentinels.
async fn a_holder_that_is_cut_off_stops_before_another_begins() -> Outcome {
    let sentinels = RedisSentinels::start(None).await?;
    let old = sentinels.primary().await?;
    settle(old, 8).await?;
    let (proxies, url) = proxied(&sentinels)?;
    let lonely = client(&url, "lease=8s").await?;
    let other = client(&sentinels.url(), "lease=8s").await?;
    let lock = lonely.mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    let guard = lock.acquire().await?;
    let waiter = Waiter::of(&other)?;
    proxies.iter().for_each(TcpProxy::sever);
    sentinels.depose().await?;
    sentinels.primary_after(old.address()).await?;
    until("it takes nothing from the old primary", || takes_nothing(&lonely, "another")).await?;
    let (_, told) = recorder.abort().await?;
    let (next, granted) = waiter.granted().await?;
    ensure!(told < granted, "granted {:?} before the holder knew of its loss", told - granted);
    ensure!(next.token() > guard.token(), "{:?} was followed by {:?}", guard.token(), next.token());
    proxies.iter().for_each(TcpProxy::heal);
    next.release().await?;
    soon("the lock", lock.acquire()).await??.release().await?;
    Ok(())
}

/// Proxies in front of the sentinels, and the URL of a client that reaches these through them.
fn proxied(sentinels: &RedisSentinels) -> Outcome<(Vec<TcpProxy>, String)> {
    let each = sentinels.sentinels().iter();
    let proxies = each.map(|sentinel| TcpProxy::start(sentinel.address())).collect::<Outcome<Vec<_>>>()?;
    let url = sentinel_url(proxies.iter().map(TcpProxy::address));
    Ok((proxies, url))
}

async fn a_primary_that_stood_still_grants_nothing() -> Outcome {
    let sentinels = RedisSentinels::start(None).await?;
    let old = sentinels.primary().await?;
    settle(old, 4).await?;
    let (proxies, url) = proxied(&sentinels)?;
    let lonely = client(&url, "lease=4s").await?;
    let other = client(&sentinels.url(), "lease=4s").await?;
    old.stop()?;
    proxies.iter().for_each(TcpProxy::sever);
    sentinels.primary_after(old.address()).await?;
    until("it has no trust left", || takes_nothing(&lonely, "another")).await?;
    old.resume()?;
    until("it is demoted, and has granted nothing before", || async {
        let role = old.command(&["ROLE"]).await?;
        ensure!(
            takes_nothing(&lonely, "another").await?,
            "the old primary, which is {role:?}, granted a lock"
        );
        Ok(role.texts().first() == Some(&"slave"))
    })
    .await?;
    // Before another client takes the lock: the new primary tells its replica of that.
    ensure!(!has(old, &key("another", 'f')).await?, "the old primary has granted the lock");
    soon("the lock", other.mutex("another")?.acquire()).await??.release().await?;
    Ok(())
}

/// Nor does one that restarts, or that a client with a longer lease comes to.
async fn a_new_primary_grants_nothing_at_first() -> Outcome {
    let server = RedisServer::start_with(ServerOptions::new().setting("appendonly", "yes")).await?;
    let (_sentinels, url) = saying(&[Some(server.address()); 3])?;
    let began = Instant::now();
    let first = client(&url, "lease=4s").await?;
    ensure!(takes_nothing(&first, "another").await?, "the first client was served at once");
    soon("the lock", first.mutex(ROOM)?.acquire()).await??.release().await?;
    let after = began.elapsed();
    ensure!(after > Duration::from_millis(5600), "granted after {after:?}");
    let second = client(&url, "lease=4s").await?;
    ensure!(!takes_nothing(&second, "another").await?, "another client had to wait as well");
    let longer = client(&url, "lease=4s&max_lease=90s").await?;
    ensure!(takes_nothing(&longer, "another").await?, "holds of 90 s, as soon as the server knows of them");
    let note = server.command(&["GET", "distlock:primary"]).await?;
    let longest = note.as_text().and_then(|note| note.split(' ').nth(1)?.parse::<u64>().ok());
    ensure!(longest.is_some_and(|longest| longest > 90_400), "{note:?}");
    ensure!(!takes_nothing(&second, "another").await?, "a client of before had to wait");
    server.restart(Data::Kept).await?;
    let lock = second.mutex(ROOM)?;
    until("the pause after the restart", || async {
        let error = lock.try_acquire().await.map(drop);
        ensure!(error.is_err(), "the server that was restarted granted the lock");
        Ok(error.is_err_and(|error| error.to_string().contains("Sentinel")))
    })
    .await
}

/// Even if the sentinels name it all the time, and it closes no connection.
async fn a_primary_that_begins_anew_grants_nothing_at_first() -> Outcome {
    let server = RedisServer::start_with(ServerOptions::new().setting("enable-debug-command", "yes")).await?;
    settle(&server, 4).await?;
    let (_sentinels, url) = saying(&[Some(server.address()); 3])?;
    let client = client(&url, "lease=4s").await?;
    let guard = client.mutex(ROOM)?.acquire().await?;
    server.command(&["DEBUG", "CHANGE-REPL-ID"]).await?;
    until("the new replication is noticed", || takes_nothing(&client, "another")).await?;
    ensure!(guard.hold().is_valid(), "the hold is lost");
    guard.release().await?;
    let note = async || server.command(&["GET", "distlock:primary"]).await;
    let before = note().await?;
    server.command(&["DEBUG", "CHANGE-REPL-ID"]).await?;
    until("a client that asks for no lock notices it, too", || async { Ok(note().await? != before) }).await
}

/// Another server was the primary in between, and this one was cut off and never demoted: nothing at it has changed.
async fn a_primary_that_is_promoted_again_grants_nothing_at_first() -> Outcome {
    let server = RedisServer::start().await?;
    settle(&server, 4).await?;
    let (sentinels, url) = saying(&[Some(server.address()); 3])?;
    let before = client(&url, "lease=4s").await?;
    let guard = before.mutex(ROOM)?.acquire().await?;
    sentinels.iter().for_each(SayingSentinel::say_anew);
    let after = client(&url, "lease=4s").await?;
    ensure!(takes_nothing(&after, "another").await?, "a client that comes now takes a lock");
    until("the new epoch is noticed", || takes_nothing(&before, "another")).await?;
    ensure!(guard.hold().is_valid(), "the hold is lost");
    Ok(guard.release().await?)
}

/// Before the client asks the sentinels the next time, half a minute later with this lease.
async fn what_a_server_grants_after_another_was_the_primary_does_not_count() -> Outcome {
    let server = RedisServer::start_with(ServerOptions::new().setting("enable-debug-command", "yes")).await?;
    settle(&server, 300).await?;
    let (_sentinels, url) = saying(&[Some(server.address()); 3])?;
    let (holder, other) = (client(&url, LONG).await?, client(&url, LONG).await?);
    let guard = holder.mutex(ROOM)?.acquire().await?;
    let waiter = Waiter::of(&other)?;
    ensure!(!takes_nothing(&other, "another").await?, "it takes nothing before, either");
    server.command(&["DEBUG", "CHANGE-REPL-ID"]).await?;
    guard.release().await?;
    let record = key(ROOM, 'l');
    until("the server has granted it", || has(&server, &record)).await?;
    ensure!(takes_nothing(&other, "another").await?, "what was asked for on the connection of before counts");
    ensure!(!waiter.is_finished(), "what was granted by a message counts");
    Ok(())
}

async fn an_answer_that_comes_when_the_primary_is_no_longer_relied_on_does_not_count() -> Outcome {
    let server = RedisServer::start().await?;
    settle(&server, 300).await?;
    let proxy = proxy_of(&server)?;
    let (sentinels, url) = saying(&[Some(proxy.address()); 3])?;
    let (builder, time) = frozen();
    let client = lock_redis::connect(&LockUrl::parse(&with_options(&url, FROZEN))?, builder).await?;
    let lock = client.mutex(ROOM)?;
    for sentinel in &sentinels {
        sentinel.say(None);
    }
    // The client relies on the primary for half of the lease, 150 s.
    time.advance(Duration::from_secs(140));
    proxy.hold_reply(Operation::Acquire);
    let attempt = tokio::spawn(async move { lock.try_acquire().await });
    soon("the reply", proxy.is_held()).await?;
    time.advance(Duration::from_secs(20));
    proxy.let_go();
    let answer = soon("the end of the attempt", attempt).await??;
    ensure!(answer.is_err(), "the answer counts: {answer:?}");
    Ok(())
}

/// The old primary may have granted the lock to another client that has not heard of the new one, when its own record was over.
async fn a_hold_that_was_cut_off_for_long_does_not_go_on_at_a_new_primary() -> Outcome {
    let (old, new) = (RedisServer::start().await?, RedisServer::start().await?);
    settle(&old, 8).await?;
    let proxy = TcpProxy::start(old.address())?;
    let (sentinels, url) = saying(&[Some(proxy.address()); 3])?;
    let lock = client(&url, "lease=8s").await?.mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    let guard = lock.acquire().await?;
    proxy.blackhole(Direction::ToServer);
    let half_of_the_lease = Duration::from_secs(4);
    until("half of the lease is over", || async {
        Ok(guard.hold().remaining().is_some_and(|remaining| remaining < half_of_the_lease))
    })
    .await?;
    // It has the record, which lasts.
    let record = key(ROOM, 'l');
    let value = old.command(&["GET", &record]).await?;
    new.command(&["SET", &record, value.as_text().unwrap_or_default(), "PX", "60000"]).await?;
    for sentinel in &sentinels {
        sentinel.say(Some(new.address()));
    }
    let (reason, _) = recorder.abort().await?;
    ensure!(reason == LossReason::Expired, "lost because {reason}");
    Ok(())
}

async fn a_hold_that_the_new_primary_lacks_is_over_before_another_begins() -> Outcome {
    let (old, new) = (RedisServer::start().await?, RedisServer::start().await?);
    let harm = async |sentinels: &[SayingSentinel]| {
        for sentinel in sentinels {
            sentinel.say(Some(new.address()));
        }
        Ok(())
    };
    let _next = hand_over(&old, 4, harm).await?;
    ensure!(has(&new, &key(ROOM, 'l')).await?, "the new primary has not granted it");
    Ok(())
}

/// The sentinels notice nothing, and name the server all the time. It comes back at once, and has nothing.
async fn a_hold_that_is_lost_in_a_restart_is_over_before_another_begins() -> Outcome {
    let server = RedisServer::start().await?;
    hand_over(&server, 12, async |_| server.restart(Data::Lost).await).await.map(drop)
}

/// That the earlier holder learns that its hold is gone before the waiter has the lock, which has a higher token.
async fn hand_over(
    server: &RedisServer,
    lease: u64,
    harm: impl AsyncFnOnce(&[SayingSentinel]) -> Outcome,
) -> Outcome<LockGuard> {
    settle(server, lease).await?;
    let (sentinels, url) = saying(&[Some(server.address()); 3])?;
    let options = format!("lease={lease}s");
    let (holder, other) = (client(&url, &options).await?, client(&url, &options).await?);
    let lock = holder.mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    let guard = lock.acquire().await?;
    let waiter = Waiter::of(&other)?;
    let switched = Instant::now();
    harm(&sentinels).await?;
    let (reason, told) = recorder.abort().await?;
    ensure!(reason == LossReason::Deleted, "lost because {reason}");
    ensure!(!guard.hold().is_valid(), "the holder still believes");
    let (next, granted) = waiter.granted().await?;
    let pause = Duration::from_secs(lease) * 29 / 20;
    ensure!(told < granted, "granted {:?} before the holder knew of its loss", told - granted);
    ensure!(granted - switched > pause, "granted after {:?}", granted - switched);
    ensure!(next.token() > guard.token(), "{:?} was followed by {:?}", guard.token(), next.token());
    Ok(next)
}

async fn a_minority_may_be_wrong_or_away() -> Outcome {
    let (server, stranger) = (RedisServer::start().await?, RedisServer::start().await?);
    settle(&server, 300).await?;
    let (right, wrong) = (Some(server.address()), Some(stranger.address()));
    for third in [wrong, None] {
        let (_sentinels, url) = saying(&[third, right, right])?;
        ensure!(
            !takes_nothing(&client(&url, LONG).await?, "another").await?,
            "one says {third:?}, and nothing is granted"
        );
    }
    let (sentinels, _) = saying(&[right, right])?;
    let silent = TcpProxy::start(stranger.address())?;
    silent.blackhole(Direction::ToServer);
    let all = [silent.address(), sentinels[0].address(), sentinels[1].address()];
    ensure!(
        !takes_nothing(&client(&sentinel_url(all), LONG).await?, "another").await?,
        "one is silent, and nothing is granted"
    );
    Ok(())
}

/// Without waiting for the leases: the client's time stands at the moments that count.
async fn a_connection_ends_when_no_majority_names_its_server() -> Outcome {
    let server = RedisServer::start().await?;
    settle(&server, 4).await?;
    let (sentinels, url) = saying(&[Some(server.address()); 3])?;
    let client = client(&url, "lease=4s").await?;
    let lock = client.mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    let guard = lock.acquire().await?;
    sentinels[0].say(None);
    sentinels[1].say(None);
    recorder.suspect().await?;
    let (reason, _) = recorder.abort().await?;
    ensure!(reason == LossReason::Expired, "lost because {reason}");
    drop(guard);
    sentinels[1].say(Some(server.address()));
    soon("the lock", lock.acquire()).await??.release().await?;
    Ok(())
}

async fn what_is_wrong_with_the_sentinels_is_said() -> Outcome {
    let server = RedisServer::start().await?;
    let right = Some(server.address());
    let refused = async |url: String| {
        let url = with_options(&url, "connect_timeout=0s");
        let error = connect(&url).await.err();
        error.ok_or_else(|| Failure::new(format!("{url} was taken for good")))
    };
    let nowhere: SocketAddr = ([127, 0, 0, 1], test_servers::free_port()?).into();
    let (sentinels, two_of_four) = saying(&[right, right, None, Some(nowhere)])?;
    let error = refused(two_of_four).await?;
    ensure!(error.to_string().contains("no majority of the 4 sentinels"), "{error}");
    ensure!(error.kind() == ErrorKind::Unreachable && error.is_retryable(), "{error:?}");
    let error = refused(sentinel_url([sentinels[0].address(), nowhere, nowhere])).await?;
    ensure!(error.to_string().contains("twice"), "{error}");
    let other: SocketAddr = ([127, 0, 0, 1], test_servers::free_port()?).into();
    let error = refused(sentinel_url([sentinels[0].address(), nowhere, other])).await?;
    ensure!(error.to_string().contains(&nowhere.to_string()) && error.is_retryable(), "{error}");
    let (_unknowing, url) = saying(&[None, None, right])?;
    let error = refused(url).await?;
    ensure!(error.to_string().contains("\"mymaster\"") && !error.is_retryable(), "{error}");
    let replica = ServerOptions::new().setting("replicaof", "127.0.0.1 1");
    let replica = RedisServer::start_with(replica).await?;
    let (_wrong, url) = saying(&[Some(replica.address()); 3])?;
    let error = refused(url).await?;
    ensure!(error.to_string().contains("replica") && error.is_retryable(), "{error}");
    Ok(())
}

/// Such a waiter could be granted a lock by any script, before the new primary may.
async fn a_primary_without_messages_is_refused() -> Outcome {
    let options = ServerOptions::new().user("locks", "secret", &["~* resetchannels +@all -subscribe"]);
    let server = RedisServer::start_with(options).await?;
    let (_sentinels, url) = saying(&[Some(server.address()); 3])?;
    let error = connect(&url.replace("://", "://locks:secret@")).await.err();
    ensure!(error.as_ref().is_some_and(|error| error.kind() == ErrorKind::Denied), "{error:?}");
    // It speaks RESP2 only.
    let server =
        RedisServer::start_with(ServerOptions::new().setting("rename-command", "HELLO \"\"")).await?;
    let (_sentinels, url) = saying(&[Some(server.address()); 3])?;
    let error = connect(&url).await.err().ok_or_else(|| Failure::new("let in"))?;
    ensure!(error.kind() == ErrorKind::Unsupported && error.to_string().contains("RESP3"), "{error}");
    Ok(())
}

async fn a_key_of_another_program_stays() -> Outcome {
    let server = RedisServer::start().await?;
    server.command(&["SET", "distlock:primary", "a b"]).await?;
    let (_sentinels, url) = saying(&[Some(server.address()); 3])?;
    let error = connect(&url).await.err().map(|error| error.to_string()).unwrap_or_default();
    ensure!(error.contains("distlock:primary") && error.contains("another prefix"), "{error}");
    let kept = server.command(&["GET", "distlock:primary"]).await?;
    ensure!(kept.as_text() == Some("a b"), "{kept:?}");
    Ok(())
}

async fn sentinels_have_a_password_and_users_of_their_own() -> Outcome {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("password");
    let sentinels = RedisSentinels::start(Some("sesame")).await?;
    settle(sentinels.primary().await?, 300).await?;
    let error = connect(&sentinels.url()).await.err().map(|error| error.to_string()).unwrap_or_default();
    ensure!(error.contains("sentinel_password_file"), "{error}");
    std::fs::write(&file, "sesame")?;
    let client =
        client(&sentinels.url(), &format!("{LONG}&sentinel_password_file={}", file.display())).await?;
    ensure!(!takes_nothing(&client, "another").await?, "nothing is granted");
    for sentinel in sentinels.sentinels() {
        let user = ["ACL", "SETUSER", "locks", "on", ">secret", "resetchannels", "-@all", "+sentinel|master"];
        sentinel.command(&user).await?;
    }
    std::fs::write(&file, "secret")?;
    let options = format!("{LONG}&sentinel_user=locks&sentinel_password_file={}", file.display());
    let client = self::client(&sentinels.url(), &options).await?;
    ensure!(!takes_nothing(&client, "another").await?, "nothing is granted to a user of the sentinels");
    Ok(())
}

async fn a_grant_waits_for_the_replicas_of_the_primary() -> Outcome {
    let sentinels = RedisSentinels::start(None).await?;
    let primary = sentinels.primary().await?;
    settle(primary, 60).await?;
    let of_it = |server: &&RedisServer| server.address() != primary.address();
    let replica = sentinels.servers().iter().find(of_it).ok_or_else(|| Failure::new("a primary alone"))?;
    let locks = client(&sentinels.url(), "lease=60s&timeout=11s&durable=replicas:2").await?;
    let lock = locks.mutex(ROOM)?;
    let guard = soon("the lock", lock.acquire()).await??;
    let waiter = Waiter::of(&locks)?;
    replica.stop()?;
    // Also if a replica lacks the release.
    let _ = guard.release().await;
    let error = soon("the answer", locks.mutex("other")?.try_acquire()).await?.err();
    let text = error.map(|error| error.to_string()).unwrap_or_default();
    ensure!(text.contains("1 of 2 replicas") && !waiter.is_finished(), "{text}");
    replica.resume()?;
    let (_guard, _) = waiter.granted().await?;
    ensure!(has(replica, &key(ROOM, 'l')).await?, "a replica lacks the hold");
    Ok(())
}
