//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::mysql::Flavour;
use crate::plan::{EngineChoice, Extent, Wishes, Workload};
use crate::runtimes::RuntimeKind;
use crate::workload::worker::{URL_VARIABLE, Work};

const EXAMPLES: &str = "\
Examples:
  Everything, against a server that is started for it, with a page to look at:
    lock-bench redis --html report.html --json report.json

  One workload, more rounds, a server that runs already:
    lock-bench redis --url redis://127.0.0.1:6379 --workload cycle --rounds 20

  Hand-off with work in the section and a pause after it:
    lock-bench redis --workload handoff --hold 2ms --think 5ms

  Whether it runs at all, in a few seconds:
    lock-bench redis --quick

  Locks at ZooKeeper, without Curator, which needs Java:
    lock-bench zookeeper --contender distlock-own,raw-thread,lock-client

  Locks at MariaDB alone, not at MySQL:
    lock-bench mysql --server mariadb
";

/// Measures distlock beside raw commands and other lock crates, in turns, in one run.
#[derive(Debug, Parser)]
#[command(name = "lock-bench", version, after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
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
        servers: Vec<Flavour>,
        #[command(flatten)]
        options: Options,
    },
    /// The process that many clients live in; started by the others
    #[command(hide = true)]
    Worker { subject: String, contender: String, work: Work, count: usize, lease_ms: u64 },
}

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The server; without it one is started on a free port and ended with the run
    #[arg(long, value_name = "URL", env = URL_VARIABLE, hide_env_values = true)]
    pub(crate) url: Option<String>,

    /// What to measure
    #[arg(
        long,
        value_name = "NAMES",
        value_enum,
        value_delimiter = ',',
        default_value = "cycle,handoff,many,waiting"
    )]
    workload: Vec<Workload>,

    /// Which engines of distlock, and the raw commands that are driven in the same way
    #[arg(long, value_name = "NAMES", value_enum, value_delimiter = ',', default_value = "own,caller")]
    engine: Vec<EngineChoice>,

    /// Which runtimes cycle and handoff are measured on
    #[arg(
        long,
        value_name = "NAMES",
        value_enum,
        value_delimiter = ',',
        default_value = "current_thread,multi_thread"
    )]
    runtime: Vec<RuntimeKind>,

    /// Only these contenders, by their short names
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    contender: Vec<String>,

    /// How often each contender has its turn [default: 5, mysql 3, quick 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: Option<u16>,

    /// The lease of every lock [default: redis 30s, quick 12s; zookeeper 10s; mysql 20s, quick 12s]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    lease: Option<Duration>,

    /// Hand-off: how long a client keeps the lock
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration, default_value = "0s")]
    hold: Duration,

    /// Hand-off: how long a client pauses before it wants the lock again
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration, default_value = "0s")]
    think: Duration,

    /// Less of everything, to see that it runs; the figures say little
    #[arg(long)]
    quick: bool,

    /// Writes all figures to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// Writes a page with charts to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}

impl Options {
    pub(crate) fn wishes(&self) -> Wishes {
        Wishes {
            extent: if self.quick { Extent::Quick } else { Extent::Full },
            workloads: self.workload.clone(),
            engines: self.engine.clone(),
            runtimes: self.runtime.clone(),
            only: self.contender.clone(),
            rounds: self.rounds.map(usize::from),
            lease: self.lease,
            hold: self.hold,
            think: self.think,
        }
    }
}
