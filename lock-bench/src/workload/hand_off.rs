//! Many clients want one lock: how long it takes from one to the next, and how evenly they get it.

mod crowd;

use std::collections::BTreeMap;
use std::time::Duration;

use super::echo::EchoTurns;
use super::{EchoRow, Grants, HandOffRow};
use crate::contender::{Contender, Family};
use crate::failure::Outcome;
use crate::plan::{Plan, Workload};
use crate::process;
use crate::progress::Progress;
use crate::runtimes::RuntimeKind;
use crate::subject::{Command, Subject, Survey};
use crowd::{Crowd, Seen};

/// All contenders in turns, on one runtime. The clients of a turn are made for it and closed after it.
pub(crate) async fn run(
    subject: &'static Subject,
    plan: Plan,
    runtime: RuntimeKind,
    progress: Progress,
) -> Outcome<(Vec<HandOffRow>, Vec<EchoRow>)> {
    let mut survey = (subject.survey)(plan.target.clone()).await?;
    let mut echoes = Vec::new();
    for echo in subject.echoes {
        echoes.push(EchoTurns::connect(echo, &plan.target).await);
    }
    let mut turns: Vec<Turns> = Vec::new();
    for contender in &plan.contenders {
        // One after the other, because they are compared with each other.
        turns.extend(plan.hand_off.clients.iter().map(|&clients| Turns::new(contender, clients)));
    }
    for round in 0..plan.rounds {
        for place in 0..turns.len() {
            let index = (place + round) % turns.len();
            if let Some(turn) = turns.get_mut(index) {
                progress.step(&format!(
                    "hand-off, {}, round {} of {}: {} clients, {}",
                    runtime.title(),
                    round + 1,
                    plan.rounds,
                    turn.clients,
                    turn.contender.id
                ));
                turn.turn(&plan, round, survey.as_mut()).await;
                turn.compare(&mut echoes, plan.hand_off.echo_turn).await;
            }
        }
    }
    let rows = turns.into_iter().map(|turn| turn.row(runtime)).collect();
    Ok((rows, echoes.into_iter().map(|echo| echo.row(Workload::HandOff, runtime)).collect()))
}

struct Turns {
    contender: &'static Contender,
    clients: usize,
    total: Seen,
    rounds: Vec<f64>,
    echo_rounds: BTreeMap<&'static str, Vec<f64>>,
    commands: Command,
    processor: Duration,
    fairness: Vec<Grants>,
    trouble: Option<String>,
}

impl Turns {
    fn new(contender: &'static Contender, clients: usize) -> Self {
        Self {
            contender,
            clients,
            total: Seen::default(),
            rounds: Vec::new(),
            echo_rounds: BTreeMap::new(),
            commands: Command::default(),
            processor: Duration::ZERO,
            fairness: Vec::new(),
            trouble: None,
        }
    }

    async fn turn(&mut self, plan: &Plan, round: usize, survey: &mut dyn Survey) {
        if self.trouble.is_none()
            && let Err(failure) = self.measure(plan, round, survey).await
        {
            self.trouble = Some(failure.to_string());
        }
    }

    /// Asks how far away the server is at this moment, where that is to be compared with.
    async fn compare(&mut self, echoes: &mut [EchoTurns], length: Duration) {
        if self.contender.family != Family::Distlock || self.trouble.is_some() {
            return;
        }
        for echo in echoes {
            let median = echo.turn(length).await;
            self.echo_rounds.entry(echo.id()).or_default().extend(median);
        }
    }

    async fn measure(&mut self, plan: &Plan, round: usize, survey: &mut dyn Survey) -> Outcome<()> {
        // A new name each time: what pollers leave behind must not be in the way.
        let name = format!("bench/hand-off/{}/{}/{round}/{:x}", self.contender.id, self.clients, unique());
        let crowd = Crowd::gather(self.contender, self.clients, &name, plan).await?;
        crowd.warm_up(plan.hand_off.warm_up).await;
        let (counters, processor) = (survey.counters().await?, process::processor_time());
        let measured = crowd.measure(plan.hand_off.turn_of(self.clients)).await;
        self.processor += process::processor_time().saturating_sub(processor);
        let done = survey.counters().await?.since(&counters).sent_by_clients(self.contender.own_commands);
        let seen = crowd.disperse(measured).await?;
        self.rounds.extend(seen.times.median());
        self.commands.calls += done.calls;
        self.commands.microseconds += done.microseconds;
        self.fairness.push(Grants(seen.grants.clone()));
        self.total.add(seen);
        Ok(())
    }

    fn row(self, runtime: RuntimeKind) -> HandOffRow {
        let Self { contender, clients, total, rounds, echo_rounds, commands, processor, fairness, trouble } =
            self;
        #[expect(clippy::cast_precision_loss, reason = "counts of seconds of work")]
        let per_section = |count: u64| (total.sections > 0).then(|| count as f64 / total.sections as f64);
        #[expect(clippy::cast_precision_loss, reason = "counts of seconds of work")]
        let sections_per_second = total.sections as f64 / total.length.as_secs_f64().max(f64::EPSILON);
        HandOffRow {
            contender: contender.id,
            runtime,
            clients,
            times: total.times.summary(),
            rounds,
            echo_rounds,
            sections: total.sections,
            sections_per_second,
            same_client_again: per_section(total.same_again).unwrap_or(0.0),
            longest_wait_ms: total.longest_wait.as_secs_f64() * 1000.0,
            client_commands_per_section: per_section(commands.calls),
            server_microseconds_per_section: per_section(commands.microseconds),
            client_processor_microseconds: per_section(
                u64::try_from(processor.as_micros()).unwrap_or(u64::MAX),
            ),
            fairness,
            trouble,
        }
    }
}

impl Seen {
    fn add(&mut self, turn: Self) {
        let Self { times, grants: _, sections, same_again, longest_wait, length } = turn;
        self.times.append(times);
        self.sections += sections;
        self.same_again += same_again;
        self.longest_wait = self.longest_wait.max(longest_wait);
        self.length += length;
    }
}

/// Different in each run too, as a server that is given may remember the last one.
fn unique() -> u128 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos())
}
