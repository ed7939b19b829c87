//! The workload *exec*: the command distlock runs a program that does nothing under a lock, beside the command that others use at
//! such a server, from the start of the process to its end.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::contender::Family;
use crate::failure::{Context, Failure, Outcome};
use crate::plan::{Options, Plan, Workload};
use crate::samples::Samples;
use crate::subject::Subject;
use crate::turns::Row;

const DISTLOCK: &str = "distlock exec";
/// The program by itself, without a lock.
const ALONE: &str = "true";

/// Runs the commands in turns, each a process of its own.
pub(crate) fn run(subject: &Subject, plan: &Plan, options: &Options) -> Vec<Row> {
    let url = &plan.target.url;
    let mut all = vec![
        Runs::new(DISTLOCK, distlock(url, options.distlock.as_deref())),
        Runs::new(ALONE, Ok(Command::new(ALONE))),
    ];
    all.extend(subject.command.map(|(name, peer)| Runs::new(name, peer(url))));
    for round in 0..plan.rounds {
        let mut times: Vec<_> = all.iter().map(|_| Samples::default()).collect();
        for run in 0..plan.lengths.commands {
            for place in 0..all.len() {
                // Each time another command is first, so that none always follows the same one.
                let index = (place + run + round) % all.len();
                if let (Some(runs), Some(times)) = (all.get_mut(index), times.get_mut(index)) {
                    runs.run(times);
                }
            }
        }
        for (runs, times) in all.iter_mut().zip(times) {
            runs.rounds.extend(times.median());
            runs.times.append(times);
        }
    }
    all.into_iter().map(Runs::row).collect()
}

struct Runs {
    name: &'static str,
    command: Outcome<Command>,
    times: Samples,
    rounds: Vec<f64>,
}

impl Runs {
    fn new(name: &'static str, command: Outcome<Command>) -> Self {
        Self { name, command, times: Samples::default(), rounds: Vec::new() }
    }

    fn run(&mut self, times: &mut Samples) {
        let Ok(command) = &mut self.command else { return };
        match time_of(command) {
            Ok(time) => times.push(time),
            Err(failure) => self.command = Err(failure),
        }
    }

    fn row(self) -> Row {
        Row {
            workload: Workload::Exec,
            scenario: "exec".to_owned(),
            contender: self.name.to_owned(),
            family: if self.name == DISTLOCK { Family::Distlock } else { Family::Peer },
            driving: None,
            runtime: None,
            clients: 1,
            times: self.times.summary(),
            acquire: None,
            release: None,
            rounds: self.rounds,
            rates: Vec::new(),
            server: Vec::new(),
            grants: Vec::new(),
            same_client_again: 0,
            longest_wait_ms: 0.0,
            trouble: self.command.err().map(|failure| failure.to_string()),
        }
    }
}

fn time_of(command: &mut Command) -> Outcome<Duration> {
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let begun = Instant::now();
    let status = command.status().context("starting it")?;
    let time = begun.elapsed();
    if status.success() { Ok(time) } else { Err(Failure::new(format!("it ended with {status}"))) }
}

fn distlock(url: &str, named: Option<&Path>) -> Outcome<Command> {
    let mut command = Command::new(distlock_at(named)?);
    command.args(["exec", "bench-exec", "--", "true"]).env("DISTLOCK_URL", url);
    Ok(command)
}

/// Returns the named command, or the one beside this program.
fn distlock_at(named: Option<&Path>) -> Outcome<PathBuf> {
    if let Some(path) = named {
        return Ok(path.to_owned());
    }
    let this = std::env::current_exe().context("the path of this program")?;
    let beside = this.with_file_name("distlock");
    if beside.exists() {
        return Ok(beside);
    }
    Err(Failure::new(format!(
        "there is no {}: build distlock-cli, or name it with --distlock",
        beside.display()
    )))
}
