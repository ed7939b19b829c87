//! Reports the results: tables as text, JSON for programs, and a page with plots.

mod plot;

use std::fmt::Write as _;

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use crate::aims::{Judged, Verdict};
use crate::failure::Outcome;
use crate::plan::Workload;
use crate::runtimes::RuntimeKind;
use crate::samples::median_of;
use crate::turns::Row;

/// Increases when readers of the JSON have to change.
pub(crate) const FORMAT: u32 = 2;

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Report {
    pub(crate) format: u32,
    pub(crate) version: &'static str,
    pub(crate) subject: &'static str,
    /// Only host and port: a URL may contain a secret.
    pub(crate) address: String,
    pub(crate) begun: String,
    pub(crate) seconds: f64,
    pub(crate) processors: usize,
    /// Of the last minute, before the run: other programs.
    pub(crate) load_average: Option<f64>,
    pub(crate) lease_ms: u128,
    pub(crate) rounds: usize,
    /// Short names, and what they are.
    pub(crate) contenders: Vec<(&'static str, &'static str)>,
    pub(crate) aims: Vec<Judged>,
    pub(crate) rows: Vec<Row>,
}

const NOTHING: &str = "–";

impl Report {
    /// What distlock could not do, if anything.
    pub(crate) fn troubles(&self) -> Vec<String> {
        let ours = self.rows.iter().filter(|row| row.family == crate::contender::Family::Distlock);
        ours.filter_map(trouble).collect()
    }

    pub(crate) fn text(&self) -> String {
        let mut text = format!(
            "lock-bench {}: {} at {}, {}, {:.0} s\n{} processors, load average {} before; lease {} ms; {} rounds\n",
            self.version,
            self.subject,
            self.address,
            self.begun,
            self.seconds,
            self.processors,
            optional(self.load_average),
            self.lease_ms,
            self.rounds,
        );
        for (id, title) in &self.contenders {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "  {id}: {title}");
        }
        for workload in Workload::ALL {
            let rows: Vec<_> = self.rows.iter().filter(|row| row.workload == workload).collect();
            if !rows.is_empty() {
                let _ = write!(text, "\n{}\n{}\n", title(workload), times(&rows));
            }
        }
        if !self.aims.is_empty() {
            let _ = write!(text, "\nAims\n{}\n", aims(&self.aims));
        }
        let troubles: Vec<_> = self.rows.iter().filter_map(trouble).collect();
        if !troubles.is_empty() {
            let _ = write!(text, "\nNot measured\n  {}\n", troubles.join("\n  "));
        }
        text
    }

    /// A page that needs no other file.
    pub(crate) fn html(&self) -> Outcome<String> {
        let mut plots = String::new();
        for workload in Workload::ALL {
            for runtime in RuntimeKind::ALL.map(Some).into_iter().chain([None]) {
                let rows = self.rows.iter().filter(|row| row.workload == workload && row.runtime == runtime);
                let runtime = runtime.map_or_else(String::new, |kind| format!(", {}", kind.title()));
                plots.push_str(&plot::svg(
                    &format!("{}{runtime}", title(workload)),
                    &rows.collect::<Vec<_>>(),
                )?);
            }
        }
        let text = self.text().replace('&', "&amp;").replace('<', "&lt;");
        Ok(format!(
            "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>lock-bench: {}</title>\n\
             <style>body {{ font-family: sans-serif }} svg {{ display: block; margin: 1em 0 }}</style>\n\
             <h1>{}</h1>\n<p>Each line goes from the least time to the 99th percentile; the dot is the median, the ring the \
             90th percentile.</p>\n{plots}<pre>{text}</pre></html>\n",
            self.subject, self.subject
        ))
    }
}

fn title(workload: Workload) -> &'static str {
    match workload {
        Workload::Cycle => "Cycle: acquire and release, one client (µs)",
        Workload::HandOff => "Hand-off: from the call of release to the next acquisition's return (µs)",
        Workload::Sharing => "Sharing: from the call of acquire to its return (µs)",
        Workload::Tasks => {
            "Tasks of one client: from the call of release to the next acquisition's return (µs)"
        }
        Workload::Exec => "Exec: a program that does nothing, from the start of the command to its end (µs)",
    }
}

fn trouble(row: &Row) -> Option<String> {
    row.trouble.as_ref().map(|trouble| format!("{}, {}: {trouble}", row.contender, row.scenario))
}

fn times(rows: &[&Row]) -> Table {
    let header = [
        "scenario",
        "contender",
        "runtime",
        "clients",
        "median",
        "p90",
        "p99",
        "p99.9",
        "acquire",
        "release",
        "sections/s",
        "server",
        "most/fewest",
        "same again",
        "longest wait ms",
    ];
    let lines = rows.iter().map(|row| {
        let at = |time: fn(&crate::samples::Summary) -> f64| optional(row.times.as_ref().map(time));
        let last = row.grants.last().filter(|grants| grants.len() > 1);
        let last = last.and_then(|grants| grants.first().zip(grants.last()));
        let is_shared = row.grants.iter().any(|grants| grants.len() > 1);
        let only_if = |text: String| if is_shared { text } else { NOTHING.to_owned() };
        vec![
            row.scenario.clone(),
            row.contender.clone(),
            row.runtime.map_or(NOTHING, RuntimeKind::title).to_owned(),
            row.clients.to_string(),
            at(|times| times.p50),
            at(|times| times.p90),
            at(|times| times.p99),
            at(|times| times.p999),
            optional(row.acquire.as_ref().map(|times| times.p50)),
            optional(row.release.as_ref().map(|times| times.p50)),
            optional(median_of(&row.rates)),
            optional(median_of(&row.server)),
            last.map_or_else(|| NOTHING.to_owned(), |(fewest, most)| format!("{most}/{fewest}")),
            only_if(row.same_client_again.to_string()),
            only_if(number(row.longest_wait_ms)),
        ]
    });
    table(&header, 3, lines)
}

fn aims(aims: &[Judged]) -> Table {
    let header = ["aim", "contender", "runtime", "value", "middle half", "at most", "verdict"];
    let lines = aims.iter().map(|judged| {
        let range = judged.range.map(|(least, most)| format!("{}–{}", number(least), number(most)));
        let with_unit = |value: Option<f64>| {
            value.map_or_else(|| NOTHING.to_owned(), |value| format!("{} {}", number(value), judged.unit))
        };
        let verdict = match judged.verdict {
            Verdict::Met => "met",
            Verdict::Missed => "MISSED",
            Verdict::Told => "told",
            Verdict::Unknown => "not measured",
        };
        vec![
            judged.aim.to_owned(),
            judged.contender.clone(),
            judged.runtime.map_or(NOTHING, RuntimeKind::title).to_owned(),
            with_unit(judged.value),
            range.unwrap_or_default(),
            with_unit(judged.at_most),
            verdict.to_owned(),
        ]
    });
    table(&header, 3, lines)
}

/// The first columns have words, the others numbers.
fn table(header: &[&str], words: usize, lines: impl Iterator<Item = Vec<String>>) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN).set_header(header).add_rows(lines);
    for column in table.column_iter_mut().skip(words) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// Three significant digits, and always all digits before the decimal point.
fn number(value: f64) -> String {
    match value.abs() {
        size if size.is_infinite() => "∞".to_owned(),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

fn optional(value: Option<f64>) -> String {
    value.map_or_else(|| NOTHING.to_owned(), number)
}
