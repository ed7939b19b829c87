//! Cases: a listener gets each event once, in order.

use std::sync::Arc;

use lock_core::{Hold, LockListener, LossReason};
use test_servers::{Outcome, ensure};

use crate::case::{Need, cases};
use crate::probe::{Diary, Event};
use crate::stage::Stage;

cases!("listener":
    acquisitions_and_releases_are_told_once_and_in_order,
    nothing_is_told_of_what_was_refused,
    a_listener_that_panics_harms_nobody [Need::Breaking, Need::Holder],
);

async fn acquisitions_and_releases_are_told_once_and_in_order(stage: &Stage) -> Outcome {
    let client = stage.client().await?;
    let lock = client.mutex("room")?;
    let diary = Diary::of(&lock);
    for _ in 0..20 {
        let guard = lock.acquire().await?;
        let second = guard.reenter()?;
        guard.release().await?;
        second.release().await?;
    }
    stage.until("20 acquisitions and releases told of", || async { Ok(diary.events().len() >= 40) }).await?;
    let expected = [Event::Acquired, Event::Released].repeat(20);
    ensure!(diary.events() == expected, "{:?}", diary.events());
    Ok(())
}

async fn nothing_is_told_of_what_was_refused(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let held = theirs.mutex("room")?.acquire().await?;
    let lock = ours.mutex("room")?;
    let diary = Diary::of(&lock);
    ensure!(lock.try_acquire().await?.is_none(), "a lock that is held was granted");
    held.release().await?;
    let guard = lock.acquire().await?;
    // Events of one lock are delivered in order, so an event about the refusal would have arrived before this one.
    stage.soon("on_acquired", diary.has(|event| (*event == Event::Acquired).then_some(()))).await?;
    ensure!(diary.events() == [Event::Acquired], "{:?}", diary.events());
    Ok(guard.release().await?)
}

struct Panics;

impl LockListener for Panics {
    fn on_abort(&self, _: &Hold, _: &LossReason) {
        // Unwinds like a panic, but prints no message.
        std::panic::resume_unwind(Box::new("a defect of the listener's"));
    }
}

async fn a_listener_that_panics_harms_nobody(stage: &Stage) -> Outcome {
    let (ours, operator) = (stage.client().await?, stage.client().await?);
    let panics = ours.mutex("with a bad listener")?;
    panics.set_listener(Some(Arc::new(Panics)));
    let lock = ours.mutex("room")?;
    let diary = Diary::of(&lock);
    for name in ["with a bad listener", "room"] {
        let guard = ours.mutex(name)?.acquire().await?;
        let holder = stage.holder(&operator, name).await?;
        operator.break_holder(name, &holder.id).await?;
        stage.soon("the loss", guard.lost()).await?;
        drop(guard);
    }
    let told = diary.has(|event| matches!(event, Event::Abort(..)).then_some(()));
    stage.soon("on_abort of the other lock", told).await?;
    stage.becomes_free(&operator, "with a bad listener").await
}
