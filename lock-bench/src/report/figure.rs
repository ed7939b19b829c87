//! Formats numbers for people.

use crate::aims::Judged;
use crate::compare::{Change, Side};
use crate::workload::RequestsRow;

pub(super) const NOTHING: &str = "–";

/// Formats three significant digits, and always all digits before the decimal point.
pub(super) fn number(value: f64) -> String {
    if value.is_infinite() {
        return "∞".to_owned();
    }
    match value.abs() {
        size if size >= 100.0 => grouped(value),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

pub(super) fn optional(value: Option<f64>) -> String {
    value.map_or_else(|| NOTHING.to_owned(), number)
}

/// Lists each kind of request with its number per section, most frequent first, without rare kinds.
pub(super) fn kinds(row: &RequestsRow) -> String {
    let mut kinds: Vec<_> = row.per_section.iter().filter(|(_, count)| **count >= 0.005).collect();
    kinds.sort_by(|one, other| other.1.total_cmp(one.1));
    let kinds: Vec<_> = kinds.into_iter().map(|(kind, count)| format!("{kind} {}", number(*count))).collect();
    kinds.join(", ")
}

/// Formats with separators between thousands, without decimals.
fn grouped(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    if value < 0.0 { format!("-{text}") } else { text }
}

pub(super) fn value_of(judged: &Judged) -> String {
    judged.value.map_or_else(|| NOTHING.to_owned(), |value| with_unit(value, judged.unit))
}

pub(super) fn bound_of(judged: &Judged) -> String {
    judged.at_most.map_or_else(|| NOTHING.to_owned(), |bound| format!("≤ {}", with_unit(bound, judged.unit)))
}

pub(super) fn range_of(judged: &Judged) -> String {
    judged.range.map_or_else(String::new, |(least, most)| format!("{}–{}", number(least), number(most)))
}

pub(super) fn side_of(change: &Change, side: Option<Side>) -> String {
    side.map_or_else(|| NOTHING.to_owned(), |side| with_unit(side.value, change.unit))
}

pub(super) fn spread_of(side: Option<Side>) -> String {
    let spread = side.and_then(|side| side.spread);
    spread.map_or_else(String::new, |(least, most)| format!("{}–{}", number(least), number(most)))
}

/// Formats how much more or less it is now, in percent.
pub(super) fn growth_of(change: &Change) -> String {
    let (before, now) = (change.before.map(|side| side.value), change.now.map(|side| side.value));
    match (before, now) {
        (Some(before), Some(now)) if before > 0.0 && now.is_finite() => {
            format!("{:+.0} %", (now / before - 1.0) * 100.0)
        }
        _ => NOTHING.to_owned(),
    }
}

fn with_unit(value: f64, unit: &str) -> String {
    match unit {
        "" => number(value),
        "×" => format!("{}×", number(value)),
        unit => format!("{} {unit}", number(value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_digits_that_count() {
        let cases = [
            (0.0, "0.00"),
            (1.249, "1.25"),
            (12.34, "12.3"),
            (123.4, "123"),
            (12_345.6, "12 346"),
            (1e6, "1 000 000"),
        ];
        for (value, text) in cases {
            assert_eq!(number(value), text);
        }
        assert_eq!(number(f64::INFINITY), "∞");
    }
}
