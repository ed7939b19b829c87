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

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, bail};

use console::{DETAIL, ERROR, FAILED, PARTLY, PASSED, readable, say};
use context::{Context, Tier};
use steps::Step;

const USAGE: &str = "Usage: cargo xtask STEP… [--all]

  test       proves that all of it works
  test --all all that there is to check; what continuous integration runs

  mutants    [CRATE|NAME]…: breaks the code on purpose, and expects a test to fail each time
  soak       HOURS [SEED]: contests with random harm, cases of losses and models, for that long
  dist       builds what users install: an archive, a Debian package, checksums
  servers    starts a server to try things with, until Ctrl-C; `servers --help` lists them

Steps of `test`:";

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
        Some(("dist", rest)) => process::run(context.script("packaging/dist.sh").args(rest)),
        Some(("servers", rest)) => steps::servers(rest, &context),
        _ => run_steps(&chosen(arguments, tier)?, &context),
    }
}

/// Returns the steps that the words name; none for a reader who needs help.
fn chosen(words: &[String], tier: Tier) -> Result<Vec<&'static Step>> {
    let mut chosen = Vec::new();
    for word in words.iter().filter(|word| *word != "--all") {
        match steps::ALL.iter().find(|(_, name, ..)| name == word) {
            Some(step) => chosen.push(step),
            None if word == "test" => chosen.extend(steps::ALL.iter().filter(|(wants, ..)| *wants <= tier)),
            None if ["help", "-h", "--help"].contains(&word.as_str()) => return Ok(Vec::new()),
            None => bail!("there is no step {word:?}\n\n{}", help()),
        }
    }
    Ok(chosen)
}

fn help() -> String {
    let rows = steps::ALL.iter().map(|(tier, name, _, summary)| {
        let wide = if *tier == Tier::All { " (with --all)" } else { "" };
        format!("\n  {name:<10} {summary}{wide}")
    });
    USAGE.to_owned() + &rows.collect::<String>()
}

fn run_steps(steps: &[&Step], context: &Context) -> Result<()> {
    if steps.is_empty() {
        println!("{}", help());
        return Ok(());
    }
    let start = Instant::now();
    if steps.len() > 1 && steps.iter().any(|(_, name, ..)| *name == "suite") {
        say(DETAIL, ANNOUNCEMENT);
        if context.tier == Tier::Default {
            context.skipped.borrow_mut().push(left_out());
        }
    }
    for step in steps {
        run_one(step, context)?;
    }
    eprintln!("\n{}", last_line(steps.len(), &readable(start.elapsed()), &context.skipped.borrow()));
    Ok(())
}

/// How long it takes.
const ANNOUNCEMENT: &str = "on two processors this takes 8 to 17 minutes with an empty target, half of that afterwards; \
    with --all 25 to 45, and the time to download what is missing";

/// Returns what the default leaves out, which a reader of the last line must not take for checked.
fn left_out() -> String {
    let wide = steps::ALL.iter().filter(|(tier, ..)| *tier == Tier::All).map(|(_, name, ..)| *name);
    format!("{}, and the rest of the suite (cargo xtask test --all)", wide.collect::<Vec<_>>().join(", "))
}

fn last_line(count: usize, took: &str, without: &[String]) -> String {
    let not_checked = if without.is_empty() { "" } else { ". Not checked:\n    " };
    format!("{count} passed in {took}{not_checked}{}", without.join("\n    "))
}

fn run_one((_, name, run, summary): &Step, context: &Context) -> Result<()> {
    let (start, skipped) = (Instant::now(), context.skipped.borrow().len());
    say(("1", &format!("\n==> {name}:")), summary);
    let outcome = run(context);
    let took = readable(start.elapsed());
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
            Ok(steps) => steps.iter().map(|(_, name, ..)| *name).collect(),
            Err(_) => vec!["(unknown)"],
        }
    }

    #[test]
    fn test_means_the_steps_of_its_tier_in_the_order_of_the_table() {
        let all: Vec<&str> = steps::ALL.iter().map(|(_, name, ..)| *name).collect();
        assert_eq!(names(&["test", "--all"]), all);
        assert_eq!(names(&["--all", "test"]), all);
        let default = names(&["test"]);
        assert!(default.contains(&"suite") && !default.contains(&"features"), "{default:?}");
    }

    #[test]
    fn the_last_line_says_what_was_not_checked() {
        assert_eq!(last_line(1, "2.0 s", &[]), "1 passed in 2.0 s");
        let line = last_line(6, "2.0 s", &["cargo-deny".to_owned(), "docs".to_owned()]);
        assert!(line.ends_with("Not checked:\n    cargo-deny\n    docs"), "{line}");
        assert!(left_out().contains("features, outside, deny, and the rest"), "{}", left_out());
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
        let taken = ["test", "mutants", "soak", "dist", "servers"];
        assert!(steps::ALL.iter().all(|(_, name, ..)| !taken.contains(name)));
    }
}
