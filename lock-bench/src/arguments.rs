//! The options of the command line, which are the same for every server.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::plan::{EngineChoice, Extent, Wishes, Workload};
use crate::runtimes::RuntimeKind;
use crate::workload::worker::URL_VARIABLE;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The server; without it one is started on a free port and ended with the run
    #[arg(long, value_name = "URL", env = URL_VARIABLE, hide_env_values = true)]
    pub(crate) url: Option<String>,

    /// What to measure, if the server has it
    #[arg(
        long,
        value_name = "NAMES",
        value_enum,
        value_delimiter = ',',
        default_value = "cycle,handoff,many,waiting,sharing,tasks,exec"
    )]
    workload: Vec<Workload>,

    /// Which engines of distlock, and the raw commands that are driven in the same way
    #[arg(long, value_name = "NAMES", value_enum, value_delimiter = ',', default_value = "own,caller")]
    engine: Vec<EngineChoice>,

    /// Which runtimes cycle, handoff and sharing are measured on
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

    /// How often each contender has its turn [default: the server's, 2 to 5]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: Option<u16>,

    /// The lease of every lock [default: the server's, 10s to 30s]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    lease: Option<Duration>,

    /// Hand-off: how long a client keeps the lock
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration, default_value = "0s")]
    hold: Duration,

    /// Hand-off: how long a client pauses before it wants the lock again
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration, default_value = "0s")]
    think: Duration,

    /// Exec: the command distlock [default: the one beside lock-bench]
    #[arg(long, value_name = "FILE")]
    distlock: Option<PathBuf>,

    /// Less of everything, to see that it runs; the figures say little
    #[arg(long)]
    quick: bool,

    /// Writes all figures to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// Compares the run with an earlier one, from the file that --json wrote then, and says what got slower or faster beyond
    /// the spread of both; this does not change the exit code. With several servers, each file name contains the server, as
    /// with --json
    #[arg(long, value_name = "FILE")]
    pub(crate) baseline: Option<PathBuf>,

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
            distlock: self.distlock.clone(),
        }
    }
}
