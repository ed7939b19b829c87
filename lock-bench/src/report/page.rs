//! The report as one page that needs nothing else.

use std::fmt::Write;

use super::chart::{Axis, Chart, Line, Marks, Point, Scale, escaped, time};
use super::figure::{NOTHING, bound_of, number, optional, range_of, value_of};
use super::table::word;
use crate::aims::Judged;
use crate::contender::{Driving, Family};
use crate::results::{Listed, Report};
use crate::runtimes::RuntimeKind;
use crate::samples::Summary;
use crate::workload::{CycleRow, HandOffRow};

const STYLE: &str = include_str!("page.css");

pub(super) fn html(report: &Report) -> String {
    let title = format!("lock-bench: {}", report.subject);
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n",
        title = escaped(&title)
    );
    for part in [heading, aims, cycle, hand_off, many, waiting, contenders, troubles] {
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
        escaped(report.subject),
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
    for listed in &report.contenders {
        // Writing into a text does not fail, here and below.
        let _ = writeln!(
            list,
            "<li><svg viewBox=\"0 0 30 10\"><g class=\"line {}\"><path d=\"M0 5H30\"/></g></svg>{}</li>",
            class_of(report, listed.id),
            escaped(listed.title)
        );
    }
    list.push_str("</ul>\n");
    list
}

/// Colour by place in the list, dashes for a connection that another thread drives.
fn class_of(report: &Report, id: &str) -> String {
    let place = report.contenders.iter().position(|listed| listed.id == id).unwrap_or(0);
    let driving = report.contenders.get(place).map(|listed| listed.driving);
    format!("c{}{}", place % 8, if driving == Some(Driving::OtherThread) { " other_thread" } else { "" })
}

fn title_of<'a>(report: &'a Report, id: &'a str) -> &'a str {
    report.contenders.iter().find(|listed| listed.id == id).map_or(id, |listed| listed.title)
}

/// An aim in a row, each engine on each runtime in a column.
fn aims(report: &Report) -> String {
    if report.aims.is_empty() {
        return String::new();
    }
    let mut columns: Vec<(&str, Option<RuntimeKind>)> = Vec::new();
    for listed in report.contenders.iter().filter(|listed| listed.family == Family::Distlock) {
        columns.extend(RuntimeKind::ALL.map(|kind| (listed.id, Some(kind))));
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
            // What does not depend on the runtime stands in the first of its columns.
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

fn cycle(report: &Report) -> String {
    let rows = &report.results.cycle;
    if rows.is_empty() {
        return String::new();
    }
    let charts: Vec<_> = RuntimeKind::ALL
        .iter()
        .map(|kind| {
            let rows: Vec<&CycleRow> = rows.iter().filter(|row| row.runtime == *kind).collect();
            let curves = rows.iter().map(|row| (row.contender, row.cycle.as_ref()));
            distribution(
                report,
                &format!("on a {} runtime", kind.title()),
                "time of a cycle",
                curves.collect(),
            )
        })
        .collect();
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
        let mut cells = vec![title_of(report, row.contender).to_owned(), row.runtime.title().to_owned()];
        cells.extend(quantiles(row.cycle.as_ref()));
        cells.push(optional(row.acquire.as_ref().map(|times| times.p50)));
        cells.push(optional(row.release.as_ref().map(|times| times.p50)));
        cells.push(optional(row.client_commands_per_cycle));
        cells.push(optional(row.server_microseconds_per_cycle));
        cells.push(optional(row.client_processor_microseconds));
        table.row(cells);
    }
    format!(
        "<h2>Cycle</h2>\n<p>One client acquires and releases, and nobody else wants the lock. The charts show which share \
         of the cycles took at most how long.</p>\n{}{}",
        panels(&charts),
        table.html()
    )
}

fn hand_off(report: &Report) -> String {
    let rows = &report.results.hand_off;
    if rows.is_empty() {
        return String::new();
    }
    let mut charts = Vec::new();
    for kind in RuntimeKind::ALL {
        charts.push(hand_off_by_clients(report, kind));
    }
    let between = report.plan.hand_off.clients.get(report.plan.hand_off.clients.len() / 2).copied();
    let most = report.plan.hand_off.clients.iter().copied().max();
    for kind in RuntimeKind::ALL {
        let rows: Vec<_> =
            rows.iter().filter(|row| row.runtime == kind && Some(row.clients) == between).collect();
        let title = format!("{} clients on a {} runtime", between.unwrap_or(0), kind.title());
        let curves = rows.iter().map(|row| (row.contender, row.times.as_ref()));
        charts.push(distribution(report, &title, "time of a hand-off", curves.collect()));
    }
    for kind in RuntimeKind::ALL {
        let rows = rows.iter().filter(|row| row.runtime == kind && Some(row.clients) == most).collect();
        charts.push(fairness(
            report,
            &format!("Fairness: {} clients on a {} runtime", most.unwrap_or(0), kind.title()),
            rows,
        ));
    }
    format!(
        "<h2>Hand-off</h2>\n<p>Clients with a connection each want one lock: how long it takes from the call of release to \
         the return of the next acquisition, by another client. Points are medians and reach up to the 90th percentile. \
         Below: which share of the hand-offs took at most how long, and how often each client had the lock, beside the \
         mean, in the last round.</p>\n{}{}",
        panels(&charts),
        hand_off_table(report)
    )
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
            title_of(report, row.contender).to_owned(),
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

fn hand_off_by_clients(report: &Report, kind: RuntimeKind) -> Chart {
    let rows: Vec<_> = report.results.hand_off.iter().filter(|row| row.runtime == kind).collect();
    let mut lines = Vec::new();
    for listed in &report.contenders {
        let mine = rows.iter().filter(|row| row.contender == listed.id);
        let points: Vec<_> = mine.filter_map(|row| hand_off_point(row, listed)).collect();
        lines.push(Line {
            class: class_of(report, listed.id),
            title: listed.title.to_owned(),
            points,
            marks: Marks::Points,
        });
    }
    let clients: Vec<f64> = report.plan.hand_off.clients.iter().map(|&count| count_of(count)).collect();
    let ticks = report.plan.hand_off.clients.iter().map(|&count| (count_of(count), count.to_string()));
    let (least, most) = extent(clients.iter().copied());
    let heights = lines
        .iter()
        .flat_map(|line| &line.points)
        .flat_map(|point| [point.y, point.reach.unwrap_or(point.y)]);
    let (low, high) = extent(heights);
    Chart {
        title: format!("Hand-off on a {} runtime", kind.title()),
        across: Axis {
            label: "clients that want the lock".to_owned(),
            scale: Scale::Logarithmic,
            least: least * 0.8,
            most: most * 1.25,
            ticks: ticks.collect(),
        },
        up: Axis::times("time of a hand-off", low * 0.8, high * 1.2),
        lines,
    }
}

fn hand_off_point(row: &HandOffRow, listed: &Listed) -> Option<Point> {
    let times = row.times.as_ref()?;
    let text = format!(
        "{}, {} clients: median {}, 90 % within {}",
        listed.title,
        row.clients,
        time(times.p50),
        time(times.p90)
    );
    Some(Point { x: count_of(row.clients), y: times.p50, reach: Some(times.p90), text })
}

fn fairness(report: &Report, title: &str, rows: Vec<&HandOffRow>) -> Chart {
    let mut lines = Vec::new();
    let mut clients = 1;
    for row in rows {
        let Some(grants) = row.fairness.last() else { continue };
        clients = clients.max(row.clients);
        #[expect(clippy::cast_precision_loss, reason = "a count of seconds of work")]
        let mean = grants.0.iter().sum::<u64>() as f64 / count_of(grants.0.len());
        #[expect(clippy::cast_precision_loss, reason = "a count of seconds of work")]
        let points = grants.0.iter().enumerate().map(|(index, &count)| Point {
            x: count_of(index + 1),
            y: count as f64 / mean,
            reach: None,
            text: String::new(),
        });
        lines.push(Line {
            class: class_of(report, row.contender),
            title: title_of(report, row.contender).to_owned(),
            points: points.collect(),
            marks: Marks::None,
        });
    }
    let quarters = [1, clients / 4, clients / 2, clients * 3 / 4, clients];
    let mut ticks: Vec<_> =
        quarters.iter().filter(|&&rank| rank > 0).map(|&rank| (count_of(rank), rank.to_string())).collect();
    ticks.dedup();
    let most = lines.iter().flat_map(|line| &line.points).map(|point| point.y).fold(2.0, f64::max).min(4.0);
    let heights = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0].iter().filter(|&&height| height <= most);
    Chart {
        title: title.to_owned(),
        across: Axis {
            label: "clients, from the one with the fewest grants to the one with the most".to_owned(),
            scale: Scale::Linear,
            least: 1.0,
            most: count_of(clients).max(1.5),
            ticks,
        },
        up: Axis {
            label: "grants beside the mean".to_owned(),
            scale: Scale::Linear,
            least: 0.0,
            most,
            ticks: heights.map(|&height| (height, format!("{height}×"))).collect(),
        },
        lines,
    }
}

/// Which share of the times is at most how long.
fn distribution(
    report: &Report,
    title: &str,
    label: &str,
    curves: Vec<(&'static str, Option<&Summary>)>,
) -> Chart {
    let measured: Vec<_> = curves.into_iter().filter_map(|(id, times)| Some((id, times?))).collect();
    // The slowest of a thousand would leave no room for the others.
    let (least, most) = extent(measured.iter().flat_map(|(_, times)| [times.least, times.p99]));
    let lines = measured.iter().map(|(id, times)| Line {
        class: class_of(report, id),
        title: format!(
            "{}: median {}, 99 % within {}",
            title_of(report, id),
            time(times.p50),
            time(times.p99)
        ),
        points: times
            .curve
            .iter()
            .map(|&(share, x)| Point { x, y: share, reach: None, text: String::new() })
            .collect(),
        marks: Marks::None,
    });
    Chart {
        title: title.to_owned(),
        across: Axis::times(&format!("{label}, up to the 99th percentile"), least * 0.9, most * 1.05),
        up: Axis::shares("share of them"),
        lines: lines.collect(),
    }
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
            title_of(report, row.contender).to_owned(),
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
            "Client CPU %",
            "Server CPU %",
            "Most frequent, per second",
        ],
        &[6],
    );
    for row in &report.results.waiting {
        let frequent = row.load.commands_per_second.iter().take(4);
        let frequent: Vec<_> = frequent.map(|(name, rate)| format!("{name} {}", number(*rate))).collect();
        table.row(vec![
            title_of(report, row.contender).to_owned(),
            row.connections.to_string(),
            number(row.load.client_commands_per_second),
            number(row.commands_per_waiter_and_interval),
            number(row.load.client_processor_percent),
            number(row.load.server_processor_percent),
            frequent.join(", "),
        ]);
    }
    format!(
        "<h2>Waiting</h2>\n<p>{} clients, in a process of their own, wait for a lock that stays held, for {} s. An interval \
         is a quarter of the lease.</p>\n{}",
        report.plan.waiting.waiters,
        number(report.plan.waiting.window.as_secs_f64()),
        table.html()
    )
}

fn contenders(report: &Report) -> String {
    let mut table =
        Table::new(&["Contender", "Name in files", "How it waits for a lock that is held"], &[1, 2]);
    for listed in &report.contenders {
        table.row(vec![listed.title.to_owned(), listed.id.to_owned(), listed.waiting.to_owned()]);
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

#[expect(clippy::cast_precision_loss, reason = "a count of clients")]
fn count_of(count: usize) -> f64 {
    count as f64
}

/// The least and the most; something sensible for nothing.
fn extent(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (least, most) = values
        .filter(|value| value.is_finite())
        .fold((f64::INFINITY, 0.0_f64), |(least, most), value| (least.min(value), most.max(value)));
    if least.is_finite() { (least, most) } else { (1.0, 10.0) }
}

struct Table {
    words: Vec<usize>,
    html: String,
}

impl Table {
    /// The first column holds names, the columns `words` words, the others numbers.
    fn new(columns: &[&str], words: &[usize]) -> Self {
        let mut table = Self { words: words.to_vec(), html: String::from("<div class=\"wide\"><table>\n") };
        table.cells("th", columns.iter().map(|column| escaped(column)));
        table
    }

    fn row(&mut self, cells: Vec<String>) {
        self.cells("td", cells.into_iter().map(|cell| escaped(&cell)));
    }

    /// For cells that are HTML already.
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
