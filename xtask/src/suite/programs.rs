//! The test programs of the workspace, as cargo names them after the build, and their order.
//!
//! The programs that took longest in the last run begin first, because the last programs to start should be short. The
//! table `[package.metadata.suite]` of a crate names its programs that take long, for a machine where no run has measured
//! them yet, under `long`; and those that only the tier of all has, under `wide`.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use cargo_metadata::{Artifact, Message, Metadata, TargetKind};

use crate::context::Tier;
use crate::process;
use crate::tidy::regex;

/// The program whose tests mostly wait, one after the other on each thread, and its number of threads for each processor.
const WAITING: (&str, usize) = ("distlock-cli --test command", 5);

#[derive(Debug)]
pub(crate) struct Program {
    /// The words that select it, as in `lock-core --test model`.
    pub(crate) name: String,
    /// The command that builds and runs it alone.
    pub(crate) repeat: String,
    pub(crate) command: Command,
}

pub(super) fn processors() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from)
}

impl Program {
    /// Creates a program with the folder and the variables that `cargo test` would give it.
    fn new(artifact: &Artifact, executable: &str, tier: Tier) -> Option<Self> {
        // The folder of a crate has its name.
        let folder = artifact.manifest_path.parent()?;
        let selection = match artifact.target.kind.first()? {
            TargetKind::Lib | TargetKind::ProcMacro => "--lib".to_owned(),
            kind => format!("--{kind} {}", artifact.target.name),
        };
        let name = format!("{} {selection}", folder.file_name()?);
        let mut command = process::command(executable, "");
        command.current_dir(folder).env("CARGO_MANIFEST_DIR", folder);
        if name == WAITING.0 {
            command.env("RUST_TEST_THREADS", (WAITING.1 * processors()).to_string());
        }
        let tier = format!("{tier:?}").to_lowercase();
        command.env("DISTLOCK_TESTS", &tier);
        let repeat = format!("DISTLOCK_TESTS={tier} cargo test --all-features --package {name}");
        Some(Self { name, repeat, command })
    }

    /// Returns the same program with more words behind it.
    pub(super) fn with(&self, words: &str) -> Self {
        let mut command = process::command(self.command.get_program(), "");
        command.args(self.command.get_args()).args(words.split_whitespace());
        command.current_dir(self.command.get_current_dir().unwrap_or(Path::new(".")));
        command.envs(self.command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let [name, repeat] = [&self.name, &self.repeat]
            .map(|text| format!("{text} -- {words}").trim_end_matches(" -- ").to_owned());
        Self { name, repeat, command }
    }

    /// Runs it for no longer than `limit`, with all its output in the file `log`. The error is what it has done, as in "ended
    /// with exit status: 101".
    pub(crate) fn run(&mut self, log: &Path, limit: Duration) -> Result<Counts> {
        process::run_into(log, limit, &mut self.command)?;
        Counts::in_output(&output(log)).context("ended well, but said no result")
    }

    pub(super) fn log_name(&self) -> String {
        format!("{}.log", self.name.replace(" --", " ").replace(' ', "-").replace(':', ""))
    }
}

pub(super) fn output(log: &Path) -> String {
    String::from_utf8_lossy(&fs::read(log).unwrap_or_default()).into_owned()
}

/// How many tests there were.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: u64,
    pub(crate) ignored: u64,
}

impl Counts {
    /// Returns the sum of all lines such as `test result: ok. 6 passed; 0 failed; 1 ignored; …`; `None` if there are none: a
    /// program that does not print a result was cut off.
    pub(super) fn in_output(output: &str) -> Option<Self> {
        let result = regex(r"test result: ok\. (\d+) passed; \d+ failed; (\d+) ignored");
        let number = |text: &str| text.parse().unwrap_or(0);
        let results = result.captures_iter(output);
        results.map(|found| Self { passed: number(&found[1]), ignored: number(&found[2]) }).reduce(Self::plus)
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self { passed: self.passed + other.passed, ignored: self.ignored + other.ignored }
    }
}

impl std::fmt::Display for Counts {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} passed, {} ignored", self.passed, self.ignored)
    }
}

/// Returns what a program has printed about its failures, or all of it: some have hundreds of tests that passed.
pub(super) fn failures(output: &str) -> &str {
    output.split_once("\nfailures:\n").map_or(output, |(_passed, failures)| failures).trim_end()
}

/// Builds the test programs that `cargo test …` selects.
pub(crate) fn built(cargo: &mut Command, tier: Tier) -> Result<Vec<Program>> {
    read(&process::output(cargo.args(["--no-run", "--message-format=json-render-diagnostics"]))?, tier)
}

fn read(messages: &str, tier: Tier) -> Result<Vec<Program>> {
    let mut programs = Vec::new();
    for message in Message::parse_stream(messages.as_bytes()).map_while(Result::ok) {
        if let Message::CompilerArtifact(artifact) = message
            && artifact.profile.test
            && let Some(executable) = &artifact.executable
        {
            let program = Program::new(&artifact, executable.as_str(), tier);
            programs.push(program.context("cargo names a program without a folder or a target")?);
        }
    }
    ensure!(!programs.is_empty(), "cargo has built no test program");
    Ok(programs)
}

/// Splits the programs that the crates name under `runs` into what each lists: it runs one, if its first argument is the name.
pub(super) fn split(programs: Vec<Program>, runs: &[String]) -> Result<Vec<Program>> {
    let mut split = Vec::new();
    for program in programs {
        if runs.contains(&program.name) {
            let list = process::output(&mut program.with("--list").command)?;
            let listed = list.lines().filter_map(|line| line.strip_suffix(": test"));
            split.extend(listed.map(|run| program.with(run)));
        } else {
            split.push(program);
        }
    }
    Ok(split)
}

/// How many milliseconds each program took when it last ran.
pub(super) type Times = BTreeMap<String, u64>;

/// Leaves the programs of the tier, in the order in which they start.
pub(super) fn arrange(all: &mut Vec<Program>, metadata: &Metadata, tier: Tier, times: &Times) -> Result<()> {
    let (wide, long) = (named(metadata, "wide"), named(metadata, "long"));
    let is_one = |name: &&String| all.iter().any(|program| program.name == **name);
    if let Some(name) = wide.iter().chain(&long).find(|name| !is_one(name)) {
        bail!("a crate's package.metadata.suite names {name:?}, and there is no such test program");
    }
    all.retain(|program| tier == Tier::All || !wide.contains(&program.name));
    all.sort_by_key(|Program { name, .. }| Reverse((times.get(name).copied(), long.contains(name))));
    Ok(())
}

/// Returns the programs that the crates name under this key.
pub(super) fn named(metadata: &Metadata, key: &str) -> Vec<String> {
    let names = metadata.packages.iter().flat_map(|package| {
        let programs = package.metadata["suite"][key].as_array().into_iter().flatten();
        programs.filter_map(|program| Some(format!("{} {}", package.name, program.as_str()?)))
    });
    names.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::context::metadata_of;

    fn artifact(kind: &str, name: &str, test: bool, executable: Option<&str>) -> String {
        let profile =
            json!({"opt_level": "0", "debug_assertions": true, "overflow_checks": true, "test": test});
        let target = json!({"kind": [kind], "name": name, "src_path": "/w/lock-file/src/lib.rs"});
        json!({
            "reason": "compiler-artifact", "package_id": "lock-file", "manifest_path": "/w/lock-file/Cargo.toml",
            "target": target, "profile": profile, "features": [], "filenames": [], "executable": executable, "fresh": false
        })
        .to_string()
    }

    fn names(messages: &[String]) -> Result<Vec<String>> {
        let programs = read(&messages.join("\n"), Tier::Default)?;
        Ok(programs.into_iter().map(|program| program.name).collect())
    }

    #[test]
    fn programs_that_test_are_found_and_no_others() {
        let messages = [
            "Compiling lock-file".to_owned(),
            artifact("lib", "lock_file", false, None),
            artifact("bin", "helper", false, Some("/w/target/debug/helper")),
            artifact("lib", "lock_file", true, Some("/w/target/debug/deps/lock_file-1")),
            artifact("test", "client", true, Some("/w/target/debug/deps/client-1")),
            r#"{"reason": "build-finished", "success": true}"#.to_owned(),
        ];
        assert_eq!(names(&messages).unwrap(), ["lock-file --lib", "lock-file --test client"]);
    }

    #[test]
    fn a_program_runs_where_cargo_would_run_it() {
        let message = artifact("test", "client", true, Some("/w/target/debug/deps/client-1"));
        let programs = read(&message, Tier::Default).unwrap();
        let call = format!("{:?}", programs[0].command);
        assert!(
            call.contains("CARGO_MANIFEST_DIR=\"/w/lock-file\"") && call.ends_with("client-1\""),
            "{call}"
        );
        assert_eq!(
            programs[0].repeat,
            "DISTLOCK_TESTS=default cargo test --all-features --package lock-file --test client"
        );
        assert_eq!(programs[0].log_name(), "lock-file-test-client.log");
        let programs = read(&message, Tier::All).unwrap();
        assert!(format!("{:?}", programs[0].with("x").command).contains("DISTLOCK_TESTS=\"all\""));
        assert!(programs[0].repeat.starts_with("DISTLOCK_TESTS=all cargo test "));
    }

    #[test]
    fn a_program_of_several_runs_is_split_into_what_it_lists() {
        let program = |name: &str| Program {
            name: name.to_owned(),
            repeat: format!("repeat {name}"),
            command: {
                let mut command = process::command("sh", "-c");
                command.args(["echo redis: test; echo file: test", "-"]);
                command
            },
        };
        let split = split(vec![program("a"), program("b")], &["b".to_owned()]).unwrap();
        let names: Vec<_> = split.iter().map(|program| program.name.as_str()).collect();
        assert_eq!(names, ["a", "b -- redis", "b -- file"]);
        assert_eq!(split[2].repeat, "repeat b -- file");
        assert!(process::line(&split[2].command).ends_with(" - file"), "{split:?}");
    }

    #[test]
    fn an_answer_without_programs_is_no_success() {
        assert!(names(&[]).is_err());
        assert!(names(&[artifact("lib", "lock_file", false, None)]).is_err());
    }

    fn programs() -> Vec<Program> {
        let program = |name: &str| Program {
            name: name.to_owned(),
            repeat: String::new(),
            command: process::command(name, ""),
        };
        ["a --lib", "a --test x", "b --lib", "b --test y"].map(program).into()
    }

    fn arranged_names(tier: Tier, times: &Times) -> Vec<String> {
        let metadata = metadata_of([
            json!({"name": "a", "metadata": {"suite": {"wide": ["--test x"]}}}),
            json!({"name": "b", "metadata": {"suite": {"long": ["--test y"]}}}),
        ]);
        let mut arranged = programs();
        arrange(&mut arranged, &metadata, tier, times).unwrap();
        arranged.into_iter().map(|program| program.name).collect()
    }

    #[test]
    fn what_took_longest_begins_first_and_then_what_is_expected_to() {
        let mut times = Times::default();
        assert_eq!(arranged_names(Tier::Default, &times), ["b --test y", "a --lib", "b --lib"]);
        times.insert("b --lib".to_owned(), 2_000);
        assert_eq!(arranged_names(Tier::Default, &times), ["b --lib", "b --test y", "a --lib"]);
    }

    #[test]
    fn only_the_tier_of_all_has_the_wide_programs() {
        assert!(arranged_names(Tier::All, &Times::default()).contains(&"a --test x".to_owned()));
    }

    #[test]
    fn a_name_that_no_program_has_any_more_is_an_error() {
        let metadata = metadata_of([json!({"name": "c", "metadata": {"suite": {"long": ["--lib"]}}})]);
        let failure = arrange(&mut programs(), &metadata, Tier::All, &Times::default()).unwrap_err();
        assert!(failure.to_string().contains("c --lib"), "{failure}");
    }

    #[test]
    fn results_are_added_up() {
        let output = "running 6 tests\n\ntest result: ok. 6 passed; 0 failed; 1 ignored; 0 measured; 15 filtered out; finished in 0.00s\n\n\
                      test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.20s\n";
        assert_eq!(Counts::in_output(output), Some(Counts { passed: 8, ignored: 1 }));
        assert_eq!(Counts { passed: 8, ignored: 1 }.to_string(), "8 passed, 1 ignored");
        assert_eq!((Counts::in_output("running 1 test"), Counts::in_output("")), (None, None));
    }

    #[test]
    fn what_failed_is_shown_without_what_passed() {
        let output = "running 2 tests\ntest a ... ok\ntest b ... FAILED\n\nfailures:\n\n---- b ----\nno\n\nfailures:\n    b\n";
        assert_eq!(failures(output), "\n---- b ----\nno\n\nfailures:\n    b");
        assert_eq!(failures("running 1 test\nkilled\n"), "running 1 test\nkilled");
    }
}
