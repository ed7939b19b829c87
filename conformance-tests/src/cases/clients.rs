//! Cases: a client that puts a prefix before its names, and one that asks its server for a sign of life.

use crate::{During, Outcome, ensure};

use super::outages::is_unreachable;
use crate::case::{Need, cases};
use crate::harness::Ability;
use crate::probe::ByHand;
use crate::stage::Stage;

cases!("clients":
    a_scoped_name_is_the_full_name_of_others,
    a_scoped_status_and_break_are_those_of_the_full_name [Need::Holder, Need::Breaking],
    a_ping_is_answered,
    a_ping_may_be_dropped,
    a_ping_while_the_server_is_away_is_an_error [Need::Ability(Ability::Outages)],
);

async fn a_scoped_name_is_the_full_name_of_others(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let guard = ours.scoped("tenant/").scoped("billing/").mutex("room")?.acquire().await?;
    let name = guard.hold().name().as_str();
    ensure!(name == "tenant/billing/room", "the hold is called {name:?}");
    stage.is_held(&theirs, "tenant/billing/room").await?;
    stage.is_free(&theirs, "room").await?;
    stage.is_free(&theirs.scoped("tenant/"), "room").await?;
    guard.release().await?;
    stage.is_free(&theirs, "tenant/billing/room").await
}

async fn a_scoped_status_and_break_are_those_of_the_full_name(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let guard = ours.mutex("tenant/room")?.acquire().await?;
    let scoped = theirs.scoped("tenant/");
    let shown = stage.status(&scoped, "room").await?.map(|status| status.name.as_str().to_owned());
    ensure!(shown.as_deref() == Some("tenant/room"), "the status is that of {shown:?}");
    let holder = stage.holder(&scoped, "room").await?;
    scoped.break_holder("room", &holder.id).await?;
    let reason = stage.loss(guard.hold()).await?;
    let expected = stage.harness().reason_of_a_break();
    ensure!(expected.is_none_or(|expected| reason == expected), "lost because {reason}");
    stage.becomes_free(&theirs, "tenant/room").await
}

async fn a_ping_is_answered(stage: &Stage) -> Outcome {
    let client = stage.client().await?;
    client.ping().await.during("a ping without locks")?;
    let guard = client.mutex("room")?.acquire().await?;
    client.ping().await.during("a ping with a lock")?;
    ensure!(guard.hold().is_valid(), "lost by a ping: {:?}", guard.hold().end());
    Ok(guard.release().await?)
}

async fn a_ping_may_be_dropped(stage: &Stage) -> Outcome {
    let client = stage.client().await?;
    for _ in 0..stage.rounds(20) {
        let mut ping = ByHand::new(client.ping());
        let _ = ping.poll();
    }
    client.ping().await.during("a ping after others were dropped")
}

async fn a_ping_while_the_server_is_away_is_an_error(stage: &Stage) -> Outcome {
    let client = stage.client().await?;
    stage.harness().sever().await?;
    is_unreachable(stage.soon("the end of a ping", client.ping()).await?, "a ping")?;
    stage.heal().await?;
    // Another connection may still have to notice that contact has returned.
    stage.until("an answer after the outage", || async { Ok(client.ping().await.is_ok()) }).await
}
