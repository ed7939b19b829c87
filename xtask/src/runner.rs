//! Finds the steps that a command line names, and runs them in order until one fails.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::console::{Console, readable};
use crate::context::Context;
use crate::failure::Failure;
use crate::steps::{self, Step};
use crate::tier::Tier;

/// The name that runs the steps of a tier.
const EVERYTHING: &str = "test";

/// Selects [`Tier::All`].
const ALL: &str = "--all";

/// Not a check: starts a server for experiments. The remaining arguments are for that.
const SERVERS: &str = "servers";

/// Not a check that ends by itself. The remaining arguments are for that.
const SOAK: &str = "soak";

/// Not a check of the code, but of its tests. The remaining arguments select mutants.
const MUTANTS: &str = "mutants";

pub(crate) enum Chosen {
    Help,
    Unknown(String),
    Steps(Vec<&'static Step>, Tier),
    Servers(Vec<String>),
    Mutants(Vec<String>),
    Soak(Vec<String>),
}

pub(crate) fn choose(arguments: &[String]) -> Chosen {
    match arguments.split_first().map(|(first, rest)| (first.as_str(), rest)) {
        Some((SERVERS, rest)) => return Chosen::Servers(rest.to_vec()),
        Some((MUTANTS, rest)) => return Chosen::Mutants(rest.to_vec()),
        Some((SOAK, rest)) => return Chosen::Soak(rest.to_vec()),
        _ => {}
    }
    let tier = if arguments.iter().any(|argument| argument == ALL) { Tier::All } else { Tier::Default };
    let mut chosen = Vec::new();
    for argument in arguments.iter().filter(|argument| *argument != ALL) {
        if ["help", "-h", "--help"].contains(&argument.as_str()) {
            return Chosen::Help;
        }
        if argument == EVERYTHING {
            chosen.extend(steps::of(tier));
        } else if let Some(step) = steps::ALL.iter().find(|step| step.name == argument) {
            chosen.push(step);
        } else {
            return Chosen::Unknown(argument.clone());
        }
    }
    if chosen.is_empty() { Chosen::Help } else { Chosen::Steps(chosen, tier) }
}

pub(crate) fn help() -> String {
    let rows = |tier| {
        let steps = steps::ALL.iter().filter(|step| step.tier == tier);
        steps.map(|step| row(step.name, step.summary)).collect::<Vec<_>>().join("\n")
    };
    format!(
        "Usage: cargo xtask STEP… [--all]\n\n{}\n{}\n\nSteps of both:\n{}\n\nSteps of `test --all`:\n{}\n\n{}\n{}\n{}",
        row("test", "proves that all of it works"),
        row("test --all", "all that there is to check; what continuous integration runs"),
        rows(Tier::Default),
        rows(Tier::All),
        row(MUTANTS, "[CRATE|NAME]…: breaks the code on purpose, and expects a test to fail each time"),
        row(SOAK, "HOURS [SEED]: contests with random harm, cases of losses and models, for that long"),
        row(SERVERS, "starts a server to try things with, until Ctrl-C; `servers --help` lists them")
    )
}

fn row(name: &str, summary: &str) -> String {
    format!("  {name:<10} {summary}")
}

pub(crate) fn run(steps: &[&Step], context: &Context) -> Result<(), Failure> {
    let start = Instant::now();
    let last = LastRun::of(context.tier, context);
    let is_whole = steps.len() == steps::of(context.tier).count();
    if is_whole {
        Console::detail(&last.announcement());
    }
    for step in steps {
        run_one(step, context)?;
    }
    if is_whole {
        last.keep(start.elapsed());
    }
    let count = if steps.len() == 1 { "1 step".to_owned() } else { format!("{} steps", steps.len()) };
    eprintln!("\n{}", last_line(&count, &readable(start.elapsed()), &not_checked(steps, context)));
    Ok(())
}

/// How long all steps of a tier took when they last passed; kept in a file.
struct LastRun {
    tier: Tier,
    file: PathBuf,
}

impl LastRun {
    fn of(tier: Tier, context: &Context) -> Self {
        let target = context.metadata().map(|metadata| metadata.target_directory).unwrap_or_default();
        Self { tier, file: target.join(format!("xtask-{tier:?}.seconds").to_lowercase()).into() }
    }

    fn announcement(&self) -> String {
        let seconds = fs::read_to_string(&self.file).ok().and_then(|text| text.trim().parse().ok());
        if let Some(seconds) = seconds {
            return format!("the last run took {}", readable(Duration::from_secs(seconds)));
        }
        let expected = match self.tier {
            Tier::Default => "8 to 17 minutes with an empty target, half of that afterwards",
            Tier::All => "15 to 35 minutes with an empty target, and the time to download what is missing",
        };
        format!("on two processors this takes {expected}")
    }

    /// Writes the file. Without it the next run announces the times of a common machine.
    fn keep(&self, took: Duration) {
        let _ = fs::write(&self.file, took.as_secs().to_string());
    }
}

/// Returns what a reader of the last line must not take for checked.
fn not_checked(steps: &[&Step], context: &Context) -> Vec<String> {
    let mut without = context.skipped();
    if context.tier == Tier::Default && steps.len() > 1 && steps.iter().any(|step| step.name == "suite") {
        let left = steps::ALL.iter().filter(|step| step.tier == Tier::All).map(|step| step.name);
        let left = left.collect::<Vec<_>>().join(", ");
        without.push(format!("{left}, and the rest of the suite (cargo xtask test --all)"));
    }
    without
}

fn last_line(count: &str, took: &str, without: &[String]) -> String {
    if without.is_empty() {
        return format!("{count} passed in {took}");
    }
    format!("{count} passed in {took}. Not checked:\n    {}", without.join("\n    "))
}

fn run_one(step: &Step, context: &Context) -> Result<(), Failure> {
    let (start, skipped) = (Instant::now(), context.skipped().len());
    context.console.heading(step.name, step.summary);
    let outcome = (step.run)(context);
    match outcome {
        Ok(()) if context.skipped().len() > skipped => context.console.partly(step.name, start.elapsed()),
        Ok(()) => context.console.passed(step.name, start.elapsed()),
        Err(_) => {
            context.console.failed(step.name, start.elapsed());
            eprintln!("To repeat this step:     cargo xtask {}", step.name);
        }
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(arguments: &[&str]) -> Vec<&'static str> {
        let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
        match choose(&arguments) {
            Chosen::Steps(steps, _) => steps.iter().map(|step| step.name).collect(),
            Chosen::Help => vec!["(help)"],
            Chosen::Unknown(_) => vec!["(unknown)"],
            Chosen::Servers(_) => vec!["(servers)"],
            Chosen::Mutants(_) => vec!["(mutants)"],
            Chosen::Soak(_) => vec!["(soak)"],
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
    fn test_means_the_steps_of_its_tier_in_the_order_of_the_table() {
        let all: Vec<&str> = steps::ALL.iter().map(|step| step.name).collect();
        assert_eq!(names(&["test", "--all"]), all);
        assert_eq!(names(&["--all", "test"]), all);
        let default = names(&["test"]);
        assert!(default.contains(&"suite") && !default.contains(&"features"), "{default:?}");
    }

    #[test]
    fn the_last_line_says_what_was_not_checked() {
        assert_eq!(last_line("1 step", "2.0 s", &[]), "1 step passed in 2.0 s");
        let line = last_line("6 steps", "2.0 s", &["cargo-deny".to_owned(), "docs".to_owned()]);
        assert!(line.ends_with("Not checked:\n    cargo-deny\n    docs"), "{line}");
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
        assert!(steps::ALL.iter().all(|step| ![EVERYTHING, SERVERS, SOAK, MUTANTS].contains(&step.name)));
    }
}
