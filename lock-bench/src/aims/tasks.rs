//! The aims of many tasks of one client: the same for every server.

use super::finder::{middle_half, ratio};
use super::{Judged, Verdict};
use crate::contender::Contender;
use crate::runtimes::RuntimeKind;
use crate::samples::median_of;
use crate::subject::Subject;
use crate::workload::HandOffRow;

/// Contenders whose names end so pass a lock on without the server, the others do not.
const HANDING_OVER: &str = "-local";

const FEW: usize = 64;
const BESIDE: usize = 100;

struct Measured {
    aim: &'static str,
    unit: &'static str,
    value: Option<f64>,
    at_most: Option<f64>,
    range: Option<(f64, f64)>,
    detail: String,
}

/// Judges what all contenders have measured, on each runtime.
pub(super) fn judge(subject: &Subject, rows: &[HandOffRow]) -> Vec<Judged> {
    let mut judged = Vec::new();
    for contender in subject.tasks {
        for runtime in RuntimeKind::ALL {
            let mine: Vec<_> = rows.iter().filter(|row| row.runtime == runtime).collect();
            judged.extend(values(subject, contender, &mine).into_iter().map(|value| Judged {
                aim: value.aim,
                contender: contender.id,
                runtime: Some(runtime),
                value: value.value,
                at_most: value.at_most,
                unit: value.unit,
                verdict: Verdict::of(value.value, value.at_most),
                range: value.range,
                detail: value.detail,
            }));
        }
    }
    judged
}

fn values(subject: &Subject, contender: &Contender, rows: &[&HandOffRow]) -> Vec<Measured> {
    let find =
        |id: &str, tasks: usize| rows.iter().copied().find(|row| row.contender == id && row.clients == tasks);
    let Some(row) = find(contender.id, FEW) else { return Vec::new() };
    let plain = contender.id.strip_suffix(HANDING_OVER);
    // There is no server to ask.
    let is_local = plain.is_some() || subject.echoes.is_empty();
    let measured = row.sections > 0;
    let detail = row.trouble.clone().unwrap_or_else(|| format!("{} sections", row.sections));
    let mut values = vec![
        Measured {
            aim: "hand-off, 64 tasks of one client",
            unit: "µs",
            value: median_of(&row.rounds),
            at_most: is_local.then_some(5.0),
            range: middle_half(&row.rounds),
            detail: detail.clone(),
        },
        Measured {
            aim: "sections in a second, 64 tasks of one client",
            unit: "/ s",
            value: measured.then_some(row.sections_per_second),
            at_most: None,
            range: None,
            detail: detail.clone(),
        },
    ];
    if let Some(commands) = row.client_commands_per_section {
        values.push(Measured {
            aim: "commands for a section, 64 tasks of one client",
            unit: "",
            // A heartbeat among thousands of sections is not a command for one.
            value: Some((commands * 10.0).round() / 10.0),
            at_most: plain.is_none().then_some(2.0),
            range: None,
            detail,
        });
    }
    if let Some(without) = plain.and_then(|plain| find(plain, FEW)) {
        let both = measured && without.sections > 0;
        values.push(Measured {
            aim: "sections without local_handoff for one with it, 64 tasks",
            unit: "×",
            value: both.then(|| without.sections_per_second / row.sections_per_second),
            at_most: (!subject.echoes.is_empty()).then_some(1.0 / 30.0),
            range: None,
            detail: format!("{:.0} / s, {:.0} / s", without.sections_per_second, row.sections_per_second),
        });
    }
    let most = rows.iter().filter(|row| row.contender == contender.id).max_by_key(|row| row.clients);
    if let (Some(most), Some(beside)) = (most, find(contender.id, BESIDE)) {
        let found = ratio(&most.rounds, &beside.rounds);
        values.push(Measured {
            aim: "hand-off with the most tasks of one client beside 100",
            unit: "×",
            value: found.as_ref().map(|found| found.value),
            at_most: Some(2.0),
            range: found.as_ref().and_then(|found| middle_half(&found.rounds)),
            detail: found
                .map_or_else(String::new, |found| format!("{} tasks: {}", most.clients, found.detail)),
        });
    }
    values
}
