//! `cargo xtask mutants [CRATE|NAME]…`: breaks the code, one defect of the tables `mutants.toml` after the other, and expects the
//! test that the table names to fail.
//!
//! It works on a copy of the workspace with the same target folder, so that dependencies are not built again. A setting of
//! the profile distinguishes what is built from the copy: cargo would take it for the workspace's own otherwise.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Error, Result, bail, ensure};
use cargo_metadata::Metadata;
use serde::Deserialize;

use crate::console::{DETAIL, readable, say};
use crate::context::{Context, Tier};
use crate::suite::{LIMIT, programs};
use crate::tidy::{paths, regex, resolved};

/// The name of a table, in the folder of its crate.
pub(crate) const FILE: &str = "mutants.toml";

/// The folder of the copy, in the target folder.
const COPY: &str = "mutants/workspace";

/// No other build has this setting, and it is part of the name of all that cargo builds of the copy.
const DISTINCTION: (&str, &str) = ("CARGO_PROFILE_DEV_DEBUG", "line-directives-only");

/// A test that takes longer hangs: five times as long as without a defect, and this.
const GRACE: Duration = Duration::from_secs(30);

/// What finds a defect, and the tier that has it.
type Test<'a> = (&'a str, Tier);

/// One defect that a test has to find.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct Mutant {
    pub(crate) name: String,
    /// The promise that it breaks.
    breaks: String,
    /// Relative to the crate; once read, to the workspace.
    pub(crate) file: String,
    /// A text that occurs once in the file.
    from: String,
    to: String,
    /// A package, `--lib` or `--test NAME`, and a filter.
    killed_by: Option<String>,
    /// The tier of the suite that has the test.
    tier: Option<Tier>,
    /// Why no test finds it yet.
    survives: Option<String>,
    /// The folder of the crate, relative to the workspace.
    #[serde(skip)]
    package: String,
}

/// Parses the table of the crate in the folder `package`.
pub(crate) fn parse(package: &str, text: &str) -> Result<Vec<Mutant>> {
    let mut table: BTreeMap<String, Vec<Mutant>> = toml::from_str(text)?;
    let mut mutants = table.remove("mutant").unwrap_or_default();
    ensure!(table.is_empty(), "has other tables than [[mutant]]");
    let mut names = BTreeSet::new();
    for mutant in &mut mutants {
        mutant.file = resolved(&format!("{package}/{FILE}"), &mutant.file).unwrap_or_default();
        package.clone_into(&mut mutant.package);
        let Mutant { name, from, to, killed_by, tier, survives, .. } = mutant;
        ensure!(names.insert(name.clone()), "{name:?} is there twice");
        let has_verdict = killed_by.is_some() && tier.is_some() || survives.is_some();
        ensure!(has_verdict, "{name:?} has neither `killed-by` with a `tier` nor `survives`");
        ensure!(from != to && !from.is_empty(), "{name:?} changes nothing");
    }
    Ok(mutants)
}

impl Mutant {
    fn test(&self) -> Option<Test<'_>> {
        self.killed_by.as_deref().zip(self.tier)
    }

    /// The defective file.
    pub(crate) fn applied_to(&self, text: &str) -> Result<String, &'static str> {
        match text.matches(&self.from).count() {
            1 => Ok(text.replacen(&self.from, &self.to, 1)),
            0 => Err("its `from` does not occur in the file"),
            _ => Err("its `from` occurs more than once"),
        }
    }
}

/// What a test did.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Outcome {
    Passed,
    Failed,
    NotRun,
    NotBuilt,
}

/// What a test did, and how long it took.
type Ran = (Outcome, Duration);

pub(crate) fn run(arguments: &[String], context: &Context) -> Result<()> {
    let mutants = chosen(arguments, &context.metadata)?;
    update(&context.target(COPY), context.root())?;
    let tests: BTreeSet<_> = mutants.iter().filter_map(Mutant::test).collect();
    let sound = tests.into_iter().map(|test| Ok((test, outcome(test, LIMIT, context)?)));
    let sound: BTreeMap<_, _> = sound.collect::<Result<_>>()?;
    let mut wrong = Vec::new();
    for mutant in &mutants {
        let (outcome, took) = match mutant.test().map(|test| (test, sound[&test])) {
            None => (Outcome::Passed, Duration::ZERO),
            Some((test, (Outcome::Passed, took))) => broken(mutant, test, took * 5 + GRACE, context)?,
            Some(_) => (Outcome::NotRun, Duration::ZERO),
        };
        let (is_right, verdict) = verdict(mutant, outcome, took);
        say(DETAIL, format_args!("{} {}: {verdict}", mutant.package, mutant.name));
        wrong.extend((!is_right).then_some(mutant.name.as_str()));
    }
    // Else they would make all that is built next incremental, and so anew.
    let _ = (!context.is_incremental).then(|| fs::remove_dir_all(context.target("debug/incremental")));
    say(DETAIL, format_args!("{} of {} as the table says", mutants.len() - wrong.len(), mutants.len()));
    ensure!(wrong.is_empty(), "not as the table says: {}", wrong.join(", "));
    Ok(())
}

fn chosen(arguments: &[String], metadata: &Metadata) -> Result<Vec<Mutant>> {
    let mut mutants = Vec::new();
    for package in &metadata.packages {
        if let Ok(text) = fs::read_to_string(package.manifest_path.with_file_name(FILE)) {
            mutants.extend(parse(&package.name, &text).with_context(|| format!("{}/{FILE}", package.name))?);
        }
    }
    let is_of = |mutant: &Mutant, argument: &String| [&mutant.package, &mutant.name].contains(&argument);
    if let Some(unknown) = arguments.iter().find(|argument| !mutants.iter().any(|one| is_of(one, argument))) {
        bail!("no mutant and no crate with mutants is called {unknown}");
    }
    mutants.retain(|one| arguments.is_empty() || arguments.iter().any(|argument| is_of(one, argument)));
    Ok(mutants)
}

/// Returns whether the outcome is what the table says, and the words for it.
fn verdict(mutant: &Mutant, outcome: Outcome, took: Duration) -> (bool, String) {
    let test = mutant.killed_by.as_deref().unwrap_or_default();
    let wrong = match (outcome, &mutant.survives) {
        (Outcome::Failed, None) => return (true, format!("killed by {test} in {}", readable(took))),
        (Outcome::Passed, Some(why)) => return (true, format!("survives: {why}")),
        (Outcome::Failed, Some(_)) => "KILLED, and the table says that it survives",
        (Outcome::Passed, None) => "SURVIVED",
        (Outcome::NotRun, _) => "ITS TEST DOES NOT PASS WITHOUT IT",
        (Outcome::NotBuilt, _) => "DOES NOT COMPILE",
    };
    (false, format!("{wrong}: {}", mutant.breaks))
}

/// Copies what has changed since the last time, with a new time of change: what was built of a mutant is out of date.
fn update(copy: &Path, root: &Path) -> Result<()> {
    let paths_of_root = paths(root)?;
    if paths(copy).ok().as_ref() != Some(&paths_of_root) {
        let _ = fs::remove_dir_all(copy);
    }
    for path in paths_of_root {
        let (text, to) = (fs::read(root.join(&path))?, copy.join(&path));
        if fs::read(&to).ok().as_ref() != Some(&text) {
            fs::create_dir_all(to.parent().unwrap_or(copy))?;
            fs::write(&to, &text)?;
        }
    }
    Ok(())
}

/// Runs the test with the defect.
fn broken(mutant: &Mutant, test: Test<'_>, limit: Duration, context: &Context) -> Result<Ran> {
    let path = context.target(COPY).join(&mutant.file);
    let sound = fs::read_to_string(&path)?;
    fs::write(&path, mutant.applied_to(&sound).map_err(Error::msg).context(mutant.name.clone())?)?;
    let outcome = outcome(test, limit, context);
    fs::write(&path, sound)?;
    outcome
}

/// Builds the program of a test in the copy, and runs the test. Returns for how long it ran, too.
fn outcome((test, tier): Test<'_>, limit: Duration, context: &Context) -> Result<Ran> {
    let (copy, log) = (context.target(COPY), context.target("mutants/workspace.log"));
    let (selection, filter) = split(test);
    let mut cargo = context.cargo(&format!("test --all-features -p {selection}"));
    cargo.current_dir(copy).env("CARGO_TARGET_DIR", context.target("")).env(DISTINCTION.0, DISTINCTION.1);
    // A defect changes a line, so what a build needs is what the last one had: a third of the time.
    cargo.env("CARGO_INCREMENTAL", "1").stderr(File::create(&log)?);
    let Ok(mut programs) = programs::built(&mut cargo, tier) else {
        return Ok((Outcome::NotBuilt, Duration::ZERO));
    };
    programs[0].command.args(filter.split_whitespace());
    let start = Instant::now();
    let outcome = match programs[0].run(&log, limit) {
        Ok(counts) if counts.passed == 0 => Outcome::NotRun,
        Ok(_) => Outcome::Passed,
        Err(_) => Outcome::Failed,
    };
    Ok((outcome, start.elapsed()))
}

/// Divides the name of a test into the words that select its program, and those for that program.
fn split(test: &str) -> (&str, &str) {
    let end = regex(r"^\S+ (?:--lib|--test \S+)").find(test).map_or(test.len(), |selection| selection.end());
    test.split_at(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_test_selects_a_program_and_cases() {
        assert_eq!(split("a --lib b::c"), ("a --lib", " b::c"));
        assert_eq!(split("a --test b c --exact"), ("a --test b", " c --exact"));
    }

    #[test]
    fn a_defect_is_applied_once_and_only_where_its_text_is() {
        let entry = "[[mutant]]\nname = 'x'\nbreaks = 'y'\nfile = '../b/c.rs'\nfrom = '<'\nto = '<='\n";
        let known = format!("{entry}survives = 'z'\n");
        let mutant = parse("a", &known).unwrap().remove(0);
        assert_eq!((mutant.file.as_str(), mutant.applied_to("a < b").as_deref()), ("b/c.rs", Ok("a <= b")));
        assert!(mutant.applied_to("a > b").is_err() && mutant.applied_to("a << b").is_err());
        assert!(parse("a", entry).is_err() && parse("a", &format!("{entry}killed-by = 'b'\n")).is_err());
        assert!(parse("a", &known.replace("'<='", "'<'")).is_err());
        assert!(parse("a", &format!("{known}tier = 'some'\n")).is_err());
        assert!(parse("a", &format!("{known}speed = 'some'\n")).is_err());
        assert!(parse("a", "[[mutants]]\n").is_err());
    }

    #[test]
    fn only_what_the_table_says_is_right() {
        let of = |rest: &str| {
            let entry = "[[mutant]]\nname = 'x'\nbreaks = 'y'\nfile = 'c.rs'\nfrom = '<'\nto = '<='\n";
            parse("a", &format!("{entry}{rest}")).unwrap().remove(0)
        };
        let (killed, survives) = (of("killed-by = 'a --lib b'\ntier = 'default'\n"), of("survives = 'z'\n"));
        let is_right = |mutant, outcome| verdict(mutant, outcome, Duration::ZERO).0;
        assert!(is_right(&killed, Outcome::Failed) && is_right(&survives, Outcome::Passed));
        assert!(!is_right(&killed, Outcome::Passed) && !is_right(&survives, Outcome::Failed));
        assert!(!is_right(&killed, Outcome::NotRun) && !is_right(&killed, Outcome::NotBuilt));
    }
}
