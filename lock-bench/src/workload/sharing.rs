//! The workload *sharing*: clients that read and write, or take permits, beside each other. It measures how often they get
//! what they want, and how evenly.

use std::future::poll_fn;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use distlock::status::Mode;
use tokio::task::JoinHandle;

use super::hand_off::{Runner, unique};
use super::{Grants, Shares, SharingRow, clients};
use crate::contender::{Client, Contender, Lock};
use crate::failure::{Context, Outcome};
use crate::plan::{HandOffTurn, Plan};
use crate::progress::Progress;
use crate::runtimes::RuntimeKind;
use crate::samples::Samples;

mod scenario;

pub(crate) use scenario::Scenario;

/// Runs all contenders that can share in turns, on one runtime. The clients of a turn are created for it and closed after it.
pub(crate) async fn run(plan: Plan, runtime: RuntimeKind, progress: Progress) -> Outcome<Vec<SharingRow>> {
    let mut turns = Vec::new();
    for contender in plan.contenders.iter().filter(|contender| contender.may_share()) {
        // If it cannot be had at all, the other workloads say so.
        let Ok(runner) = Runner::of(contender, &plan.target).await else { continue };
        for scenario in within_reach(&runner, &plan).await {
            turns.push(Turns::new(contender, scenario, runner.clone()));
        }
    }
    for round in 0..plan.rounds {
        for runner in 0..turns.len() {
            let index = (runner + round) % turns.len();
            if let Some(turn) = turns.get_mut(index) {
                progress.step(&format!(
                    "sharing, {}, round {} of {}: {}, {}",
                    runtime.title(),
                    round + 1,
                    plan.rounds,
                    turn.scenario.id,
                    turn.contender.id
                ));
                turn.turn(&plan, round).await;
            }
        }
    }
    Ok(turns.into_iter().map(|turn| turn.row(runtime)).collect())
}

/// The scenarios that the contender has the modes for; none if it can only exclude.
async fn within_reach(runner: &Runner, plan: &Plan) -> Vec<&'static Scenario> {
    let contender = match runner {
        Runner::Here(contender, _) | Runner::OneClient(contender, _) => contender,
        Runner::InAnotherProgram(_) => return Scenario::ALL.iter().collect(),
    };
    // If it cannot connect, its turns say so.
    let Ok(client) = contender.client(plan.target.clone()).await else { return Vec::new() };
    let can = |mode: Mode| matches!(client.share("bench-sharing-probe", mode), Ok(Some(_)));
    let reach: Vec<_> =
        Scenario::ALL.iter().filter(|scenario| scenario.modes().iter().copied().all(can)).collect();
    client.close().await;
    let shares = reach.iter().any(|scenario| scenario.modes().iter().any(|mode| *mode != Mode::Exclusive));
    if shares { reach } else { Vec::new() }
}

struct Turns {
    contender: &'static Contender,
    scenario: &'static Scenario,
    runner: Runner,
    seen: Seen,
    rounds: Vec<f64>,
    fairness: Vec<Grants>,
    trouble: Option<String>,
}

/// What the clients of a turn have had.
#[derive(Default)]
struct Seen {
    waits: Samples,
    sections: u64,
}

impl Turns {
    fn new(contender: &'static Contender, scenario: &'static Scenario, runner: Runner) -> Self {
        let (rounds, fairness) = (Vec::new(), Vec::new());
        Self { contender, scenario, runner, seen: Seen::default(), rounds, fairness, trouble: None }
    }

    async fn turn(&mut self, plan: &Plan, round: usize) {
        if self.trouble.is_some() {
            return;
        }
        if let Err(failure) = self.measure(plan, round).await {
            self.trouble = Some(failure.to_string());
        }
    }

    async fn measure(&mut self, plan: &Plan, round: usize) -> Outcome<()> {
        let count = self.scenario.clients_of(plan);
        let turn = plan.hand_off.turn_of(count);
        let name = format!("bench-sharing-{}-{}-{round}-{:x}", self.contender.id, self.scenario.id, unique());
        let Shares { waits, mut grants, length } = match &self.runner {
            Runner::Here(contender, target) | Runner::OneClient(contender, target) => {
                let clients = clients::connect(contender, count, target).await?;
                let measured = measure(&clients, self.scenario, &turn, &name).await;
                clients::close(clients).await;
                measured?
            }
            Runner::InAnotherProgram(program) => program.shares(&name, self.scenario, &turn).await?,
        };
        grants.sort_unstable();
        let sections: u64 = grants.iter().sum();
        #[expect(clippy::cast_precision_loss, reason = "a count of seconds of work")]
        self.rounds.push(sections as f64 / length.as_secs_f64());
        self.fairness.push(Grants(grants));
        self.seen.sections += sections;
        self.seen.waits.append(waits);
        Ok(())
    }

    fn row(self, runtime: RuntimeKind) -> SharingRow {
        SharingRow {
            contender: self.contender.id.to_owned(),
            runtime,
            scenario: self.scenario.id.to_owned(),
            clients: self.fairness.first().map_or(self.scenario.clients, |grants| grants.0.len()),
            waits: self.seen.waits.summary(),
            rounds: self.rounds,
            sections: self.seen.sections,
            fairness: self.fairness,
            trouble: self.trouble,
        }
    }
}

/// What the clients of a turn share.
#[derive(Default)]
struct Board {
    phase: AtomicU8,
    sections: AtomicU64,
}

const MEASURED: u8 = 1;
const ENDED: u8 = 2;

/// The records of one client, of the measured time: from each call of acquire until it has returned.
type ClientRecord = Samples;

const LOOK_EVERY: Duration = Duration::from_millis(1);
const FEW: u64 = 10;
const LONGER: Duration = Duration::from_secs(10);
/// How long the clients that still wait at the end may take to finish, one after the other.
const DRAIN: Duration = Duration::from_secs(10);

async fn measure(
    clients: &[Box<dyn Client>],
    scenario: &'static Scenario,
    turn: &HandOffTurn,
    name: &str,
) -> Outcome<Shares> {
    let board = Arc::new(Board::default());
    let mut tasks = Vec::new();
    for (index, client) in clients.iter().enumerate() {
        let locks: Outcome<Vec<_>> = scenario
            .modes()
            .iter()
            .map(|mode| client.share(name, *mode)?.context("it does not have this mode"))
            .collect();
        tasks.push(tokio::spawn(take_part(index, locks?, scenario, turn.hold, Arc::clone(&board))));
    }
    let give_up = Instant::now() + turn.warm_up;
    let enough = 2 * u64::try_from(clients.len()).unwrap_or(u64::MAX);
    while board.sections.load(Ordering::SeqCst) < enough && Instant::now() < give_up {
        tokio::time::sleep(LOOK_EVERY).await;
    }
    let (begun, before) = (Instant::now(), board.sections.load(Ordering::SeqCst));
    board.phase.store(MEASURED, Ordering::SeqCst);
    tokio::time::sleep(turn.length).await;
    // Longer if hardly anything has happened by then, because the machine hung.
    let give_up = Instant::now() + LONGER;
    while board.sections.load(Ordering::SeqCst) < before + FEW && Instant::now() < give_up {
        tokio::time::sleep(LOOK_EVERY).await;
    }
    board.phase.store(ENDED, Ordering::SeqCst);
    let length = begun.elapsed();
    let mut shares = Shares { length, ..Shares::default() };
    for record in records(tasks).await? {
        shares.grants.push(u64::try_from(record.len()).unwrap_or(u64::MAX));
        shares.waits.append(record);
    }
    Ok(shares)
}

/// Waits for the ends of the tasks.
///
/// # Errors
/// The error of the first client that failed.
async fn records(tasks: Vec<JoinHandle<Outcome<ClientRecord>>>) -> Outcome<Vec<ClientRecord>> {
    let give_up = tokio::time::Instant::now() + DRAIN;
    let mut ended = Vec::new();
    for mut task in tasks {
        match tokio::time::timeout_at(give_up, &mut task).await {
            Ok(record) => ended.push(record.context("a client").and_then(|record| record)),
            Err(late) => {
                task.abort();
                ended.push(Err(late).context("a client did not end"));
            }
        }
    }
    ended.into_iter().collect()
}

async fn take_part(
    index: usize,
    locks: Vec<Box<dyn Lock>>,
    scenario: &'static Scenario,
    hold: Duration,
    board: Arc<Board>,
) -> Outcome<ClientRecord> {
    let mut record = ClientRecord::default();
    let mut turn = Scenario::first_turn_of(index);
    while board.phase.load(Ordering::SeqCst) != ENDED {
        let lock = locks.get(scenario.lock_of(turn)).context("a lock of the scenario")?;
        turn += 1;
        let asked = Instant::now();
        let section = lock.acquire().await?;
        board.sections.fetch_add(1, Ordering::SeqCst);
        if board.phase.load(Ordering::SeqCst) == MEASURED {
            record.push(asked.elapsed());
        }
        if !hold.is_zero() {
            tokio::time::sleep(hold).await;
        }
        section.release().await?;
        // Where everything succeeds at once, nothing else has let the other tasks of the runtime run.
        let_others_run().await;
    }
    Ok(record)
}

/// Goes to the end of the runtime's queue. Tokio's `yield_now` does not: of the tasks that it defers the last one runs first, so that
/// some tasks would have fewer turns whatever the lock does.
async fn let_others_run() {
    let mut has_waited = false;
    poll_fn(|context| {
        if mem::replace(&mut has_waited, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
