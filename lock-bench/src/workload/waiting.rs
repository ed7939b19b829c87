//! The workload *waiting*: very many clients wait for one lock that is always held. It measures what a waiter costs.

use super::child::Worker;
use super::clients;
use super::counted::Counted;
use super::many::{observe, until_quiet};
use super::worker::{Prepared, RELEASE, Released, Waiters, Work};
use super::{Load, WaitingRow};
use crate::contender::{Contender, Driving, Family, Target, Waits};
use crate::failure::Outcome;
use crate::plan::{Peers, Plan};
use crate::progress::Progress;
use crate::subject::{Counters, ServerMonitor as _, Subject};

const NAME: &str = "bench-waiting";

/// Runs one contender after the other.
pub(crate) async fn run(
    subject: &'static Subject,
    plan: Plan,
    progress: Progress,
) -> Outcome<Vec<WaitingRow>> {
    let mut monitor = Counted::start(subject, &plan.target).await?;
    let before = monitor.counters().await?;
    let mut rows = Vec::new();
    let mut contenders = plan.contenders.clone();
    contenders.retain(|contender| takes_part(contender, plan.waiting.peers));
    // A server keeps memory that it has used, so the contenders that need the least come first.
    contenders.sort_by_key(|contender| contender.family != Family::Raw);
    for contender in contenders {
        progress.step(&format!("waiting: {} waiters, {}", plan.waiting.waiters, contender.id));
        let measured = measure(subject, &plan, contender, &mut monitor, &before).await;
        rows.push(measured.unwrap_or_else(|failure| WaitingRow {
            trouble: Some(failure.to_string()),
            ..empty(contender, plan.waiting.waiters)
        }));
    }
    Ok(rows)
}

/// Returns whether a contender takes part. Contenders that do not wait by themselves do not, because this program
/// decides how often they ask. Raw statements that wait cost the same on each thread, so one of them is enough.
fn takes_part(contender: &Contender, peers: Peers) -> bool {
    match contender.family {
        Family::Distlock => true,
        Family::Raw if contender.driving != Driving::Caller => false,
        Family::Peer | Family::Raw => {
            peers == Peers::Included && contender.waits == Waits::ByItself && contender.lives_here()
        }
    }
}

fn empty(contender: &Contender, waiters: usize) -> WaitingRow {
    WaitingRow {
        contender: contender.id.to_owned(),
        waiters,
        connections: 0,
        commands_per_waiter_and_interval: 0.0,
        server_bytes_per_waiter: None,
        load: Load::default(),
        trouble: None,
    }
}

async fn measure(
    subject: &'static Subject,
    plan: &Plan,
    contender: &'static Contender,
    monitor: &mut Counted,
    before: &Counters,
) -> Outcome<WaitingRow> {
    let waiters = plan.waiting.waiters;
    clients::until_gone(monitor, before.connections).await?;
    let connections = clients::settled_connections(monitor).await?;
    let holder = contender.client(plan.target.clone()).await?;
    let lock = holder.lock(&name(contender))?;
    let held = lock.acquire().await?;
    let mut worker = Worker::start(subject.id, contender, Work::Waiting, waiters, monitor.target())?;
    let _: Prepared = worker.hear().await?;
    until_quiet(contender, waiters, monitor).await?;
    if contender.family == Family::Distlock {
        tokio::time::sleep(plan.waiting.settling).await;
    }
    let window = match contender.family {
        Family::Distlock => plan.waiting.window,
        // Their load is always the same.
        Family::Peer | Family::Raw => plan.target.renewal_interval().min(plan.waiting.window),
    };
    let (load, counters) = observe(&mut worker, contender, monitor, window).await?;
    worker.say(RELEASE).await?;
    let released: Released = worker.hear().await?;
    worker.end().await;
    // The waiters are gone, and this is not measured.
    let _ = held.release().await;
    drop(lock);
    holder.close().await;
    let interval = plan.target.renewal_interval().as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "a count of clients")]
    let per_waiter = load.client_commands_per_second * interval / waiters as f64;
    let growth =
        counters.resident_bytes.zip(before.resident_bytes).map(|(now, before)| now.saturating_sub(before));
    #[expect(
        clippy::cast_precision_loss,
        reason = "a size of memory, of which no digit matters that a float loses"
    )]
    let server_bytes_per_waiter = growth.map(|bytes| bytes as f64 / waiters as f64);
    Ok(WaitingRow {
        // The holder has a connection too.
        connections: counters.connections.saturating_sub(connections + 1),
        commands_per_waiter_and_interval: per_waiter,
        server_bytes_per_waiter,
        load,
        trouble: released
            .first_failure
            .map(|first| format!("{} waiters failed, the first: {first}", released.failures)),
        ..empty(contender, waiters)
    })
}

fn name(contender: &Contender) -> String {
    format!("{NAME}-{}", contender.id)
}

/// In the process of the clients: each has a connection of its own and waits for the same lock.
pub(super) async fn wait(contender: &'static Contender, count: usize, target: &Target) -> Outcome<Waiters> {
    let clients = clients::connect(contender, count, target).await?;
    let locks: Outcome<Vec<_>> = clients.iter().map(|client| client.lock(&name(contender))).collect();
    let acquire = |lock: Box<dyn crate::contender::Lock>| {
        tokio::spawn(async move { lock.acquire().await?.release().await })
    };
    Ok(Waiters { _clients: clients, tasks: locks?.into_iter().map(acquire).collect() })
}
