//! Cases: a server remembers a slot of a lock, for one of all clients and for a time.

use std::time::{Duration, Instant};

use crate::{Failure, Outcome, ensure};
use lock_core::spi::Mutex;
use lock_core::{ErrorKind, LockClient, Operation, Remembered};

use crate::case::{Need, cases};
use crate::harness::{Ability, Losing};
use crate::stage::Stage;

cases!("remembering":
    of_two_clients_one_gets_the_slot [Need::Remembering],
    slots_of_one_lock_and_of_others_are_apart [Need::Remembering],
    a_slot_is_forgotten_after_its_time_and_not_before [Need::Remembering],
    a_slot_that_is_recalled_stays_until_it_is_to_be_forgotten [Need::Remembering],
    a_slot_outlives_the_client_that_used_it [Need::Remembering],
    holding_and_remembering_have_nothing_to_do_with_each_other [Need::Remembering],
    a_slot_whose_answer_is_lost_is_not_used_twice [Need::Remembering, Need::Ability(Ability::LostReplies)],
    a_backend_that_cannot_remember_says_so,
);

const NAME: &str = "nightly";
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Whether the client is the one that used the slot. What is left of the time is checked.
async fn uses(client: &LockClient, name: &str, slot: &str, keep: Duration) -> Outcome<bool> {
    match client.remember(name, slot, keep).await? {
        Remembered::Now => Ok(true),
        Remembered::Already { remaining } => {
            ensure!(
                !remaining.is_zero() && remaining <= keep,
                "{slot:?}: {remaining:?} of {keep:?} are left"
            );
            Ok(false)
        }
    }
}

async fn of_two_clients_one_gets_the_slot(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    for round in 0..stage.rounds(30) {
        let slot = format!("slot {round}");
        let racing = async {
            tokio::join!(
                uses(&ours, NAME, &slot, DAY),
                uses(&theirs, NAME, &slot, DAY),
                uses(&ours, NAME, &slot, DAY)
            )
        };
        let (one, two, three) = stage.soon("the answers", racing).await?;
        let used = [one?, two?, three?];
        let times = used.iter().filter(|used| **used).count();
        ensure!(times == 1, "{slot:?} was used {times} times");
        for client in [&ours, &theirs] {
            ensure!(!uses(client, NAME, &slot, DAY).await?, "{slot:?} was used again");
        }
    }
    Ok(())
}

async fn slots_of_one_lock_and_of_others_are_apart(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let long = ["n".repeat(512), "s".repeat(200)];
    let names = ["a", "A", "a/b", "..", "{}", "a~b", "\u{1F512} 'x' \\", &long[0]];
    let slots = ["", "a", "A", "/", "..", "*/ 'q' \"{}\" \\", "\u{1F512}\n\t\0", "b:m:a", &long[1]];
    for name in names {
        for slot in slots {
            ensure!(uses(&ours, name, slot, DAY).await?, "{slot:?} of {name:?} was used before");
        }
    }
    for name in names {
        for slot in slots {
            ensure!(!uses(&theirs, name, slot, DAY).await?, "{slot:?} of {name:?} was used again");
        }
    }
    let kind = ours.remember(NAME, "s".repeat(201), DAY).await.map_err(|error| error.kind());
    ensure!(kind == Err(ErrorKind::InvalidOption), "a slot that is too long was answered {kind:?}");
    Ok(())
}

async fn a_slot_is_forgotten_after_its_time_and_not_before(stage: &Stage) -> Outcome {
    let clients = [stage.client().await?, stage.client().await?];
    let keep = Duration::from_secs(3);
    let mut used_at = Instant::now();
    ensure!(uses(&clients[0], NAME, "a", keep).await?, "used before");
    for client in clients.iter().rev() {
        let looked = Mutex::new(used_at);
        let used_again = || async {
            *looked.lock() = Instant::now();
            uses(client, NAME, "a", keep).await
        };
        stage.until("the slot is forgotten", used_again).await?;
        // The server's time began after the request that used the slot was sent.
        ensure!(used_at.elapsed() >= keep, "forgotten after {:?}", used_at.elapsed());
        used_at = *looked.lock();
    }
    Ok(())
}

async fn a_slot_that_is_recalled_stays_until_it_is_to_be_forgotten(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    ensure!(uses(&ours, NAME, "b", DAY).await?, "used before");
    for client in [&ours, &theirs] {
        ensure!(client.remembered(NAME, "a").await?.is_none(), "remembered before it was used");
        ensure!(!client.forget(NAME, "a").await?, "forgotten before it was used");
        ensure!(uses(&ours, NAME, "a", DAY).await?, "used before");
        for asked in [&ours, &theirs] {
            let left = asked.remembered(NAME, "a").await?;
            ensure!(left.is_some_and(|left| !left.is_zero() && left <= DAY), "{left:?} of a day are left");
        }
        ensure!(client.forget(NAME, "a").await?, "it was not there to be forgotten");
    }
    ensure!(ours.remembered(NAME, "a").await?.is_none(), "it is still remembered");
    ensure!(theirs.remembered(NAME, "b").await?.is_some(), "another slot was forgotten with it");
    ensure!(uses(&theirs, NAME, "a", Duration::from_millis(100)).await?, "it cannot be used again");
    let passes = || async { Ok(ours.remembered(NAME, "a").await?.is_none()) };
    stage.until("the end of its time", passes).await
}

async fn a_slot_outlives_the_client_that_used_it(stage: &Stage) -> Outcome {
    let ours = stage.client().await?;
    let theirs = stage.client().await?;
    ensure!(uses(&ours, NAME, "a", DAY).await?, "used before");
    ours.close(stage.patience()).await?;
    ensure!(!uses(&theirs, NAME, "a", DAY).await?, "forgotten with its client");
    let late = stage.client().await?;
    ensure!(!uses(&late, NAME, "a", DAY).await?, "forgotten with its client");
    Ok(())
}

async fn holding_and_remembering_have_nothing_to_do_with_each_other(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let guard = ours.mutex(NAME)?.acquire().await?;
    ensure!(uses(&theirs, NAME, "a", DAY).await?, "used before");
    stage.is_held(&theirs, NAME).await?;
    ensure!(guard.hold().is_valid(), "lost because a slot was used");
    guard.release().await?;
    stage.is_free(&theirs, NAME).await?;
    ensure!(!uses(&ours, NAME, "a", DAY).await?, "forgotten with the hold");
    Ok(())
}

/// The client whose answer is lost gets an error, unless its backend asks again and finds that the slot is its own.
async fn a_slot_whose_answer_is_lost_is_not_used_twice(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    for (slot, losing) in ["a", "b", "c"].into_iter().zip(Losing::ALL) {
        stage.harness().lose_reply(Operation::Remember, losing).await?;
        let first = ours.remember(NAME, slot, DAY).await;
        ensure!(!matches!(first, Ok(Remembered::Already { .. })), "{slot:?} was used before: {first:?}");
        let answers = || async {
            match theirs.remember(NAME, slot, DAY).await {
                Ok(Remembered::Now) if first.is_ok() => Err(Failure::new("a slot was used twice")),
                Err(error) if error.is_retryable() => Ok(false),
                answer => Ok(answer.map(|_| true)?),
            }
        };
        stage.until("another client's answer", answers).await?;
        ensure!(!uses(&theirs, NAME, slot, DAY).await?, "{slot:?} was used again");
        // The lost answer may have ended a connection.
        let contact = || async { Ok(ours.ping().await.is_ok()) };
        stage.until("contact after the loss", contact).await?;
    }
    Ok(())
}

async fn a_backend_that_cannot_remember_says_so(stage: &Stage) -> Outcome {
    let client = stage.client().await?;
    let kind = client.remember(NAME, "a", DAY).await.map(drop).map_err(|error| error.kind());
    let expected = if client.capabilities().remembering { Ok(()) } else { Err(ErrorKind::Unsupported) };
    ensure!(kind == expected, "answered {kind:?}");
    Ok(())
}
