//! Measured times, and their statistics.

use std::time::Duration;

use serde::Serialize;

/// Times in nanoseconds, in the order of measurement.
#[derive(Debug, Clone, Default)]
pub(crate) struct Samples(Vec<u64>);

impl Samples {
    pub(crate) fn push(&mut self, time: Duration) {
        self.0.push(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn append(&mut self, mut other: Self) {
        self.0.append(&mut other.0);
    }

    /// Returns the median in microseconds; `None` without samples.
    pub(crate) fn median(&self) -> Option<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        quantile(&sorted, 0.5)
    }

    /// Returns `None` without samples.
    pub(crate) fn summary(&self) -> Option<Summary> {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let at = |share| quantile(&sorted, share);
        Some(Summary {
            count: sorted.len(),
            least: at(0.0)?,
            p50: at(0.5)?,
            p90: at(0.9)?,
            p99: at(0.99)?,
            p999: at(0.999)?,
            most: at(1.0)?,
        })
    }
}

impl FromIterator<Duration> for Samples {
    fn from_iter<T: IntoIterator<Item = Duration>>(times: T) -> Self {
        let mut samples = Self::default();
        times.into_iter().for_each(|time| samples.push(time));
        samples
    }
}

/// The statistics of many times, in microseconds.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Summary {
    pub(crate) count: usize,
    pub(crate) least: f64,
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
    pub(crate) most: f64,
}

fn quantile(sorted: &[u64], share: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an index into a list that fits into memory, times a share between 0 and 1"
    )]
    let index = (last as f64 * share).round() as usize;
    sorted.get(index).map(|&nanoseconds| microseconds(nanoseconds))
}

#[expect(clippy::cast_precision_loss, reason = "a float holds a hundred days of nanoseconds exactly")]
fn microseconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1000.0
}

/// Returns the median of the values, of which some may be infinite; `None` without values.
pub(crate) fn median_of(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    let upper = *sorted.get(middle)?;
    if sorted.len() % 2 == 1 {
        return Some(upper);
    }
    sorted.get(middle - 1).map(|lower| f64::midpoint(*lower, upper))
}

/// Returns the range of the middle half of the values.
pub(crate) fn middle_half(values: &[f64]) -> Option<(f64, f64)> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let quarter = sorted.len() / 4;
    let (lower, upper) = (sorted.get(quarter)?, sorted.get(sorted.len().checked_sub(1 + quarter)?)?);
    Some((*lower, *upper))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_is_of_the_sorted_times() {
        let mut samples = Samples::default();
        for microseconds in (1..=1001).rev() {
            samples.push(Duration::from_micros(microseconds));
        }
        let summary = samples.summary().unwrap();
        let found = [summary.least, summary.p50, summary.p90, summary.p99, summary.p999, summary.most];
        assert_eq!(found.map(|time| time.to_string()), ["1", "501", "901", "991", "1000", "1001"]);
        assert_eq!(samples.median(), Some(501.0));
    }

    #[test]
    fn nothing_is_said_of_no_times() {
        assert!(Samples::default().summary().is_none());
        assert_eq!((median_of(&[]), middle_half(&[])), (None, None));
    }

    #[test]
    fn the_median_of_an_even_number_lies_between() {
        assert_eq!(median_of(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median_of(&[3.0, 1.0, 2.0]), Some(2.0));
    }

    #[test]
    fn one_round_out_of_line_is_not_in_the_range() {
        assert_eq!(middle_half(&[9.0, 1.0, 1.25, 1.125, 0.125]), Some((1.0, 1.25)));
    }
}
