//! The charts of the page: their axes and their lines.

use super::chart::{Axis, Chart, Line, Marks, Point, Scale, time};
use super::html_page::{class_of, title_of};
use crate::results::Report;
use crate::runtimes::RuntimeKind;
use crate::samples::Summary;
use crate::workload::HandOffRow;

/// A chart with one line for each contender, from what `read` finds in a row. The horizontal axis is the number of
/// clients.
pub(super) fn by_clients(
    report: &Report,
    title: String,
    label: &str,
    kind: RuntimeKind,
    read: Reading,
) -> Chart {
    let rows: Vec<_> = report.results.hand_off.iter().filter(|row| row.runtime == kind).collect();
    let mut lines = Vec::new();
    for (place, listed) in report.contenders.iter().enumerate() {
        // A little apart, so that the marks do not hide each other.
        let aside = 1.03_f64.powf(count_of(place) - count_of(report.contenders.len() - 1) / 2.0);
        let mine = rows.iter().filter(|row| row.contender == listed.id);
        let point = |row: &&&HandOffRow| {
            let (y, reach, text) = read(row)?;
            let text = format!("{}, {} clients: {text}", listed.title, row.clients);
            Some(Point { x: count_of(row.clients) * aside, y, reach, text })
        };
        lines.push(Line {
            class: class_of(report, &listed.id),
            title: listed.title.clone(),
            points: mine.filter_map(|row| point(&row)).collect(),
            marks: Marks::Points,
        });
    }
    let clients: Vec<f64> = report.plan.hand_off.clients.iter().map(|&count| count_of(count)).collect();
    let ticks = report.plan.hand_off.clients.iter().map(|&count| (count_of(count), count.to_string()));
    let (least, most) = extent(clients.iter().copied());
    let points = lines.iter().flat_map(|line| &line.points);
    let (low, high) = extent(points.flat_map(|point| [point.y, point.reach.unwrap_or(point.y)]));
    Chart {
        title,
        across: Axis {
            label: "clients that want the lock".to_owned(),
            scale: Scale::Logarithmic,
            least: least * 0.8,
            most: most * 1.25,
            ticks: ticks.collect(),
        },
        up: Axis::times(label, low * 0.8, high * 1.2),
        lines,
    }
}

/// A time in microseconds, the upper end of its whisker, and the text for both.
pub(super) type Reading = fn(&HandOffRow) -> Option<(f64, Option<f64>, String)>;

pub(super) fn time_of_hand_off(row: &HandOffRow) -> Option<(f64, Option<f64>, String)> {
    let times = row.times.as_ref()?;
    let text = format!("median {}, 90 % within {}", time(times.p50), time(times.p90));
    Some((times.p50, Some(times.p90), text))
}

pub(super) fn longest_wait(row: &HandOffRow) -> Option<(f64, Option<f64>, String)> {
    let longest = row.longest_wait_ms * 1000.0;
    (longest > 0.0).then(|| (longest, None, time(longest)))
}

pub(super) fn fairness(report: &Report, title: &str, rows: Vec<&HandOffRow>) -> Chart {
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
            class: class_of(report, &row.contender),
            title: title_of(report, &row.contender).to_owned(),
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

/// A chart that shows which share of the times does not exceed which time.
pub(super) fn distribution(
    report: &Report,
    title: &str,
    label: &str,
    curves: Vec<(&str, Option<&Summary>)>,
) -> Chart {
    let measured: Vec<_> = curves.into_iter().filter_map(|(id, times)| Some((id, times?))).collect();
    // The slowest of a thousand would leave no space for the others.
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

#[expect(clippy::cast_precision_loss, reason = "a count of clients")]
fn count_of(count: usize) -> f64 {
    count as f64
}

/// Returns the least and the greatest value; a default range if there are none.
fn extent(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (least, most) = values
        .filter(|value| value.is_finite())
        .fold((f64::INFINITY, 0.0_f64), |(least, most), value| (least.min(value), most.max(value)));
    if least.is_finite() { (least, most) } else { (1.0, 10.0) }
}
