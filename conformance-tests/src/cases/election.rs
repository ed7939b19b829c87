//! Cases: of all candidates one leads, the others see it, and a loss ends what the leader does.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::{Failure, Outcome, ensure};
use lock_core::{ErrorKind, LeaderWatch, LockClient, Participant};

use crate::case::{Need, cases};
use crate::harness::{Ability, Removal};
use crate::probe::ByHand;
use crate::stage::{Stage, has_tokens};

cases!("election":
    one_candidate_leads_at_a_time_and_the_term_rises,
    an_election_and_a_mutex_of_one_name_exclude_each_other,
    the_value_of_a_leader_is_shown_and_changes [Need::Values],
    a_leader_that_has_lost_changes_nothing [Need::Values, Need::Ability(Ability::Removal(Removal::Deletion))],
    a_value_that_cannot_be_shown_is_refused,
    those_who_do_not_run_see_who_leads [Need::Holder],
    a_loss_ends_the_body_and_the_candidate_leads_again [Need::Ability(Ability::Removal(Removal::Deletion))],
);

const NAME: &str = "scheduler";

/// A value, on a backend that shows one.
pub(super) fn value(client: &LockClient, value: &str) -> String {
    if client.capabilities().describing { value.to_owned() } else { String::new() }
}

fn value_of(leader: Option<Participant>) -> Option<String> {
    leader.and_then(|leader| leader.value)
}

async fn one_candidate_leads_at_a_time_and_the_term_rises(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let elections = [ours.election(NAME)?, theirs.election(NAME)?];
    let mut leading = elections[0].campaign(value(&ours, "0")).await?;
    for round in 1..4 {
        let (election, client) = (&elections[round % 2], [&ours, &theirs][round % 2]);
        let mut next = ByHand::new(election.campaign(value(client, &round.to_string())));
        ensure!(next.poll().is_none(), "two candidates lead");
        stage.queued(client, NAME, 1).await?;
        let term = leading.term();
        ensure!(term.is_some() == has_tokens(client), "the term is {term:?}");
        leading.resign().await?;
        leading = stage.soon("the next leader", next.finish()).await??;
        ensure!(leading.term() > term || term.is_none(), "{:?} after {term:?}", leading.term());
    }
    leading.resign().await?;
    stage.is_free(&ours, NAME).await
}

async fn an_election_and_a_mutex_of_one_name_exclude_each_other(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let leadership = ours.election(NAME)?.campaign("").await?;
    for client in [&ours, &theirs] {
        stage.is_held(client, NAME).await?;
    }
    drop(leadership);
    stage.becomes_free(&theirs, NAME).await?;
    let held = theirs.mutex(NAME)?.acquire().await?;
    let election = ours.election(NAME)?;
    let mut candidate = ByHand::new(election.campaign(""));
    ensure!(candidate.poll().is_none(), "leads although the lock is held");
    held.release().await?;
    let leadership = stage.soon("the leadership", candidate.finish()).await??;
    Ok(leadership.resign().await?)
}

/// The first value comes with the acquisition, or right after it.
async fn the_value_of_a_leader_is_shown_and_changes(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let (longest, special) = ("x".repeat(1024), "a \"b\" \\ {c} 'd' -- \u{1f511}\n\te");
    for first in ["10.0.0.7:8080", special] {
        let leadership = ours.election(NAME)?.campaign(first).await?;
        let shown = stage.holder(&theirs, NAME).await?.value;
        ensure!(shown.as_deref() == Some(first), "shown as {shown:?}");
        for next in ["b", &longest, special, "", "c"] {
            leadership.proclaim(next).await?;
            let holder = stage.holder(&theirs, NAME).await?;
            ensure!(holder.value.as_deref().unwrap_or_default() == next, "shown as {:?}", holder.value);
            ensure!(holder.pid.is_none_or(|pid| pid == std::process::id()), "of process {:?}", holder.pid);
            ensure!(holder.token.is_none() || holder.token == leadership.term(), "{:?}", holder.token);
        }
        ensure!(leadership.is_leading(), "lost: {:?}", leadership.hold().end());
        leadership.resign().await?;
    }
    let plain = ours.mutex(NAME)?.acquire().await?;
    let shown = stage.holder(&theirs, NAME).await?.value;
    ensure!(shown.is_none(), "a holder that is no candidate is shown with {shown:?}");
    Ok(plain.release().await?)
}

async fn a_leader_that_has_lost_changes_nothing(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let leadership = ours.election(NAME)?.campaign("a").await?;
    let name = ours.mutex(NAME)?;
    stage.harness().take_away(name.name(), Removal::Deletion).await?;
    let successor = stage.soon("the successor", theirs.election(NAME)?.campaign("b")).await??;
    let kind = leadership.proclaim("c").await.map_err(|error| error.kind());
    ensure!(kind == Err(ErrorKind::Lost), "the proclamation was answered {kind:?}");
    stage.loss(leadership.hold()).await?;
    let shown = stage.holder(&theirs, NAME).await?.value;
    ensure!(shown.as_deref() == Some("b"), "shown as {shown:?}");
    Ok(successor.resign().await?)
}

async fn a_value_that_cannot_be_shown_is_refused(stage: &Stage) -> Outcome {
    let client = stage.client().await?;
    let election = client.election(NAME)?;
    let (expected, too_long) = if client.capabilities().describing {
        (ErrorKind::InvalidOption, "x".repeat(1025))
    } else {
        (ErrorKind::Unsupported, "a".to_owned())
    };
    let kind = election.campaign(too_long.clone()).await.map(drop).map_err(|error| error.kind());
    ensure!(kind == Err(expected), "the campaign was answered {kind:?}");
    let leadership = election.campaign("").await?;
    let kind = leadership.proclaim(too_long).await.map_err(|error| error.kind());
    ensure!(kind == Err(expected), "the proclamation was answered {kind:?}");
    Ok(leadership.resign().await?)
}

async fn those_who_do_not_run_see_who_leads(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let observer = ours.election(NAME)?.with_interval(Duration::from_millis(20));
    let mut watch = observer.observe().await?;
    ensure!(watch.leader().is_none(), "led by {:?}", watch.leader());
    let value = value(&theirs, "a");
    let leadership = theirs.election(NAME)?.campaign(value.as_str()).await?;
    // A server that keeps the value apart from the lock may show the leader a moment before its value.
    let is_seen = |leader: &Option<Participant>| {
        leader.is_some() && value_of(leader.clone()).unwrap_or_default() == value
    };
    change(stage, &mut watch, is_seen).await?;
    leadership.resign().await?;
    change(stage, &mut watch, Option::is_none).await?;
    Ok(())
}

/// Waits until the watch shows what is wanted.
async fn change(
    stage: &Stage,
    watch: &mut LeaderWatch,
    wanted: impl Fn(&Option<Participant>) -> bool,
) -> Outcome<Option<Participant>> {
    loop {
        let leader = watch.leader();
        if wanted(&leader) {
            return Ok(leader);
        }
        stage.soon("a change of the leader", watch.changed()).await??;
    }
}

async fn a_loss_ends_the_body_and_the_candidate_leads_again(stage: &Stage) -> Outcome {
    let client = stage.client().await?;
    let election = client.election(NAME)?;
    let times = Arc::new(AtomicU32::new(0));
    let running = tokio::spawn({
        let (election, times) = (election.clone(), Arc::clone(&times));
        async move {
            let led = election.run(async |leading| {
                if times.fetch_add(1, Ordering::SeqCst) == 0 {
                    std::future::pending::<()>().await;
                }
                leading.is_leading()
            });
            led.await
        }
    });
    stage.until("the leadership", || async { Ok(times.load(Ordering::SeqCst) == 1) }).await?;
    let lock = client.mutex(NAME)?;
    stage.harness().take_away(lock.name(), Removal::Deletion).await?;
    let led = stage.soon("the second leadership", running).await?;
    let led = led.map_err(|error| Failure::new(error.to_string()))??;
    ensure!(led && times.load(Ordering::SeqCst) == 2, "led {times:?} times");
    stage.is_free(&client, NAME).await
}
