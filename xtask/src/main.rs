//! The development tasks of this workspace: `cargo xtask test` proves that all of it works, `cargo xtask test --all`
//! checks everything that a change has to pass, and each step can be run by itself. `cargo xtask` prints the list.
//!
//! A step is one row in [`steps::ALL`]. The first one that fails ends the run, with the command that repeats it.
#![forbid(unsafe_code)]

mod console;
mod context;
mod mutants;
mod process;
mod steps;
mod suite;
mod tidy;

use std::fs;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use console::{DETAIL, ERROR, FAILED, PARTLY, PASSED, heading, readable, say};
use context::{Context, Tier};
use steps::Step;

/// The name that runs the steps of a tier.
const EVERYTHING: &str = "test";

const USAGE: &str = "Usage: cargo xtask STEP… [--all]

  test       proves that all of it works
  test --all all that there is to check; what continuous integration runs
";

/// What is no step. All that follows its name is for that.
const CHORES: &str = "
  mutants    [CRATE|NAME]…: breaks the code on purpose, and expects a test to fail each time
  soak       HOURS [SEED]: contests with random harm, cases of losses and models, for that long
  servers    starts a server to try things with, until Ctrl-C; `servers --help` lists them";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Err(error) = run(&arguments) else { return ExitCode::SUCCESS };
    say(ERROR, format_args!("{error:#}"));
    ExitCode::FAILURE
}

fn run(arguments: &[String]) -> Result<()> {
    let tier = if arguments.iter().any(|word| word == "--all") { Tier::All } else { Tier::Default };
    let context = Context::new(tier)?;
    match arguments.split_first().map(|(first, rest)| (first.as_str(), rest)) {
        Some(("mutants", rest)) => mutants::run(rest, &context),
        Some(("soak", rest)) => suite::soak::run(rest, &context),
        Some(("servers", rest)) => steps::servers(rest, &context),
        _ => run_steps(&chosen(arguments, tier)?, &context),
    }
}

/// Returns the steps that the words name; none for a reader who needs help.
fn chosen(words: &[String], tier: Tier) -> Result<Vec<&'static Step>> {
    let mut chosen = Vec::new();
    for word in words.iter().filter(|word| *word != "--all") {
        match steps::ALL.iter().find(|step| step.name == word) {
            Some(step) => chosen.push(step),
            None if word == EVERYTHING => chosen.extend(steps::of(tier)),
            None if ["help", "-h", "--help"].contains(&word.as_str()) => return Ok(Vec::new()),
            None => bail!("there is no step {word:?}\n\n{}", help()),
        }
    }
    Ok(chosen)
}

fn help() -> String {
    let rows = |tier| {
        let steps = steps::ALL.iter().filter(|step| step.tier == tier);
        steps
            .map(|Step { name, summary, .. }| format!("\n  {name:<10} {summary}"))
            .collect::<Vec<_>>()
            .concat()
    };
    let (default, all) = (rows(Tier::Default), rows(Tier::All));
    format!("{USAGE}\nSteps of both:{default}\n\nSteps of `test --all`:{all}\n{CHORES}")
}

fn run_steps(steps: &[&Step], context: &Context) -> Result<()> {
    if steps.is_empty() {
        println!("{}", help());
        return Ok(());
    }
    let (tier, start) = (context.tier, Instant::now());
    let last = context.target(&format!("xtask-{tier:?}.seconds").to_lowercase());
    let is_whole = steps.len() == steps::of(tier).count();
    if is_whole {
        say(DETAIL, announcement(fs::read_to_string(&last).ok().as_deref(), tier));
    }
    for step in steps {
        run_one(step, context)?;
    }
    if is_whole {
        // Without the file, the next run announces the time of a common machine.
        let _ = fs::write(&last, start.elapsed().as_secs().to_string());
    }
    let count = if steps.len() == 1 { "1 step".to_owned() } else { format!("{} steps", steps.len()) };
    eprintln!("\n{}", last_line(&count, &readable(start.elapsed()), &not_checked(steps, context)));
    Ok(())
}

/// Returns how long all steps of a tier will take, by the text of the file that says how long they took last.
fn announcement(last: Option<&str>, tier: Tier) -> String {
    if let Some(seconds) = last.and_then(|text| text.trim().parse().ok()) {
        return format!("the last run took {}", readable(Duration::from_secs(seconds)));
    }
    let (minutes, and) = match tier {
        Tier::Default => ("8 to 17", "half of that afterwards"),
        Tier::All => ("15 to 35", "and the time to download what is missing"),
    };
    format!("on two processors this takes {minutes} minutes with an empty target, {and}")
}

/// Returns what a reader of the last line must not take for checked.
fn not_checked(steps: &[&Step], context: &Context) -> Vec<String> {
    let mut without = context.skipped.borrow().clone();
    if context.tier == Tier::Default && steps.len() > 1 && steps.iter().any(|step| step.name == "suite") {
        let wide = steps::ALL.iter().filter(|step| step.tier == Tier::All).map(|step| step.name);
        let wide = wide.collect::<Vec<_>>().join(", ");
        without.push(format!("{wide}, and the rest of the suite (cargo xtask test --all)"));
    }
    without
}

fn last_line(count: &str, took: &str, without: &[String]) -> String {
    let not_checked = if without.is_empty() { "" } else { ". Not checked:\n    " };
    format!("{count} passed in {took}{not_checked}{}", without.join("\n    "))
}

fn run_one(step: &Step, context: &Context) -> Result<()> {
    let (start, skipped) = (Instant::now(), context.skipped.borrow().len());
    heading(step.name, step.summary);
    let outcome = (step.run)(context);
    let (name, took) = (step.name, readable(start.elapsed()));
    match outcome {
        Ok(()) if context.skipped.borrow().len() > skipped => say(PARTLY, format!("{name} in {took}")),
        Ok(()) => say(PASSED, format!("{name} in {took}")),
        Err(_) => say(FAILED, format!("{name} after {took}\nTo repeat this step:     cargo xtask {name}")),
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(words: &[&str]) -> Vec<&'static str> {
        let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
        let tier = if words.contains(&"--all".to_owned()) { Tier::All } else { Tier::Default };
        match chosen(&words, tier) {
            Ok(steps) if steps.is_empty() => vec!["(help)"],
            Ok(steps) => steps.iter().map(|step| step.name).collect(),
            Err(_) => vec!["(unknown)"],
        }
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
        assert_eq!(names(&["fmt", "servers"]), ["(unknown)"]);
    }

    #[test]
    fn no_step_hides_behind_the_name_for_all_of_them() {
        let taken = [EVERYTHING, "mutants", "soak", "servers"];
        assert!(steps::ALL.iter().all(|step| !taken.contains(&step.name)));
    }

    #[test]
    fn the_time_of_the_last_run_is_announced_or_that_of_a_common_machine() {
        assert_eq!(announcement(Some("90\n"), Tier::All), "the last run took 1 min 30 s");
        assert!(announcement(Some("soon"), Tier::All).contains("15 to 35 minutes"));
        assert!(announcement(None, Tier::Default).contains("8 to 17 minutes"));
    }
}
