//! Measures distlock beside raw commands and other lock crates: in turns, in one run, on one server.
//!
//! `subject` describes a server, `contender` the locks that are measured on it, `scenario` what their clients want, `turns` and
//! `crowd` measure it; `aims` judges the results, and `report` prints them.
#![forbid(unsafe_code)]

mod aims;
mod contender;
mod crowd;
mod distlock;
mod driving;
mod etcd;
mod exec;
mod failure;
mod local;
mod mysql;
mod object_store;
mod pause;
mod plan;
mod postgres;
mod redis;
mod report;
mod run;
mod runtimes;
mod samples;
mod scenario;
mod server_time;
mod subject;
mod turns;
mod zookeeper;

use std::io::Write;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use plan::Options;

const EXAMPLE: &str = "Example: lock-bench redis --html report.html --json report.json";

/// Measures distlock beside raw commands and other lock crates, in turns, in one run.
#[derive(Debug, Parser)]
#[command(name = "lock-bench", version, after_help = EXAMPLE)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measures locks at an etcd server, and the command distlock beside etcdctl
    Etcd(Options),
    /// Measures locks in an object store
    ObjectStore(Options),
    /// Measures locks at a Redis server
    Redis(Options),
    /// Measures locks at a ZooKeeper server
    Zookeeper(Options),
    /// Measures locks at a MariaDB or a MySQL server
    Mysql {
        /// Which of them, unless --url names another server
        #[arg(long, value_name = "NAME", value_enum, default_value = "mariadb")]
        server: mysql::Flavour,
        #[command(flatten)]
        options: Options,
    },
    /// Measures locks at a PostgreSQL server
    Postgres(Options),
    /// Measures locks in the memory of one process
    Memory(Options),
    /// Measures locks in files, and the command distlock beside flock
    File(Options),
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Etcd(options) => run::run(&etcd::SUBJECT, options),
        Command::ObjectStore(options) => run::run(&object_store::SUBJECT, options),
        Command::Redis(options) => run::run(&redis::SUBJECT, options),
        Command::Zookeeper(options) => run::run(&zookeeper::SUBJECT, options),
        Command::Postgres(options) => run::run(&postgres::SUBJECT, options),
        Command::Memory(options) => run::run(&local::MEMORY, options),
        Command::File(options) => run::run(&local::FILE, options),
        Command::Mysql { server, options } => {
            run::run(mysql::subject(server, options.url.as_deref()), options)
        }
    };
    outcome.unwrap_or_else(|failure| {
        // If standard error cannot be written to, there is no way to report it.
        let _ = writeln!(std::io::stderr(), "lock-bench: {failure}");
        ExitCode::FAILURE
    })
}
