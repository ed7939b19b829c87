//! One lock with `etcdctl lock`, with the service `v3lock`, and with candidates of `etcdctl elect`.

use std::pin::pin;
use std::process::Stdio;

use conformance_tests::{Failure, Outcome};
use lock_core::{LockClient, Participant};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::case::{cases, ensure};
use crate::stage::{LONG, PREFIX, ROOM, Stage, Waiter, soon, until};

cases!("peers":
    etcdctl_waits_for_us_and_we_for_it,
    etcdctl_waits_for_all_readers_and_readers_for_it,
    v3lock_waits_for_us_and_we_for_it,
    a_candidate_of_etcdctl_excludes_and_is_shown,
    candidates_of_etcdctl_and_of_ours_lead_in_turn,
    a_value_of_another_program_takes_all_permits,
    an_entry_of_a_newer_version_is_named,
);

/// An `etcdctl` that takes the lock, or is elected, and keeps that until this is dropped.
struct Peer {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Peer {
    fn start(stage: &Stage, words: &[&str]) -> Outcome<Self> {
        let mut command = Command::from(stage.server.etcdctl(words));
        let mut child = command.stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
        let output = child.stdout.take().ok_or_else(|| Failure::new("etcdctl has no output"))?;
        Ok(Self { child, lines: BufReader::new(output).lines() })
    }

    fn locking(stage: &Stage) -> Outcome<Self> {
        Self::start(stage, &["lock", &format!("{PREFIX}/{ROOM}")])
    }

    /// Waits until it has the lock, and returns the key that it names; then the next line.
    async fn holds(&mut self) -> Outcome<String> {
        let line = soon("what etcdctl prints", self.lines.next_line()).await??;
        line.ok_or_else(|| Failure::new("etcdctl has ended"))
    }

    /// Ends it in order, so that it gives the lock back.
    async fn release(mut self) -> Outcome {
        let pid = self.child.id().and_then(|pid| i32::try_from(pid).ok()).unwrap_or_default();
        let killed = Command::new("kill").args(["-INT", &pid.to_string()]).status().await?;
        ensure!(killed.success(), "etcdctl could not be ended: {killed}");
        soon("the end of etcdctl", self.child.wait()).await??;
        Ok(())
    }
}

async fn is_refused(client: &LockClient) -> Outcome {
    let granted = client.mutex(ROOM)?.try_acquire().await?;
    ensure!(granted.is_none(), "granted although etcdctl has the lock");
    Ok(())
}

async fn etcdctl_waits_for_us_and_we_for_it() -> Outcome {
    let stage = Stage::new().await?;
    let (client, other) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let guard = client.mutex(ROOM)?.acquire().await?;
    let mut peer = Peer::locking(&stage)?;
    stage.in_line(2).await?;
    let waiter = Waiter::of(&other)?;
    stage.in_line(3).await?;
    let status = client.status(ROOM).await?;
    ensure!(status.holders.len() == 1 && status.waiters.len() == 2, "{status:?}");
    let token = guard.token();
    let ours = format!("{PREFIX}/{ROOM}/{}", guard.hold().id());
    ensure!(stage.line().await?.first() == Some(&ours), "{ours} is not the first");
    ensure!(stage.has_lease(&ours).await?, "{ours} is not named by its lease");
    guard.release().await?;
    let key = peer.holds().await?;
    ensure!(stage.line().await?.first() == Some(&key), "etcdctl is not the first");
    ensure!(stage.has_lease(&key).await?, "{key} is not named by its lease");
    is_refused(&client).await?;
    ensure!(!waiter.is_finished(), "granted beside etcdctl");
    peer.release().await?;
    let (guard, _) = waiter.granted().await?;
    ensure!(guard.token() > token, "{:?} follows {token:?}", guard.token());
    guard.release().await?;
    stage.is_free(&client, "after all").await
}

async fn etcdctl_waits_for_all_readers_and_readers_for_it() -> Outcome {
    let stage = Stage::new().await?;
    let (ours, theirs) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let read = |client: &LockClient| Ok::<_, Failure>(client.rw_lock(ROOM)?.read());
    let first = read(&ours)?.acquire().await?;
    let second = soon("a second reader", read(&theirs)?.acquire()).await??;
    let mut peer = Peer::locking(&stage)?;
    stage.in_line(3).await?;
    let third = Waiter::start(read(&theirs)?);
    stage.in_line(4).await?;
    first.release().await?;
    ensure!(stage.line().await?.len() == 3 && !third.is_finished(), "a reader passes etcdctl");
    second.release().await?;
    peer.holds().await?;
    ensure!(!third.is_finished(), "a reader beside etcdctl");
    peer.release().await?;
    Ok(third.granted().await?.0.release().await?)
}

async fn v3lock_waits_for_us_and_we_for_it() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client(LONG).await?;
    let guard = client.mutex(ROOM)?.acquire().await?;
    let name = format!("{PREFIX}/{ROOM}");
    let mut locking = pin!(stage.server.lock(&name));
    tokio::select! {
        biased;
        key = &mut locking => return Err(Failure::new(format!("v3lock has {key:?} beside us"))),
        waits = stage.in_line(2) => waits?,
    }
    let token = guard.token();
    guard.release().await?;
    let key = soon("the lock for v3lock", locking).await??;
    ensure!(stage.line().await?.len() == 1, "v3lock is not alone");
    is_refused(&client).await?;
    let waiter = Waiter::of(&client)?;
    stage.in_line(2).await?;
    ensure!(!waiter.is_finished(), "granted beside v3lock");
    stage.server.unlock(&key).await?;
    let (guard, _) = waiter.granted().await?;
    ensure!(guard.token() > token, "{:?} follows {token:?}", guard.token());
    Ok(guard.release().await?)
}

async fn a_candidate_of_etcdctl_excludes_and_is_shown() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client(LONG).await?;
    let mut peer = Peer::start(&stage, &["elect", &format!("{PREFIX}/{ROOM}"), "box-7"])?;
    peer.holds().await?;
    is_refused(&client).await?;
    let status = client.status(ROOM).await?;
    let holder = &status.holders[0];
    ensure!(holder.value.as_deref() == Some("box-7"), "{status:?}");
    let broken = client.break_holder(ROOM, &holder.id).await?;
    ensure!(broken.taken_away, "{broken:?}");
    stage.is_free(&client, "after the break").await
}

async fn candidates_of_etcdctl_and_of_ours_lead_in_turn() -> Outcome {
    let stage = Stage::new().await?;
    let (client, other) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let name = format!("{PREFIX}/{ROOM}");
    let (election, mut watch) = (client.election(ROOM)?, other.election(ROOM)?.observe().await?);
    let leadership = election.campaign("box-1").await?;
    let ours = format!("{name}/{}", leadership.hold().id());
    let mut observer = Peer::start(&stage, &["elect", "--listen", &name])?;
    ensure!(observer.holds().await? == ours, "etcdctl sees another leader than {ours}");
    let value = observer.holds().await?;
    ensure!(value.contains(r#""value":"box-1""#), "etcdctl sees the value {value}");
    let mut peer = Peer::start(&stage, &["elect", &name, "box-2"])?;
    stage.in_line(2).await?;
    leadership.resign().await?;
    let theirs = peer.holds().await?;
    ensure!(stage.line().await? == [theirs.as_str()], "etcdctl does not lead");
    while observer.holds().await? != theirs {}
    ensure!(observer.holds().await? == "box-2", "etcdctl sees another value");
    let sees = |leader: Option<Participant>| leader.and_then(|leader| leader.value);
    while sees(watch.leader()).as_deref() != Some("box-2") {
        soon("the leader of etcdctl", watch.changed()).await??;
    }
    let (again, ()) = tokio::try_join!(async { Ok(election.campaign("box-3").await?) }, async {
        stage.in_line(2).await?;
        peer.release().await
    })?;
    while sees(watch.leader()).as_deref() != Some("box-3") {
        soon("our leader", watch.changed()).await??;
    }
    Ok(again.resign().await?)
}

async fn a_value_of_another_program_takes_all_permits() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client(LONG).await?;
    let key = format!("{PREFIX}/~permits/{ROOM}/note");
    stage.server.command(&["put", &key, "mine"]).await?;
    let semaphore = client.semaphore(ROOM, 3)?;
    ensure!(semaphore.try_acquire(1).await?.is_none(), "granted beside a key of another program");
    let waiter = Waiter::start(semaphore.permits(1)?);
    until("it waits", || async { Ok(stage.server.keys(&format!("{PREFIX}/~permits/")).await?.len() == 2) })
        .await?;
    stage.server.command(&["del", &key]).await?;
    Ok(waiter.granted().await?.0.release().await?)
}

async fn an_entry_of_a_newer_version_is_named() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client(LONG).await?;
    stage.server.command(&["put", &format!("{PREFIX}/{ROOM}/1-2"), r#"{"distlock":2}"#]).await?;
    for refused in [client.mutex(ROOM)?.acquire().await.err(), client.status(ROOM).await.err()] {
        let error = refused.ok_or_else(|| Failure::new("not refused"))?;
        ensure!(error.to_string().contains("newer version"), "{error}");
    }
    let line = stage.line().await?;
    ensure!(line.len() == 1, "{line:?}");
    Ok(())
}
