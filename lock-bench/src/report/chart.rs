//! Line charts in SVG, coloured by the page's style sheet.

use std::fmt::Write;

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 330.0;
const LEFT: f64 = 74.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 48.0;

pub(super) struct Chart {
    pub(super) title: String,
    pub(super) across: Axis,
    pub(super) up: Axis,
    pub(super) lines: Vec<Line>,
}

#[derive(Clone)]
pub(super) struct Axis {
    pub(super) label: String,
    pub(super) scale: Scale,
    pub(super) least: f64,
    pub(super) most: f64,
    pub(super) ticks: Vec<(f64, String)>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Scale {
    Linear,
    Logarithmic,
    /// Logarithmic, for times.
    Times,
}

pub(super) struct Line {
    /// A class of the style sheet.
    pub(super) class: String,
    pub(super) title: String,
    pub(super) points: Vec<Point>,
    pub(super) marks: Marks,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Point {
    pub(super) x: f64,
    pub(super) y: f64,
    /// A second value above `y`, drawn as a whisker.
    pub(super) reach: Option<f64>,
    /// The text of the tooltip.
    pub(super) text: String,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Marks {
    None,
    Points,
}

impl Axis {
    /// A logarithmic axis for times in microseconds from `least` to `most`.
    pub(super) fn times(label: &str, least: f64, most: f64) -> Self {
        let (least, most) = (least.max(0.1), most.max(least.max(0.1) * 2.0));
        let mut ticks = Vec::new();
        let mut decade = 0.1;
        while decade <= most * 10.0 {
            for step in [1.0, 2.0, 5.0] {
                ticks.push((decade * step, time(decade * step)));
            }
            decade *= 10.0;
        }
        if most / least > 200.0 {
            // More ticks would be too close to read.
            ticks.retain(|(value, _)| is_power_of_ten(*value));
        }
        ticks.retain(|(value, _)| (least..=most).contains(value));
        Self { label: label.to_owned(), scale: Scale::Times, least, most, ticks }
    }

    /// Returns an axis for the values of both.
    fn spanning(&self, other: &Self) -> Self {
        let (least, most) = (self.least.min(other.least), self.most.max(other.most));
        if self.scale == Scale::Times {
            return Self::times(&self.label, least, most);
        }
        let mut ticks = self.ticks.clone();
        ticks.extend(other.ticks.iter().cloned());
        ticks.sort_by(|one, other| one.0.total_cmp(&other.0));
        ticks.dedup_by(|one, other| one.1 == other.1);
        Self { label: self.label.clone(), scale: self.scale, least, most, ticks }
    }

    /// An axis from 0 to 1.
    pub(super) fn shares(label: &str) -> Self {
        let ticks = [0.0, 0.25, 0.5, 0.75, 0.9, 1.0];
        let ticks = ticks.iter().map(|&share| (share, format!("{:.0} %", share * 100.0))).collect();
        Self { label: label.to_owned(), scale: Scale::Linear, least: 0.0, most: 1.0, ticks }
    }

    /// Returns the position of `value`, from 0 to 1; values outside the range are at the edge.
    fn place(&self, value: f64) -> f64 {
        let place = match self.scale {
            Scale::Linear => (value - self.least) / (self.most - self.least),
            Scale::Logarithmic | Scale::Times => {
                (value.max(f64::MIN_POSITIVE) / self.least).ln() / (self.most / self.least).ln()
            }
        };
        place.clamp(0.0, 1.0)
    }
}

fn is_power_of_ten(value: f64) -> bool {
    let power = value.log10();
    (power - power.round()).abs() < 1e-9
}

/// Formats a time in microseconds, with a suitable unit.
pub(super) fn time(microseconds: f64) -> String {
    let (value, unit) = match microseconds {
        us if us >= 1_000_000.0 => (us / 1_000_000.0, "s"),
        us if us >= 1000.0 => (us / 1000.0, "ms"),
        us => (us, "µs"),
    };
    let is_whole = value >= 100.0 || (value - value.round()).abs() < 1e-9;
    let digits = usize::from(!is_whole);
    format!("{value:.digits$} {unit}")
}

/// Gives charts of the same kind the same axes, so that they can be compared side by side.
pub(super) fn share_axes(charts: &mut [Chart]) {
    // A chart without points has axes that no value has made.
    let shared =
        charts.iter().filter(|chart| chart.has_points()).fold(None, |shared: Option<(Axis, Axis)>, chart| {
            match shared {
                None => Some((chart.across.clone(), chart.up.clone())),
                Some((across, up)) => Some((chart.across.spanning(&across), chart.up.spanning(&up))),
            }
        });
    let Some((across, up)) = shared else { return };
    for chart in charts {
        (chart.across, chart.up) = (across.clone(), up.clone());
    }
}

impl Chart {
    fn has_points(&self) -> bool {
        self.lines.iter().any(|line| !line.points.is_empty())
    }

    pub(super) fn svg(&self) -> String {
        let mut svg = format!(
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">\n",
            escaped(&self.title)
        );
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(svg, "<text class=\"title\" x=\"{LEFT}\" y=\"16\">{}</text>", escaped(&self.title));
        self.axes(&mut svg);
        for line in &self.lines {
            self.line(line, &mut svg);
        }
        svg.push_str("</svg>\n");
        svg
    }

    fn x(&self, value: f64) -> f64 {
        LEFT + self.across.place(value) * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        HEIGHT - BOTTOM - self.up.place(value) * (HEIGHT - TOP - BOTTOM)
    }

    fn axes(&self, svg: &mut String) {
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        for (value, text) in &self.across.ticks {
            let x = self.x(*value);
            let _ = writeln!(
                svg,
                "<path class=\"grid\" d=\"M{x:.1} {TOP}V{bottom}\"/><text class=\"tick\" x=\"{x:.1}\" y=\"{:.1}\" \
                 text-anchor=\"middle\">{}</text>",
                bottom + 16.0,
                escaped(text)
            );
        }
        for (value, text) in &self.up.ticks {
            let y = self.y(*value);
            let _ = writeln!(
                svg,
                "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{right}\"/><text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" \
                 text-anchor=\"end\">{}</text>",
                LEFT - 6.0,
                y + 4.0,
                escaped(text)
            );
        }
        let (middle, centre) = (f64::midpoint(LEFT, right), f64::midpoint(TOP, bottom));
        let _ = writeln!(
            svg,
            "<path class=\"axis\" d=\"M{LEFT} {TOP}V{bottom}H{right}\"/>\
             <text class=\"label\" x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\
             <text class=\"label\" transform=\"translate(14 {centre:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            HEIGHT - 8.0,
            escaped(&self.across.label),
            escaped(&self.up.label)
        );
    }

    fn line(&self, line: &Line, svg: &mut String) {
        let mut path = String::new();
        for point in &line.points {
            let letter = if path.is_empty() { 'M' } else { 'L' };
            let _ = write!(path, "{letter}{:.1} {:.1}", self.x(point.x), self.y(point.y));
        }
        let _ = writeln!(
            svg,
            "<g class=\"line {}\"><title>{}</title><path d=\"{path}\"/>",
            line.class,
            escaped(&line.title)
        );
        if line.marks == Marks::Points {
            for point in &line.points {
                self.mark(point, svg);
            }
        }
        svg.push_str("</g>\n");
    }

    fn mark(&self, point: &Point, svg: &mut String) {
        let (x, y) = (self.x(point.x), self.y(point.y));
        if let Some(reach) = point.reach {
            let top = self.y(reach);
            let _ = writeln!(
                svg,
                "<path class=\"whisker\" d=\"M{x:.1} {y:.1}V{top:.1}M{:.1} {top:.1}H{:.1}\"/>",
                x - 4.0,
                x + 4.0
            );
        }
        let _ = writeln!(
            svg,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\"><title>{}</title></circle>",
            escaped(&point.text)
        );
    }
}

/// Escapes text for HTML and SVG.
pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_unit_that_suits_them() {
        let cases =
            [(50.0, "50 µs"), (1500.0, "1.5 ms"), (2_000_000.0, "2 s"), (0.5, "0.5 µs"), (123.4, "123 µs")];
        for (microseconds, text) in cases {
            assert_eq!(time(microseconds), text);
        }
    }

    #[test]
    fn a_logarithmic_axis_gives_each_decade_the_same_room() {
        let axis = Axis::times("time", 10.0, 1000.0);
        assert!((axis.place(100.0) - 0.5).abs() < 1e-9);
        assert!((axis.place(1.0)).abs() < 1e-9 && (axis.place(1e9) - 1.0).abs() < 1e-9);
        assert!(axis.ticks.iter().any(|(_, text)| text == "100 µs"), "{:?}", axis.ticks);
    }

    #[test]
    fn charts_side_by_side_have_one_scale() {
        let chart = |least: f64, most: f64, points: Vec<Point>| {
            let line = Line { class: "c0".to_owned(), title: "a".to_owned(), points, marks: Marks::None };
            Chart {
                title: String::new(),
                across: Axis::times("x", least, most),
                up: Axis::shares("y"),
                lines: vec![line],
            }
        };
        let point = || vec![Point { x: 1.0, y: 0.5, reach: None, text: String::new() }];
        let mut charts =
            [chart(20.0, 60.0, point()), chart(0.1, 9000.0, Vec::new()), chart(50.0, 120.0, point())];
        share_axes(&mut charts);
        for Chart { across, up, .. } in &charts {
            assert_eq!((across.least.to_string(), across.most.to_string()), ("20".into(), "120".into()));
            let texts = |axis: &Axis| axis.ticks.iter().map(|(_, text)| text.clone()).collect::<Vec<_>>();
            assert_eq!(texts(across), ["20 µs", "50 µs", "100 µs"]);
            assert_eq!(texts(up).len(), 6);
        }
    }

    #[test]
    fn a_name_cannot_break_out_of_the_page() {
        let line = Line {
            class: "c0".to_owned(),
            title: "<script>".to_owned(),
            points: Vec::new(),
            marks: Marks::None,
        };
        let chart = Chart {
            title: "a \"title\"".to_owned(),
            across: Axis::times("x", 1.0, 10.0),
            up: Axis::shares("y"),
            lines: vec![line],
        };
        let svg = chart.svg();
        assert!(!svg.contains("<script>") && svg.contains("a &quot;title&quot;"), "{svg}");
    }
}
