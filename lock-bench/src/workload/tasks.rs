//! The workload *tasks*: many tasks of one client contend for one lock. It measures how long the lock takes from one to the
//! next, and how many requests that needs.

use super::HandOffRow;
use super::hand_off::{Runner, Turns, take_turns};
use crate::failure::Outcome;
use crate::plan::Plan;
use crate::progress::Progress;
use crate::runtimes::RuntimeKind;
use crate::subject::Subject;

/// Runs all contenders in turns, on one runtime. The client of a turn is created for it and closed after it.
pub(crate) async fn run(
    subject: &'static Subject,
    plan: Plan,
    runtime: RuntimeKind,
    progress: Progress,
) -> Outcome<Vec<HandOffRow>> {
    let mut turns = Vec::new();
    for contender in &plan.tasks.contenders {
        let runner = Ok(Runner::OneClient(contender, plan.target.clone()));
        turns.extend(plan.tasks.tasks.iter().map(|&tasks| Turns::new(contender, tasks, &runner)));
    }
    if turns.is_empty() {
        return Ok(Vec::new());
    }
    let (rows, _) = take_turns("tasks", turns, subject, &plan, runtime, &progress).await?;
    Ok(rows)
}
