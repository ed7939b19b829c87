//! One client acquires and releases, and nobody else wants the lock.

use std::time::Instant;

use super::echo::EchoTurns;
use super::{CycleRow, EchoRow};
use crate::contender::{Client, Contender, Lock, Target};
use crate::failure::Outcome;
use crate::plan::{CyclePlan, Plan, Workload};
use crate::process;
use crate::progress::Progress;
use crate::runtimes::RuntimeKind;
use crate::samples::Samples;
use crate::subject::{Command, Subject, Survey};

/// All contenders in turns, on one runtime.
pub(crate) async fn run(
    subject: &'static Subject,
    plan: Plan,
    runtime: RuntimeKind,
    progress: Progress,
) -> Outcome<(Vec<CycleRow>, Vec<EchoRow>)> {
    let mut survey = (subject.survey)(plan.target.clone()).await?;
    let mut echoes = Vec::new();
    for echo in subject.echoes {
        echoes.push(EchoTurns::connect(echo, &plan.target).await);
    }
    let mut turns = Vec::new();
    for contender in &plan.contenders {
        turns.push(Turns::connect(contender, &plan.target).await);
    }
    for round in 0..plan.rounds {
        progress.step(&format!("cycle, {}, round {} of {}", runtime.title(), round + 1, plan.rounds));
        for turn in 0..plan.cycle.turns_per_round {
            for echo in &mut echoes {
                echo.turn(plan.cycle.echo_turn).await;
            }
            for place in 0..turns.len() {
                // Each time another one is the first, so that none always follows the same.
                let index = (place + round + turn) % turns.len();
                if let Some(turns) = turns.get_mut(index) {
                    turns.turn(&plan.cycle, survey.as_mut()).await;
                }
            }
        }
    }
    let mut rows = Vec::new();
    for turn in turns {
        rows.push(turn.finish(runtime).await);
    }
    Ok((rows, echoes.into_iter().map(|echo| echo.row(Workload::Cycle, runtime)).collect()))
}

struct Turns {
    contender: &'static Contender,
    connected: Outcome<(Box<dyn Client>, Box<dyn Lock>)>,
    found: Found,
}

#[derive(Default)]
struct Found {
    times: Times,
    rounds: Vec<f64>,
    commands: Command,
    processor_seconds: f64,
}

#[derive(Default)]
struct Times {
    acquire: Samples,
    release: Samples,
    cycle: Samples,
}

impl Turns {
    async fn connect(contender: &'static Contender, target: &Target) -> Self {
        let connected = (contender.connect)(target.clone()).await.and_then(|client| {
            let lock = client.lock(&format!("bench/cycle/{}", contender.id))?;
            Ok((client, lock))
        });
        Self { contender, connected, found: Found::default() }
    }

    async fn turn(&mut self, plan: &CyclePlan, survey: &mut dyn Survey) {
        let Ok((_, lock)) = &self.connected else { return };
        if let Err(failure) = self.found.turn(self.contender, lock.as_ref(), plan, survey).await {
            self.connected = Err(failure);
        }
    }

    async fn finish(self, runtime: RuntimeKind) -> CycleRow {
        let trouble = match self.connected {
            Ok((client, lock)) => {
                drop(lock);
                client.close().await;
                None
            }
            Err(failure) => Some(failure.to_string()),
        };
        let Found { times, rounds, commands, processor_seconds } = self.found;
        #[expect(clippy::cast_precision_loss, reason = "counts of seconds of work")]
        let per_cycle = |total: f64| (times.cycle.len() > 0).then(|| total / times.cycle.len() as f64);
        #[expect(clippy::cast_precision_loss, reason = "counts of seconds of work")]
        let (calls, microseconds) = (commands.calls as f64, commands.microseconds as f64);
        CycleRow {
            contender: self.contender.id,
            runtime,
            cycle: times.cycle.summary(),
            acquire: times.acquire.summary(),
            release: times.release.summary(),
            rounds,
            client_commands_per_cycle: per_cycle(calls),
            server_microseconds_per_cycle: per_cycle(microseconds),
            client_processor_microseconds: per_cycle(processor_seconds * 1e6),
            trouble,
        }
    }
}

impl Found {
    async fn turn(
        &mut self,
        contender: &Contender,
        lock: &dyn Lock,
        plan: &CyclePlan,
        survey: &mut dyn Survey,
    ) -> Outcome<()> {
        for _ in 0..plan.warm_up {
            lock.acquire().await?.release().await?;
        }
        let (counters, processor) = (survey.counters().await?, process::processor_time());
        let times = turn(lock, plan).await?;
        self.processor_seconds += (process::processor_time().saturating_sub(processor)).as_secs_f64();
        let done = survey.counters().await?.since(&counters).sent_by_clients(contender.own_commands);
        self.commands.calls += done.calls;
        self.commands.microseconds += done.microseconds;
        self.rounds.extend(times.cycle.median());
        self.times.acquire.append(times.acquire);
        self.times.release.append(times.release);
        self.times.cycle.append(times.cycle);
        Ok(())
    }
}

async fn turn(lock: &dyn Lock, plan: &CyclePlan) -> Outcome<Times> {
    let mut times = Times::default();
    let end = Instant::now() + plan.turn;
    loop {
        let begun = Instant::now();
        if times.cycle.len() >= plan.most || (begun > end && times.cycle.len() > 0) {
            return Ok(times);
        }
        let held = lock.acquire().await?;
        let acquired = Instant::now();
        held.release().await?;
        let released = Instant::now();
        times.acquire.push(acquired - begun);
        times.release.push(released - acquired);
        times.cycle.push(released - begun);
    }
}
