//! The command `distlock`: runs a program under a distributed lock or while it leads an election, holds a lock, inspects it, or
//! breaks it.
//!
//! `docs/command.md` describes it for its users. The modules:
//!
//! * [`arguments`] parses the command line, [`exit`] has the table of exit codes;
//! * [`exec`], [`elect`] with [`leaders`], [`hold`], [`status`], [`list`], [`watch`], [`top`], [`breaking`], [`forget`], [`doctor`] are the subcommands; [`unknown`] says what some of them cannot show;
//! * [`connection`] and [`wait`] acquire what is [`named`], [`contact`] reports whether its server can be reached;
//! * [`under_lock`] starts the program that runs under it, [`run`] supervises that: the [`child`] with its [`descendants`], its [`job`] on the
//!   [`terminal`], the [`witness`] of the keys pressed there, and the [`signals`] sent to it;
//! * [`report`] prints what happens ([`event`], [`participants`] and their [`condition`]), through an [`output_writer`]; [`printing`] prints lines until their reader has gone;
//! * [`metrics_file`] writes the library's metrics at the end;
//! * [`limits`] checks that the system has enough resources, [`system`] contains the only unsafe code.

#[cfg(not(unix))]
compile_error!("the command distlock needs a Unix system; the library also works elsewhere");

mod arguments;
mod breaking;
mod child;
mod condition;
mod connection;
mod contact;
mod descendants;
mod doctor;
mod elect;
mod event;
mod exec;
mod exit;
mod forget;
mod hold;
mod input;
mod job;
mod leaders;
mod limits;
mod list;
mod metrics_file;
mod named;
mod output_writer;
mod participants;
mod printing;
mod report;
mod run;
mod signals;
mod status;
mod system;
mod terminal;
mod top;
mod under_lock;
mod unknown;
mod wait;
mod watch;
mod witness;

use std::path::Path;
use std::process;

use clap::{CommandFactory, Parser};
use clap_complete::Shell;
use tracing_subscriber::prelude::*;

use crate::arguments::{Arguments, Task};
use crate::event::Level;
use crate::exit::{Ending, Failure};
use crate::metrics_file::MetricsFile;
use crate::report::Report;

fn main() {
    if witness::are_we() {
        return witness::stand();
    }
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => not_understood(&error),
    };
    let report = Report::new(&arguments.common, arguments.task.json_to());
    // `doctor` listens as well.
    if arguments.common.verbose > 1 && !matches!(arguments.task, Task::Doctor) {
        tracing_subscriber::registry().with(report.log()).init();
    }
    let metrics = arguments.task.metrics_file();
    let ending = start(&arguments, &report).unwrap_or_else(|failure| {
        report.failure(&failure);
        Ending::Code(failure.code)
    });
    if let Some(metrics) = metrics {
        write_metrics(&metrics, ending, &report);
    }
    report.finish();
    ending.exit()
}

fn write_metrics(metrics: &MetricsFile, ending: Ending, report: &Report) {
    if let Err(error) = metrics.write(ending.code()) {
        report.note(
            Level::Warning,
            &format!("cannot write the metrics to {:?}: {error}", metrics.path().display()),
        );
    }
}

fn start(arguments: &Arguments, report: &Report) -> Result<Ending, Failure> {
    limits::check()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::of_system("start", error))?;
    let ending = runtime.block_on(carry_out(arguments, report));
    // The runtime stays alive until the process ends; its background work has had its time by then.
    std::mem::forget(runtime);
    ending
}

async fn carry_out(arguments: &Arguments, report: &Report) -> Result<Ending, Failure> {
    let common = &arguments.common;
    match &arguments.task {
        Task::Exec(exec) => exec::run(common, exec, report).await,
        Task::Elect(elect) if elect.watch => leaders::run(common, elect, report).await,
        Task::Elect(elect) => elect::run(common, elect, report).await,
        Task::Hold(hold) => hold::run(common, hold, report).await,
        Task::Status(status) => status::run(common, status, report).await,
        Task::List(list) => list::run(common, list, report).await,
        Task::Watch(watch) => watch::run(common, watch, report).await,
        Task::Top(top) => top::run(common, top, report).await,
        Task::Break(arguments) => breaking::run(common, arguments).await,
        Task::Forget(arguments) => forget::run(common, arguments).await,
        Task::Doctor => doctor::run(common, report).await,
        Task::Completions { shell } => completions(*shell),
        Task::Man { folder } => man(folder),
    }
}

fn completions(shell: Shell) -> Result<Ending, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "distlock", &mut script);
    report::write_output(&String::from_utf8_lossy(&script))?;
    Ok(Ending::Code(exit::SUCCESS))
}

fn man(folder: &Path) -> Result<Ending, Failure> {
    clap_mangen::generate_to(Arguments::command(), folder)
        .map_err(|error| Failure::of_system(&format!("write to {:?}", folder.display()), error))?;
    Ok(Ending::Code(exit::SUCCESS))
}

/// Prints the help, or what is wrong with the command line.
fn not_understood(error: &clap::Error) -> ! {
    let code = if error.use_stderr() { exit::USAGE } else { exit::SUCCESS };
    // The output may have no reader; the exit code is the same.
    let _ = error.print();
    process::exit(code.into())
}
