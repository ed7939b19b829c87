//! The aims of locks that several can hold: the same for every server.

use super::finder::middle_half;
use super::{Judged, Verdict};
use crate::contender::{Contender, Family};
use crate::runtimes::RuntimeKind;
use crate::samples::{median_of, median_of_all};
use crate::workload::{Grants, SharingRow};

enum Measure {
    /// How many sections of the first scenario there are for one of the second.
    Rate(&'static str, &'static str),
    /// The most grants of a client beside the fewest.
    Fairness(&'static str),
    /// How many sections there are for one of each peer.
    BesidePeers(&'static str),
}

struct Aim {
    text: &'static str,
    measure: Measure,
    /// `None` for a value that is only reported.
    at_most: Option<f64>,
}

impl Aim {
    const fn rate(text: &'static str, one: &'static str, other: &'static str, at_most: f64) -> Self {
        Self { text, measure: Measure::Rate(one, other), at_most: Some(at_most) }
    }

    const fn fairness(text: &'static str, scenario: &'static str) -> Self {
        Self { text, measure: Measure::Fairness(scenario), at_most: Some(1.1) }
    }

    const fn beside_peers(text: &'static str, scenario: &'static str) -> Self {
        Self { text, measure: Measure::BesidePeers(scenario), at_most: None }
    }
}

const AIMS: [Aim; 17] = [
    Aim::rate("an uncontended read beside a lock", "lock-1", "read-1", 1.2),
    Aim::rate("exclusive throughput at 16 beside readers", "lock-16", "read-16", 1.0 / 3.0),
    Aim::fairness("most / fewest reads at 16", "read-16"),
    Aim::fairness("most / fewest reads at 64", "read-64"),
    Aim::fairness("most / fewest turns at 16, of which 5 in 100 write", "mixed-95-5"),
    Aim::fairness("most / fewest turns at 16, of which 50 in 100 write", "mixed-50-50"),
    Aim::fairness("most / fewest grants of 4 permits at 16", "permits-16"),
    Aim::fairness("most / fewest grants of 4 permits at 64", "permits-64"),
    Aim::beside_peers("sections of lock-1 for one of a peer", "lock-1"),
    Aim::beside_peers("sections of read-1 for one of a peer", "read-1"),
    Aim::beside_peers("sections of lock-16 for one of a peer", "lock-16"),
    Aim::beside_peers("sections of read-16 for one of a peer", "read-16"),
    Aim::beside_peers("sections of read-64 for one of a peer", "read-64"),
    Aim::beside_peers("sections of mixed-95-5 for one of a peer", "mixed-95-5"),
    Aim::beside_peers("sections of mixed-50-50 for one of a peer", "mixed-50-50"),
    Aim::beside_peers("sections of permits-16 for one of a peer", "permits-16"),
    Aim::beside_peers("sections of permits-64 for one of a peer", "permits-64"),
];

/// Judges what a contender has measured, on each runtime.
pub(super) fn judge(
    contender: &'static Contender,
    contenders: &[&'static Contender],
    rows: &[SharingRow],
) -> Vec<Judged> {
    let mut judged = Vec::new();
    for aim in &AIMS {
        let (Measure::Rate(_, main) | Measure::Fairness(main) | Measure::BesidePeers(main)) = aim.measure;
        for runtime in RuntimeKind::ALL {
            let find = |id: &str, scenario: &str| {
                let is_it = |row: &&SharingRow| row.contender == id && row.scenario == scenario;
                rows.iter().filter(|row| row.runtime == runtime).find(is_it)
            };
            let Some(row) = find(contender.id, main) else { continue };
            let mut add =
                |rounds: &[f64], detail: String| judged.push(of(aim, contender, row, rounds, detail));
            match aim.measure {
                Measure::Rate(one, _) => {
                    if let Some(one) = find(contender.id, one) {
                        add(&ratios(one, row), rates(one, row));
                    }
                }
                Measure::Fairness(_) => {
                    let spreads: Vec<_> = row.fairness.iter().filter_map(Grants::spread).collect();
                    add(&spreads, in_the_last_round(row));
                }
                Measure::BesidePeers(_) => {
                    let peers = contenders.iter().filter(|contender| contender.family == Family::Peer);
                    for peer in peers.filter_map(|peer| find(peer.id, main)) {
                        add(&ratios(row, peer), format!("{}: {}", peer.contender, rates(row, peer)));
                    }
                }
            }
        }
    }
    judged
}

fn of(aim: &Aim, contender: &Contender, row: &SharingRow, rounds: &[f64], detail: String) -> Judged {
    let value = median_of_all(rounds);
    Judged {
        aim: aim.text,
        contender: contender.id,
        runtime: Some(row.runtime),
        value,
        at_most: aim.at_most,
        unit: "×",
        verdict: Verdict::of(value, aim.at_most),
        range: middle_half(rounds),
        detail,
    }
}

fn ratios(one: &SharingRow, other: &SharingRow) -> Vec<f64> {
    one.rounds.iter().zip(&other.rounds).map(|(one, other)| one / other).collect()
}

fn rates(one: &SharingRow, other: &SharingRow) -> String {
    let per_second = |row: &SharingRow| median_of(&row.rounds).unwrap_or_default();
    format!("{:.0} / s, {:.0} / s", per_second(one), per_second(other))
}

fn in_the_last_round(row: &SharingRow) -> String {
    let last = row.fairness.last().and_then(|grants| grants.0.first().zip(grants.0.last()));
    last.map_or_else(String::new, |(fewest, most)| format!("{most} / {fewest} in the last round"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(fairness: Vec<Grants>) -> SharingRow {
        SharingRow {
            contender: "distlock-own".to_owned(),
            runtime: RuntimeKind::MultiThread,
            scenario: "permits-64".to_owned(),
            clients: 2,
            waits: None,
            rounds: Vec::new(),
            sections: 0,
            fairness,
            trouble: None,
        }
    }

    fn fairness_of(rounds: Vec<Grants>) -> Judged {
        let mut contenders = crate::redis::SUBJECT.contenders.iter();
        let contender = contenders.find(|contender| contender.id == "distlock-own").unwrap();
        let judged = judge(contender, &[contender], &[row(rounds)]);
        judged.into_iter().find(|judged| judged.aim.contains("permits at 64")).unwrap()
    }

    #[test]
    fn a_client_without_a_grant_misses_the_aim() {
        let judged = fairness_of(vec![Grants(vec![0, 7]), Grants(vec![0, 9]), Grants(vec![8, 8])]);
        assert_eq!((judged.verdict, judged.value), (Verdict::Missed, Some(f64::INFINITY)));
        assert_eq!(fairness_of(vec![Grants(vec![0, 0])]).verdict, Verdict::Missed);
        assert_eq!(fairness_of(vec![Grants(vec![8, 8])]).verdict, Verdict::Met);
        assert_eq!(fairness_of(Vec::new()).verdict, Verdict::Unknown);
    }
}
