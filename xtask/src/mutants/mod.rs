//! `cargo xtask mutants [CRATE|NAME]…`: breaks the code, one defect after the other, and expects the test that the table names to
//! fail.
//!
//! It works on a copy of the workspace with the same target folder, so that dependencies are not built again. A setting of
//! the profile distinguishes what is built from the copy: cargo would take it for the workspace's own otherwise.

pub(crate) mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::console::{Console, readable};
use crate::context::Context;
use crate::failure::Failure;
use crate::process::Process;
use table::Mutant;

/// No other build has this setting, and it is part of the name of all that cargo builds of the copy.
const DISTINCTION: (&str, &str) = ("CARGO_PROFILE_DEV_DEBUG", "line-directives-only");

/// A build may wait for another one.
const LONGEST_BUILD: Duration = Duration::from_secs(60 * 60);

/// A test that takes longer hangs: five times as long as without a defect, and this.
const GRACE: Duration = Duration::from_secs(30);

pub(crate) fn run(arguments: &[String], context: &Context) -> Result<(), Failure> {
    Workshop::open(context)?.run(&chosen(arguments, context.root())?)
}

fn chosen(arguments: &[String], root: &Path) -> Result<Vec<Mutant>, Failure> {
    let mut mutants = Vec::new();
    for folder in fs::read_dir(root).map_err(|error| unreadable(root, &error))?.flatten() {
        if let Ok(text) = fs::read_to_string(folder.path().join(table::FILE)) {
            mutants.extend(table::parse(&folder.file_name().to_string_lossy(), &text)?);
        }
    }
    let is_of = |mutant: &Mutant, argument: &String| mutant.package == *argument || mutant.name == *argument;
    if let Some(unknown) = arguments.iter().find(|argument| !mutants.iter().any(|one| is_of(one, argument))) {
        return Err(Failure::new(format!("no mutant and no crate with mutants is called {unknown}")));
    }
    mutants.retain(|mutant| arguments.is_empty() || arguments.iter().any(|argument| is_of(mutant, argument)));
    mutants.sort_by(|one, other| one.package.cmp(&other.package));
    Ok(mutants)
}

fn unreadable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(format!("{}: {error}", path.display()))
}

/// The copy of the workspace.
struct Workshop<'a> {
    context: &'a Context,
    target: PathBuf,
    copy: PathBuf,
}

/// What a test did.
#[derive(Debug, PartialEq)]
enum Outcome {
    Passed,
    Failed,
    NotRun,
    NotBuilt,
}

impl<'a> Workshop<'a> {
    fn open(context: &'a Context) -> Result<Self, Failure> {
        let target = PathBuf::from(context.metadata()?.target_directory);
        let copy = target.join("mutants").join("workspace");
        let this = Self { context, target, copy };
        this.copy_workspace()?;
        Ok(this)
    }

    /// Copies what has changed since the last time, with a new time of change: what was built of a mutant is out of date.
    fn copy_workspace(&self) -> Result<(), Failure> {
        let root = self.context.root();
        let list = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
        let paths = Process::new("git", &list).within(root).stdout()?;
        let paths: BTreeSet<&str> = paths.split('\0').filter(|path| root.join(path).is_file()).collect();
        let known = self.copy.with_extension("paths");
        let list = paths.iter().copied().collect::<Vec<_>>().join("\n");
        if fs::read_to_string(&known).ok().as_ref() != Some(&list) {
            let _ = fs::remove_dir_all(&self.copy);
        }
        for path in paths {
            let (from, to) = (root.join(path), self.copy.join(path));
            let text = fs::read(&from).map_err(|error| unreadable(&from, &error))?;
            if fs::read(&to).ok().as_ref() != Some(&text) {
                write(&to, &text)?;
            }
        }
        write(&known, list.as_bytes())
    }

    fn run(&self, mutants: &[Mutant]) -> Result<(), Failure> {
        let limits = self.limits(mutants)?;
        let (mut killed, mut known, mut wrong) = (0, 0, Vec::new());
        for mutant in mutants {
            let start = Instant::now();
            let outcome = match &mutant.killed_by {
                Some(test) => match limits.get(test) {
                    Some(limit) => self.try_one(mutant, test, *limit)?,
                    None => Outcome::NotRun,
                },
                None => Outcome::Passed,
            };
            let time = readable(start.elapsed());
            let verdict = match (&outcome, &mutant.survives, &mutant.killed_by) {
                (Outcome::Failed, None, Some(test)) => {
                    killed += 1;
                    format!("killed by {test} in {time}")
                }
                (Outcome::Passed, Some(why), _) => {
                    known += 1;
                    format!("survives: {why}")
                }
                (outcome, survives, _) => {
                    wrong.push(mutant.name.as_str());
                    format!("{}: {}", wording(outcome, survives.is_some()), mutant.breaks)
                }
            };
            Console::detail(&format!("{} {}: {verdict}", mutant.package, mutant.name));
        }
        Console::detail(&format!("{killed} killed, {known} known to survive, {} wrong", wrong.len()));
        if wrong.is_empty() {
            return Ok(());
        }
        Err(Failure::new(format!("not as the table says: {}", wrong.join(", "))))
    }

    /// Runs each of the tests without a defect. Returns how long each that passes may take with one.
    fn limits(&self, mutants: &[Mutant]) -> Result<BTreeMap<String, Duration>, Failure> {
        let mut limits = BTreeMap::new();
        for test in mutants.iter().filter_map(|mutant| mutant.killed_by.as_ref()).collect::<BTreeSet<_>>() {
            let Some(executable) = self.build(test)? else {
                return Err(Failure::new(format!("{test} does not compile: {}", self.log().display())));
            };
            let start = Instant::now();
            match self.run_test(test, &executable, LONGEST_BUILD)? {
                Outcome::Passed => drop(limits.insert(test.clone(), start.elapsed() * 5 + GRACE)),
                outcome => Console::detail(&format!("without a defect {test}: {outcome:?}")),
            }
        }
        Ok(limits)
    }

    fn try_one(&self, mutant: &Mutant, test: &str, limit: Duration) -> Result<Outcome, Failure> {
        let path = self.copy.join(mutant.path());
        let sound = fs::read_to_string(&path).map_err(|error| unreadable(&path, &error))?;
        let defective = mutant
            .applied_to(&sound)
            .map_err(|problem| Failure::new(format!("{} {}: {problem}", mutant.package, mutant.name)))?;
        write(&path, defective.as_bytes())?;
        let outcome = match self.build(test) {
            Ok(Some(executable)) => self.run_test(test, &executable, limit),
            other => other.map(|_| Outcome::NotBuilt),
        };
        write(&path, sound.as_bytes())?;
        outcome
    }

    fn log(&self) -> PathBuf {
        self.copy.with_extension("log")
    }

    /// Builds the program of a test, and returns where it is; `None` if it does not compile.
    fn build(&self, test: &str) -> Result<Option<Value>, Failure> {
        let (program, _) = split(test);
        let command =
            ["test", "--all-features", "--no-run", "--message-format=json-render-diagnostics", "-p"];
        let arguments: Vec<&str> = command.into_iter().chain(program).collect();
        let cargo = self.context.cargo(&arguments).within(&self.copy);
        let cargo = cargo.with_variable("CARGO_TARGET_DIR", &self.target.to_string_lossy());
        let output = self.output(&cargo.with_variable(DISTINCTION.0, DISTINCTION.1), LONGEST_BUILD)?;
        let artifacts = output.1.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let mut tests = artifacts.filter(|artifact| artifact["profile"]["test"] == true);
        Ok(if output.0 { tests.find(|artifact| artifact["executable"].is_string()) } else { None })
    }

    fn run_test(&self, test: &str, program: &Value, limit: Duration) -> Result<Outcome, Failure> {
        let field = |key: &str| program[key].as_str().unwrap_or_default().to_owned();
        let folder = PathBuf::from(field("manifest_path")).with_file_name("");
        let process = Process::new(&field("executable"), &split(test).1).within(&folder);
        let process = process.with_variable("CARGO_MANIFEST_DIR", &folder.to_string_lossy());
        let (succeeded, output) = self.output(&process, limit)?;
        Ok(match (succeeded, output.contains("test result: ok. 0 passed")) {
            (true, true) => Outcome::NotRun,
            (true, false) => Outcome::Passed,
            (false, _) => Outcome::Failed,
        })
    }

    /// Returns whether a program succeeded in time, and its output.
    fn output(&self, process: &Process, limit: Duration) -> Result<(bool, String), Failure> {
        let path = self.log();
        let log = File::create(&path).map_err(|error| unreadable(&path, &error))?;
        let succeeded = process.run_into(&log, limit).is_ok();
        let output = fs::read(&path).map_err(|error| unreadable(&path, &error))?;
        Ok((succeeded, String::from_utf8_lossy(&output).into_owned()))
    }
}

/// Divides the name of a test into the words that select its program, and those for that program.
fn split(test: &str) -> (Vec<&str>, Vec<&str>) {
    let words: Vec<&str> = test.split_whitespace().collect();
    let count = if words.get(1) == Some(&"--lib") { 2 } else { 3 };
    let (program, filter) = words.split_at(count.min(words.len()));
    (program.to_vec(), filter.to_vec())
}

fn wording(outcome: &Outcome, is_known_to_survive: bool) -> &'static str {
    match outcome {
        Outcome::Passed => "SURVIVED",
        Outcome::Failed if is_known_to_survive => "KILLED, and the table says that it survives",
        Outcome::Failed => "KILLED",
        Outcome::NotRun => "ITS TEST DOES NOT PASS WITHOUT IT",
        Outcome::NotBuilt => "DOES NOT COMPILE",
    }
}

fn write(path: &Path, text: &[u8]) -> Result<(), Failure> {
    path.parent()
        .map_or(Ok(()), fs::create_dir_all)
        .and_then(|()| fs::write(path, text))
        .map_err(|error| unreadable(path, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_test_selects_a_program_and_cases() {
        assert_eq!(split("a --lib b::c"), (vec!["a", "--lib"], vec!["b::c"]));
        assert_eq!(split("a --test b c --exact"), (vec!["a", "--test", "b"], vec!["c", "--exact"]));
    }

    #[test]
    fn a_defect_is_applied_once_and_only_where_its_text_is() {
        let entry = "[[mutant]]\nname = 'x'\nbreaks = 'y'\nfile = '../b/c.rs'\nfrom = '<'\nto = '<='\n";
        let mutant = table::parse("a", entry).unwrap().remove(0);
        assert_eq!((mutant.path().as_str(), mutant.applied_to("a < b").as_deref()), ("b/c.rs", Ok("a <= b")));
        assert!(mutant.applied_to("a > b").is_err() && mutant.applied_to("a << b").is_err());
        assert!(mutant.problem().is_some());
        assert!(table::parse("a", &format!("{entry}tier = 'some'\n")).is_err());
        assert!(table::parse("a", &format!("{entry}speed = 'some'\n")).is_err());
    }
}
