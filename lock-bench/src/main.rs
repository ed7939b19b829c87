//! Measures distlock beside raw commands and other lock crates: in turns, in one run, on one server.
//!
//! `subject` describes a server, `contender` the locks that are measured on it, `workload` the measurements; `aims`
//! judges the results, and `report` prints them.
#![forbid(unsafe_code)]

mod aims;
mod arguments;
mod contender;
mod driving;
mod failure;
mod mysql;
mod pause;
mod plan;
mod process;
mod progress;
mod redis;
mod report;
mod results;
mod run;
mod runtimes;
mod samples;
mod subject;
mod workload;
mod zookeeper;

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

use arguments::{Arguments, Command};
use failure::{Context, Outcome};
use subject::Subject;

/// Every kind of server that can be measured.
static SUBJECTS: &[&Subject] =
    &[&redis::SUBJECT, &zookeeper::SUBJECT, &mysql::MARIADB, &mysql::MYSQL57, &mysql::GIVEN];

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Redis(options) => run::run_each(&[&redis::SUBJECT], &options),
        Command::Zookeeper(options) => run::run_each(&[&zookeeper::SUBJECT], &options),
        Command::Mysql { servers, options } => {
            run::run_each(&mysql::subjects(&servers, options.url.as_deref()), &options)
        }
        Command::Worker { subject, contender, work, count, lease_ms } => find(&subject).and_then(|subject| {
            let lease = Duration::from_millis(lease_ms);
            workload::worker::run(subject, &contender, work, count, lease)?;
            Ok(ExitCode::SUCCESS)
        }),
    };
    outcome.unwrap_or_else(|failure| {
        // If standard error cannot be written to, there is no way to report it.
        let _ = writeln!(std::io::stderr(), "lock-bench: {failure}");
        ExitCode::FAILURE
    })
}

fn find(id: &str) -> Outcome<&'static Subject> {
    SUBJECTS.iter().copied().find(|subject| subject.id == id).context("there is no such kind of server")
}
