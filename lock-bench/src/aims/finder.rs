//! Finds the values of one engine of distlock in the results.

use super::{Aim, Judged, Measure, Verdict};
use crate::contender::{Contender, Driving, Family};
use crate::plan::Workload;
use crate::results::Results;
use crate::runtimes::RuntimeKind;
use crate::samples::{median_of, median_of_all};
use crate::subject::Subject;
use crate::workload::{CycleRow, Grants, HandOffRow, ManyRow, RequestsRow, WaitingRow};

/// A value, and its source.
pub(crate) struct Found {
    pub(crate) value: f64,
    /// The value of each round, if there are rounds.
    pub(crate) rounds: Vec<f64>,
    pub(super) detail: String,
}

pub(crate) struct Finder<'a> {
    pub(crate) subject: &'a Subject,
    pub(crate) contenders: &'a [&'static Contender],
    pub(crate) contender: &'static Contender,
    pub(crate) results: &'a Results,
}

impl Finder<'_> {
    /// Returns what was measured; `runtime` is `None` for a measure that does not depend on it.
    pub(crate) fn find(&self, measure: Measure, runtime: Option<RuntimeKind>) -> Option<Found> {
        match runtime {
            Some(kind) => self.on_runtime(measure, kind),
            None => self.at_rest(measure),
        }
    }

    pub(super) fn judge(&self, aim: &Aim) -> Vec<Judged> {
        let judged = |runtime, found: Option<Found>| Judged {
            aim: aim.text,
            contender: self.contender.id,
            runtime,
            verdict: Verdict::of(found.as_ref().map(|found| found.value), aim.at_most),
            value: found.as_ref().map(|found| found.value),
            at_most: aim.at_most,
            unit: aim.measure.unit(),
            range: found.as_ref().and_then(|found| middle_half(&found.rounds)),
            detail: found.map_or_else(|| "not measured".to_owned(), |found| found.detail),
        };
        match self.runtimes_of(aim.measure) {
            Runtimes::None => Vec::new(),
            Runtimes::NotVaried => vec![judged(None, self.find(aim.measure, None))],
            Runtimes::Each(kinds) => {
                let each = |kind| judged(Some(kind), self.find(aim.measure, Some(kind)));
                kinds.into_iter().map(each).collect()
            }
        }
    }

    /// Returns on which runtimes this run has tried to measure it.
    fn runtimes_of(&self, measure: Measure) -> Runtimes {
        let mine = self.contender.id;
        let each = |kinds: Vec<RuntimeKind>| {
            if kinds.is_empty() { Runtimes::None } else { Runtimes::Each(kinds) }
        };
        let at_rest = |tried: bool| if tried { Runtimes::NotVaried } else { Runtimes::None };
        match measure {
            Measure::CycleOfEngineBesideRaw { engine } if engine != self.contender.driving => Runtimes::None,
            Measure::CycleOfNamedBesideRaw { .. } if self.contender.driving != Driving::Caller => {
                Runtimes::None
            }
            Measure::CycleBesideRaw
            | Measure::CycleBesidePlainRaw
            | Measure::CycleOfNamedBesideRaw { .. }
            | Measure::CycleOfEngineBesideRaw { .. }
            | Measure::ServerTimeBesideRaw
            | Measure::CycleBesideNamed { .. } => {
                let rows = self.results.cycle.iter().filter(|row| row.contender == mine);
                each(rows.map(|row| row.runtime).collect())
            }
            Measure::HandOffBesideRaw { clients }
            | Measure::HandOffBesideEcho { clients }
            | Measure::HandOffBesidePlainEcho { clients }
            | Measure::HandOffBesidePeer { clients, .. }
            | Measure::HandOffGrowth { clients, .. }
            | Measure::Fairness { clients }
            | Measure::CommandsPerSection { clients } => {
                let rows = self
                    .results
                    .hand_off
                    .iter()
                    .filter(|row| row.contender == mine && row.clients == clients);
                each(rows.map(|row| row.runtime).collect())
            }
            Measure::HoldingConnections
            | Measure::BytesPerHold
            | Measure::RenewalShare
            | Measure::RequestsPerRenewal
            | Measure::RequestsPerConnectionAndRenewal => at_rest(self.many().is_some()),
            Measure::RequestsPerSection { clients, .. } => at_rest(self.requests(clients).is_some()),
            Measure::CommandsPerWaiter
            | Measure::ConnectionsPerWaiter
            | Measure::ServerBytesPerWaiter
            | Measure::WaitingShare => at_rest(self.waiting().is_some()),
        }
    }

    fn on_runtime(&self, measure: Measure, kind: RuntimeKind) -> Option<Found> {
        match measure {
            Measure::CycleBesideRaw => self.cycle_beside_raw(kind, self.contender.driving),
            Measure::CycleBesidePlainRaw => self.cycle_beside_raw(kind, Driving::Caller),
            Measure::CycleOfEngineBesideRaw { engine } => self.cycle_beside_raw(kind, engine),
            Measure::CycleOfNamedBesideRaw { named } => {
                let raw = self.raw(Driving::Caller)?;
                ratio(&self.cycle(named, kind)?.rounds, &self.cycle(raw.id, kind)?.rounds)
            }
            Measure::ServerTimeBesideRaw => {
                let raw = self.raw(self.contender.driving)?;
                let time = |id| self.cycle(id, kind)?.server_microseconds_per_cycle;
                let (ours, theirs) = (time(self.contender.id)?, time(raw.id)?);
                let detail = format!("{ours:.1} µs / {theirs:.1} µs");
                Some(Found { value: ours / theirs, rounds: Vec::new(), detail })
            }
            Measure::CycleBesideNamed { caller, other_thread } => {
                let named = match self.contender.driving {
                    Driving::Caller => caller,
                    Driving::OtherThread => other_thread,
                };
                ratio(&self.cycle(self.contender.id, kind)?.rounds, &self.cycle(named, kind)?.rounds)
            }
            Measure::HandOffBesideRaw { clients } => {
                let raw = self.raw(self.contender.driving)?;
                let (row, other) = (self.hand_off(kind, clients)?, self.hand_off_of(raw.id, kind, clients)?);
                ratio(&row.rounds, &other.rounds)
            }
            Measure::HandOffBesideEcho { clients } => {
                self.hand_off_beside_echo(kind, clients, self.contender.driving)
            }
            Measure::HandOffBesidePlainEcho { clients } => {
                self.hand_off_beside_echo(kind, clients, Driving::Caller)
            }
            Measure::HandOffBesidePeer { clients, peer } => {
                let (row, other) = (self.hand_off(kind, clients)?, self.hand_off_of(peer, kind, clients)?);
                ratio(&row.rounds, &other.rounds)
            }
            Measure::HandOffGrowth { clients, beside } => {
                let (row, other) = (self.hand_off(kind, clients)?, self.hand_off(kind, beside)?);
                ratio(&row.rounds, &other.rounds)
            }
            Measure::Fairness { clients } => fairness(self.hand_off(kind, clients)?),
            Measure::CommandsPerSection { clients } => {
                let row = self.hand_off(kind, clients)?;
                let detail = format!("{} sections", row.sections);
                row.client_commands_per_section.map(|value| Found { value, rounds: Vec::new(), detail })
            }
            _ => None,
        }
    }

    fn at_rest(&self, measure: Measure) -> Option<Found> {
        let found = |value, detail| Some(Found { value, rounds: Vec::new(), detail });
        match measure {
            Measure::HoldingConnections => {
                let row = self.many().filter(|row| row.trouble.is_none())?;
                #[expect(clippy::cast_precision_loss, reason = "a count of connections")]
                found(row.connections as f64, format!("{} holds", row.holds))
            }
            Measure::BytesPerHold => {
                let row = self.many().filter(|row| row.trouble.is_none())?;
                found(row.bytes_per_hold?, format!("{} holds", row.holds))
            }
            Measure::RenewalShare => {
                let row = self.many().filter(|row| row.trouble.is_none())?;
                let rate = row.load.client_commands_per_second;
                found(
                    row.load.client_processor_percent,
                    format!("{rate:.0} commands/s for {} holds", row.holds),
                )
            }
            Measure::RequestsPerRenewal => {
                let row = self.many().filter(|row| row.trouble.is_none())?;
                found(row.commands_per_interval, format!("{} holds, {:.0} s", row.holds, row.load.seconds))
            }
            Measure::RequestsPerConnectionAndRenewal => {
                let row = self.many().filter(|row| row.trouble.is_none() && row.connections > 0)?;
                #[expect(clippy::cast_precision_loss, reason = "a count of connections")]
                let connections = row.connections as f64;
                let detail = format!("{connections} connections, {:.0} s", row.load.seconds);
                found(row.commands_per_interval / connections, detail)
            }
            Measure::RequestsPerSection { clients, kinds } => {
                let row = self.requests(clients).filter(|row| row.trouble.is_none())?;
                let of_kinds = kinds.iter().filter_map(|&kind| row.per_section.get(kind));
                found(of_kinds.sum(), format!("{} sections", row.sections))
            }
            Measure::CommandsPerWaiter => {
                let row = self.waiting().filter(|row| row.trouble.is_none())?;
                let rate = row.load.client_commands_per_second;
                found(
                    row.commands_per_waiter_and_interval,
                    format!("{rate:.0} commands/s for {} waiters", row.waiters),
                )
            }
            Measure::ConnectionsPerWaiter => {
                let row = self.waiting().filter(|row| row.trouble.is_none())?;
                #[expect(clippy::cast_precision_loss, reason = "a count of connections")]
                found(row.connections as f64 / row.waiters as f64, format!("{} waiters", row.waiters))
            }
            Measure::ServerBytesPerWaiter => {
                let row = self.waiting().filter(|row| row.trouble.is_none())?;
                found(row.server_bytes_per_waiter?, format!("{} connections", row.connections))
            }
            Measure::WaitingShare => {
                let row = self.waiting().filter(|row| row.trouble.is_none())?;
                found(row.load.client_processor_percent, format!("{} waiters", row.waiters))
            }
            _ => None,
        }
    }

    fn cycle_beside_raw(&self, kind: RuntimeKind, driving: Driving) -> Option<Found> {
        let raw = self.raw(driving)?;
        ratio(&self.cycle(self.contender.id, kind)?.rounds, &self.cycle(raw.id, kind)?.rounds)
    }

    /// Returns the first raw contender that is driven in this way.
    fn raw(&self, driving: Driving) -> Option<&'static Contender> {
        let mut contenders = self.contenders.iter().copied();
        contenders.find(|contender| contender.family == Family::Raw && contender.driving == driving)
    }

    fn hand_off_beside_echo(&self, kind: RuntimeKind, clients: usize, driving: Driving) -> Option<Found> {
        let row = self.hand_off(kind, clients)?;
        let echo = self.subject.echoes.iter().find(|echo| echo.driving == driving)?;
        ratio(&row.rounds, row.echo_rounds.get(echo.id)?)
    }

    fn cycle(&self, id: &str, kind: RuntimeKind) -> Option<&CycleRow> {
        self.results.cycle.iter().find(|row| row.contender == id && row.runtime == kind)
    }

    fn hand_off(&self, kind: RuntimeKind, clients: usize) -> Option<&HandOffRow> {
        self.hand_off_of(self.contender.id, kind, clients)
    }

    fn hand_off_of(&self, id: &str, kind: RuntimeKind, clients: usize) -> Option<&HandOffRow> {
        let mut rows = self.results.hand_off.iter();
        rows.find(|row| row.contender == id && row.runtime == kind && row.clients == clients)
    }

    /// Returns the requests of hand-offs.
    fn requests(&self, clients: usize) -> Option<&RequestsRow> {
        let mut rows = self.results.requests.iter();
        rows.find(|row| {
            row.contender == self.contender.id && row.workload == Workload::HandOff && row.clients == clients
        })
    }

    fn many(&self) -> Option<&ManyRow> {
        self.results.many.iter().find(|row| row.contender == self.contender.id)
    }

    fn waiting(&self) -> Option<&WaitingRow> {
        self.results.waiting.iter().find(|row| row.contender == self.contender.id)
    }
}

enum Runtimes {
    /// The workload was not run.
    None,
    NotVaried,
    Each(Vec<RuntimeKind>),
}

/// The median of the ratios of the rounds: drift from round to round affects both sides.
pub(super) fn ratio(ours: &[f64], theirs: &[f64]) -> Option<Found> {
    let ratios: Vec<f64> = ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect();
    let (median, other) = (median_of(ours)?, median_of(theirs)?);
    Some(Found {
        value: median_of(&ratios)?,
        rounds: ratios,
        detail: format!("{median:.0} µs / {other:.0} µs"),
    })
}

fn fairness(row: &HandOffRow) -> Option<Found> {
    let spreads: Vec<f64> = row.fairness.iter().filter_map(Grants::spread).collect();
    let last = row.fairness.last()?;
    let (fewest, most) = (last.0.first()?, last.0.last()?);
    let value = median_of_all(&spreads)?;
    Some(Found { value, rounds: spreads, detail: format!("{most} / {fewest} in the last round") })
}

/// Returns the range of the middle half of the rounds.
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
    fn a_ratio_is_made_within_a_round() {
        // Twice as slow in each round, however much the rounds differ.
        let found = ratio(&[20.0, 200.0, 2000.0], &[10.0, 100.0, 1000.0]).unwrap();
        assert!((found.value - 2.0).abs() < 1e-9);
        assert_eq!(found.detail, "200 µs / 100 µs");
        assert!(ratio(&[], &[1.0]).is_none());
    }

    #[test]
    fn one_round_out_of_line_is_not_in_the_range() {
        let (lower, upper) = middle_half(&[9.0, 1.0, 1.2, 1.1, 0.1]).unwrap();
        assert!((lower - 1.0).abs() < 1e-9 && (upper - 1.2).abs() < 1e-9, "{lower} {upper}");
        assert!(middle_half(&[]).is_none());
    }
}
