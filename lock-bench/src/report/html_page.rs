//! The report as one HTML page without external resources.

use std::fmt::Write;

use super::chart::{Chart, escaped, share_axes};
use super::charts::{by_clients, distribution, fairness, longest_wait, time_of_hand_off};
use super::figure::{
    NOTHING, bound_of, growth_of, kinds, number, optional, range_of, side_of, spread_of, value_of,
};
use super::table::word;
use crate::aims::Judged;
use crate::compare::{Change, Difference};
use crate::contender::{Driving, Family};
use crate::results::Report;
use crate::runtimes::RuntimeKind;
use crate::samples::{Summary, median_of};
use crate::workload::HandOffRow;

const STYLE: &str = include_str!("page.css");

pub(super) fn html(report: &Report) -> String {
    let title = format!("lock-bench: {}", report.subject);
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n",
        title = escaped(&title)
    );
    for part in [heading, aims, comparison, cycle, hand_off, requests, many, waiting, sharing, tasks, exec] {
        page.push_str(&part(report));
    }
    for part in [contenders, troubles] {
        page.push_str(&part(report));
    }
    page.push_str("</body>\n</html>\n");
    page
}

fn heading(report: &Report) -> String {
    let machine = &report.machine;
    let load = |load: Option<f64>| load.map_or_else(|| NOTHING.to_owned(), |load| format!("{load:.2}"));
    format!(
        "<h1>distlock beside other ways to lock: {}</h1>\n<p class=\"soft\">{} at {}, begun {}, {:.0} s. {} processors{}; \
         load average {} before and {} after. Lease {}, {} rounds, all contenders in turns in each.</p>\n{}",
        escaped(&report.subject),
        escaped(&report.server),
        escaped(&report.address),
        escaped(&report.begun),
        report.seconds,
        machine.processors,
        machine.processor.as_ref().map_or_else(String::new, |name| format!(" ({})", escaped(name))),
        load(machine.load_average_before),
        load(machine.load_average_after),
        humantime::format_duration(report.plan.lease),
        report.plan.rounds,
        legend(report)
    )
}

fn legend(report: &Report) -> String {
    let mut list = String::from("<ul class=\"legend\">\n");
    // The earlier run's contenders are those of this run, and others.
    let all = report.comparison.as_ref().map_or(report, |comparison| &comparison.earlier);
    for listed in &all.contenders {
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(
            list,
            "<li><svg viewBox=\"0 0 30 10\"><g class=\"line {}\"><path d=\"M0 5H30\"/></g></svg>{}</li>",
            class_of(all, &listed.id),
            escaped(&listed.title)
        );
    }
    list.push_str("</ul>\n");
    list
}

/// Returns the classes: the colour by the position in the list, dashes for a connection that another thread drives.
pub(super) fn class_of(report: &Report, id: &str) -> String {
    let place = report.contenders.iter().position(|listed| listed.id == id).unwrap_or(0);
    let driving = report.contenders.get(place).map(|listed| listed.driving);
    format!("c{}{}", place % 8, if driving == Some(Driving::OtherThread) { " other_thread" } else { "" })
}

pub(super) fn title_of<'a>(report: &'a Report, id: &'a str) -> &'a str {
    report.contenders.iter().find(|listed| listed.id == id).map_or(id, |listed| &listed.title)
}

/// An aim in each row, each engine on each runtime in a column.
fn aims(report: &Report) -> String {
    if report.aims.is_empty() {
        return String::new();
    }
    let mut columns: Vec<(&str, Option<RuntimeKind>)> = Vec::new();
    for listed in report.contenders.iter().filter(|listed| listed.family == Family::Distlock) {
        columns.extend(RuntimeKind::ALL.map(|kind| (listed.id.as_str(), Some(kind))));
    }
    let others = report
        .aims
        .iter()
        .filter(|judged| !report.contenders.iter().any(|listed| listed.id == judged.contender));
    for judged in others {
        let column = (judged.contender, judged.runtime);
        if !columns.contains(&column) {
            columns.push(column);
        }
    }
    let mut titles = vec!["Aim".to_owned(), "At most".to_owned()];
    titles.extend(columns.iter().map(|(id, kind)| format!("{id}, {}", kind.map_or("", RuntimeKind::title))));
    let mut table = Table::new(&titles.iter().map(String::as_str).collect::<Vec<_>>(), &[]);
    let mut told: Vec<&str> = Vec::new();
    for judged in &report.aims {
        if told.contains(&judged.aim) {
            continue;
        }
        told.push(judged.aim);
        let mut cells = vec![escaped(judged.aim), escaped(&bound_of(judged))];
        for (id, kind) in &columns {
            let of_column = |other: &&Judged| other.aim == judged.aim && other.contender == *id;
            // A value that does not depend on the runtime is in the first of its columns.
            let fits = |other: &&Judged| {
                other.runtime == *kind || other.runtime.is_none() && *kind == Some(RuntimeKind::CurrentThread)
            };
            let found = report.aims.iter().filter(of_column).find(fits);
            cells.push(found.map_or_else(String::new, verdict));
        }
        table.markup_row(cells);
    }
    format!(
        "<h2>Aims</h2>\n<p>A ratio is the median of the ratios of the rounds. What lies behind a value appears under the \
         pointer.</p>\n{}",
        table.html()
    )
}

fn verdict(judged: &Judged) -> String {
    let class = word(judged.verdict).to_lowercase();
    let range = judged
        .range
        .map_or_else(String::new, |_| format!("; {} in the middle half of the rounds", range_of(judged)));
    format!(
        "<span class=\"verdict {class}\" title=\"{class}: {}{}\">{}</span>",
        escaped(&judged.detail),
        escaped(&range),
        escaped(&value_of(judged))
    )
}

fn comparison(report: &Report) -> String {
    let Some(comparison) = &report.comparison else { return String::new() };
    let columns = [
        "",
        "Contender",
        "Runtime",
        "Before",
        "Spread",
        "Now",
        "Spread",
        "Change",
        "Beyond the spread of both",
    ];
    let mut table = Table::new(&columns, &[1, 2]);
    for change in &comparison.changes {
        let mut cells = vec![
            change.what.clone(),
            change.contender.to_owned(),
            change.runtime.map_or(NOTHING, RuntimeKind::title).to_owned(),
            side_of(change, change.before),
            spread_of(change.before),
            side_of(change, change.now),
            spread_of(change.now),
            growth_of(change),
        ];
        for cell in &mut cells {
            *cell = escaped(cell);
        }
        cells.push(difference(change));
        table.markup_row(cells);
    }
    let reservations = comparison.reservations();
    let reservations = reservations.iter().map(|line| format!("<p class=\"soft\">{}</p>\n", escaped(line)));
    format!(
        "<h2>Compared with an earlier run</h2>\n<p>{}, version {}, begun {}: {}. Times are compared by their ratios to raw \
         commands or to an empty request in the same round of the same run.</p>\n{}{}",
        escaped(&comparison.file),
        escaped(&comparison.version),
        escaped(&comparison.begun),
        comparison.summary(),
        table.html(),
        reservations.collect::<String>()
    )
}

fn difference(change: &Change) -> String {
    let class = match change.difference {
        Difference::Slower => "missed",
        Difference::Faster => "met",
        Difference::Same | Difference::Told | Difference::Unknown => "told",
    };
    format!("<span class=\"verdict {class}\">{}</span>", change.difference.word())
}

fn cycle(report: &Report) -> String {
    let rows = &report.results.cycle;
    if rows.is_empty() {
        return String::new();
    }
    let mut charts = Vec::new();
    for kind in RuntimeKind::ALL {
        let title = format!("on a {} runtime", kind.title());
        charts.extend(in_each_run(report, |report| {
            let rows = report.results.cycle.iter().filter(|row| row.runtime == kind);
            let curves = rows.map(|row| (row.contender.as_str(), row.cycle.as_ref()));
            distribution(report, &title, "time of a cycle", curves.collect())
        }));
    }
    let mut table = Table::new(
        &[
            "",
            "Runtime",
            "Median µs",
            "p90",
            "p99",
            "Acquire",
            "Release",
            "Commands",
            "Server µs",
            "Client CPU µs",
        ],
        &[1],
    );
    for row in rows {
        let mut cells = vec![title_of(report, &row.contender).to_owned(), row.runtime.title().to_owned()];
        cells.extend(quantiles(row.cycle.as_ref()));
        cells.push(optional(row.acquire.as_ref().map(|times| times.p50)));
        cells.push(optional(row.release.as_ref().map(|times| times.p50)));
        cells.push(optional(row.client_commands_per_cycle));
        cells.push(optional(row.server_microseconds_per_cycle));
        cells.push(optional(row.client_processor_microseconds));
        table.row(cells);
    }
    format!(
        "<h2>Cycle</h2>\n<p>One client acquires and releases, and no other client wants the lock. The charts show which share \
         of the cycles took at most how long.</p>\n{}{}",
        panels(&charts),
        table.html()
    )
}

fn hand_off(report: &Report) -> String {
    if report.results.hand_off.is_empty() {
        return String::new();
    }
    let mut charts = Vec::new();
    for kind in RuntimeKind::ALL {
        let title = format!("Hand-off on a {} runtime", kind.title());
        charts.extend(in_each_run(report, |report| {
            by_clients(report, title.clone(), "time of a hand-off", kind, time_of_hand_off)
        }));
    }
    for kind in RuntimeKind::ALL {
        let title = format!("Longest wait on a {} runtime", kind.title());
        charts.extend(in_each_run(report, |report| {
            by_clients(report, title.clone(), "longest wait", kind, longest_wait)
        }));
    }
    let between = report.plan.hand_off.clients.get(report.plan.hand_off.clients.len() / 2).copied();
    let most = report.plan.hand_off.clients.iter().copied().max();
    for kind in RuntimeKind::ALL {
        let title = format!("{} clients on a {} runtime", between.unwrap_or(0), kind.title());
        charts.extend(in_each_run(report, |report| {
            let rows = hand_offs(report, kind, between);
            let curves = rows.into_iter().map(|row| (row.contender.as_str(), row.times.as_ref()));
            distribution(report, &title, "time of a hand-off", curves.collect())
        }));
    }
    for kind in RuntimeKind::ALL {
        let title = format!("Fairness: {} clients on a {} runtime", most.unwrap_or(0), kind.title());
        charts.extend(in_each_run(report, |report| fairness(report, &title, hand_offs(report, kind, most))));
    }
    format!(
        "<h2>Hand-off</h2>\n<p>Clients with a connection each want one lock: how long it takes from the call of release to \
         the return of the next acquisition, by another client. Points are medians and reach up to the 90th percentile. \
         Who asks again and again mostly gets back what it has just released itself (<i>same client again</i>), which is no \
         hand-off; how the others fare is in the longest wait and in the fairness: how often each client had the lock, \
         beside the mean, in the last round.</p>\n{}{}",
        panels(&charts),
        hand_off_table(report)
    )
}

fn hand_offs(report: &Report, kind: RuntimeKind, clients: Option<usize>) -> Vec<&HandOffRow> {
    let rows = report.results.hand_off.iter();
    rows.filter(|row| row.runtime == kind && Some(row.clients) == clients).collect()
}

/// Draws the chart of this run, and before it that of the run that it is compared with, on the same axes.
fn in_each_run(report: &Report, draw: impl Fn(&Report) -> Chart) -> Vec<Chart> {
    let Some(comparison) = &report.comparison else { return vec![draw(report)] };
    let mut charts = vec![draw(&comparison.earlier), draw(report)];
    share_axes(&mut charts);
    for (chart, run) in charts.iter_mut().zip(["before", "now"]) {
        chart.title = format!("{run}: {}", chart.title);
    }
    charts
}

fn hand_off_table(report: &Report) -> String {
    let mut table = Table::new(
        &[
            "",
            "Runtime",
            "Clients",
            "Median µs",
            "p90",
            "p99",
            "Sections/s",
            "Commands",
            "Server µs",
            "Client CPU µs",
            "Most / fewest",
            "Longest wait ms",
            "Same client again",
        ],
        &[1],
    );
    for row in &report.results.hand_off {
        let last = row.fairness.last().and_then(|grants| grants.0.first().zip(grants.0.last()));
        let mut cells = vec![
            title_of(report, &row.contender).to_owned(),
            row.runtime.title().to_owned(),
            row.clients.to_string(),
        ];
        cells.extend(quantiles(row.times.as_ref()));
        cells.push(number(row.sections_per_second));
        cells.push(optional(row.client_commands_per_section));
        cells.push(optional(row.server_microseconds_per_section));
        cells.push(optional(row.client_processor_microseconds));
        cells.push(last.map_or_else(String::new, |(fewest, most)| format!("{most} / {fewest}")));
        cells.push(number(row.longest_wait_ms));
        cells.push(format!("{:.0} %", row.same_client_again * 100.0));
        table.row(cells);
    }
    table.html()
}

fn requests(report: &Report) -> String {
    if report.results.requests.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&["", "Clients", "Sections", "Requests for a section"], &[3]);
    for row in &report.results.requests {
        table.row(vec![
            title_of(report, &row.contender).to_owned(),
            row.clients.to_string(),
            row.sections.to_string(),
            kinds(row),
        ]);
    }
    format!(
        "<h2>Requests</h2>\n<p>What is asked of the server for each section, by kind; counted in turns of their own, in which \
         nothing is timed.</p>\n{}",
        table.html()
    )
}

fn many(report: &Report) -> String {
    if report.results.many.is_empty() {
        return String::new();
    }
    let mut table = Table::new(
        &["", "Acquired in s", "Bytes/hold", "Connections", "Commands/s", "Client CPU %", "Server CPU %"],
        &[],
    );
    for row in &report.results.many {
        table.row(vec![
            title_of(report, &row.contender).to_owned(),
            number(row.acquire_seconds),
            optional(row.bytes_per_hold),
            row.connections.to_string(),
            number(row.load.client_commands_per_second),
            number(row.load.client_processor_percent),
            number(row.load.server_processor_percent),
        ]);
    }
    format!(
        "<h2>Many</h2>\n<p>One client, in a process of its own, holds {} names and does nothing but renew them, for {} s; \
         the processor time is in percent of one core.</p>\n{}",
        report.plan.many.holds,
        number(report.plan.many.window.as_secs_f64()),
        table.html()
    )
}

fn waiting(report: &Report) -> String {
    if report.results.waiting.is_empty() {
        return String::new();
    }
    let mut table = Table::new(
        &[
            "",
            "Connections",
            "Commands/s",
            "Per waiter and interval",
            "Server memory for each, bytes",
            "Client CPU %",
            "Server CPU %",
            "Most frequent, per second",
        ],
        &[7],
    );
    for row in &report.results.waiting {
        let frequent = row.load.commands_per_second.iter().take(4);
        let frequent: Vec<_> = frequent.map(|(name, rate)| format!("{name} {}", number(*rate))).collect();
        table.row(vec![
            title_of(report, &row.contender).to_owned(),
            row.connections.to_string(),
            number(row.load.client_commands_per_second),
            number(row.commands_per_waiter_and_interval),
            optional(row.server_bytes_per_waiter),
            number(row.load.client_processor_percent),
            number(row.load.server_processor_percent),
            frequent.join(", "),
        ]);
    }
    format!(
        "<h2>Waiting</h2>\n<p>{} clients, in a process of their own, wait for a lock that stays held, for {} s. An interval \
         of renewal is {} s.</p>\n{}",
        report.plan.waiting.waiters,
        number(report.plan.waiting.window.as_secs_f64()),
        number(report.plan.target.renewal_interval().as_secs_f64()),
        table.html()
    )
}

fn sharing(report: &Report) -> String {
    if report.results.sharing.is_empty() {
        return String::new();
    }
    let columns = ["", "Clients", "Runtime", "Median", "90 %", "99 %", "Sections / s", "Scenario"];
    let mut table = Table::new(&columns, &[2, 7]);
    for row in &report.results.sharing {
        let mut cells = vec![title_of(report, &row.contender).to_owned(), row.clients.to_string()];
        cells.push(row.runtime.title().to_owned());
        cells.extend(quantiles(row.waits.as_ref()));
        cells.push(optional(median_of(&row.rounds)));
        cells.push(row.scenario.clone());
        table.row(cells);
    }
    format!(
        "<h2>Sharing</h2>\n<p>From the call of acquire to its return (µs), for clients that read and write, or want permits, \
         beside each other.</p>\n{}",
        table.html()
    )
}

fn tasks(report: &Report) -> String {
    if report.results.tasks.is_empty() {
        return String::new();
    }
    let columns = ["", "Tasks", "Runtime", "Median", "90 %", "99 %", "Sections / s", "Commands"];
    let mut table = Table::new(&columns, &[2]);
    for row in &report.results.tasks {
        let mut cells = vec![title_of(report, &row.contender).to_owned(), row.clients.to_string()];
        cells.push(row.runtime.title().to_owned());
        cells.extend(quantiles(row.times.as_ref()));
        cells.push(number(row.sections_per_second));
        cells.push(optional(row.client_commands_per_section));
        table.row(cells);
    }
    format!(
        "<h2>Tasks of one client</h2>\n<p>From the call of release to the next acquisition's return (µs).</p>\n{}",
        table.html()
    )
}

fn exec(report: &Report) -> String {
    if report.results.exec.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&["Command", "Median", "90 %", "99 %"], &[]);
    for row in &report.results.exec {
        let mut cells = vec![row.command.clone()];
        cells.extend(quantiles(row.times.as_ref()));
        table.row(cells);
    }
    format!(
        "<h2>Exec</h2>\n<p>A program that does nothing, from the start of the command to its end (µs).</p>\n{}",
        table.html()
    )
}

fn contenders(report: &Report) -> String {
    let mut table =
        Table::new(&["Contender", "Name in files", "How it waits for a lock that is held"], &[1, 2]);
    for listed in &report.contenders {
        table.row(vec![listed.title.clone(), listed.id.clone(), listed.waiting.clone()]);
    }
    format!("<h2>Contenders</h2>\n{}", table.html())
}

fn troubles(report: &Report) -> String {
    let mut troubles: Vec<_> = report.troubles().collect();
    troubles.dedup();
    if troubles.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&["Contender", "Why"], &[1]);
    for (id, text) in troubles {
        table.row(vec![title_of(report, id).to_owned(), text.to_owned()]);
    }
    format!("<h2>Not measured</h2>\n{}", table.html())
}

fn panels(charts: &[Chart]) -> String {
    let mut panels = String::from("<div class=\"panels\">\n");
    for chart in charts {
        let _ = writeln!(panels, "<div class=\"panel\">{}</div>", chart.svg());
    }
    panels.push_str("</div>\n");
    panels
}

fn quantiles(times: Option<&Summary>) -> [String; 3] {
    [
        optional(times.map(|times| times.p50)),
        optional(times.map(|times| times.p90)),
        optional(times.map(|times| times.p99)),
    ]
}

struct Table {
    words: Vec<usize>,
    html: String,
}

impl Table {
    /// The first column has names, the columns in `words` have text, the others have numbers.
    fn new(columns: &[&str], words: &[usize]) -> Self {
        let mut table = Self { words: words.to_vec(), html: String::from("<div class=\"wide\"><table>\n") };
        table.cells("th", columns.iter().map(|column| escaped(column)));
        table
    }

    fn row(&mut self, cells: Vec<String>) {
        self.cells("td", cells.into_iter().map(|cell| escaped(&cell)));
    }

    /// For cells that are already HTML.
    fn markup_row(&mut self, cells: Vec<String>) {
        self.cells("td", cells.into_iter());
    }

    fn cells(&mut self, tag: &str, cells: impl Iterator<Item = String>) {
        self.html.push_str("<tr>");
        for (index, cell) in cells.enumerate() {
            let class = if self.words.contains(&index) { " class=\"words\"" } else { "" };
            let _ = write!(self.html, "<{tag}{class}>{cell}</{tag}>");
        }
        self.html.push_str("</tr>\n");
    }

    fn html(mut self) -> String {
        self.html.push_str("</table></div>\n");
        self.html
    }
}
