//! Cases: fencing tokens rise from one holder to the next.

use crate::{Failure, Outcome, ensure};
use lock_core::FencingToken;

use super::exclusion::{check_history, histories, quit};
use crate::case::{Need, cases};
use crate::stage::Stage;

cases!("tokens":
    tokens_rise_across_many_acquisitions [Need::Tokens],
    tokens_rise_when_clients_come_and_go [Need::Tokens],
    every_way_in_gives_a_token [Need::Tokens],
);

const WORKERS: usize = 4;
const TIMES: u32 = 250;

async fn tokens_rise_across_many_acquisitions(stage: &Stage) -> Outcome {
    let mut workers = stage.workers(WORKERS).await?;
    for worker in &mut workers {
        worker.cycle("fenced", None, stage.rounds(TIMES))?;
    }
    let visits = histories(&mut workers).await?;
    let without = visits.iter().filter(|(_, visit)| visit.token.is_none()).count();
    ensure!(without == 0, "{without} of {} acquisitions have no token", visits.len());
    check_history("fenced", &visits, stage)?;
    quit(workers).await
}

/// Neither the last release of a lock nor the end of a client resets the tokens.
async fn tokens_rise_when_clients_come_and_go(stage: &Stage) -> Outcome {
    let mut highest = FencingToken::new(0);
    for round in 0..10 {
        let client = stage.client().await?;
        let guard = client.mutex("fenced")?.acquire().await?;
        let token = guard.token().ok_or_else(|| Failure::new("an acquisition without a token"))?;
        ensure!(round == 0 || token > highest, "the token {highest} was followed by {token}");
        highest = token;
        guard.release().await?;
        client.close(stage.patience()).await?;
    }
    Ok(())
}

async fn every_way_in_gives_a_token(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let lock = ours.mutex("fenced")?;
    let mut tokens = Vec::new();
    let guard = lock.acquire().await?;
    tokens.push(guard.token());
    let their_lock = theirs.mutex("fenced")?;
    let waiting = tokio::spawn(async move { their_lock.acquire().await });
    stage.queued(&ours, "fenced", 1).await?;
    guard.release().await?;
    let waited = waiting.await??;
    tokens.push(waited.token());
    waited.release().await?;
    let tried = lock.try_acquire().await?.ok_or_else(|| Failure::new("a free lock was refused"))?;
    tokens.push(tried.token());
    tried.release().await?;
    lock.lock().await?;
    tokens.push(lock.hold().and_then(|hold| hold.token()));
    lock.unlock().await?;
    let rising = tokens.is_sorted_by(|one, next| one < next) && tokens.iter().all(Option::is_some);
    ensure!(rising, "the tokens are {tokens:?}");
    Ok(())
}
