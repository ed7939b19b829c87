//! Moments in the middle of a statement that no test hits by chance. A proxy rewrites the statement to make them longer.

use std::pin::pin;

use conformance_tests::Outcome;
use lock_core::{ErrorKind, LossReason};
use lock_kit::LockUrl;
use test_servers::MySqlFlavour;

use crate::case::{cases, ensure};
use crate::event_recorder::EventRecorder;
use crate::middleman::{Middleman, Way, url_without_password};
use crate::stage::{
    FROZEN, INTERVAL, LONG, ROOM, Stage, WATCHFUL, Waiter, frozen, poll_times, reach, soon, until,
};

cases!("rewritten":
    what_was_granted_and_interrupted_is_given_back,
    a_release_that_is_interrupted_before_it_begins_is_repeated,
    what_another_has_at_the_release_is_a_loss,
    a_lock_without_a_holder_at_a_check_is_a_loss,
    what_another_has_at_a_check_is_a_loss,
    a_session_that_has_become_anothers_gives_no_lock,
    a_session_that_has_become_anothers_is_a_loss,
);

/// Frees the lock before the check.
const EARLIER_AT_A_CHECK: &str = "DO RELEASE_LOCK('distlock:room');SELECT /*distlock renew*/";

/// A server with a user without a password, and a proxy that replaces `old` with `new` in statements.
async fn rewriting(
    flavour: MySqlFlavour,
    old: &'static str,
    new: &'static str,
) -> Outcome<(Stage, Middleman)> {
    let stage = Stage::new(flavour).await?;
    let route = move |text: &str| (Way::First, text.replace(old, new));
    let middleman = Middleman::start(stage.server.address(), route).await?;
    Ok((stage, middleman))
}

/// The interruption hits the statement after the server has granted the lock, and the answer does not say so.
async fn what_was_granted_and_interrupted_is_given_back(flavour: MySqlFlavour) -> Outcome {
    let wait = "GET_LOCK('distlock:room',86400)";
    let longer = "GET_LOCK('distlock:room',86400)*GET_LOCK('gate',86400)";
    let (stage, middleman) = rewriting(flavour, wait, longer).await?;
    let (client, other) = (reach(&middleman.url(LONG)).await?, reach(&middleman.url(LONG)).await?);
    let mut gate = stage.server.session().await?;
    gate.query("SELECT GET_LOCK('gate', 0)").await?;
    let mut stranger = stage.server.session().await?;
    stranger.query("SELECT GET_LOCK('distlock:room', 0)").await?;
    let held = stage.holder().await?;
    let lock = client.mutex(ROOM)?;
    {
        let mut acquiring = pin!(lock.acquire());
        ensure!(poll_times(acquiring.as_mut(), 1).await?.is_none(), "a held lock was given");
        stage.queued(1).await?;
        stranger.query("SELECT RELEASE_LOCK('distlock:room')").await?;
        let is_taken = || async { Ok(stage.holder_of(ROOM).await?.is_some_and(|holder| holder != held)) };
        until("it is taken", is_taken).await?;
        stage.queued(1).await?;
    }
    soon("the undoing", client.idle()).await?;
    ensure!(stage.waiting().await? == 0, "a client waits");
    ensure!(stage.holder_of(ROOM).await?.is_none(), "undone, and held");
    let guard = other.mutex(ROOM)?.try_acquire().await?;
    ensure!(guard.is_some(), "a free lock was refused");
    Ok(())
}

/// A function that is interrupted answers NULL on some servers. The first release of the session does so here.
async fn a_release_that_is_interrupted_before_it_begins_is_repeated(flavour: MySqlFlavour) -> Outcome {
    let release = "RELEASE_LOCK('distlock:room')";
    let interrupted = "IF((@releases:=IFNULL(@releases,0)+1)=1,NULL,RELEASE_LOCK('distlock:room'))";
    let (stage, middleman) = rewriting(flavour, release, interrupted).await?;
    let client = reach(&middleman.url(LONG)).await?;
    let guard = client.mutex(ROOM)?.acquire().await?;
    soon("the release", guard.release()).await??;
    ensure!(stage.holder_of(ROOM).await?.is_none(), "released, and held");
    Ok(())
}

/// The server reports the loss, because it has already given the lock to another client.
async fn what_another_has_at_the_release_is_a_loss(flavour: MySqlFlavour) -> Outcome {
    let release = "SELECT /*distlock release*/";
    let earlier = "DO RELEASE_LOCK('distlock:room');SELECT /*distlock release*/";
    let (stage, middleman) = rewriting(flavour, release, earlier).await?;
    let ours = reach(&middleman.url(LONG)).await?;
    let theirs = reach(&url_without_password(stage.server.address(), LONG)).await?;
    let guard = ours.mutex(ROOM)?.acquire().await?;
    let waiter = Waiter::of(&theirs)?;
    stage.queued(1).await?;
    let released = soon("the release", guard.release()).await?.map_err(|error| error.kind());
    ensure!(released == Err(ErrorKind::Lost), "the release was answered {released:?}");
    let (next, _) = waiter.granted().await?;
    ensure!(next.hold().is_valid(), "the next hold has ended");
    Ok(next.release().await?)
}

async fn a_lock_without_a_holder_at_a_check_is_a_loss(flavour: MySqlFlavour) -> Outcome {
    let (stage, middleman) = rewriting(flavour, "SELECT /*distlock renew*/", EARLIER_AT_A_CHECK).await?;
    let client = reach(&middleman.url(WATCHFUL)).await?;
    let lock = client.mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    let guard = lock.acquire().await?;
    let (reason, _) = recorder.abort().await?;
    ensure!(reason == LossReason::Deleted, "lost because {reason}");
    drop(guard);
    soon("the undoing", client.idle()).await?;
    ensure!(stage.holder_of(ROOM).await?.is_none(), "lost, and held");
    Ok(())
}

async fn what_another_has_at_a_check_is_a_loss(flavour: MySqlFlavour) -> Outcome {
    let (stage, middleman) = rewriting(flavour, "SELECT /*distlock renew*/", EARLIER_AT_A_CHECK).await?;
    let (builder, time) = frozen();
    let ours = lock_mysql::connect(&LockUrl::parse(&middleman.url(FROZEN))?, builder).await?;
    let theirs = reach(&url_without_password(stage.server.address(), LONG)).await?;
    let lock = ours.mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    let guard = lock.acquire().await?;
    let waiter = Waiter::of(&theirs)?;
    stage.queued(1).await?;
    time.advance(INTERVAL);
    let (next, _) = waiter.granted().await?;
    let (reason, _) = recorder.abort().await?;
    ensure!(reason == LossReason::Taken, "lost because {reason}");
    drop(guard);
    soon("the undoing", ours.idle()).await?;
    ensure!(next.hold().is_valid(), "the next hold has ended");
    Ok(next.release().await?)
}

/// Another client has come to use the same session of the server, and has marked it.
async fn a_session_that_has_become_anothers_gives_no_lock(flavour: MySqlFlavour) -> Outcome {
    let acquire = "SELECT /*distlock acquire*/";
    let marked = "SET @distlock=1;SELECT /*distlock acquire*/";
    let (stage, middleman) = rewriting(flavour, acquire, marked).await?;
    let client = reach(&middleman.url(LONG)).await?;
    let answer = soon("an answer", client.mutex(ROOM)?.try_acquire()).await?;
    ensure!(!matches!(answer, Ok(Some(_))), "a lock was given that another client may have");
    soon("the undoing", client.idle()).await?;
    until("the lock is free", || async { Ok(stage.holder_of(ROOM).await?.is_none()) }).await
}

async fn a_session_that_has_become_anothers_is_a_loss(flavour: MySqlFlavour) -> Outcome {
    let check = "SELECT /*distlock renew*/";
    let marked = "SET @distlock=1;SELECT /*distlock renew*/";
    let (stage, middleman) = rewriting(flavour, check, marked).await?;
    let client = reach(&middleman.url(WATCHFUL)).await?;
    let lock = client.mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    let guard = lock.acquire().await?;
    let (reason, _) = recorder.abort().await?;
    ensure!(reason == LossReason::ConnectionLost, "lost because {reason}");
    drop(guard);
    until("the lock is free", || async { Ok(stage.holder_of(ROOM).await?.is_none()) }).await
}
