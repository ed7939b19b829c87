//! Creates and ends many clients at once.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::contender::{Client, Contender, Target};
use crate::failure::{Context, Outcome};
use crate::subject::ServerMonitor;

/// The number of clients that connect at the same time.
const AT_ONCE: usize = 32;

pub(super) async fn connect(
    contender: &'static Contender,
    count: usize,
    target: &Target,
) -> Outcome<Vec<Box<dyn Client>>> {
    let mut clients = Vec::with_capacity(count);
    let mut connecting = JoinSet::new();
    for _ in 0..count {
        if connecting.len() >= AT_ONCE {
            clients.extend(next(&mut connecting).await?);
        }
        connecting.spawn(contender.client(target.clone()));
    }
    while !connecting.is_empty() {
        clients.extend(next(&mut connecting).await?);
    }
    Ok(clients)
}

pub(super) async fn close(clients: Vec<Box<dyn Client>>) {
    let mut closing: JoinSet<()> = clients.into_iter().map(Client::close).collect();
    while closing.join_next().await.is_some() {}
}

/// Returns the result of the next task.
pub(super) async fn next<T: 'static>(tasks: &mut JoinSet<Outcome<T>>) -> Outcome<Option<T>> {
    match tasks.join_next().await {
        Some(ended) => ended.context("a task")?.map(Some),
        None => Ok(None),
    }
}

const GONE_WITHIN: Duration = Duration::from_secs(30);

/// Waits until the connections of the previous clients have ended, so that the server has no more than `left`; gives up
/// after some time.
pub(super) async fn until_gone(monitor: &mut dyn ServerMonitor, left: u64) -> Outcome<()> {
    let give_up = Instant::now() + GONE_WITHIN;
    while monitor.counters().await?.connections > left && Instant::now() < give_up {
        tokio::time::sleep(SETTLED_FOR).await;
    }
    Ok(())
}

const SETTLED_FOR: Duration = Duration::from_millis(200);
const SETTLED_WITHIN: Duration = Duration::from_secs(5);

/// Returns how many connections the server has after those of previous clients have ended.
pub(super) async fn settled_connections(monitor: &mut dyn ServerMonitor) -> Outcome<u64> {
    let give_up = Instant::now() + SETTLED_WITHIN;
    let mut before = monitor.counters().await?.connections;
    loop {
        tokio::time::sleep(SETTLED_FOR).await;
        let now = monitor.counters().await?.connections;
        if now >= before || Instant::now() > give_up {
            return Ok(now);
        }
        before = now;
    }
}
