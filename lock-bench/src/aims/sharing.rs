//! The aims of locks that several can hold: the same for every server.

use super::look::middle_half;
use super::{Judged, Verdict};
use crate::contender::Contender;
use crate::samples::median_of;
use crate::workload::{Grants, SharingRow};

enum Measure {
    /// How many sections of the first scenario there are for one of the second.
    Rate(&'static str, &'static str),
    /// The most grants of a client beside the fewest.
    Fairness(&'static str),
}

struct Aim {
    text: &'static str,
    measure: Measure,
    at_most: f64,
}

const AIMS: [Aim; 5] = [
    Aim {
        text: "an uncontended read beside a lock",
        measure: Measure::Rate("lock-1", "read-1"),
        at_most: 1.2,
    },
    Aim {
        text: "exclusive throughput at 16 beside readers",
        measure: Measure::Rate("lock-16", "read-16"),
        at_most: 1.0 / 3.0,
    },
    Aim { text: "most / fewest reads at 16", measure: Measure::Fairness("read-16"), at_most: 1.1 },
    Aim {
        text: "most / fewest grants of 4 permits at 16",
        measure: Measure::Fairness("permits-16"),
        at_most: 1.1,
    },
    Aim {
        text: "most / fewest grants of 4 permits at 64",
        measure: Measure::Fairness("permits-64"),
        at_most: 1.1,
    },
];

/// Judges what a contender has measured, on each runtime.
pub(super) fn judge(contender: &'static Contender, rows: &[SharingRow]) -> Vec<Judged> {
    let mine: Vec<_> = rows.iter().filter(|row| row.contender == contender.id).collect();
    let mut judged = Vec::new();
    for aim in &AIMS {
        let main = match aim.measure {
            Measure::Rate(_, main) | Measure::Fairness(main) => main,
        };
        for row in mine.iter().filter(|row| row.scenario == main) {
            let find = |scenario: &str| {
                mine.iter().find(|other| other.scenario == scenario && other.runtime == row.runtime)
            };
            let (rounds, detail) = match aim.measure {
                Measure::Rate(scenario, _) => match find(scenario) {
                    Some(other) => rates(other, row),
                    None => continue,
                },
                Measure::Fairness(_) => spreads(row),
            };
            let value = median_of(&rounds);
            judged.push(Judged {
                aim: aim.text,
                contender: contender.id,
                runtime: Some(row.runtime),
                value,
                at_most: Some(aim.at_most),
                unit: "×",
                verdict: match value {
                    None => Verdict::Unknown,
                    Some(value) if value <= aim.at_most => Verdict::Met,
                    Some(_) => Verdict::Missed,
                },
                range: middle_half(&rounds),
                detail,
            });
        }
    }
    judged
}

fn rates(one: &SharingRow, other: &SharingRow) -> (Vec<f64>, String) {
    let rates = one.rounds.iter().zip(&other.rounds).map(|(one, other)| one / other).collect();
    let per_second = |row: &SharingRow| median_of(&row.rounds).unwrap_or_default();
    (rates, format!("{:.0} / s, {:.0} / s", per_second(one), per_second(other)))
}

fn spreads(row: &SharingRow) -> (Vec<f64>, String) {
    let last = row.fairness.last().and_then(|grants| grants.0.first().zip(grants.0.last()));
    let detail =
        last.map_or_else(String::new, |(fewest, most)| format!("{most} / {fewest} in the last round"));
    (row.fairness.iter().filter_map(Grants::spread).collect(), detail)
}
