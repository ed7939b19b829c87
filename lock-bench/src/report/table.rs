//! The report as text.

use std::fmt::Write;

use super::figure::{
    NOTHING, bound_of, growth_of, kinds, number, optional, range_of, side_of, spread_of, value_of,
};
use crate::aims::Verdict;
use crate::plan::Workload;
use crate::results::Report;
use crate::runtimes::RuntimeKind;
use crate::samples::{Summary, median_of};

pub(super) fn text(report: &Report) -> String {
    let mut text = heading(report);
    for part in [cycle, hand_off, requests, many, waiting, sharing, tasks, exec, aims, comparison, troubles] {
        text.push_str(&part(report));
    }
    text
}

fn heading(report: &Report) -> String {
    let load = |load: Option<f64>| load.map_or_else(|| NOTHING.to_owned(), |load| format!("{load:.2}"));
    format!(
        "lock-bench {}: {} at {}, {}, {:.0} s\n{} processors, load average {} before and {} after; lease {}; {} rounds\n",
        report.version,
        report.server,
        report.address,
        report.begun,
        report.seconds,
        report.machine.processors,
        load(report.machine.load_average_before),
        load(report.machine.load_average_after),
        humantime::format_duration(report.plan.lease),
        report.plan.rounds,
    )
}

fn cycle(report: &Report) -> String {
    if report.results.cycle.is_empty() {
        return String::new();
    }
    let mut table = Table::new(
        "Cycle: acquire and release, one client (µs)",
        &["", "median", "p90", "p99", "acquire", "release", "commands", "server", "client CPU"],
    );
    for kind in RuntimeKind::ALL {
        table.section(kind.title());
        for row in
            report.results.echoes.iter().filter(|row| row.workload == Workload::Cycle && row.runtime == kind)
        {
            let mut cells = vec![row.echo.clone()];
            cells.extend(quantiles(row.times.as_ref()));
            table.row(cells);
        }
        for row in report.results.cycle.iter().filter(|row| row.runtime == kind) {
            let mut cells = vec![row.contender.clone()];
            cells.extend(quantiles(row.cycle.as_ref()));
            cells.push(optional(row.acquire.as_ref().map(|times| times.p50)));
            cells.push(optional(row.release.as_ref().map(|times| times.p50)));
            cells.push(optional(row.client_commands_per_cycle));
            cells.push(optional(row.server_microseconds_per_cycle));
            cells.push(optional(row.client_processor_microseconds));
            table.row(cells);
        }
    }
    table.text()
}

fn hand_off(report: &Report) -> String {
    if report.results.hand_off.is_empty() {
        return String::new();
    }
    let mut table = Table::new(
        "Hand-off: from the call of release to the next acquisition's return (µs)",
        &[
            "",
            "clients",
            "median",
            "p90",
            "p99",
            "sections/s",
            "commands",
            "server",
            "client CPU",
            "most/fewest",
            "longest wait ms",
            "same again",
        ],
    );
    for kind in RuntimeKind::ALL {
        table.section(kind.title());
        for row in report
            .results
            .echoes
            .iter()
            .filter(|row| row.workload == Workload::HandOff && row.runtime == kind)
        {
            let mut cells = vec![row.echo.clone(), String::new()];
            cells.extend(quantiles(row.times.as_ref()));
            table.row(cells);
        }
        for row in report.results.hand_off.iter().filter(|row| row.runtime == kind) {
            let last = row.fairness.last().and_then(|grants| grants.0.first().zip(grants.0.last()));
            let mut cells = vec![row.contender.clone(), row.clients.to_string()];
            cells.extend(quantiles(row.times.as_ref()));
            cells.push(number(row.sections_per_second));
            cells.push(optional(row.client_commands_per_section));
            cells.push(optional(row.server_microseconds_per_section));
            cells.push(optional(row.client_processor_microseconds));
            cells.push(last.map_or_else(String::new, |(fewest, most)| format!("{most}/{fewest}")));
            cells.push(number(row.longest_wait_ms));
            cells.push(format!("{:.0} %", row.same_client_again * 100.0));
            table.row(cells);
        }
    }
    table.text()
}

fn requests(report: &Report) -> String {
    if report.results.requests.is_empty() {
        return String::new();
    }
    let title = "Requests for a section, counted apart from what is timed";
    let mut table = Table::new(title, &["", "clients", "sections", "by kind"]).words(&[3]);
    for row in &report.results.requests {
        table.row(vec![row.contender.clone(), row.clients.to_string(), row.sections.to_string(), kinds(row)]);
    }
    table.text()
}

fn many(report: &Report) -> String {
    if report.results.many.is_empty() {
        return String::new();
    }
    let title = format!("Many: {} names held by one client, in a process of its own", report.plan.many.holds);
    let mut table = Table::new(
        &title,
        &["", "acquired in s", "bytes/hold", "connections", "commands/s", "client CPU %", "server CPU %"],
    );
    for row in &report.results.many {
        table.row(vec![
            row.contender.clone(),
            number(row.acquire_seconds),
            optional(row.bytes_per_hold),
            row.connections.to_string(),
            number(row.load.client_commands_per_second),
            number(row.load.client_processor_percent),
            number(row.load.server_processor_percent),
        ]);
    }
    table.text()
}

fn waiting(report: &Report) -> String {
    if report.results.waiting.is_empty() {
        return String::new();
    }
    let title = format!("Waiting: {} clients want a lock that stays held", report.plan.waiting.waiters);
    let mut table = Table::new(
        &title,
        &[
            "",
            "connections",
            "commands/s",
            "per waiter and interval",
            "server bytes/waiter",
            "client CPU %",
            "server CPU %",
            "most frequent",
        ],
    )
    .words(&[7]);
    for row in &report.results.waiting {
        let frequent = row.load.commands_per_second.iter().take(3);
        let frequent: Vec<_> = frequent.map(|(name, rate)| format!("{name} {}", number(*rate))).collect();
        table.row(vec![
            row.contender.clone(),
            row.connections.to_string(),
            number(row.load.client_commands_per_second),
            number(row.commands_per_waiter_and_interval),
            optional(row.server_bytes_per_waiter),
            number(row.load.client_processor_percent),
            number(row.load.server_processor_percent),
            frequent.join(", "),
        ]);
    }
    table.text()
}

fn sharing(report: &Report) -> String {
    if report.results.sharing.is_empty() {
        return String::new();
    }
    let mut table = Table::new(
        "Sharing: from the call of acquire to its return (µs)",
        &["", "", "clients", "median", "p90", "p99", "sections/s", "most/fewest"],
    )
    .words(&[1]);
    for kind in RuntimeKind::ALL {
        table.section(kind.title());
        for row in report.results.sharing.iter().filter(|row| row.runtime == kind) {
            let last = row.fairness.last().and_then(|grants| grants.0.first().zip(grants.0.last()));
            let mut cells = vec![row.scenario.clone(), row.contender.clone(), row.clients.to_string()];
            cells.extend(quantiles(row.waits.as_ref()));
            cells.push(optional(median_of(&row.rounds)));
            cells.push(last.map_or_else(String::new, |(fewest, most)| format!("{most}/{fewest}")));
            table.row(cells);
        }
    }
    table.text()
}

fn tasks(report: &Report) -> String {
    if report.results.tasks.is_empty() {
        return String::new();
    }
    let mut table = Table::new(
        "Tasks of one client: from the call of release to the next acquisition's return (µs)",
        &[
            "",
            "tasks",
            "median",
            "p90",
            "p99",
            "sections/s",
            "commands",
            "server",
            "client CPU",
            "same again",
        ],
    );
    for kind in RuntimeKind::ALL {
        table.section(kind.title());
        for row in report.results.tasks.iter().filter(|row| row.runtime == kind) {
            let mut cells = vec![row.contender.clone(), row.clients.to_string()];
            cells.extend(quantiles(row.times.as_ref()));
            cells.push(number(row.sections_per_second));
            cells.push(optional(row.client_commands_per_section));
            cells.push(optional(row.server_microseconds_per_section));
            cells.push(optional(row.client_processor_microseconds));
            cells.push(format!("{:.0} %", row.same_client_again * 100.0));
            table.row(cells);
        }
    }
    table.text()
}

fn exec(report: &Report) -> String {
    if report.results.exec.is_empty() {
        return String::new();
    }
    let title = "Exec: a program that does nothing, from the start of the command to its end (µs)";
    let mut table = Table::new(title, &["", "median", "p90", "p99"]);
    for row in &report.results.exec {
        let mut cells = vec![row.command.clone()];
        cells.extend(quantiles(row.times.as_ref()));
        table.row(cells);
    }
    table.text()
}

fn aims(report: &Report) -> String {
    if report.aims.is_empty() {
        return String::new();
    }
    let mut table =
        Table::new("Aims", &["", "contender", "runtime", "value", "middle half", "aim", "verdict", "from"])
            .words(&[1, 2, 6, 7]);
    for judged in &report.aims {
        table.row(vec![
            judged.aim.to_owned(),
            judged.contender.to_owned(),
            judged.runtime.map_or(NOTHING, RuntimeKind::title).to_owned(),
            value_of(judged),
            range_of(judged),
            bound_of(judged),
            word(judged.verdict).to_owned(),
            judged.detail.clone(),
        ]);
    }
    table.text()
}

fn comparison(report: &Report) -> String {
    let Some(comparison) = &report.comparison else { return String::new() };
    let title = format!(
        "Compared with {}, version {}, begun {}: {}",
        comparison.file,
        comparison.version,
        comparison.begun,
        comparison.summary()
    );
    let columns = ["", "contender", "runtime", "before", "spread", "now", "spread", "change", ""];
    let mut table = Table::new(&title, &columns).words(&[1, 2, 8]);
    for change in &comparison.changes {
        table.row(vec![
            change.what.clone(),
            change.contender.to_owned(),
            change.runtime.map_or(NOTHING, RuntimeKind::title).to_owned(),
            side_of(change, change.before),
            spread_of(change.before),
            side_of(change, change.now),
            spread_of(change.now),
            growth_of(change),
            change.difference.word().to_owned(),
        ]);
    }
    let mut text = table.text();
    for line in comparison.reservations() {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {line}");
    }
    text
}

pub(super) fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Met => "met",
        Verdict::Missed => "MISSED",
        Verdict::Told => "told",
        Verdict::Unknown => "not measured",
    }
}

fn troubles(report: &Report) -> String {
    let mut troubles: Vec<_> = report.troubles().map(|(id, text)| format!("  {id}: {text}")).collect();
    troubles.dedup();
    if troubles.is_empty() { String::new() } else { format!("\nNot measured\n{}\n", troubles.join("\n")) }
}

fn quantiles(times: Option<&Summary>) -> [String; 3] {
    [
        optional(times.map(|times| times.p50)),
        optional(times.map(|times| times.p90)),
        optional(times.map(|times| times.p99)),
    ]
}

/// A table whose columns are as wide as their content.
struct Table {
    title: String,
    sides: Vec<Side>,
    rows: Vec<Row>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Side {
    Left,
    Right,
}

enum Row {
    Section(String),
    Cells(Vec<String>),
}

impl Table {
    /// The first column has names, the others have numbers.
    fn new(title: &str, columns: &[&str]) -> Self {
        let sides = (0..columns.len()).map(|index| if index == 0 { Side::Left } else { Side::Right });
        let header = columns.iter().map(|&column| column.to_owned()).collect();
        Self { title: title.to_owned(), sides: sides.collect(), rows: vec![Row::Cells(header)] }
    }

    /// Marks columns that have text.
    fn words(mut self, columns: &[usize]) -> Self {
        for &column in columns {
            if let Some(side) = self.sides.get_mut(column) {
                *side = Side::Left;
            }
        }
        self
    }

    fn section(&mut self, title: &str) {
        self.rows.push(Row::Section(title.to_owned()));
    }

    fn row(&mut self, cells: Vec<String>) {
        self.rows.push(Row::Cells(cells));
    }

    fn text(&self) -> String {
        let mut widths = vec![0; self.sides.len()];
        for row in &self.rows {
            let Row::Cells(cells) = row else { continue };
            for (width, cell) in widths.iter_mut().zip(cells) {
                *width = cell.chars().count().max(*width);
            }
        }
        let mut text = format!("\n{}\n", self.title);
        for row in &self.rows {
            let line = match row {
                Row::Section(title) => format!(" {title}"),
                Row::Cells(cells) => self.line(cells, &widths),
            };
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }

    fn line(&self, cells: &[String], widths: &[usize]) -> String {
        let mut line = String::new();
        for ((cell, side), &width) in cells.iter().zip(&self.sides).zip(widths) {
            // Writing to a string cannot fail.
            let _ = match side {
                Side::Left => write!(line, "  {cell:<width$}"),
                Side::Right => write!(line, "  {cell:>width$}"),
            };
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_by_what_is_seen() {
        let mut table = Table::new("Times", &["", "median", "from"]).words(&[2]);
        table.section("fast");
        table.row(vec!["µs".to_owned(), "1.00".to_owned(), "here".to_owned()]);
        table.row(vec!["longer".to_owned(), "123".to_owned(), "there".to_owned()]);
        let expected =
            "\nTimes\n          median  from\n fast\n  µs        1.00  here\n  longer     123  there\n";
        assert_eq!(table.text(), expected);
    }
}
