//! All results of one run.

use serde::{Deserialize, Serialize};

use crate::aims::Judged;
use crate::compare::Comparison;
use crate::contender::{Contender, Driving, Family};
use crate::plan::Plan;
use crate::workload::{CycleRow, EchoRow, ExecRow, HandOffRow, ManyRow, RequestsRow, SharingRow, WaitingRow};

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Results {
    pub(crate) echoes: Vec<EchoRow>,
    pub(crate) cycle: Vec<CycleRow>,
    pub(crate) hand_off: Vec<HandOffRow>,
    pub(crate) requests: Vec<RequestsRow>,
    pub(crate) many: Vec<ManyRow>,
    pub(crate) waiting: Vec<WaitingRow>,
    /// Reports of earlier versions have none.
    #[serde(default)]
    pub(crate) sharing: Vec<SharingRow>,
    /// Tasks of one client, in the places of clients.
    #[serde(default)]
    pub(crate) tasks: Vec<HandOffRow>,
    #[serde(default)]
    pub(crate) exec: Vec<ExecRow>,
}

/// Increases when readers of the JSON have to change.
pub(crate) const FORMAT: u32 = 1;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) format: u32,
    pub(crate) version: String,
    pub(crate) subject: String,
    pub(crate) server: String,
    /// Only host and port: a URL may contain a secret.
    pub(crate) address: String,
    pub(crate) begun: String,
    pub(crate) seconds: f64,
    pub(crate) machine: Machine,
    pub(crate) plan: Plan,
    pub(crate) contenders: Vec<Listed>,
    /// Those of an earlier version may have been others.
    #[serde(skip_deserializing)]
    pub(crate) aims: Vec<Judged>,
    #[serde(skip_deserializing, skip_serializing_if = "Option::is_none")]
    pub(crate) comparison: Option<Comparison>,
    #[serde(flatten)]
    pub(crate) results: Results,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) processors: usize,
    pub(crate) processor: Option<String>,
    /// The average of the last minute: other programs, and at the end this program too.
    pub(crate) load_average_before: Option<f64>,
    pub(crate) load_average_after: Option<f64>,
}

/// A contender for the readers of the report.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Listed {
    pub(crate) id: String,
    pub(crate) title: String,
    pub(crate) family: Family,
    pub(crate) driving: Driving,
    pub(crate) waiting: String,
}

impl Listed {
    pub(crate) fn of(contender: &Contender) -> Self {
        let Contender { id, title, family, driving, waiting, .. } = *contender;
        Self { id: id.to_owned(), title: title.to_owned(), family, driving, waiting: waiting.to_owned() }
    }
}

impl Report {
    /// Returns what distlock could not do, if anything.
    pub(crate) fn troubles_of_distlock(&self) -> Vec<String> {
        let ours = |id: &str| {
            self.contenders.iter().any(|listed| listed.id == id && listed.family == Family::Distlock)
        };
        self.troubles().filter(|(id, _)| ours(id)).map(|(id, text)| format!("{id}: {text}")).collect()
    }

    /// Each contender that had a problem, with the text of the problem.
    pub(crate) fn troubles(&self) -> impl Iterator<Item = (&str, &str)> {
        let Results { echoes: _, cycle, hand_off, requests, many, waiting, sharing, tasks, exec } =
            &self.results;
        let cycle = cycle.iter().map(|row| (row.contender.as_str(), &row.trouble));
        let hand_off = hand_off.iter().map(|row| (row.contender.as_str(), &row.trouble));
        let requests = requests.iter().map(|row| (row.contender.as_str(), &row.trouble));
        let many = many.iter().map(|row| (row.contender.as_str(), &row.trouble));
        let waiting = waiting.iter().map(|row| (row.contender.as_str(), &row.trouble));
        let sharing = sharing.iter().map(|row| (row.contender.as_str(), &row.trouble));
        let tasks = tasks.iter().map(|row| (row.contender.as_str(), &row.trouble));
        let exec = exec.iter().map(|row| (row.command.as_str(), &row.trouble));
        let all = cycle.chain(hand_off).chain(requests).chain(many).chain(waiting).chain(sharing);
        let all = all.chain(tasks).chain(exec);
        all.filter_map(|(id, trouble)| trouble.as_deref().map(|text| (id, text)))
    }
}
