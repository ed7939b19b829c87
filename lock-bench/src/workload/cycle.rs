//! The workload *cycle*: one client acquires and releases a lock that no other client wants.

use std::sync::Arc;
use std::time::Instant;

use super::echo::EchoTurns;
use super::{CycleRow, Cycles, EchoRow};
use crate::contender::{self, Connect, Contender, Lock, Program, Target};
use crate::failure::Outcome;
use crate::plan::{CyclePlan, Plan, Workload};
use crate::process;
use crate::progress::Progress;
use crate::runtimes::RuntimeKind;
use crate::subject::{ServerMonitor, Subject};

/// Runs all contenders in turns, on one runtime.
pub(crate) async fn run(
    subject: &'static Subject,
    plan: Plan,
    runtime: RuntimeKind,
    progress: Progress,
) -> Outcome<(Vec<CycleRow>, Vec<EchoRow>)> {
    let mut monitor = (subject.monitor)(plan.target.clone()).await?;
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
                // Each time another contender is first, so that none always follows the same one.
                let index = (place + round + turn) % turns.len();
                if let Some(turns) = turns.get_mut(index) {
                    turns.turn(&plan.cycle, monitor.as_mut()).await;
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
    connected: Outcome<Client>,
    found: Found,
}

#[derive(Default)]
struct Found {
    cycles: Cycles,
    rounds: Vec<f64>,
    calls: u64,
    server_microseconds: f64,
}

impl Turns {
    async fn connect(contender: &'static Contender, target: &Target) -> Self {
        let connected = Client::connect(contender, target).await;
        Self { contender, connected, found: Found::default() }
    }

    async fn turn(&mut self, plan: &CyclePlan, monitor: &mut dyn ServerMonitor) {
        let Ok(client) = &self.connected else { return };
        if let Err(failure) = self.found.turn(self.contender, client, plan, monitor).await {
            self.connected = Err(failure);
        }
    }

    async fn finish(self, runtime: RuntimeKind) -> CycleRow {
        let trouble = match self.connected {
            Ok(client) => {
                client.close().await;
                None
            }
            Err(failure) => Some(failure.to_string()),
        };
        let Found { cycles, rounds, calls, server_microseconds } = self.found;
        #[expect(clippy::cast_precision_loss, reason = "counts of seconds of work")]
        let per_cycle = |total: f64| (cycles.cycle.len() > 0).then(|| total / cycles.cycle.len() as f64);
        #[expect(clippy::cast_precision_loss, reason = "counts of seconds of work")]
        let calls = (calls > 0).then_some(calls as f64);
        CycleRow {
            contender: self.contender.id.to_owned(),
            runtime,
            cycle: cycles.cycle.summary(),
            acquire: cycles.acquire.summary(),
            release: cycles.release.summary(),
            rounds,
            client_commands_per_cycle: calls.and_then(per_cycle),
            server_microseconds_per_cycle: per_cycle(server_microseconds),
            client_processor_microseconds: per_cycle(cycles.processor.as_secs_f64() * 1e6),
            trouble,
        }
    }
}

impl Found {
    async fn turn(
        &mut self,
        contender: &Contender,
        client: &Client,
        plan: &CyclePlan,
        monitor: &mut dyn ServerMonitor,
    ) -> Outcome<()> {
        client.warm_up(plan).await?;
        let counters = monitor.counters().await?;
        let turn = client.turn(plan).await?;
        let done = monitor.counters().await?.since(&counters);
        self.calls += done.sent_by_clients(contender.own_commands).calls;
        self.server_microseconds += done.microseconds(contender.own_commands);
        self.rounds.extend(turn.cycle.median());
        self.cycles.add(turn);
        Ok(())
    }
}

/// The single client of a contender, and its lock.
pub(super) enum Client {
    Here { client: Box<dyn contender::Client>, lock: Box<dyn Lock> },
    InAnotherProgram { program: Arc<dyn Program>, name: String },
}

impl Client {
    pub(super) async fn connect(contender: &'static Contender, target: &Target) -> Outcome<Self> {
        let name = format!("bench-cycle-{}", contender.id);
        if let Connect::InAnotherProgram(start, _) = contender.connect {
            return Ok(Self::InAnotherProgram { program: start(target.clone()).await?, name });
        }
        let client = contender.client(target.clone()).await?;
        let lock = client.lock(&name)?;
        Ok(Self::Here { client, lock })
    }

    pub(super) async fn warm_up(&self, plan: &CyclePlan) -> Outcome<()> {
        match self {
            Self::Here { client: _, lock } => {
                for _ in 0..plan.warm_up {
                    lock.acquire().await?.release().await?;
                }
                Ok(())
            }
            Self::InAnotherProgram { program, name } => {
                program.cycles(name, &CyclePlan { most: 0, ..plan.clone() }).await.map(drop)
            }
        }
    }

    /// Runs a turn without a warm-up.
    pub(super) async fn turn(&self, plan: &CyclePlan) -> Outcome<Cycles> {
        match self {
            Self::Here { client: _, lock } => turn(lock.as_ref(), plan).await,
            Self::InAnotherProgram { program, name } => {
                program.cycles(name, &CyclePlan { warm_up: 0, ..plan.clone() }).await
            }
        }
    }

    pub(super) async fn close(self) {
        if let Self::Here { client, lock } = self {
            drop(lock);
            client.close().await;
        }
    }
}

async fn turn(lock: &dyn Lock, plan: &CyclePlan) -> Outcome<Cycles> {
    let mut cycles = Cycles::default();
    let processor = process::processor_time();
    let end = Instant::now() + plan.turn;
    loop {
        let begun = Instant::now();
        if cycles.cycle.len() >= plan.most || (begun > end && cycles.cycle.len() > 0) {
            cycles.processor = process::processor_time().saturating_sub(processor);
            return Ok(cycles);
        }
        let held = lock.acquire().await?;
        let acquired = Instant::now();
        held.release().await?;
        let released = Instant::now();
        cycles.acquire.push(acquired - begun);
        cycles.release.push(released - acquired);
        cycles.cycle.push(released - begun);
    }
}
