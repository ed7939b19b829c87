//! The workload *many*: one client holds very many locks. It measures what a hold costs while nothing happens.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::child::Worker;
use super::clients;
use super::counted::Counted;
use super::worker::{BEGIN, END, Holding, Prepared, RELEASE, Released, Used, Work};
use super::{Load, ManyRow};
use crate::contender::{Client, Contender, Family, Renewal};
use crate::failure::{Failure, Outcome};
use crate::plan::{Peers, Plan};
use crate::progress::Progress;
use crate::subject::{Counters, ServerMonitor, Subject};

pub(super) const NAME_PREFIX: &str = "bench-many-";

/// How long there must be no requests before the server counts as quiet.
const QUIET_FOR: Duration = Duration::from_millis(250);
/// Clients that poll never become quiet.
const QUIET_WITHIN: Duration = Duration::from_secs(5);

/// The number of acquisitions at the same time.
const AT_ONCE: usize = 64;

/// Runs one contender after the other. Contenders that do not renew are left out.
pub(crate) async fn run(subject: &'static Subject, plan: Plan, progress: Progress) -> Outcome<Vec<ManyRow>> {
    let mut monitor = Counted::start(subject, &plan.target).await?;
    let mut rows = Vec::new();
    for contender in plan.contenders.iter().filter(|contender| takes_part(contender, plan.many.peers)) {
        progress.step(&format!("many: {} holds, {}", plan.many.holds, contender.id));
        rows.push(measure(subject, &plan, contender, &mut monitor).await.unwrap_or_else(|failure| ManyRow {
            trouble: Some(failure.to_string()),
            ..empty(contender, plan.many.holds)
        }));
    }
    Ok(rows)
}

fn takes_part(contender: &Contender, peers: Peers) -> bool {
    contender.renewal == Renewal::Automatic
        && contender.lives_here()
        && (contender.family == Family::Distlock || peers == Peers::Included)
}

fn empty(contender: &Contender, holds: usize) -> ManyRow {
    ManyRow {
        contender: contender.id.to_owned(),
        holds,
        acquire_seconds: 0.0,
        bytes_per_hold: None,
        commands_per_interval: 0.0,
        connections: 0,
        load: Load::default(),
        trouble: None,
    }
}

async fn measure(
    subject: &'static Subject,
    plan: &Plan,
    contender: &'static Contender,
    monitor: &mut Counted,
) -> Outcome<ManyRow> {
    let holds = plan.many.holds;
    let connections = clients::settled_connections(monitor).await?;
    let mut worker = Worker::start(subject.id, contender, Work::Many, holds, monitor.target())?;
    let prepared: Prepared = worker.hear().await?;
    until_quiet(contender, holds, monitor).await?;
    let (load, counters) = observe(&mut worker, contender, monitor, plan.many.window).await?;
    worker.say(RELEASE).await?;
    let released: Released = worker.hear().await?;
    worker.end().await;
    #[expect(
        clippy::cast_precision_loss,
        reason = "a size of memory, of which no digit matters that a float loses"
    )]
    let bytes_per_hold = prepared.growth.map(|bytes| bytes as f64 / holds as f64);
    Ok(ManyRow {
        acquire_seconds: prepared.seconds,
        bytes_per_hold,
        commands_per_interval: renewing(&load) * plan.target.renewal_interval().as_secs_f64(),
        connections: counters.connections.saturating_sub(connections),
        load,
        trouble: released
            .first_failure
            .map(|first| format!("{} holds were lost, the first: {first}", released.failures)),
        ..empty(contender, holds)
    })
}

/// Returns what is sent in a second, without the heartbeats of the connection itself.
fn renewing(load: &Load) -> f64 {
    let pings = load.commands_per_second.iter().filter(|(kind, _)| kind == "ping").map(|(_, rate)| rate);
    (load.client_commands_per_second - pings.sum::<f64>()).max(0.0)
}

/// Waits until hardly any requests reach the server: by then all `count` holds or waiters are in place.
pub(super) async fn until_quiet(
    contender: &Contender,
    count: usize,
    monitor: &mut dyn ServerMonitor,
) -> Outcome<()> {
    let give_up = Instant::now() + QUIET_WITHIN;
    let few = u64::try_from(count / 10).unwrap_or(0).max(2);
    let mut before = monitor.counters().await?;
    while Instant::now() < give_up {
        tokio::time::sleep(QUIET_FOR).await;
        let now = monitor.counters().await?;
        if now.since(&before).sent_by_clients(contender.own_commands).calls <= few {
            return Ok(());
        }
        before = now;
    }
    Ok(())
}

/// Observes client and server during a `window` without user requests.
pub(super) async fn observe(
    worker: &mut Worker,
    contender: &Contender,
    monitor: &mut dyn ServerMonitor,
    window: Duration,
) -> Outcome<(Load, Counters)> {
    let before = monitor.counters().await?;
    worker.say(BEGIN).await?;
    worker.hear::<()>().await?;
    tokio::time::sleep(window).await;
    worker.say(END).await?;
    let used: Used = worker.hear().await?;
    let counters = monitor.counters().await?;
    let done = counters.since(&before);
    #[expect(clippy::cast_precision_loss, reason = "counts of seconds of work")]
    let per_second = |count: u64| count as f64 / used.seconds;
    let mut commands: Vec<_> =
        done.commands.iter().map(|(name, command)| (name.clone(), per_second(command.calls))).collect();
    commands.sort_by(|one, other| other.1.total_cmp(&one.1));
    let load = Load {
        seconds: used.seconds,
        client_commands_per_second: per_second(done.sent_by_clients(contender.own_commands).calls),
        commands_per_second: commands,
        client_processor_percent: used.processor_seconds / used.seconds * 100.0,
        server_processor_percent: done.processor_seconds / used.seconds * 100.0,
    };
    Ok((load, counters))
}

/// In the process of the clients: acquires `count` locks with different names.
pub(super) async fn hold(client: &dyn Client, count: usize) -> Outcome<Vec<Holding>> {
    let mut holds = Vec::with_capacity(count);
    let mut acquiring = JoinSet::new();
    for number in 0..count {
        if acquiring.len() >= AT_ONCE {
            holds.extend(clients::next(&mut acquiring).await?);
        }
        let lock = client.lock(&format!("{NAME_PREFIX}{number}"))?;
        acquiring.spawn(async move {
            let held = lock.acquire().await?;
            Ok::<Holding, Failure>((lock, held))
        });
    }
    while !acquiring.is_empty() {
        holds.extend(clients::next(&mut acquiring).await?);
    }
    Ok(holds)
}
