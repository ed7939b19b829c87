//! The aim of the command distlock.

use super::finder::{middle_half, ratio};
use super::{Judged, Verdict};
use crate::workload::ExecRow;
use crate::workload::exec::{DISTLOCK, FLOCK};

const AT_MOST: f64 = 1.5;

/// Judges the command beside flock, if they were run.
pub(super) fn judge(rows: &[ExecRow]) -> Option<Judged> {
    let find = |command: &str| rows.iter().find(|row| row.command == command);
    let (ours, flock) = (find(DISTLOCK)?, find(FLOCK)?);
    let found = ratio(&ours.rounds, &flock.rounds);
    let value = found.as_ref().map(|found| found.value);
    Some(Judged {
        aim: "exec beside flock around true",
        contender: DISTLOCK,
        runtime: None,
        value,
        at_most: Some(AT_MOST),
        unit: "×",
        verdict: Verdict::of(value, Some(AT_MOST)),
        range: found.as_ref().and_then(|found| middle_half(&found.rounds)),
        detail: found.map_or_else(String::new, |found| found.detail),
    })
}
