//! The order of the programs.
//!
//! The programs that took longest in the last run begin first, because the last programs to start should be short. The
//! table `[package.metadata.suite]` of a crate names its programs that take long, for a machine where no run has measured
//! them yet, under `long`; and those that only the tier of all has, under `wide`.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use cargo_metadata::{Metadata, Package};

use super::programs::Program;
use crate::failure::Failure;
use crate::tier::Tier;

/// The programs whose tests mostly wait, one after the other on each thread, with a number of threads for each processor.
const WAITING: &[(&str, usize)] = &[("distlock-cli --test command", 3)];

/// Returns how many threads a program's tests run on, unless the program itself chooses.
pub(super) fn threads(program: &str) -> Option<usize> {
    let (_, threads) = WAITING.iter().find(|(name, _)| *name == program)?;
    Some(threads * processors())
}

pub(super) fn processors() -> usize {
    thread::available_parallelism().map_or(2, NonZero::get)
}

/// How long each program took when it last passed; kept in a file beside the logs.
#[derive(Debug, Default)]
pub(super) struct Times {
    file: PathBuf,
    milliseconds: BTreeMap<String, u64>,
}

impl Times {
    /// Reads the file of the last run, if there is one.
    pub(super) fn read(file: &Path) -> Self {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        Self { file: file.to_owned(), milliseconds: serde_json::from_str(&text).unwrap_or_default() }
    }

    pub(super) fn note(&mut self, program: &str, took: Duration) {
        let took = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        self.milliseconds.insert(program.to_owned(), took);
    }

    /// Writes the file. Without it the next run has another order, and nothing else is different.
    pub(super) fn keep(&self) {
        let _ = std::fs::write(&self.file, serde_json::json!(self.milliseconds).to_string());
    }

    fn of(&self, program: &str) -> u64 {
        self.milliseconds.get(program).copied().unwrap_or_default()
    }
}

/// Returns the programs of the tier in the order in which they start.
pub(super) fn arranged(
    mut programs: Vec<Program>,
    metadata: &Metadata,
    tier: Tier,
    times: &Times,
) -> Result<Vec<Program>, Failure> {
    let (wide, long) = (named(metadata, "wide"), named(metadata, "long"));
    known(&programs, wide.iter().chain(&long).map(String::as_str))?;
    programs.retain(|program| tier == Tier::All || !wide.contains(&program.name));
    programs.sort_by_key(|program| Reverse((times.of(&program.name), long.contains(&program.name))));
    Ok(programs)
}

/// Returns the programs that the crates name under this key.
pub(super) fn named(metadata: &Metadata, key: &str) -> Vec<String> {
    let of = |package: &Package| {
        let names = package.metadata["suite"][key].as_array().cloned().unwrap_or_default();
        let name = package.name.to_string();
        names.into_iter().filter_map(move |program| Some(format!("{name} {}", program.as_str()?)))
    };
    metadata.packages.iter().flat_map(of).collect()
}

/// A name that no program has any more is an error.
fn known<'a>(programs: &[Program], mut names: impl Iterator<Item = &'a str>) -> Result<(), Failure> {
    match names.find(|name| programs.iter().all(|program| program.name != *name)) {
        None => Ok(()),
        Some(stranger) => Err(Failure::new(format!(
            "a crate's package.metadata.suite names {stranger:?}, and there is no such test program"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::context::metadata_of;
    use crate::process::Process;

    fn programs() -> Vec<Program> {
        let program = |name: &str| Program {
            name: name.to_owned(),
            repeat: String::new(),
            process: Process::new(name, &[]),
        };
        ["a --lib", "a --test x", "b --lib", "b --test y"].map(program).into()
    }

    fn arranged_names(tier: Tier, times: &Times) -> Vec<String> {
        let metadata = metadata_of([
            json!({"name": "a", "metadata": {"suite": {"wide": ["--test x"]}}}),
            json!({"name": "b", "metadata": {"suite": {"long": ["--test y"]}}}),
        ]);
        let arranged = arranged(programs(), &metadata, tier, times).unwrap();
        arranged.into_iter().map(|program| program.name).collect()
    }

    #[test]
    fn what_took_longest_begins_first_and_then_what_is_expected_to() {
        let mut times = Times::default();
        assert_eq!(arranged_names(Tier::Default, &times), ["b --test y", "a --lib", "b --lib"]);
        times.note("b --lib", Duration::from_secs(2));
        assert_eq!(arranged_names(Tier::Default, &times), ["b --lib", "b --test y", "a --lib"]);
    }

    #[test]
    fn only_the_tier_of_all_has_the_wide_programs() {
        assert!(arranged_names(Tier::All, &Times::default()).contains(&"a --test x".to_owned()));
    }

    #[test]
    fn times_are_kept_in_their_file() {
        let file = std::env::temp_dir().join(format!("xtask-times-{}.json", std::process::id()));
        let mut times = Times::read(&file);
        times.note("a", Duration::from_secs(3));
        times.keep();
        let again = Times::read(&file);
        std::fs::remove_file(&file).unwrap();
        assert_eq!(again.of("a"), 3_000);
    }

    #[test]
    fn a_name_that_no_program_has_any_more_is_an_error() {
        assert!(known(&programs(), ["c --lib"].into_iter()).unwrap_err().to_string().contains("c --lib"));
        assert_eq!(known(&programs(), ["a --lib"].into_iter()), Ok(()));
    }
}
