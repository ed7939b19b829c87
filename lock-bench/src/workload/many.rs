//! One client holds very many locks: what a hold costs while nothing happens.

use tokio::task::JoinSet;

use super::child::Worker;
use super::clients;
use super::worker::{BEGIN, END, Holding, Prepared, RELEASE, Released, Used, Work};
use super::{Load, ManyRow};
use crate::contender::{Client, Contender, Family, Renewal};
use crate::failure::{Failure, Outcome};
use crate::plan::{Peers, Plan};
use crate::progress::Progress;
use crate::subject::{Counters, Subject, Survey};

pub(super) const NAME_PREFIX: &str = "bench/many/";

/// Acquisitions under way at the same time.
const AT_ONCE: usize = 64;

/// One contender after the other. Who does not renew has nothing to show here.
pub(crate) async fn run(subject: &'static Subject, plan: Plan, progress: Progress) -> Outcome<Vec<ManyRow>> {
    let mut survey = (subject.survey)(plan.target.clone()).await?;
    let mut rows = Vec::new();
    for contender in plan.contenders.iter().filter(|contender| takes_part(contender, plan.many.peers)) {
        progress.step(&format!("many: {} holds, {}", plan.many.holds, contender.id));
        rows.push(measure(subject, &plan, contender, survey.as_mut()).await.unwrap_or_else(|failure| {
            ManyRow { trouble: Some(failure.to_string()), ..empty(contender, plan.many.holds) }
        }));
    }
    Ok(rows)
}

fn takes_part(contender: &Contender, peers: Peers) -> bool {
    contender.renewal == Renewal::Automatic
        && (contender.family == Family::Distlock || peers == Peers::Included)
}

fn empty(contender: &Contender, holds: usize) -> ManyRow {
    ManyRow {
        contender: contender.id,
        holds,
        acquire_seconds: 0.0,
        bytes_per_hold: None,
        connections: 0,
        load: Load::default(),
        trouble: None,
    }
}

async fn measure(
    subject: &'static Subject,
    plan: &Plan,
    contender: &'static Contender,
    survey: &mut dyn Survey,
) -> Outcome<ManyRow> {
    let holds = plan.many.holds;
    let connections = clients::settled_connections(survey).await?;
    let mut worker = Worker::start(subject.id, contender, Work::Many, holds, &plan.target)?;
    let prepared: Prepared = worker.hear().await?;
    let (load, counters) = observe(&mut worker, contender, survey, plan.many.window).await?;
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
        connections: counters.connections.saturating_sub(connections),
        load,
        trouble: released
            .first_failure
            .map(|first| format!("{} holds were lost, the first: {first}", released.failures)),
        ..empty(contender, holds)
    })
}

/// What client and server do in a `window` in which nobody asks them for anything.
pub(super) async fn observe(
    worker: &mut Worker,
    contender: &Contender,
    survey: &mut dyn Survey,
    window: std::time::Duration,
) -> Outcome<(Load, Counters)> {
    let before = survey.counters().await?;
    worker.say(BEGIN).await?;
    worker.hear::<()>().await?;
    tokio::time::sleep(window).await;
    worker.say(END).await?;
    let used: Used = worker.hear().await?;
    let counters = survey.counters().await?;
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

/// In the process of the clients: acquires as many locks of different names as are wanted.
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
