//! Cases: a client with `local_handoff` passes a lock between its tasks without the server.

use std::future::Future;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::{Failure, Outcome, ensure};
use lock_core::spi::Mutex;
use lock_core::{
    DistributedLock, ErrorKind, Fairness, FencingToken, Hold, HoldEnd, LockClient, LockError, LockGuard,
    Owner, Reserving,
};

use super::exclusion::check_exclusion;
use crate::case::{Need, cases};
use crate::harness::{Ability, Removal};
use crate::probe::ByHand;
use crate::stage::Stage;
use crate::worker::{Visit, stamp};

cases!("local_handoff":
    each_section_has_a_hold_and_a_token_of_its_own [Need::Reserving],
    another_client_waits_for_no_more_sections_than_the_option_allows [Need::Reserving, Need::Order],
    a_section_after_the_time_comes_from_the_server [Need::Reserving, Need::Order],
    another_client_waits_for_one_series_in_contention [Need::Reserving, Need::Order],
    tokens_rise_across_clients_in_contention [Need::Reserving],
    a_loss_reaches_the_section_that_stands [Need::Reserving, Need::Ability(Ability::Removal(Removal::Deletion))],
    a_break_ends_the_section_that_stands [Need::Reserving, Need::Breaking, Need::Holder],
    readers_of_the_same_client_are_not_passed_over [Need::Reserving, Need::Sharing],
    a_section_that_reads_goes_on_as_a_reader [Need::Reserving, Need::Sharing],
    a_wait_that_is_dropped_when_the_lock_is_passed_to_it_leaves_nothing [Need::Reserving],
    a_lock_that_a_child_may_have_is_not_passed_on [Need::Reserving, Need::Order],
    more_sections_than_tokens_are_refused,
);

const NAME: &str = "orders-42";

/// How many sections follow each other, the first included.
const SECTIONS: u32 = 5;

const LONG: Duration = Duration::from_secs(3600);

/// How long a section lasts in contention: a series is longer than a look at the queue.
const INSIDE: Duration = Duration::from_millis(2);

type Lock = Arc<dyn DistributedLock>;

/// A client that passes locks on, and its lock.
async fn passing(stage: &Stage, time: Duration) -> Outcome<(LockClient, Lock)> {
    let client = stage.client_with(stage.builder().local_handoff(SECTIONS, time)).await?;
    let lock = client.mutex(NAME)?;
    Ok((client, lock))
}

/// A client without the option, and its lock.
async fn stranger(stage: &Stage) -> Outcome<(LockClient, Lock)> {
    let client = stage.client().await?;
    let lock = client.mutex(NAME)?;
    Ok((client, lock))
}

/// Begins to wait for a lock that is held.
fn waits(lock: &Lock) -> Outcome<ByHand<impl Future<Output = Result<LockGuard, LockError>> + use<>>> {
    let lock = Arc::clone(lock);
    let mut waiting = ByHand::new(async move { lock.acquire().await });
    ensure!(waiting.poll().is_none(), "a lock that is held was granted");
    Ok(waiting)
}

/// Releases `held`, and returns what `waiting` gets in that moment.
async fn passed_on(
    held: LockGuard,
    mut waiting: ByHand<impl Future<Output = Result<LockGuard, LockError>>>,
) -> Outcome<LockGuard> {
    held.release().await?;
    let served = waiting.poll().ok_or_else(|| Failure::new("the lock was not passed on"))?;
    Ok(served?)
}

async fn served(
    stage: &Stage,
    what: &str,
    waiting: ByHand<impl Future<Output = Result<LockGuard, LockError>>>,
) -> Outcome<LockGuard> {
    Ok(stage.soon(what, waiting.finish()).await??)
}

fn token(guard: &LockGuard) -> Outcome<FencingToken> {
    guard.token().ok_or_else(|| Failure::new("an acquisition without a token"))
}

fn rise(tokens: &[FencingToken]) -> Outcome {
    ensure!(tokens.is_sorted_by(|one, next| one < next), "the tokens do not rise: {tokens:?}");
    Ok(())
}

async fn each_section_has_a_hold_and_a_token_of_its_own(stage: &Stage) -> Outcome {
    let (client, lock) = passing(stage, LONG).await?;
    let (theirs, _) = stranger(stage).await?;
    ensure!(client.capabilities().fairness != Fairness::Fifo, "the client declares first come, first served");
    let mut held = lock.acquire().await?;
    let mut tokens = vec![token(&held)?];
    for _ in 1..SECTIONS {
        let before = held.hold().clone();
        held = passed_on(held, waits(&lock)?).await?;
        ensure!(before.end() == Some(HoldEnd::Released), "the earlier section ended with {:?}", before.end());
        ensure!(held.hold().is_valid() && !before.is_valid(), "the wrong section is valid");
        stage.is_held(&theirs, NAME).await?;
        tokens.push(token(&held)?);
    }
    held.release().await?;
    stage.is_free(&theirs, NAME).await?;
    let after = theirs.mutex(NAME)?.acquire().await?;
    tokens.push(token(&after)?);
    after.release().await?;
    rise(&tokens)
}

async fn another_client_waits_for_no_more_sections_than_the_option_allows(stage: &Stage) -> Outcome {
    let (_ours, lock) = passing(stage, LONG).await?;
    let (observer, their_lock) = stranger(stage).await?;
    let mut tokens = Vec::new();
    // The second series is granted by a hand-off of the server.
    let mut held = lock.acquire().await?;
    for _ in 0..2 {
        tokens.push(token(&held)?);
        let mut theirs = waits(&their_lock)?;
        stage.queued(&observer, NAME, 1).await?;
        for _ in 1..SECTIONS {
            held = passed_on(held, waits(&lock)?).await?;
            ensure!(theirs.poll().is_none(), "another client was served within the series");
            tokens.push(token(&held)?);
        }
        let ours = waits(&lock)?;
        held.release().await?;
        let between = served(stage, "the turn of the other client", theirs).await?;
        tokens.push(token(&between)?);
        stage.queued(&observer, NAME, 1).await?;
        between.release().await?;
        held = served(stage, "our turn", ours).await?;
    }
    tokens.push(token(&held)?);
    held.release().await?;
    rise(&tokens)
}

async fn a_section_after_the_time_comes_from_the_server(stage: &Stage) -> Outcome {
    let time = Duration::from_millis(20);
    let (_ours, lock) = passing(stage, time).await?;
    let (observer, their_lock) = stranger(stage).await?;
    let held = lock.acquire().await?;
    let theirs = waits(&their_lock)?;
    stage.queued(&observer, NAME, 1).await?;
    tokio::time::sleep(time).await;
    let mut ours = waits(&lock)?;
    held.release().await?;
    let between = served(stage, "the turn of the other client", theirs).await?;
    ensure!(ours.poll().is_none(), "both were served");
    between.release().await?;
    Ok(served(stage, "our turn", ours).await?.release().await?)
}

/// Acquires and releases until it is told to stop, and writes down when.
async fn visits(lock: Lock, is_over: Arc<AtomicBool>, history: Arc<Mutex<Vec<Visit>>>) -> Outcome {
    while !is_over.load(Ordering::SeqCst) {
        visit(&history, stamp(), lock.acquire().await?).await?;
    }
    Ok(())
}

async fn visit(history: &Mutex<Vec<Visit>>, asked: u64, guard: LockGuard) -> Outcome {
    let acquired = stamp();
    tokio::time::sleep(INSIDE).await;
    let token = guard.token().map(FencingToken::get);
    history.lock().push(Visit { asked, acquired, ended: Some(stamp()), token });
    Ok(guard.release().await?)
}

fn check(histories: &[&Mutex<Vec<Visit>>]) -> Outcome {
    let mut visits = Vec::new();
    for (number, history) in histories.iter().enumerate() {
        let of_one = std::mem::take(&mut *history.lock());
        visits.extend(of_one.into_iter().map(|visit| (format!("client {number}"), visit)));
    }
    check_exclusion(NAME, &visits).map(drop)
}

/// From the moment at which the server has its request, no more sections begin before its own than a series has.
async fn another_client_waits_for_one_series_in_contention(stage: &Stage) -> Outcome {
    let (_ours, lock) = passing(stage, LONG).await?;
    let (observer, their_lock) = stranger(stage).await?;
    let (is_over, ours) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
    let tasks: Vec<_> = (0..4)
        .map(|_| tokio::spawn(visits(Arc::clone(&lock), Arc::clone(&is_over), Arc::clone(&ours))))
        .collect();
    let theirs = Mutex::new(Vec::new());
    let mut waits = Vec::new();
    for _ in 0..stage.rounds(20) {
        let asked = stamp();
        let mut waiting = ByHand::new(their_lock.acquire());
        let guard = if let Some(guard) = waiting.poll() {
            guard?
        } else {
            stage.queued(&observer, NAME, 1).await?;
            let queued = stamp();
            let guard = stage.soon("the turn of the other client", waiting.finish()).await??;
            waits.push((queued, stamp()));
            guard
        };
        visit(&theirs, asked, guard).await?;
    }
    is_over.store(true, Ordering::SeqCst);
    for task in tasks {
        stage.soon("the end of the tasks", task).await???;
    }
    for (queued, granted) in waits {
        let is_within = |visit: &&Visit| queued < visit.acquired && visit.acquired < granted;
        let sections = ours.lock().iter().filter(is_within).count();
        // The server had the request when the series had begun. Its first section may be written down later.
        ensure!(sections <= SECTIONS as usize, "{sections} sections began before another client's");
    }
    check(&[&ours, &theirs])
}

async fn tokens_rise_across_clients_in_contention(stage: &Stage) -> Outcome {
    let clients = [passing(stage, LONG).await?, passing(stage, LONG).await?, stranger(stage).await?];
    let histories: Vec<_> = clients.iter().map(|_| Arc::new(Mutex::new(Vec::new()))).collect();
    let rounds = stage.rounds(40);
    let mut tasks = Vec::new();
    for ((_, lock), history) in clients.iter().zip(&histories) {
        for _ in 0..3 {
            let (lock, history) = (Arc::clone(lock), Arc::clone(history));
            tasks.push(tokio::spawn(async move {
                for _ in 0..rounds {
                    visit(&history, stamp(), lock.acquire().await?).await?;
                }
                Outcome::Ok(())
            }));
        }
    }
    for task in tasks {
        task.await??;
    }
    let histories: Vec<_> = histories.iter().map(|history| &**history).collect();
    check(&histories)
}

async fn a_loss_reaches_the_section_that_stands(stage: &Stage) -> Outcome {
    let (_ours, lock) = passing(stage, LONG).await?;
    let (theirs, _) = stranger(stage).await?;
    let first = lock.acquire().await?;
    let ended = first.hold().clone();
    let second = passed_on(first, waits(&lock)?).await?;
    stage.harness().take_away(lock.name(), Removal::Deletion).await?;
    let reason = stage.loss(second.hold()).await?;
    ensure!(!second.hold().is_valid(), "valid after its loss");
    ensure!(ended.end() == Some(HoldEnd::Released), "the earlier section ended with {:?}", ended.end());
    let answer = second.release().await.map_err(|error| (error.kind(), error.loss()));
    ensure!(answer == Err((ErrorKind::Lost, Some(reason))), "the release was answered {answer:?}");
    stage.becomes_free(&theirs, NAME).await
}

async fn a_break_ends_the_section_that_stands(stage: &Stage) -> Outcome {
    let (_ours, lock) = passing(stage, LONG).await?;
    let (operator, _) = stranger(stage).await?;
    let first = lock.acquire().await?;
    let holder = stage.holder(&operator, NAME).await?;
    let second = passed_on(first, waits(&lock)?).await?;
    let broken = operator.break_holder(NAME, &holder.id).await?;
    ensure!(broken.taken_away, "breaking the holder was answered {broken:?}");
    let reason = stage.loss(second.hold()).await?;
    let expected = stage.harness().reason_of_a_break();
    ensure!(expected.is_none_or(|expected| reason == expected), "lost because {reason}");
    drop(second);
    stage.becomes_free(&operator, NAME).await
}

async fn readers_of_the_same_client_are_not_passed_over(stage: &Stage) -> Outcome {
    let (client, lock) = passing(stage, LONG).await?;
    let held = lock.acquire().await?;
    let reader = waits(&client.rw_lock(NAME)?.read())?;
    let mut writer = waits(&lock)?;
    held.release().await?;
    let shared = served(stage, "the reader's turn", reader).await?;
    ensure!(writer.poll().is_none(), "a writer was served beside a reader");
    shared.release().await?;
    Ok(served(stage, "the writer's turn", writer).await?.release().await?)
}

async fn a_section_that_reads_goes_on_as_a_reader(stage: &Stage) -> Outcome {
    let (client, lock) = passing(stage, LONG).await?;
    let (theirs, their_lock) = stranger(stage).await?;
    let both = client.rw_lock(NAME)?;
    let (read, write, owner) = (both.read(), both.write(), Owner::new());
    let first = lock.acquire().await?;
    let before = token(&first)?;
    let mut second = ByHand::new(write.acquire_as(owner, lock_core::Wait::Forever));
    ensure!(second.poll().is_none(), "a lock that is held was granted");
    first.release().await?;
    let second = second.poll().ok_or_else(|| Failure::new("the lock was not passed on"))??;
    let second = second.ok_or_else(|| Failure::new("a wait without an end has ended"))?;
    let between = token(&second)?;
    let reader = read.acquire_as(owner, lock_core::Wait::Forever).await?;
    let reader = reader.ok_or_else(|| Failure::new("the writer may not read"))?;
    second.release().await?;
    ensure!(their_lock.try_acquire().await?.is_none(), "a writer was granted beside a reader");
    let beside = stage.soon("another reader", theirs.rw_lock(NAME)?.read().acquire()).await??;
    beside.release().await?;
    let after = token(&reader)?;
    reader.release().await?;
    let last = stage.soon("the lock", their_lock.acquire()).await??;
    let tokens = [before, between, after, token(&last)?];
    last.release().await?;
    rise(&tokens)
}

async fn a_wait_that_is_dropped_when_the_lock_is_passed_to_it_leaves_nothing(stage: &Stage) -> Outcome {
    let (client, lock) = passing(stage, LONG).await?;
    let (theirs, _) = stranger(stage).await?;
    for has_another in [false, true] {
        let held = lock.acquire().await?;
        let dropped = waits(&lock)?;
        let another = has_another.then(|| waits(&lock)).transpose()?;
        held.release().await?;
        drop(dropped);
        if let Some(another) = another {
            served(stage, "the next task's turn", another).await?.release().await?;
        }
        stage.soon("the undoing", client.idle()).await?;
        stage.is_free(&theirs, NAME).await?;
    }
    Ok(())
}

/// Where a descriptor keeps the lock held, a child process may have it from the moment at which the program asks for it.
async fn a_lock_that_a_child_may_have_is_not_passed_on(stage: &Stage) -> Outcome {
    let (_ours, lock) = passing(stage, LONG).await?;
    let (observer, their_lock) = stranger(stage).await?;
    let first = lock.acquire().await?;
    let held = passed_on(first, waits(&lock)?).await?;
    if !has_descriptor(held.hold()) {
        return Ok(held.release().await?);
    }
    let ended = held.hold().clone();
    let theirs = waits(&their_lock)?;
    stage.queued(&observer, NAME, 1).await?;
    let mut ours = waits(&lock)?;
    held.release().await?;
    let between = served(stage, "the turn of the other client", theirs).await?;
    ensure!(ours.poll().is_none(), "both were served");
    between.release().await?;
    served(stage, "our turn", ours).await?.release().await?;
    ensure!(!has_descriptor(&ended), "a hold that has ended has the descriptor of the next");
    Ok(())
}

#[cfg(unix)]
fn has_descriptor(hold: &Hold) -> bool {
    hold.descriptor().is_some()
}

#[cfg(not(unix))]
fn has_descriptor(_: &Hold) -> bool {
    false
}

async fn more_sections_than_tokens_are_refused(stage: &Stage) -> Outcome {
    let client = stage.client().await?;
    let most = match client.capabilities().reserving {
        Reserving::AtMost(most) => most,
        _ => NonZeroU32::MIN,
    };
    let Some(more) = most.checked_add(1) else { return Ok(()) };
    let builder = stage.builder().local_handoff(more.get(), LONG);
    let kind = stage.client_with(builder).await.map(drop);
    let error = kind.err().ok_or_else(|| Failure::new(format!("{more} sections were allowed")))?;
    ensure!(error.to_string().contains("fencing tokens"), "the error does not say why: {error}");
    Ok(())
}
