//! The command `distlock`: run a program under a distributed lock, hold one, look at it, break it.
//!
//! `docs/command.md` describes it for its users. Each module here is one idea:
//!
//! * [`arguments`] is the command line, [`exit`] the one table of exit codes;
//! * [`exec`], [`hold`], [`status`], [`breaking`] are the subcommands;
//! * [`connection`] and [`wait`] get a lock, [`contact`] tells how it fares;
//! * [`child`] is the program that runs under it, [`job`] its place on the [`terminal`], [`signals`] what it is told;
//! * [`report`] says what happens ([`event`], [`people`] and the [`condition`] that they are in);
//! * [`limits`] tells when the system has too little left for it, [`system`] has the only unsafe code.

#[cfg(not(unix))]
compile_error!("the command distlock needs a Unix system; the library works elsewhere too");

mod arguments;
mod breaking;
mod child;
mod condition;
mod connection;
mod contact;
mod event;
mod exec;
mod exit;
mod hold;
mod input;
mod job;
mod limits;
mod people;
mod report;
mod signals;
mod status;
mod system;
mod terminal;
mod wait;

use std::io;
use std::process;

use clap::{CommandFactory, Parser};
use clap_complete::Shell;
use tracing_subscriber::filter::LevelFilter;

use crate::arguments::{Arguments, Task};
use crate::exit::{Ending, Failure};
use crate::report::{JsonTo, Report};

fn main() {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => not_understood(&error),
    };
    if arguments.common.verbose > 1 {
        tracing_subscriber::fmt().with_writer(io::stderr).with_max_level(LevelFilter::DEBUG).init();
    }
    let json_to = if matches!(arguments.task, Task::Exec(_)) { JsonTo::Error } else { JsonTo::Output };
    let report = Report::new(&arguments.common, json_to);
    match start(&arguments, &report) {
        Ok(ending) => ending.exit(),
        Err(failure) => {
            report.failure(&failure);
            Ending::Code(failure.code).exit()
        }
    }
}

fn start(arguments: &Arguments, report: &Report) -> Result<Ending, Failure> {
    limits::check()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::of_system("start", error))?;
    let ending = runtime.block_on(run(arguments, report));
    // The runtime stays alive until the process ends: what runs in the background has had its time by then.
    std::mem::forget(runtime);
    ending
}

async fn run(arguments: &Arguments, report: &Report) -> Result<Ending, Failure> {
    let common = &arguments.common;
    match &arguments.task {
        Task::Exec(exec) => exec::run(common, exec, report).await,
        Task::Hold(hold) => hold::run(common, hold, report).await,
        Task::Status(status) => status::run(common, status).await,
        Task::Break(arguments) => breaking::run(common, arguments).await,
        Task::Completions { shell } => completions(*shell),
    }
}

fn completions(shell: Shell) -> Result<Ending, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "distlock", &mut script);
    report::write_output(&String::from_utf8_lossy(&script))?;
    Ok(Ending::Code(exit::SUCCESS))
}

/// Prints the help that was asked for, or what is wrong with the command line.
fn not_understood(error: &clap::Error) -> ! {
    let code = if error.use_stderr() { exit::USAGE } else { exit::SUCCESS };
    // Nobody may be reading; the code says it all the same.
    let _ = error.print();
    process::exit(code.into())
}
