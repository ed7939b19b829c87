//! Counts the requests of each contender by kind, in separate turns, because counting takes time.

use std::collections::BTreeMap;
use std::time::Duration;

use super::RequestsRow;
use super::cycle;
use super::hand_off::{self, Runner};
use crate::contender::{Contender, Target};
use crate::failure::{Context, Outcome};
use crate::plan::{CyclePlan, HandOffTurn, Plan, Workload};
use crate::progress::Progress;
use crate::subject::{RequestCounter, ServerMonitor, Subject};

const CYCLES: usize = 50;
/// Nothing is timed, so a short turn of hand-offs is as good as a long one.
const LONGEST: Duration = Duration::from_millis(500);
/// After these cycles the directories exist.
const CYCLES_BEFORE: usize = 5;

/// Runs one contender after the other. Does nothing if the server itself distinguishes requests.
pub(crate) async fn run(
    subject: &'static Subject,
    plan: Plan,
    progress: Progress,
) -> Outcome<Vec<RequestsRow>> {
    let Some(request_counter) = subject.request_counter else { return Ok(Vec::new()) };
    let mut monitor = (subject.monitor)(plan.target.clone()).await?;
    let mut rows = Vec::new();
    for contender in &plan.contenders {
        for (workload, clients) in turns(contender, &plan) {
            progress.step(&format!("requests, {clients} clients, {}", contender.id));
            let request_counter = request_counter(&plan.target)?;
            let target = Target { url: request_counter.url(), ..plan.target.clone() };
            let counting = Counting { contender, target: &target, request_counter: request_counter.as_ref() };
            let counted = match workload {
                Workload::Cycle => counting.cycles(&plan.cycle).await,
                _ => counting.hand_offs(clients, &plan, monitor.as_mut()).await,
            };
            rows.push(row(contender, workload, clients, counted));
        }
    }
    Ok(rows)
}

fn turns(contender: &Contender, plan: &Plan) -> Vec<(Workload, usize)> {
    let mut turns = Vec::new();
    if plan.workloads.contains(&Workload::Cycle) {
        turns.push((Workload::Cycle, 1));
    }
    if plan.workloads.contains(&Workload::HandOff) && contender.waits.hands_on() {
        turns.extend(plan.hand_off.clients.iter().map(|&clients| (Workload::HandOff, clients)));
    }
    turns
}

/// The number of sections, and the requests that were made for all of them.
type Counted = (u64, BTreeMap<String, u64>);

pub(super) fn difference(
    now: BTreeMap<String, u64>,
    before: &BTreeMap<String, u64>,
) -> BTreeMap<String, u64> {
    let since = |(kind, count): (String, u64)| {
        let earlier = before.get(&kind).copied().unwrap_or(0);
        (kind, count.saturating_sub(earlier))
    };
    now.into_iter().map(since).collect()
}

struct Counting<'a> {
    contender: &'static Contender,
    target: &'a Target,
    request_counter: &'a dyn RequestCounter,
}

impl Counting<'_> {
    async fn cycles(&self, plan: &CyclePlan) -> Outcome<Counted> {
        let client = cycle::Client::connect(self.contender, self.target).await?;
        client.warm_up(&CyclePlan { warm_up: CYCLES_BEFORE, ..plan.clone() }).await?;
        let before = self.request_counter.requests();
        let turn = CyclePlan { most: CYCLES, turn: Duration::from_secs(60), ..plan.clone() };
        let cycles = client.turn(&turn).await?;
        let requests = difference(self.request_counter.requests(), &before);
        client.close().await;
        Ok((u64::try_from(cycles.cycle.len()).unwrap_or(u64::MAX), requests))
    }

    /// Counts from the first to the last request of the clients, so that each request belongs to a section.
    async fn hand_offs(
        &self,
        clients: usize,
        plan: &Plan,
        monitor: &mut dyn ServerMonitor,
    ) -> Outcome<Counted> {
        let runner = Runner::of(self.contender, self.target).await?;
        let name = format!("bench-requests-{}-{clients}-{:x}", self.contender.id, hand_off::unique());
        let before = self.request_counter.requests();
        let turn = plan.hand_off.turn_of(clients);
        let turn = HandOffTurn { length: turn.length.min(LONGEST), ..turn };
        let (seen, _) = hand_off::take_turn(&runner, &turn, &name, monitor).await?;
        let requests = difference(self.request_counter.requests(), &before);
        Ok((seen.all_sections, requests))
    }
}

fn row(
    contender: &'static Contender,
    workload: Workload,
    clients: usize,
    counted: Outcome<Counted>,
) -> RequestsRow {
    let counted = counted.and_then(|(sections, requests)| {
        (sections > 0).then_some((sections, requests)).context("no section came to its end")
    });
    let (sections, requests, trouble) = match counted {
        Ok((sections, requests)) => (sections, requests, None),
        Err(failure) => (0, BTreeMap::new(), Some(failure.to_string())),
    };
    #[expect(clippy::cast_precision_loss, reason = "counts of seconds of work")]
    let per_section = |(kind, count): (String, u64)| (kind, count as f64 / sections as f64);
    let per_section = requests.into_iter().filter(|(_, count)| *count > 0).map(per_section).collect();
    RequestsRow { contender: contender.id.to_owned(), workload, clients, sections, per_section, trouble }
}
