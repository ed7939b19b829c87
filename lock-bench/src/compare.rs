//! Compares a run with the saved report of an earlier one.
//!
//! The absolute times of two runs are not comparable: the machine may have been busier in one of them. So a time is compared
//! by its ratio to what the same run has measured in the same round, the raw commands or an empty request.

use std::fs;
use std::path::Path;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::aims::{Finder, Measure, middle_half};
use crate::contender::{Contender, Family};
use crate::failure::{Context, Failure, Outcome};
use crate::results::{FORMAT, Listed, Report};
use crate::runtimes::RuntimeKind;
use crate::subject::Subject;

/// With fewer rounds, the middle half is so narrow that equal runs often seem to differ: the spread is that of all rounds.
const ROUNDS_WITH_A_MIDDLE_HALF: usize = 8;
/// Fewer rounds have no spread that says anything.
const FEWEST_ROUNDS: usize = 3;

/// The saved report of an earlier run.
pub(crate) struct Baseline {
    file: String,
    report: Report,
}

/// What differs from an earlier run.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Comparison {
    pub(crate) file: String,
    pub(crate) version: String,
    pub(crate) begun: String,
    /// What got slower, then what got faster, then the rest.
    pub(crate) changes: Vec<Change>,
    pub(crate) only_before: Vec<String>,
    pub(crate) only_now: Vec<String>,
    /// Each setting that differs, with both values.
    pub(crate) settings: Vec<String>,
    /// The earlier run. Its contenders are those of this run in the same order, then its own others.
    #[serde(skip)]
    pub(crate) earlier: Box<Report>,
}

/// One value of distlock, in both runs.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Change {
    pub(crate) what: String,
    pub(crate) contender: &'static str,
    /// `None` if the runtime is not varied.
    pub(crate) runtime: Option<RuntimeKind>,
    pub(crate) unit: &'static str,
    pub(crate) before: Option<Side>,
    pub(crate) now: Option<Side>,
    pub(crate) difference: Difference,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Side {
    pub(crate) value: f64,
    /// `None` if there are no rounds, or too few.
    pub(crate) spread: Option<(f64, f64)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Difference {
    Slower,
    Faster,
    /// The spreads overlap.
    Same,
    /// There is no spread to judge by: both values are only reported.
    Told,
    /// Only one of the runs has the value.
    Unknown,
}

impl Baseline {
    /// Reads a report about the same kind of server.
    pub(crate) fn read(path: &Path, subject: &Subject) -> Outcome<Self> {
        let file = path.display().to_string();
        let text = fs::read_to_string(path).context(format_args!("cannot read the baseline {file}"))?;
        let report = parse(&text, subject).context(format_args!("cannot compare with {file}"))?;
        Ok(Self { file, report })
    }

    pub(crate) fn compare(self, subject: &Subject, now: &Report) -> Comparison {
        let Self { file, report: mut earlier } = self;
        let (parts_before, parts_now) = (parts(&earlier), parts(now));
        let (changes, settings) = (changes(subject, &earlier, now), other_settings(&earlier, now));
        earlier.contenders = in_the_order_of(&now.contenders, earlier.contenders);
        Comparison {
            file,
            version: earlier.version.clone(),
            begun: earlier.begun.clone(),
            changes,
            only_before: without(&parts_before, &parts_now),
            only_now: without(&parts_now, &parts_before),
            settings,
            earlier: Box::new(earlier),
        }
    }
}

fn parse(text: &str, subject: &Subject) -> Outcome<Report> {
    #[derive(Deserialize)]
    struct Head {
        format: u32,
        subject: String,
    }
    const NO_REPORT: &str = "it is no report that --json has written";
    let head: Head = serde_json::from_str(text).context(NO_REPORT)?;
    if head.format != FORMAT {
        let text = format!("it has format {}, and this version reads format {FORMAT}", head.format);
        return Err(Failure::new(text));
    }
    if head.subject != subject.title {
        let text = format!("it is about {}, and this run is about {}", head.subject, subject.title);
        return Err(Failure::new(text));
    }
    serde_json::from_str(text).context(NO_REPORT)
}

impl Comparison {
    pub(crate) fn count(&self, difference: Difference) -> usize {
        self.changes.iter().filter(|change| change.difference == difference).count()
    }

    /// Says in one line what differs.
    pub(crate) fn summary(&self) -> String {
        format!(
            "{} slower, {} faster, {} within the spread of both runs",
            self.count(Difference::Slower),
            self.count(Difference::Faster),
            self.count(Difference::Same)
        )
    }

    /// Says what cannot be compared, in lines of their own.
    pub(crate) fn reservations(&self) -> Vec<String> {
        let lists = [
            ("only in the earlier run", &self.only_before),
            ("only in this run", &self.only_now),
            ("other settings", &self.settings),
        ];
        let told = lists.into_iter().filter(|(_, list)| !list.is_empty());
        told.map(|(title, list)| format!("{title}: {}", list.join(", "))).collect()
    }
}

impl Difference {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Slower => "SLOWER",
            Self::Faster => "faster",
            Self::Same => "same",
            Self::Told => "told",
            Self::Unknown => "unknown",
        }
    }

    fn between(before: Option<Side>, now: Option<Side>) -> Self {
        let (Some(before), Some(now)) = (before, now) else { return Self::Unknown };
        match (before.spread, now.spread) {
            (Some((_, most)), Some((least, _))) if least > most => Self::Slower,
            (Some((least, _)), Some((_, most))) if most < least => Self::Faster,
            (Some(_), Some(_)) => Self::Same,
            _ => Self::Told,
        }
    }
}

/// Returns the values of distlock that both runs can have.
fn changes(subject: &Subject, earlier: &Report, now: &Report) -> Vec<Change> {
    let (before, after) = (contenders_of(subject, earlier), contenders_of(subject, now));
    let ours = after.iter().copied().filter(|contender| contender.family == Family::Distlock);
    let in_both: Vec<_> = ours.filter(|&ours| before.iter().any(|other| other.id == ours.id)).collect();
    let mut changes = Vec::new();
    for (what, measure) in measures(subject, &now.plan.hand_off.clients) {
        for &contender in &in_both {
            for runtime in [None, Some(RuntimeKind::CurrentThread), Some(RuntimeKind::MultiThread)] {
                let side = |contenders, report: &Report| {
                    let finder = Finder { subject, contenders, contender, results: &report.results };
                    let found = finder.find(measure, runtime)?;
                    Some(Side { value: found.value, spread: spread(&found.rounds) })
                };
                let (before, now) = (side(&before, earlier), side(&after, now));
                if before.is_none() && now.is_none() {
                    continue;
                }
                let difference = Difference::between(before, now);
                let (what, unit) = (what.clone(), measure.unit());
                changes.push(Change {
                    what,
                    contender: contender.id,
                    runtime,
                    unit,
                    before,
                    now,
                    difference,
                });
            }
        }
    }
    changes.sort_by_key(|change| change.difference);
    changes
}

/// Returns the ratios of times, and the counts and sizes among the aims.
fn measures(subject: &Subject, clients: &[usize]) -> Vec<(String, Measure)> {
    let mut measures = vec![("cycle beside raw commands".to_owned(), Measure::CycleBesideRaw)];
    for &clients in clients {
        let what = format!("hand-off at {clients} beside an empty request");
        measures.push((what, Measure::HandOffBesideEcho { clients }));
    }
    let others = subject.aims.iter().filter(|aim| aim.measure.unit() != "×");
    measures.extend(others.map(|aim| (aim.text.to_owned(), aim.measure)));
    measures
}

fn spread(rounds: &[f64]) -> Option<(f64, f64)> {
    match rounds.len() {
        ..FEWEST_ROUNDS => None,
        FEWEST_ROUNDS..ROUNDS_WITH_A_MIDDLE_HALF => {
            let least = rounds.iter().copied().fold(f64::INFINITY, f64::min);
            Some((least, rounds.iter().copied().fold(least, f64::max)))
        }
        _ => middle_half(rounds),
    }
}

fn contenders_of(subject: &Subject, report: &Report) -> Vec<&'static Contender> {
    let takes_part =
        |contender: &&Contender| report.contenders.iter().any(|listed| listed.id == contender.id);
    subject.contenders.iter().filter(takes_part).collect()
}

/// Returns what was measured, in the words of the command line.
fn parts(report: &Report) -> Vec<String> {
    let plan = &report.plan;
    let names = plan.workloads.iter().filter_map(ValueEnum::to_possible_value);
    let workloads = names.map(|name| format!("workload {}", name.get_name()));
    let runtimes = plan.runtimes.iter().map(|kind| format!("runtime {}", kind.title()));
    let contenders = report.contenders.iter().map(|listed| format!("contender {}", listed.id));
    let clients = plan.hand_off.clients.iter().map(|clients| format!("hand-off at {clients}"));
    workloads.chain(runtimes).chain(contenders).chain(clients).collect()
}

fn without(parts: &[String], others: &[String]) -> Vec<String> {
    parts.iter().filter(|part| !others.contains(part)).cloned().collect()
}

fn other_settings(earlier: &Report, now: &Report) -> Vec<String> {
    let (before, now) = (settings(earlier), settings(now));
    let both = now.into_iter().filter_map(|(name, now)| {
        let (_, before) = before.iter().find(|(other, _)| *other == name)?;
        (*before != now).then(|| format!("{name} {before} → {now}"))
    });
    both.collect()
}

/// Returns each number of the plan with its path.
fn settings(report: &Report) -> Vec<(String, String)> {
    let mut found = Vec::new();
    if let Ok(plan) = serde_json::to_value(&report.plan) {
        collect_numbers("", &plan, &mut found);
    }
    found
}

fn collect_numbers(path: &str, value: &Value, found: &mut Vec<(String, String)>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                collect_numbers(&path, value, found);
            }
        }
        Value::Number(number) => {
            found.extend(number.as_f64().map(|number| (path.to_owned(), number.to_string())));
        }
        _ => {}
    }
}

/// A contender has the same place in the lists of both runs, and so the same colour in their charts.
fn in_the_order_of(first: &[Listed], then: Vec<Listed>) -> Vec<Listed> {
    let mut list = first.to_vec();
    list.extend(then.into_iter().filter(|listed| first.iter().all(|other| other.id != listed.id)));
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(rounds: &[f64]) -> Side {
        Side { value: 0.0, spread: spread(rounds) }
    }

    #[test]
    fn what_lies_beyond_the_spread_of_both_differs() {
        let before = Some(side(&[1.2, 1.3, 1.25, 1.22]));
        for (now, difference) in [
            (&[1.4, 1.31, 1.5, 1.45][..], Difference::Slower),
            (&[1.1, 1.19, 1.0, 1.05], Difference::Faster),
            (&[1.4, 1.29, 1.5, 1.45], Difference::Same),
            (&[1.4, 1.5], Difference::Told),
            (&[], Difference::Told),
        ] {
            assert_eq!(Difference::between(before, Some(side(now))), difference, "{now:?}");
        }
        assert_eq!(Difference::between(before, None), Difference::Unknown);
    }

    #[test]
    fn one_round_out_of_line_hides_a_change_only_among_few_rounds() {
        let (before, slower) = ([1.0; 8], [9.0, 1.2, 1.2, 1.2, 1.2, 1.2, 1.2, 0.1]);
        assert_eq!(Difference::between(Some(side(&before)), Some(side(&slower))), Difference::Slower);
        assert_eq!(Difference::between(Some(side(&before[1..])), Some(side(&slower[1..]))), Difference::Same);
    }

    #[test]
    fn only_a_report_of_this_form_about_this_kind_of_server_is_a_baseline() {
        let redis = &crate::redis::SUBJECT;
        for (text, reason) in [
            ("{", "no report"),
            ("[]", "no report"),
            (r#"{ "subject": "Redis" }"#, "no report"),
            (r#"{ "format": 2, "subject": "Redis" }"#, "it has format 2, and this version reads format 1"),
            (
                r#"{ "format": 1, "subject": "ZooKeeper" }"#,
                "it is about ZooKeeper, and this run is about Redis",
            ),
            (r#"{ "format": 1, "subject": "Redis" }"#, "no report"),
        ] {
            let failure = parse(text, redis).unwrap_err().to_string();
            assert!(failure.contains(reason), "{text}: {failure}");
        }
    }

    #[test]
    fn each_setting_has_its_path() {
        let mut found = Vec::new();
        collect_numbers(
            "",
            &serde_json::json!({ "rounds": 5, "many": { "holds": 500 }, "list": [1] }),
            &mut found,
        );
        assert_eq!(
            found,
            [("rounds", "5"), ("many.holds", "500")].map(|(name, value)| (name.to_owned(), value.to_owned()))
        );
    }
}
