//! Finds the steps that a command line names, and runs them in order until one fails.

use std::process::ExitCode;
use std::time::Instant;

use crate::console::{Console, readable};
use crate::context::Context;
use crate::failure::Failure;
use crate::steps::{self, Step};

/// The names that run all steps. Continuous integration runs the same steps as a developer, so the second is only an alias.
const EVERYTHING: [&str; 2] = ["test", "ci"];

/// Not a check: starts a server for experiments. The remaining arguments are for that.
const SERVERS: &str = "servers";

pub(crate) enum Chosen {
    Help,
    Unknown(String),
    Steps(Vec<&'static Step>),
    Servers(Vec<String>),
}

pub(crate) fn choose(arguments: &[String]) -> Chosen {
    if let Some((SERVERS, rest)) = arguments.split_first().map(|(first, rest)| (first.as_str(), rest)) {
        return Chosen::Servers(rest.to_vec());
    }
    let mut chosen = Vec::new();
    for argument in arguments {
        if ["help", "-h", "--help"].contains(&argument.as_str()) {
            return Chosen::Help;
        }
        if EVERYTHING.contains(&argument.as_str()) {
            chosen.extend(steps::ALL);
        } else if let Some(step) = steps::ALL.iter().find(|step| step.name == argument) {
            chosen.push(step);
        } else {
            return Chosen::Unknown(argument.clone());
        }
    }
    if chosen.is_empty() { Chosen::Help } else { Chosen::Steps(chosen) }
}

pub(crate) fn help() -> String {
    let rows: Vec<String> = steps::ALL.iter().map(|step| row(step.name, step.summary)).collect();
    let everything = row("test", "all of the following, in this order; also called ci");
    let servers =
        row(SERVERS, "starts a server to try things with, until Ctrl-C; `servers --help` lists them");
    format!("Usage: cargo xtask STEP…\n\n{everything}\n\n{}\n\n{servers}", rows.join("\n"))
}

fn row(name: &str, summary: &str) -> String {
    format!("  {name:<9} {summary}")
}

pub(crate) fn run(steps: &[&Step], context: &Context) -> ExitCode {
    let start = Instant::now();
    for step in steps {
        if let Err(failure) = run_one(step, context) {
            report(step, &failure, context.console);
            return ExitCode::FAILURE;
        }
    }
    for what in context.skipped() {
        context.console.skipped(&what);
    }
    let count = if steps.len() == 1 { "1 step".to_owned() } else { format!("{} steps", steps.len()) };
    eprintln!("\n{count} passed in {}", readable(start.elapsed()));
    ExitCode::SUCCESS
}

fn run_one(step: &Step, context: &Context) -> Result<(), Failure> {
    let start = Instant::now();
    context.console.heading(step.name, step.summary);
    let outcome = (step.run)(context);
    match outcome {
        Ok(()) => context.console.passed(step.name, start.elapsed()),
        Err(_) => context.console.failed(step.name, start.elapsed()),
    }
    outcome
}

fn report(step: &Step, failure: &Failure, console: Console) {
    console.error(&failure.to_string());
    eprintln!("To repeat this step:     cargo xtask {}", step.name);
    if let Some(command_line) = failure.repeat() {
        eprintln!("To repeat this command:  {command_line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(arguments: &[&str]) -> Vec<&'static str> {
        let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
        match choose(&arguments) {
            Chosen::Steps(steps) => steps.iter().map(|step| step.name).collect(),
            Chosen::Help => vec!["(help)"],
            Chosen::Unknown(_) => vec!["(unknown)"],
            Chosen::Servers(_) => vec!["(servers)"],
        }
    }

    #[test]
    fn what_follows_servers_is_not_taken_for_a_step() {
        let arguments = ["servers", "redis", "--help", "fmt"].map(str::to_owned);
        let rest = match choose(&arguments) {
            Chosen::Servers(rest) => rest,
            _ => Vec::new(),
        };
        assert_eq!(rest, ["redis", "--help", "fmt"]);
        assert_eq!(names(&["fmt", "servers"]), ["(unknown)"]);
    }

    #[test]
    fn test_and_ci_mean_every_step_in_the_order_of_the_table() {
        let all: Vec<&str> = steps::ALL.iter().map(|step| step.name).collect();
        assert_eq!(names(&["test"]), all);
        assert_eq!(names(&["ci"]), all);
    }

    #[test]
    fn steps_run_in_the_order_they_were_named() {
        assert_eq!(names(&["tidy", "fmt"]), ["tidy", "fmt"]);
    }

    #[test]
    fn nothing_is_help_and_a_misspelt_step_is_refused() {
        assert_eq!(names(&[]), ["(help)"]);
        assert_eq!(names(&["fmt", "--help"]), ["(help)"]);
        assert_eq!(names(&["fmt", "tset"]), ["(unknown)"]);
    }

    #[test]
    fn no_step_hides_behind_the_name_for_all_of_them() {
        assert!(steps::ALL.iter().all(|step| !EVERYTHING.contains(&step.name) && step.name != SERVERS));
    }
}
