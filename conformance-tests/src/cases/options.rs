//! Cases: the options of one lock, in place of those of its client.

use std::sync::Arc;
use std::time::Duration;

use crate::{Outcome, ensure};
use lock_core::{ErrorKind, Leasing, LockListener, LockOptions, LossReason};

use crate::case::{Need, cases};
use crate::probe::{ByHand, Event, EventRecorder};
use crate::stage::Stage;

cases!("options":
    a_lease_of_ones_own_is_kept_or_refused [Need::Lease],
    a_lease_outside_of_the_bounds_is_refused [Need::Lease],
    a_margin_of_ones_own_ends_a_hold_that_much_earlier [Need::Lease],
    a_margin_as_long_as_the_lease_is_refused_and_leaves_nothing [Need::Lease],
    a_hold_ends_after_its_longest_time,
    a_label_of_ones_own_is_shown [Need::Holder],
    a_grant_for_other_options_is_given_back [Need::Holder],
    locks_with_different_options_are_one_lock,
    a_listener_hears_of_its_own_holds_only,
    an_option_without_sense_is_refused,
);

/// Three times the client's lease: a hold that had the client's would never have so much left.
async fn a_lease_of_ones_own_is_kept_or_refused(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let Some(lease) = stage.harness().lease() else { return Ok(()) };
    let locked = ours.mutex_with("room", LockOptions::new().lease(lease * 3));
    let refusal = match ours.capabilities().leasing {
        Leasing::PerHold { longest, .. } if longest >= lease * 3 => None,
        Leasing::PerHold { .. } => Some(ErrorKind::InvalidOption),
        _ => Some(ErrorKind::Unsupported),
    };
    if let Some(refusal) = refusal {
        let kind = locked.map(|_| ()).map_err(|error| error.kind());
        ensure!(kind == Err(refusal), "a lease that cannot be kept ended with {kind:?}");
        return Ok(());
    }
    let guard = locked?.acquire().await?;
    let remaining = guard.hold().remaining();
    ensure!(
        remaining > Some(lease) && remaining <= Some(lease * 3),
        "{remaining:?} are left of {lease:?} * 3"
    );
    let (renewed, start) = (lease * 3 / 4, ours.mutex("room")?.clock().now());
    stage
        .until("a renewal", || async {
            let at_start = ours.mutex("room")?.clock().now().since(start);
            Ok(at_start > renewed
                && guard.hold().remaining() > remaining.map(|left| left.saturating_sub(renewed)))
        })
        .await?;
    stage.is_held(&theirs, "room").await?;
    Ok(guard.release().await?)
}

async fn a_lease_outside_of_the_bounds_is_refused(stage: &Stage) -> Outcome {
    let client = stage.client().await?;
    let refusal = |lease| {
        let locked = client.mutex_with("room", LockOptions::new().lease(lease));
        locked.map(drop).map_err(|error| (error.kind(), error.to_string()))
    };
    let Leasing::PerHold { shortest, longest } = client.capabilities().leasing else {
        let refused = refusal(Duration::ZERO);
        ensure!(matches!(refused, Err((ErrorKind::Unsupported, _))), "it ended with {refused:?}");
        return Ok(());
    };
    let nanosecond = Duration::from_nanos(1);
    let too_short = (shortest.checked_sub(nanosecond), "shorter than");
    let too_long = (longest.checked_add(nanosecond), "longer than");
    for (lease, said) in [too_short, too_long] {
        let Some(lease) = lease else { continue };
        let refused = refusal(lease);
        ensure!(
            matches!(&refused, Err((ErrorKind::InvalidOption, text)) if text.contains(said)),
            "a lease of {lease:?} ended with {refused:?}"
        );
    }
    let refused = refusal(Duration::ZERO);
    ensure!(matches!(refused, Err((ErrorKind::InvalidOption, _))), "no lease ended with {refused:?}");
    Ok(())
}

async fn a_margin_of_ones_own_ends_a_hold_that_much_earlier(stage: &Stage) -> Outcome {
    let client = stage.client().await?;
    let lease = stage.harness().lease().unwrap_or_default();
    let margin = lease / 4;
    let careful = client.mutex_with("room", LockOptions::new().abort_margin(margin))?;
    let guard = careful.acquire().await?;
    let remaining = guard.hold().remaining();
    ensure!(remaining.is_some_and(|left| left + margin <= lease), "{remaining:?} of {lease:?} are left");
    Ok(guard.release().await?)
}

async fn a_margin_as_long_as_the_lease_is_refused_and_leaves_nothing(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let lease = stage.harness().lease().unwrap_or_default();
    let careful = ours.mutex_with("room", LockOptions::new().abort_margin(lease))?;
    let kind = careful.acquire().await.map(drop).map_err(|error| error.kind());
    ensure!(kind == Err(ErrorKind::InvalidOption), "it ended with {kind:?}");
    stage.soon("the undoing", ours.idle()).await?;
    stage.becomes_free(&theirs, "room").await
}

async fn a_hold_ends_after_its_longest_time(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let brief = ours.mutex_with("room", LockOptions::new().max_hold(Duration::from_millis(200)))?;
    let guard = brief.acquire().await?;
    let reason = stage.loss(guard.hold()).await?;
    ensure!(reason == LossReason::Expired, "lost because {reason}");
    stage.becomes_free(&theirs, "room").await
}

async fn a_label_of_ones_own_is_shown(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let guard = ours.mutex_with("room", LockOptions::new().label("by hand"))?.acquire().await?;
    let label = stage.holder(&theirs, "room").await?.label;
    ensure!(label.as_deref() == Some("by hand"), "the label of the holder is {label:?}");
    guard.release().await?;
    let guard = ours.mutex("room")?.acquire().await?;
    let label = stage.holder(&theirs, "room").await?.label;
    ensure!(label.as_deref() != Some("by hand"), "a lock without options has the label of another");
    Ok(guard.release().await?)
}

/// The attempt was made for a waiter that leaves; the next one has other options.
async fn a_grant_for_other_options_is_given_back(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let held = theirs.mutex("room")?.acquire().await?;
    let first = ours.mutex_with("room", LockOptions::new().label("first"))?;
    let second = ours.mutex_with("room", LockOptions::new().label("second"))?;
    let mut leaves = ByHand::new(first.acquire());
    ensure!(leaves.poll().is_none(), "a lock that is held was granted");
    let mut waits = ByHand::new(second.acquire());
    ensure!(waits.poll().is_none(), "a lock that is held was granted");
    stage.queued(&theirs, "room", 1).await?;
    drop(leaves);
    held.release().await?;
    let guard = stage.soon("the second waiter's grant", waits.finish()).await??;
    let label = stage.holder(&theirs, "room").await?.label;
    ensure!(label.as_deref() == Some("second"), "the label of the holder is {label:?}");
    Ok(guard.release().await?)
}

async fn locks_with_different_options_are_one_lock(stage: &Stage) -> Outcome {
    let client = stage.client().await?;
    let labelled = client.mutex_with("room", LockOptions::new().label("first"))?;
    let guard = labelled.acquire().await?;
    ensure!(client.mutex("room")?.try_acquire().await?.is_none(), "two holders of one lock");
    guard.release().await?;
    labelled.lock().await?;
    client.mutex("room")?.lock().await?;
    ensure!(labelled.hold_count() == 2, "the second lock has not entered again");
    client.mutex("room")?.unlock().await?;
    Ok(labelled.unlock().await?)
}

async fn a_listener_hears_of_its_own_holds_only(stage: &Stage) -> Outcome {
    let client = stage.client().await?;
    let recorder = Arc::new(EventRecorder::default());
    let options = LockOptions::new().listener(Arc::clone(&recorder) as Arc<dyn LockListener>);
    client.mutex("room")?.acquire().await?.release().await?;
    client.mutex_with("room", options)?.acquire().await?.release().await?;
    client.mutex("room")?.acquire().await?.release().await?;
    stage.until("two events", || async { Ok(recorder.events().len() >= 2) }).await?;
    ensure!(recorder.events() == [Event::Acquired, Event::Released], "{:?}", recorder.events());
    Ok(())
}

async fn an_option_without_sense_is_refused(stage: &Stage) -> Outcome {
    let client = stage.client().await?;
    let bad = [LockOptions::new().max_hold(Duration::ZERO), LockOptions::new().label("x".repeat(257))];
    for options in bad {
        let kind = client.mutex_with("room", options.clone()).map(|_| ()).map_err(|error| error.kind());
        ensure!(kind == Err(ErrorKind::InvalidOption), "{options:?} ended with {kind:?}");
    }
    Ok(())
}
