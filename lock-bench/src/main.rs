//! Measures distlock beside raw commands and other lock crates: in turns, in one run, on one server.
//!
//! `subject` describes a server, `contender` the locks that are measured on it, `workload` the measurements; `aims`
//! judges the results, `compare` compares them with those of an earlier run, and `report` prints them.
#![forbid(unsafe_code)]

mod aims;
mod arguments;
mod compare;
mod contender;
mod driving;
mod failure;
mod local;
mod mysql;
mod pause;
mod peer_program;
mod plan;
mod postgres;
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

use clap::{Parser, Subcommand};

use arguments::Options;
use failure::{Context, Outcome};
use subject::Subject;
use workload::worker::Work;

const EXAMPLES: &str = "\
Examples:
  Everything, against a server that is started for it, with a page to look at:
    lock-bench redis --html report.html --json report.json

  One workload, more rounds, a server that runs already:
    lock-bench redis --url redis://127.0.0.1:6379 --workload cycle --rounds 20

  What a change has made slower or faster:
    lock-bench redis --json before.json
    lock-bench redis --baseline before.json --html report.html

  Hand-off with work in the section and a pause after it:
    lock-bench redis --workload handoff --hold 2ms --think 5ms

  Whether it runs at all, in a few seconds:
    lock-bench redis --quick

  Locks at ZooKeeper, without Curator, which needs Java:
    lock-bench zookeeper --contender distlock-own,raw-thread,lock-client

  The command beside flock:
    cargo build --release -p distlock-cli && lock-bench file --workload exec

  Locks at MariaDB alone, not at MySQL:
    lock-bench mysql --server mariadb
";

/// Measures distlock beside raw commands and other lock crates, in turns, in one run.
#[derive(Debug, Parser)]
#[command(name = "lock-bench", version, after_help = EXAMPLES)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measures locks at a Redis server
    #[command(after_help = EXAMPLES)]
    Redis(Options),
    /// Measures locks at a ZooKeeper server
    #[command(after_help = EXAMPLES)]
    Zookeeper(Options),
    /// Measures locks at a MariaDB and at a MySQL server, one after the other
    #[command(after_help = EXAMPLES)]
    Mysql {
        /// Which of them, unless --url names another server
        #[arg(
            long = "server",
            value_name = "NAMES",
            value_enum,
            value_delimiter = ',',
            default_value = "mariadb,mysql57"
        )]
        servers: Vec<mysql::Flavour>,
        #[command(flatten)]
        options: Options,
    },
    /// Measures locks at a PostgreSQL server
    #[command(after_help = EXAMPLES)]
    Postgres(Options),
    /// Measures locks in the memory of one process
    #[command(after_help = EXAMPLES)]
    Memory(Options),
    /// Measures locks in files, and the command distlock beside flock
    #[command(after_help = EXAMPLES)]
    File(Options),
    /// The process that many clients live in; started by the others
    #[command(hide = true)]
    Worker { subject: String, contender: String, work: Work, count: usize, lease_ms: u64 },
}

/// Every kind of server that can be measured.
static SUBJECTS: &[&Subject] = &[
    &redis::SUBJECT,
    &zookeeper::SUBJECT,
    &postgres::SUBJECT,
    &local::MEMORY,
    &local::FILE,
    &mysql::MARIADB,
    &mysql::MYSQL57,
    &mysql::GIVEN,
];

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Redis(options) => run::run_each(&[&redis::SUBJECT], &options),
        Command::Zookeeper(options) => run::run_each(&[&zookeeper::SUBJECT], &options),
        Command::Postgres(options) => run::run_each(&[&postgres::SUBJECT], &options),
        Command::Memory(options) => run::run_each(&[&local::MEMORY], &options),
        Command::File(options) => run::run_each(&[&local::FILE], &options),
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
