//! Runs a workload: in every round each contender has a short turn in each scenario, with clients that are made for it.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use tokio::task::JoinSet;

use crate::contender::{Client, Contender, Driving, Family, Target};
use crate::crowd;
use crate::failure::{Context, Outcome};
use crate::plan::{Lengths, Plan, Workload};
use crate::runtimes::RuntimeKind;
use crate::samples::{Samples, Summary};
use crate::scenario::Scenario;
use crate::server_time::server_time;

/// The measurements of one turn.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    /// Of a cycle, a hand-off, or an acquisition, as the workload says.
    pub(crate) times: Samples,
    pub(crate) acquire: Samples,
    pub(crate) release: Samples,
    /// Of each client, fewest first.
    pub(crate) grants: Vec<u64>,
    /// How often the lock went to the client that had just released it.
    pub(crate) same_again: u64,
    pub(crate) longest_wait: Duration,
    pub(crate) length: Duration,
    /// How many sections there were, with those before it.
    pub(crate) sections: u32,
    /// How much processor time a section took the server, in microseconds.
    pub(crate) server: Option<f64>,
}

/// All turns of a contender in a scenario, for the report. Times are in microseconds.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Row {
    pub(crate) workload: Workload,
    pub(crate) scenario: String,
    pub(crate) contender: String,
    pub(crate) family: Family,
    pub(crate) driving: Option<Driving>,
    /// `None` for what needs none.
    pub(crate) runtime: Option<RuntimeKind>,
    pub(crate) clients: usize,
    pub(crate) times: Option<Summary>,
    pub(crate) acquire: Option<Summary>,
    pub(crate) release: Option<Summary>,
    /// The median of each turn.
    pub(crate) rounds: Vec<f64>,
    /// The sections per second of each turn.
    pub(crate) rates: Vec<f64>,
    /// The processor time of the server for a section, of each turn.
    pub(crate) server: Vec<f64>,
    /// The grants of each client in each turn, fewest first.
    pub(crate) grants: Vec<Vec<u64>>,
    pub(crate) same_client_again: u64,
    pub(crate) longest_wait_ms: f64,
    pub(crate) trouble: Option<String>,
}

/// Runs all contenders in turns, on one runtime.
pub(crate) async fn run(plan: Plan, workload: Workload, runtime: RuntimeKind) -> Outcome<Vec<Row>> {
    let mut all = Vec::new();
    for (contender, scenario) in plan.turns(workload) {
        if workload != Workload::Sharing || has_modes(&contender, &scenario, &plan.target).await {
            all.push(Turns::new(contender, scenario));
        }
    }
    let in_a_round = if workload == Workload::Cycle { plan.lengths.cycles_in_a_round } else { 1 };
    for round in 0..plan.rounds * in_a_round {
        for place in 0..all.len() {
            // Each time another contender is first, so that none always follows the same one.
            let index = (place + round) % all.len();
            if let Some(turns) = all.get_mut(index) {
                turns.turn(&plan).await;
            }
        }
    }
    Ok(all.into_iter().map(|turns| turns.row(runtime)).collect())
}

/// Whether its clients have the modes of the scenario. If it cannot connect, the other workloads say so.
async fn has_modes(contender: &Contender, scenario: &Scenario, target: &Target) -> bool {
    let Ok(client) = (contender.connect)(target.clone()).await else { return false };
    let has = |mode: &_| matches!(client.share("bench-probe", *mode), Ok(Some(_)));
    let has_all = scenario.modes.iter().all(has);
    client.close().await;
    has_all
}

struct Turns {
    contender: Contender,
    scenario: Scenario,
    total: Turn,
    rounds: Vec<f64>,
    rates: Vec<f64>,
    server: Vec<f64>,
    grants: Vec<Vec<u64>>,
    trouble: Option<String>,
}

impl Turns {
    fn new(contender: Contender, scenario: Scenario) -> Self {
        let (rounds, rates, server, grants) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { contender, scenario, total: Turn::default(), rounds, rates, server, grants, trouble: None }
    }

    async fn turn(&mut self, plan: &Plan) {
        if self.trouble.is_some() {
            return;
        }
        match turn(&self.contender, &self.scenario, plan).await {
            Ok(turn) => self.add(turn),
            Err(failure) => self.trouble = Some(failure.to_string()),
        }
    }

    fn add(&mut self, turn: Turn) {
        let Turn { times, acquire, release, grants, same_again, longest_wait, length, server, .. } = turn;
        let sections: u64 = grants.iter().sum();
        #[expect(clippy::cast_precision_loss, reason = "a count of seconds of work")]
        self.rates.push(sections as f64 / length.as_secs_f64().max(f64::EPSILON));
        self.rounds.extend(times.median());
        self.server.extend(server);
        self.grants.push(grants);
        self.total.times.append(times);
        self.total.acquire.append(acquire);
        self.total.release.append(release);
        self.total.same_again += same_again;
        self.total.longest_wait = self.total.longest_wait.max(longest_wait);
    }

    fn row(self, runtime: RuntimeKind) -> Row {
        Row {
            workload: self.scenario.workload,
            scenario: self.scenario.id,
            contender: self.contender.id.to_owned(),
            family: self.contender.family,
            driving: Some(self.contender.driving),
            runtime: Some(runtime),
            clients: self.scenario.clients,
            times: self.total.times.summary(),
            acquire: self.total.acquire.summary(),
            release: self.total.release.summary(),
            rounds: self.rounds,
            rates: self.rates,
            server: self.server,
            grants: self.grants,
            same_client_again: self.total.same_again,
            longest_wait_ms: self.total.longest_wait.as_secs_f64() * 1000.0,
            trouble: self.trouble,
        }
    }
}

async fn turn(contender: &Contender, scenario: &Scenario, plan: &Plan) -> Outcome<Turn> {
    let count = if scenario.workload == Workload::Tasks { 1 } else { scenario.clients };
    let clients = connect(contender, count, &plan.target).await?;
    // A new name each time, so that what is left of an earlier turn does not disturb, nor of an earlier run.
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let name = format!("bench-{:x}", since.as_nanos());
    let is_alone = scenario.workload == Workload::Cycle || contender.family == Family::Echo;
    let before = server_time();
    let mut measured = match clients.first() {
        Some(client) if is_alone => cycles(client.as_ref(), &name, &plan.lengths).await,
        _ => crowd::measure(&clients, scenario, &plan.lengths, &name).await,
    };
    if let (Ok(turn), Some(before), Some(after)) = (&mut measured, before, server_time()) {
        let each = after.saturating_sub(before) / turn.sections.max(1);
        turn.server = Some(each.as_secs_f64() * 1e6);
    }
    let mut closing: JoinSet<()> = clients.into_iter().map(Client::close).collect();
    while closing.join_next().await.is_some() {}
    measured
}

/// The number of clients that connect at the same time.
const AT_ONCE: usize = 32;

async fn connect(contender: &Contender, count: usize, target: &Target) -> Outcome<Vec<Box<dyn Client>>> {
    let mut clients = Vec::with_capacity(count);
    let mut connecting = JoinSet::new();
    for begun in 0..count + AT_ONCE {
        if begun >= AT_ONCE
            && let Some(connected) = connecting.join_next().await
        {
            clients.push(connected.context("a task")??);
        }
        if begun < count {
            connecting.spawn((contender.connect)(target.clone()));
        }
    }
    Ok(clients)
}

/// One client acquires and releases a lock that no other client wants.
async fn cycles(client: &dyn Client, name: &str, lengths: &Lengths) -> Outcome<Turn> {
    let lock = client.lock(name)?;
    for _ in 0..lengths.cycles_before {
        lock.acquire().await?.release().await?;
    }
    let mut turn = Turn::default();
    let begun = Instant::now();
    loop {
        let asked = Instant::now();
        if asked - begun > lengths.cycle && turn.times.len() > 0 {
            turn.length = asked - begun;
            let sections = turn.times.len();
            turn.grants = vec![u64::try_from(sections).unwrap_or(u64::MAX)];
            turn.sections = u32::try_from(sections + lengths.cycles_before).unwrap_or(u32::MAX);
            return Ok(turn);
        }
        let held = lock.acquire().await?;
        let acquired = Instant::now();
        held.release().await?;
        let released = Instant::now();
        turn.acquire.push(acquired - asked);
        turn.release.push(released - acquired);
        turn.times.push(released - asked);
    }
}
