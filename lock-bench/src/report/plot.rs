//! A plot: the times of each row as a line, one below the other.

use std::fmt::Display;

use plotters::prelude::*;

use crate::failure::{Context, Outcome};
use crate::samples::Summary;
use crate::turns::Row;

const WIDTH: u32 = 1000;
const LINE: u32 = 20;
const EDGES: u32 = 90;
const NAMES: u32 = 260;

/// Returns nothing if nothing was measured.
pub(super) fn svg(title: &str, rows: &[&Row]) -> Outcome<String> {
    // From the bottom to the top.
    let measured: Vec<_> = rows.iter().rev().filter_map(|row| Some((row, row.times.as_ref()?))).collect();
    let lowest = measured.iter().map(|(_, times)| times.least).fold(f64::INFINITY, f64::min);
    let highest = measured.iter().map(|(_, times)| times.p99).fold(0.0, f64::max);
    if measured.is_empty() {
        return Ok(String::new());
    }
    let names: Vec<_> =
        measured.iter().map(|(row, _)| format!("{} {}", row.contender, row.scenario)).collect();
    let lines: Vec<_> = measured.iter().map(|(_, times)| *times).collect();
    // A logarithm needs more than nothing.
    draw(title, &names, &lines, (lowest * 0.9).max(0.001)..highest.max(0.01) * 1.1)
}

fn draw(title: &str, names: &[String], lines: &[&Summary], range: std::ops::Range<f64>) -> Outcome<String> {
    let mut svg = String::new();
    let count = u32::try_from(lines.len()).context("the rows of a plot")?;
    let area = SVGBackend::with_string(&mut svg, (WIDTH, count * LINE + EDGES)).into_drawing_area();
    let context = |error: &dyn Display| crate::failure::Failure::new(format!("the plot {title}: {error}"));
    let rows = (0..i32::try_from(count).context("the rows of a plot")?).into_segmented();
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 16))
        .margin_right(20)
        .x_label_area_size(40)
        .y_label_area_size(NAMES)
        .build_cartesian_2d(range.log_scale(), rows)
        .map_err(|error| context(&error))?;
    let name = |row: &SegmentValue<i32>| match row {
        SegmentValue::CenterOf(row) => usize::try_from(*row).ok().and_then(|row| names.get(row)).cloned(),
        SegmentValue::Exact(_) | SegmentValue::Last => None,
    };
    chart
        .configure_mesh()
        .disable_y_mesh()
        .x_desc("µs")
        .x_labels(5)
        .y_labels(lines.len() + 1)
        .y_label_formatter(&|row| name(row).unwrap_or_default())
        .draw()
        .map_err(|error| context(&error))?;
    for (row, times) in (0..).zip(lines) {
        let at = |time| (time, SegmentValue::CenterOf(row));
        let color = Palette99::pick(usize::try_from(row).unwrap_or_default());
        let line = PathElement::new(vec![at(times.least), at(times.p99)], color.stroke_width(2));
        let rings = [
            Circle::new(at(times.p50), 4, color.filled()),
            Circle::new(at(times.p90), 4, color.stroke_width(2)),
        ];
        chart.draw_series([line]).map_err(|error| context(&error))?;
        chart.draw_series(rings).map_err(|error| context(&error))?;
    }
    area.present().map_err(|error| context(&error))?;
    drop(chart);
    drop(area);
    Ok(svg)
}
