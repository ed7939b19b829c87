//! Restarts of the server, and standbys.

use std::process::Command;

use conformance_tests::{During as _, Failure, Outcome};
use lock_core::{ErrorKind, LossReason};
use test_servers::Data;

use crate::stage::{LONG, ROOM, Stage, WATCHFUL, Waiter, cases, connect, ensure, soon, until};

cases!("restarts":
    while_nothing_is_held,
    what_a_dying_server_grants_is_lost,
    a_standby_is_refused_until_it_is_promoted,
);

async fn while_nothing_is_held() -> Outcome {
    let stage = Stage::alone().await?;
    let client = stage.client(LONG).await?;
    stage.works(&client).await?;
    stage.server.restart(Data::Kept).await?;
    let guard = client.mutex(ROOM)?.try_acquire().await?;
    ensure!(guard.is_some(), "a free lock was refused");
    Ok(())
}

/// The processes of a server that is killed end one after the other. The last one grants what the first one has freed, and then ends. It
/// may also end before it looks: then the case begins anew.
async fn what_a_dying_server_grants_is_lost() -> Outcome {
    let stage = Stage::alone().await?;
    let (ours, theirs) = (stage.client(WATCHFUL).await?, stage.client(WATCHFUL).await?);
    for _ in 0..10 {
        let held = soon("the lock", ours.mutex(ROOM)?.acquire()).await??;
        let waiter = Waiter::of(&theirs)?;
        stage.queued(1).await?;
        let (holder, waits) = (stage.holder().await?, stage.waiters().await?.concat());
        signal("STOP", &waits)?;
        signal("KILL", &stage.server.pid().to_string())?;
        ended(&holder).await?;
        signal("CONT", &waits)?;
        ended(&waits).await?;
        stage.server.restart(Data::Kept).await?;
        let (next, _) = waiter.granted().await?;
        let is_held = theirs.status(ROOM).await?.holders.iter().any(|holder| holder.id == next.hold().id());
        let lost = [Some(&held), Some(&next).filter(|_| !is_held)];
        for guard in lost.into_iter().flatten() {
            let reason = soon("the loss", guard.lost()).await?;
            ensure!(reason == Some(LossReason::ConnectionLost), "lost because {reason:?}");
        }
        drop((held, next));
        for client in [&ours, &theirs] {
            soon("the undoing", client.idle()).await?;
        }
        if !is_held {
            return stage.works(&ours).await;
        }
    }
    Err(Failure::new("no server that was killed has granted anything"))
}

fn signal(name: &str, process: &str) -> Outcome {
    let sent = Command::new("kill").args(["-s", name, process]).status().during("kill")?;
    ensure!(sent.success(), "no process {process}");
    Ok(())
}

/// The process that adopts it may leave it as a zombie for a while.
async fn ended(process: &str) -> Outcome {
    let status = format!("/proc/{process}/stat");
    until("a process has ended", || async {
        Ok(!std::fs::read_to_string(&status).is_ok_and(|status| !status.contains(") Z ")))
    })
    .await
}

/// Advisory locks of a standby exclude no client of the primary.
async fn a_standby_is_refused_until_it_is_promoted() -> Outcome {
    let stage = Stage::alone().await?;
    let client = stage.client(LONG).await?;
    stage.works(&client).await?;
    stage.server.restart_as_standby().await?;
    let error = connect(&stage.url()).await.err();
    let text = error.as_ref().map(ToString::to_string).unwrap_or_default();
    let kind = error.map(|error| error.kind());
    ensure!(kind == Some(ErrorKind::Unreachable) && text.contains("standby"), "answered {text}");
    let tried = client.mutex(ROOM)?.try_acquire().await.map(drop).map_err(|error| error.is_retryable());
    ensure!(tried == Err(true), "a try was answered {tried:?}");
    ensure!(client.ping().await.is_err(), "the ping was answered");
    stage.server.promote().await?;
    soon("the undoing", client.idle()).await?;
    stage.works(&client).await
}
