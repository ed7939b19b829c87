//! Cases: what `status` shows about a lock.

use std::time::Duration;

use crate::{Failure, Outcome, ensure};
use lock_core::{ChangeKind, HolderInfo, LockClient, LockError, LockStatus, Participant, ProcessOrigin};

use super::exclusion::quit;
use super::order::take_turns;
use crate::case::{Need, cases};
use crate::stage::{Stage, has_tokens};
use crate::worker::Worker;

cases!("inspection":
    a_lock_that_was_never_used_is_free [Need::Holder],
    the_holder_is_shown [Need::Holder],
    the_queue_is_shown_in_order [Need::Holder],
    looking_changes_nothing [Need::Holder],
    those_in_use_are_listed_and_no_others [Need::Listing, Need::Holder],
    a_watch_shows_a_wait_a_hand_off_and_the_end [Need::Listing, Need::Holder],
    a_semaphore_is_listed_beside_the_readers_of_its_name [Need::Listing, Need::Permits, Need::Sharing],
);

async fn a_lock_that_was_never_used_is_free(stage: &Stage) -> Outcome {
    let client = stage.client().await?;
    let status = client.status("never seen/\u{1F512}").await?;
    ensure!(status.name.as_str() == "never seen/\u{1F512}", "the status is that of {:?}", status.name);
    ensure!(!status.is_held() && status.waiters.is_empty(), "{status:?}");
    Ok(())
}

async fn the_holder_is_shown(stage: &Stage) -> Outcome {
    let (ours, theirs) =
        (stage.client_with(stage.builder().label("the holder")).await?, stage.client().await?);
    let guard = ours.mutex("room")?.acquire().await?;
    for client in [&ours, &theirs] {
        let holder = stage.holder(client, "room").await?;
        let us = HolderInfo::of_this_process();
        ensure!(holder.host.as_deref() == Some(&us.host), "the holder's host is {:?}", holder.host);
        ensure!(holder.pid == Some(us.pid), "the holder's process is {:?}", holder.pid);
        ensure!(holder.label.as_deref() == Some("the holder"), "the holder is called {:?}", holder.label);
        // Others can only name the connection.
        if client.capabilities().describing {
            ensure!(holder.origin == us.origin, "the holder's origin is {:?}", holder.origin);
        }
        if has_tokens(client) {
            ensure!(holder.token == guard.token(), "the holder's token is {:?}", holder.token);
        }
    }
    let status = theirs.status("room").await?;
    let fits = status.remaining.zip(stage.lease()).is_none_or(|(left, lease)| left <= lease);
    ensure!(fits, "more of the lease is left than there is: {:?}", status.remaining);
    guard.release().await?;
    stage.is_free(&theirs, "room").await
}

fn is_of(participant: &Participant, worker: &Worker) -> bool {
    let its_process = worker.pid().unwrap_or_else(std::process::id);
    participant.label.as_deref() == Some(worker.label()) && participant.pid == Some(its_process)
}

async fn the_queue_is_shown_in_order(stage: &Stage) -> Outcome {
    let observer = stage.client().await?;
    let mut workers = stage.workers(4).await?;
    workers[0].acquire("room").await?;
    for (before, worker) in workers[1..].iter_mut().enumerate() {
        worker.ask("room")?;
        stage.queued(&observer, "room", before + 1).await?;
    }
    let status = observer.status("room").await?;
    ensure!(status.holders.len() == 1 && is_of(&status.holders[0], &workers[0]), "{status:?}");
    let in_order = status.waiters.iter().zip(&workers[1..]).all(|(waiter, worker)| is_of(waiter, worker));
    ensure!(status.waiters.len() == 3 && in_order, "{status:?}");
    let has_origin = ProcessOrigin::of_this_process().is_some();
    ensure!(status.waiters.iter().all(|waiter| waiter.origin.is_some() == has_origin), "{status:?}");
    let mut ids: Vec<_> = status.holders.iter().chain(&status.waiters).map(|one| one.id.as_str()).collect();
    ids.sort_unstable();
    ids.dedup();
    ensure!(ids.len() == 4, "two participants have the same id: {status:?}");
    take_turns("room", &mut workers).await?;
    quit(workers).await
}

async fn looking_changes_nothing(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let guard = ours.mutex("room")?.acquire().await?;
    for _ in 0..50 {
        theirs.status("room").await?;
        theirs.status("another room").await?;
    }
    ensure!(guard.hold().is_valid(), "lost by being looked at");
    stage.is_held(&theirs, "room").await?;
    guard.release().await?;
    stage.is_free(&theirs, "room").await
}

/// The names of what is listed below a prefix, and how many hold it and wait for it.
async fn listed(client: &LockClient, prefix: &str) -> Result<Vec<(String, usize, usize)>, LockError> {
    let found = client.scoped(prefix).list().await?;
    let in_use = |lock: LockStatus| (lock.name.as_str().to_owned(), lock.holders.len(), lock.waiters.len());
    match found.failures.into_iter().next() {
        None => Ok(found.locks.into_iter().map(in_use).collect()),
        Some(error) => Err(error),
    }
}

async fn those_in_use_are_listed_and_no_others(stage: &Stage) -> Outcome {
    let (client, observer) = (stage.client().await?, stage.client().await?);
    let free = client.mutex("list/free")?.acquire().await?;
    free.release().await?;
    // Not each server accepts these characters in a name.
    let names = ["list/a:b", "list/plain", "list/with space"];
    let mut guards = Vec::new();
    for name in names {
        guards.push(client.mutex(name)?.acquire().await?);
    }
    let other = client.mutex("other")?.acquire().await?;
    let waits = observer.mutex(names[1])?;
    let waiting = tokio::spawn(async move { waits.acquire().await });
    stage.queued(&client, names[1], 1).await?;
    let found = listed(&observer, "list/").await?;
    let expected = names.map(|name| (name.to_owned(), 1, usize::from(name == names[1])));
    ensure!(found == expected, "listed are {found:?}");
    for lock in observer.scoped("list/").list().await?.locks {
        let status = observer.status(&lock.name).await?;
        ensure!((&lock.holders, &lock.waiters) == (&status.holders, &status.waiters), "{lock:?}, {status:?}");
    }
    for guard in guards {
        guard.release().await?;
    }
    waiting.await??.release().await?;
    let found = listed(&observer, "list/").await?;
    ensure!(found.is_empty(), "listed are {found:?}, which are free");
    let found = listed(&observer, "").await?;
    ensure!(found.iter().any(|(name, ..)| name == "other"), "listed are {found:?}");
    Ok(other.release().await?)
}

async fn a_watch_shows_a_wait_a_hand_off_and_the_end(stage: &Stage) -> Outcome {
    let (ours, theirs, observer) = (stage.client().await?, stage.client().await?, stage.client().await?);
    let mut watch = observer.scoped("watched/").watch(Duration::ZERO);
    let other = ours.mutex("other")?.acquire().await?;
    let first = ours.mutex("watched/room")?.acquire().await?;
    // A process may be seen to hold the lock before it has written who it is.
    let mut next = async |kind| loop {
        let changes = stage.soon("a change of the lock", watch.changes()).await??;
        if changes.iter().any(|one| one.kind == ChangeKind::Left || one.name.as_str() != "watched/room") {
            return Err(Failure::new(format!("seen are {changes:?}")));
        }
        if let Some(change) = changes.into_iter().find(|one| one.kind == kind) {
            return Ok(change.participant);
        }
    };
    let holder = next(ChangeKind::Granted).await?;
    let waits = theirs.mutex("watched/room")?;
    let waiting = tokio::spawn(async move { waits.acquire().await });
    let waiter = next(ChangeKind::Waiting).await?;
    ensure!(waiter.id != holder.id, "{waiter:?} has the id of the holder");
    first.release().await?;
    let second = waiting.await??;
    let granted = next(ChangeKind::Granted).await?;
    ensure!(granted.id != holder.id, "{granted:?} has the id of the first holder");
    second.release().await?;
    let ended = next(ChangeKind::Ended).await?;
    ensure!(watch.locks().is_empty(), "in use is {:?}", watch.locks());
    ensure!(ended.id == granted.id, "{ended:?} has ended, and {granted:?} was granted");
    Ok(other.release().await?)
}

async fn a_semaphore_is_listed_beside_the_readers_of_its_name(stage: &Stage) -> Outcome {
    let client = stage.client().await?;
    let reader = client.rw_lock("list/both")?.read().acquire().await?;
    let semaphore = client.semaphore("list/both", 3)?;
    let permits = [semaphore.permits(1)?.acquire().await?, semaphore.permits(2)?.acquire().await?];
    let found = listed(&client, "list/").await?;
    let mut held: Vec<_> = found.iter().map(|(_, holders, _)| *holders).collect();
    held.sort_unstable();
    ensure!(held == [1, 2], "listed are {found:?}");
    for permit in permits {
        permit.release().await?;
    }
    Ok(reader.release().await?)
}
