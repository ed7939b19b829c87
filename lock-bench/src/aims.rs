//! The performance aims of the project, as ratios within one run.

use serde::Serialize;

use crate::contender::{Driving, Family};
use crate::distlock::HANDING_OVER;
use crate::runtimes::RuntimeKind;
use crate::samples::{median_of, middle_half};
use crate::turns::Row;

pub(crate) struct Aim {
    text: &'static str,
    measure: Measure,
    /// `None` for a value that is only reported.
    at_most: Option<f64>,
    /// Whose aim it is: of every contender that is distlock, unless this says less.
    of: Of,
}

enum Of {
    All,
    Engine(Driving),
    HandingOver,
    These(&'static [&'static str]),
}

/// What is judged; scenarios by their names.
pub(crate) enum Measure {
    /// The median of a turn beside that of another contender.
    Beside(&'static str, Other),
    /// The median of a turn in one scenario beside that in another.
    Growth(&'static str, &'static str),
    /// The most grants of a client beside the fewest.
    Fairness(&'static str),
    /// The sections of the first scenario for one of the second.
    Rate(&'static str, &'static str),
    /// The sections without `local_handoff` for one with it.
    WithoutIt(&'static str),
    /// The median itself, in microseconds.
    Time(&'static str),
}

pub(crate) enum Other {
    /// The raw commands that are driven in the same way.
    Raw,
    /// The request that does nothing and is driven in the same way, in the same round.
    Echo,
    Named(&'static str),
}

/// The aims of every server that has the workload.
const COMMON: [Aim; 9] = [
    Aim::new("an uncontended read beside a lock", Measure::Rate("lock-1", "read-1"), Some(1.2)),
    Aim::new(
        "sections of 16 that lock for one of 16 readers",
        Measure::Rate("lock-16", "read-16"),
        Some(0.34),
    ),
    Aim::new("most / fewest reads at 16", Measure::Fairness("read-16"), Some(1.1)),
    Aim::new("most / fewest reads at 64", Measure::Fairness("read-64"), Some(1.1)),
    Aim::new("most / fewest turns, 5 in 100 write", Measure::Fairness("mixed-95-5"), Some(1.1)),
    Aim::new("most / fewest turns, 50 in 100 write", Measure::Fairness("mixed-50-50"), Some(1.1)),
    Aim::new("most / fewest of 4 permits at 16", Measure::Fairness("permits-16"), Some(1.1)),
    Aim::new("most / fewest of 4 permits at 64", Measure::Fairness("permits-64"), Some(1.1)),
    Aim::new("hand-off, most tasks beside 100", Measure::Growth("tasks-most", "tasks-100"), Some(2.0)),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    Met,
    Missed,
    /// There is no limit: the value is only reported.
    Told,
    /// The value should have been measured and could not be.
    Unknown,
}

/// An aim, and the result for one contender on one runtime.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Judged {
    pub(crate) aim: &'static str,
    pub(crate) contender: String,
    pub(crate) runtime: Option<RuntimeKind>,
    pub(crate) value: Option<f64>,
    pub(crate) at_most: Option<f64>,
    pub(crate) unit: &'static str,
    pub(crate) verdict: Verdict,
    /// The middle half of the rounds.
    pub(crate) range: Option<(f64, f64)>,
}

impl Aim {
    pub(crate) const fn new(text: &'static str, measure: Measure, at_most: Option<f64>) -> Self {
        Self { text, measure, at_most, of: Of::All }
    }

    /// Only of the engine that is driven in this way.
    pub(crate) const fn of(self, engine: Driving) -> Self {
        Self { of: Of::Engine(engine), ..self }
    }

    /// Only of contenders that pass a lock on without the server.
    pub(crate) const fn handing_over(self) -> Self {
        Self { of: Of::HandingOver, ..self }
    }

    /// Only of these contenders, whatever their family is.
    pub(crate) const fn of_these(self, these: &'static [&'static str]) -> Self {
        Self { of: Of::These(these), ..self }
    }

    fn is_of(&self, row: &Row) -> bool {
        let is_ours = row.family == Family::Distlock;
        let is_it = match self.of {
            Of::All => is_ours,
            Of::Engine(driving) => is_ours && row.driving == Some(driving),
            Of::HandingOver => is_ours && row.contender.ends_with(HANDING_OVER),
            Of::These(these) => these.contains(&row.contender.as_str()),
        };
        is_it && row.scenario == self.measure.scenario()
    }

    fn judge(&self, row: &Row, rows: &[Row]) -> Judged {
        // Of two rows that began in the same rounds: a drift from round to round affects both sides of a ratio.
        let rounds = self.measure.rounds(row, rows);
        let value = median_of(&rounds);
        Judged {
            aim: self.text,
            contender: row.contender.clone(),
            runtime: row.runtime,
            value,
            at_most: self.at_most,
            unit: if matches!(self.measure, Measure::Time(_)) { "µs" } else { "×" },
            verdict: match (value, self.at_most) {
                (None, _) => Verdict::Unknown,
                (Some(_), None) => Verdict::Told,
                (Some(value), Some(bound)) if value <= bound => Verdict::Met,
                (Some(_), Some(_)) => Verdict::Missed,
            },
            range: middle_half(&rounds),
        }
    }
}

impl Measure {
    /// The scenario of the row whose aim it is.
    fn scenario(&self) -> &'static str {
        match self {
            Self::Beside(scenario, _)
            | Self::Growth(scenario, _)
            | Self::Fairness(scenario)
            | Self::Rate(_, scenario)
            | Self::WithoutIt(scenario)
            | Self::Time(scenario) => scenario,
        }
    }

    /// The value of each round; nothing if one of the sides was not measured.
    fn rounds(&self, row: &Row, rows: &[Row]) -> Vec<f64> {
        let find = |is_it: &dyn Fn(&Row) -> bool| {
            rows.iter().find(|other| other.runtime == row.runtime && is_it(other))
        };
        let mine =
            |scenario: &str| find(&|other| other.contender == row.contender && other.scenario == scenario);
        let beside = |other: Option<&Row>| other.map(|other| ratios(&row.rounds, &other.rounds));
        let values = match self {
            Self::Beside(scenario, other) => beside(match other {
                Other::Raw => find(&|other| {
                    (other.family, other.driving) == (Family::Raw, row.driving) && other.scenario == *scenario
                }),
                Other::Echo => find(&|other| {
                    (other.family, other.driving) == (Family::Echo, row.driving)
                        && other.workload == row.workload
                }),
                Other::Named(id) => find(&|other| other.contender == *id && other.scenario == *scenario),
            }),
            Self::Growth(_, scenario) => beside(mine(scenario)),
            Self::Fairness(_) => Some(row.grants.iter().filter_map(|grants| spread(grants)).collect()),
            Self::Rate(scenario, _) => mine(scenario).map(|other| ratios(&other.rates, &row.rates)),
            Self::WithoutIt(scenario) => {
                let plain = row.contender.strip_suffix(HANDING_OVER).unwrap_or(&row.contender);
                find(&|other| other.contender == plain && other.scenario == *scenario)
                    .map(|other| ratios(&other.rates, &row.rates))
            }
            Self::Time(_) => Some(row.rounds.clone()),
        };
        values.unwrap_or_default()
    }
}

fn ratios(one: &[f64], other: &[f64]) -> Vec<f64> {
    let both = one.iter().zip(other).filter(|(_, other)| **other > 0.0);
    both.map(|(one, other)| one / other).collect()
}

/// The most grants of a client beside the fewest; infinite if one had none.
fn spread(grants: &[u64]) -> Option<f64> {
    let (fewest, most) = (*grants.first()?, *grants.last()?);
    #[expect(clippy::cast_precision_loss, reason = "a count of seconds of work")]
    let spread = most as f64 / fewest as f64;
    Some(if fewest == 0 { f64::INFINITY } else { spread })
}

/// Judges every aim that this run has tried to measure.
pub(crate) fn judge(aims: &[Aim], rows: &[Row]) -> Vec<Judged> {
    let all = aims.iter().chain(&COMMON);
    all.flat_map(|aim| rows.iter().filter(|row| aim.is_of(row)).map(|row| aim.judge(row, rows))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Workload;

    fn row(contender: &str, family: Family, rounds: &[f64], grants: &[u64]) -> Row {
        Row {
            workload: Workload::HandOff,
            scenario: "handoff-16".to_owned(),
            contender: contender.to_owned(),
            family,
            driving: Some(Driving::Caller),
            runtime: Some(RuntimeKind::MultiThread),
            clients: 16,
            times: None,
            acquire: None,
            release: None,
            rounds: rounds.to_vec(),
            rates: Vec::new(),
            server: Vec::new(),
            grants: vec![grants.to_vec()],
            same_client_again: 0,
            longest_wait_ms: 0.0,
            trouble: None,
        }
    }

    fn verdict(measure: Measure, at_most: Option<f64>, rows: &[Row]) -> (Verdict, Option<f64>) {
        let judged = judge(&[Aim::new("it", measure, at_most)], rows);
        let [judged] = judged.as_slice() else { panic!("{judged:?}") };
        (judged.verdict, judged.value)
    }

    #[test]
    fn a_ratio_is_made_within_a_round() {
        // Twice as slow in each round, however much the rounds differ.
        let ours = row("ours", Family::Distlock, &[20.0, 200.0, 2000.0], &[]);
        let raw = row("raw", Family::Raw, &[10.0, 100.0, 1000.0], &[]);
        let beside = || Measure::Beside("handoff-16", Other::Raw);
        let both = [ours.clone(), raw];
        assert_eq!(verdict(beside(), Some(2.0), &both), (Verdict::Met, Some(2.0)));
        assert_eq!(verdict(beside(), Some(1.9), &both), (Verdict::Missed, Some(2.0)));
        assert_eq!(verdict(beside(), None, &both), (Verdict::Told, Some(2.0)));
        assert_eq!(verdict(beside(), Some(2.0), &[ours]), (Verdict::Unknown, None));
    }

    #[test]
    fn a_client_without_a_grant_misses_the_aim() {
        let fairness = |grants: &[u64]| {
            let row = row("ours", Family::Distlock, &[], grants);
            verdict(Measure::Fairness("handoff-16"), Some(1.1), &[row])
        };
        assert_eq!(fairness(&[0, 7]), (Verdict::Missed, Some(f64::INFINITY)));
        assert_eq!(fairness(&[0, 0]), (Verdict::Missed, Some(f64::INFINITY)));
        assert_eq!(fairness(&[8, 8]), (Verdict::Met, Some(1.0)));
    }
}
