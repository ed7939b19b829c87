//! The workload *hand-off*: many clients contend for one lock. It measures how long the lock takes from one to the
//! next, and how evenly they get it.

mod crowd;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::echo::EchoTurns;
use super::{EchoRow, Grants, HandOffRow, HandOffs};
use crate::contender::{Connect, Contender, Family, Program, Target};
use crate::failure::Outcome;
use crate::plan::{HandOffTurn, Plan, Workload};
use crate::progress::Progress;
use crate::runtimes::RuntimeKind;
use crate::subject::{Counters, ServerMonitor, Subject};
use crowd::Crowd;

/// Runs all contenders in turns, on one runtime. The clients of a turn are created for it and closed after it.
pub(crate) async fn run(
    subject: &'static Subject,
    plan: Plan,
    runtime: RuntimeKind,
    progress: Progress,
) -> Outcome<(Vec<HandOffRow>, Vec<EchoRow>)> {
    let mut turns: Vec<Turns> = Vec::new();
    for contender in plan.contenders.iter().filter(|contender| contender.waits.hands_on()) {
        let runner = Runner::of(contender, &plan.target).await;
        // One after the other, because they are compared with each other.
        turns.extend(plan.hand_off.clients.iter().map(|&clients| Turns::new(contender, clients, &runner)));
    }
    take_turns("hand-off", turns, subject, &plan, runtime, &progress).await
}

/// Takes all turns in every round.
pub(super) async fn take_turns(
    what: &str,
    mut turns: Vec<Turns>,
    subject: &'static Subject,
    plan: &Plan,
    runtime: RuntimeKind,
    progress: &Progress,
) -> Outcome<(Vec<HandOffRow>, Vec<EchoRow>)> {
    let mut monitor = (subject.monitor)(plan.target.clone()).await?;
    let mut echoes = Vec::new();
    for echo in subject.echoes {
        echoes.push(EchoTurns::connect(echo, &plan.target).await);
    }
    for round in 0..plan.rounds {
        for runner in 0..turns.len() {
            let index = (runner + round) % turns.len();
            if let Some(turn) = turns.get_mut(index) {
                progress.step(&format!(
                    "{what}, {}, round {} of {}: {}, {}",
                    runtime.title(),
                    round + 1,
                    plan.rounds,
                    turn.clients,
                    turn.contender.id
                ));
                turn.turn(plan, round, monitor.as_mut()).await;
                turn.compare(&mut echoes, plan.hand_off.echo_turn).await;
            }
        }
    }
    let rows = turns.into_iter().map(|turn| turn.row(runtime)).collect();
    Ok((rows, echoes.into_iter().map(|echo| echo.row(Workload::HandOff, runtime)).collect()))
}

pub(super) struct Turns {
    contender: &'static Contender,
    clients: usize,
    runner: Outcome<Runner>,
    total: HandOffs,
    rounds: Vec<f64>,
    echo_rounds: BTreeMap<String, Vec<f64>>,
    calls: u64,
    server_microseconds: f64,
    fairness: Vec<Grants>,
}

/// Where the clients of a contender are created.
#[derive(Clone)]
pub(super) enum Runner {
    Here(&'static Contender, Target),
    /// Here, and all of them are tasks of one client.
    OneClient(&'static Contender, Target),
    InAnotherProgram(Arc<dyn Program>),
}

impl Runner {
    pub(super) async fn of(contender: &'static Contender, target: &Target) -> Outcome<Self> {
        match contender.connect {
            Connect::Here(_) => Ok(Self::Here(contender, target.clone())),
            Connect::InAnotherProgram(start, _) => start(target.clone()).await.map(Self::InAnotherProgram),
        }
    }
}

/// What the server did during a turn, if that is known.
type Done = Option<Counters>;

/// Creates clients, lets them hand on the lock `name`, and ends them.
pub(super) async fn take_turn(
    runner: &Runner,
    turn: &HandOffTurn,
    name: &str,
    monitor: &mut dyn ServerMonitor,
) -> Outcome<(HandOffs, Done)> {
    match runner {
        Runner::Here(contender, target) => {
            measure(Crowd::gather(contender, turn, name, target).await?, turn, monitor).await
        }
        Runner::OneClient(contender, target) => {
            measure(Crowd::of_one_client(contender, turn, name, target).await?, turn, monitor).await
        }
        // Only the program knows when its turn begins.
        Runner::InAnotherProgram(program) => Ok((program.hand_offs(name, turn).await?, None)),
    }
}

async fn measure(
    crowd: Crowd,
    turn: &HandOffTurn,
    monitor: &mut dyn ServerMonitor,
) -> Outcome<(HandOffs, Done)> {
    crowd.warm_up(turn.warm_up).await;
    let counters = monitor.counters().await?;
    let measured = crowd.measure(turn.length).await;
    let done = monitor.counters().await?.since(&counters);
    Ok((crowd.disperse(measured).await?, Some(done)))
}

impl Turns {
    pub(super) fn new(contender: &'static Contender, clients: usize, runner: &Outcome<Runner>) -> Self {
        Self {
            contender,
            clients,
            runner: runner.clone(),
            total: HandOffs::default(),
            rounds: Vec::new(),
            echo_rounds: BTreeMap::new(),
            calls: 0,
            server_microseconds: 0.0,
            fairness: Vec::new(),
        }
    }

    async fn turn(&mut self, plan: &Plan, round: usize, monitor: &mut dyn ServerMonitor) {
        let Ok(runner) = self.runner.clone() else { return };
        if let Err(failure) = self.measure(&runner, plan, round, monitor).await {
            self.runner = Err(failure);
        }
    }

    /// Measures the distance to the server at this moment, for contenders that are compared with it.
    async fn compare(&mut self, echoes: &mut [EchoTurns], length: Duration) {
        if self.contender.family != Family::Distlock || self.runner.is_err() {
            return;
        }
        for echo in echoes {
            let median = echo.turn(length).await;
            self.echo_rounds.entry(echo.id().to_owned()).or_default().extend(median);
        }
    }

    async fn measure(
        &mut self,
        runner: &Runner,
        plan: &Plan,
        round: usize,
        monitor: &mut dyn ServerMonitor,
    ) -> Outcome<()> {
        // A new name each time, so that remains of pollers do not disturb.
        let name = format!("bench-hand-off-{}-{}-{round}-{:x}", self.contender.id, self.clients, unique());
        let turn = match runner {
            Runner::OneClient(..) => plan.hand_off.turn_of_tasks(self.clients),
            Runner::Here(..) | Runner::InAnotherProgram(_) => plan.hand_off.turn_of(self.clients),
        };
        let (seen, done) = take_turn(runner, &turn, &name, monitor).await?;
        if let Some(done) = done {
            self.calls += done.sent_by_clients(self.contender.own_commands).calls;
            self.server_microseconds += done.microseconds(self.contender.own_commands);
        }
        self.rounds.extend(seen.times.median());
        self.fairness.push(Grants(seen.grants.clone()));
        self.total.add(seen);
        Ok(())
    }

    fn row(self, runtime: RuntimeKind) -> HandOffRow {
        let total = self.total;
        #[expect(clippy::cast_precision_loss, reason = "a count of seconds of work")]
        let sections = total.sections as f64;
        let per_section = |count: f64| (total.sections > 0).then(|| count / sections);
        #[expect(clippy::cast_precision_loss, reason = "counts of seconds of work")]
        let (same_again, calls) = (total.same_again as f64, self.calls as f64);
        // Nothing was counted, so there is nothing to report.
        let if_counted = |count: f64| Some(count).filter(|&count| count > 0.0).and_then(per_section);
        HandOffRow {
            contender: self.contender.id.to_owned(),
            runtime,
            clients: self.clients,
            times: total.times.summary(),
            rounds: self.rounds,
            echo_rounds: self.echo_rounds,
            sections: total.sections,
            sections_per_second: sections / total.length.as_secs_f64().max(f64::EPSILON),
            same_client_again: per_section(same_again).unwrap_or(0.0),
            longest_wait_ms: total.longest_wait.as_secs_f64() * 1000.0,
            client_commands_per_section: if_counted(calls),
            server_microseconds_per_section: if_counted(self.server_microseconds),
            client_processor_microseconds: per_section(total.processor.as_secs_f64() * 1e6),
            fairness: self.fairness,
            trouble: self.runner.err().map(|failure| failure.to_string()),
        }
    }
}

/// Differs between runs too, because a server that the user runs may remember the last name.
pub(super) fn unique() -> u128 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos())
}
