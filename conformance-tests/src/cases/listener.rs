//! Cases: a listener gets each event once, in order.

use std::sync::Arc;

use crate::{During, Outcome, ensure};
use lock_core::{Hold, LockEvent, LockListener, LossReason};

use crate::case::{Need, cases};
use crate::probe::{Event, EventRecorder};
use crate::stage::Stage;

cases!("listener":
    acquisitions_and_releases_are_reported_once_and_in_order,
    a_refused_request_has_no_events,
    a_listener_that_panics_harms_no_other [Need::Breaking, Need::Holder],
    listeners_of_a_lock_and_of_its_client_stay_until_they_are_removed,
    a_stream_has_the_events_of_all_locks_and_ends_with_close,
);

async fn acquisitions_and_releases_are_reported_once_and_in_order(stage: &Stage) -> Outcome {
    let client = stage.client().await?;
    let lock = client.mutex("room")?;
    let recorder = EventRecorder::of(&lock);
    for _ in 0..20 {
        let guard = lock.acquire().await?;
        let second = guard.reenter()?;
        guard.release().await?;
        second.release().await?;
    }
    stage
        .until("20 acquisitions and releases told of", || async { Ok(recorder.events().len() >= 40) })
        .await?;
    let expected = [Event::Acquired, Event::Released].repeat(20);
    ensure!(recorder.events() == expected, "{:?}", recorder.events());
    Ok(())
}

async fn a_refused_request_has_no_events(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let held = theirs.mutex("room")?.acquire().await?;
    let lock = ours.mutex("room")?;
    let recorder = EventRecorder::of(&lock);
    ensure!(lock.try_acquire().await?.is_none(), "a lock that is held was granted");
    held.release().await?;
    let guard = lock.acquire().await?;
    // Events of one lock are delivered in order, so an event about the refusal would have arrived before this one.
    stage.soon("on_acquired", recorder.has(|event| (*event == Event::Acquired).then_some(()))).await?;
    ensure!(recorder.events() == [Event::Acquired], "{:?}", recorder.events());
    Ok(guard.release().await?)
}

struct Panics;

impl LockListener for Panics {
    fn on_abort(&self, _: &Hold, _: &LossReason) {
        // Unwinds like a panic, but prints no message.
        std::panic::resume_unwind(Box::new("a defect of the listener's"));
    }
}

async fn a_listener_that_panics_harms_no_other(stage: &Stage) -> Outcome {
    let (ours, operator) = (stage.client().await?, stage.client().await?);
    let panics = ours.mutex("with a bad listener")?;
    panics.add_listener(Arc::new(Panics)).detach();
    let lock = ours.mutex("room")?;
    let recorder = EventRecorder::of(&lock);
    for name in ["with a bad listener", "room"] {
        let guard = ours.mutex(name)?.acquire().await?;
        let holder = stage.holder(&operator, name).await?;
        operator.break_holder(name, &holder.id).await?;
        stage.soon("the loss", guard.lost()).await?;
        drop(guard);
    }
    let told = recorder.has(|event| matches!(event, Event::Abort(..)).then_some(()));
    stage.soon("on_abort of the other lock", told).await?;
    stage.becomes_free(&operator, "with a bad listener").await
}

async fn listeners_of_a_lock_and_of_its_client_stay_until_they_are_removed(stage: &Stage) -> Outcome {
    let client = stage.client().await?;
    // The lock itself is dropped at once.
    let of_lock = EventRecorder::of(&client.mutex("room")?);
    let (of_client, stays) = EventRecorder::of_client(&client);
    let (removed, subscription) = EventRecorder::of_client(&client);
    client.mutex("room")?.acquire().await?.release().await?;
    stage.soon("on_released", removed.has(|event| (*event == Event::Released).then_some(()))).await?;
    drop(subscription);
    for name in ["hall", "room"] {
        client.idle().await;
        client.mutex(name)?.acquire().await?.release().await?;
    }
    stage.until("6 events of the client", || async { Ok(of_client.events().len() >= 6) }).await?;
    stage.until("4 events of the lock", || async { Ok(of_lock.events().len() >= 4) }).await?;
    drop(stays);
    let round = [Event::Acquired, Event::Released];
    for (recorder, rounds) in [(of_client, 3), (of_lock, 2), (removed, 1)] {
        ensure!(
            recorder.events() == round.repeat(rounds),
            "{:?} in place of {rounds} rounds",
            recorder.events()
        );
    }
    Ok(())
}

async fn a_stream_has_the_events_of_all_locks_and_ends_with_close(stage: &Stage) -> Outcome {
    let client = stage.client().await?;
    let mut events = client.events();
    let room = client.mutex("room")?.acquire().await?;
    let hall = client.mutex("hall")?.acquire().await?;
    let holds = [room.hold().clone(), hall.hold().clone()];
    room.release().await?;
    hall.release().await?;
    client.close(stage.patience()).await.during("close")?;
    for (index, hold) in holds.iter().chain(&holds).enumerate() {
        let event = stage.soon("an event", events.next()).await?;
        let is_expected = match &event {
            Some(LockEvent::Acquired { .. }) => index < holds.len(),
            Some(LockEvent::Released { .. }) => index >= holds.len(),
            _ => false,
        };
        let of = event.as_ref().and_then(LockEvent::hold);
        let is_of_hold = of.is_some_and(|of| of.name() == hold.name() && of.token() == hold.token());
        ensure!(is_expected && is_of_hold, "event {index} is {event:?}");
    }
    let end = stage.soon("the end of the stream", events.next()).await?;
    ensure!(end.is_none(), "{end:?} in place of the end");
    Ok(())
}
