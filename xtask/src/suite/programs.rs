//! The test programs of the workspace, as cargo names them after the build.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use cargo_metadata::{Artifact, Message, Metadata, TargetKind};

use super::order;
use super::verdict::Verdict;
use crate::failure::Failure;
use crate::process::Process;
use crate::tier::Tier;

#[derive(Debug)]
pub(super) struct Program {
    /// The words that select it, as in `lock-core --test model`.
    pub(super) name: String,
    /// The command that builds and runs it alone.
    pub(super) repeat: String,
    pub(super) process: Process,
}

impl Program {
    /// The examples in the documentation of the crates. Cargo compiles and runs them.
    pub(super) fn doctests(process: Process) -> Self {
        Self { name: "doctests".to_owned(), repeat: process.command_line(), process }
    }

    /// Runs it for no longer than `limit`, with all its output in the file `log`.
    pub(super) fn run(&self, log: &Path, limit: Duration) -> Verdict {
        let outcome = match File::create(log) {
            Ok(file) => self.process.run_into(&file, limit),
            Err(error) => Err(Failure::new(format!("has no file {} to write to: {error}", log.display()))),
        };
        let output = std::fs::read(log).unwrap_or_default();
        Verdict::of(&outcome, &String::from_utf8_lossy(&output))
    }

    pub(super) fn log_name(&self) -> String {
        format!("{}.log", self.name.replace(" --", " ").replace(' ', "-"))
    }
}

/// Parses the output of `cargo test --no-run --message-format=json`.
pub(super) fn read(messages: &str, metadata: &Metadata, tier: Tier) -> Result<Vec<Program>, Failure> {
    let mut programs = Vec::new();
    for message in Message::parse_stream(messages.as_bytes()).map_while(Result::ok) {
        if let Message::CompilerArtifact(artifact) = message
            && artifact.profile.test
            && let Some(executable) = &artifact.executable
        {
            let program = program(&artifact, executable.as_str(), metadata, tier);
            let manifest = &artifact.manifest_path;
            programs.push(program.ok_or_else(|| Failure::new(format!("cargo metadata lacks {manifest}")))?);
        }
    }
    if programs.is_empty() { Err(Failure::new("cargo has built no test program")) } else { Ok(programs) }
}

/// Splits the programs that the crates name under `runs` into what each lists: it runs one, if its first argument is the name.
pub(super) fn split(programs: Vec<Program>, runs: &[String]) -> Result<Vec<Program>, Failure> {
    let mut split = Vec::new();
    for program in programs {
        if !runs.contains(&program.name) {
            split.push(program);
            continue;
        }
        let list = program.process.clone().with_arguments(&["--list"]).stdout()?;
        split.extend(list.lines().filter_map(|line| line.strip_suffix(": test")).map(|run| Program {
            name: format!("{} -- {run}", program.name),
            repeat: format!("{} -- {run}", program.repeat),
            process: program.process.clone().with_arguments(&[run]),
        }));
    }
    Ok(split)
}

/// Creates a program with the folder and the variables that `cargo test` would give it.
fn program(artifact: &Artifact, executable: &str, metadata: &Metadata, tier: Tier) -> Option<Program> {
    let manifest = &artifact.manifest_path;
    let folder = manifest.parent()?;
    let package = metadata.packages.iter().find(|package| package.manifest_path == *manifest)?;
    let target = &artifact.target;
    let selection = match target.kind.first()? {
        kind @ (TargetKind::Test | TargetKind::Bin | TargetKind::Example | TargetKind::Bench) => {
            format!("--{kind} {}", target.name)
        }
        _ => "--lib".to_owned(),
    };
    let name = format!("{} {selection}", package.name);
    let mut process = Process::new(executable, &[])
        .within(folder.as_std_path())
        .with_variable("CARGO_MANIFEST_DIR", folder.as_str())
        .with_variable("CARGO_MANIFEST_PATH", manifest.as_str())
        .with_variable("CARGO_PKG_NAME", &package.name);
    if let Some(threads) = order::threads(&name) {
        process = process.with_variable("RUST_TEST_THREADS", &threads.to_string());
    }
    let mut repeat = format!("cargo test --all-features --package {name}");
    if tier == Tier::All {
        let (variable, value) = Tier::VARIABLE;
        process = process.with_variable(variable, value);
        repeat = format!("{variable}={value} {repeat}");
    }
    Some(Program { name, repeat, process })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::context::metadata_of;

    fn metadata() -> Metadata {
        metadata_of([json!({"name": "lock-file"})])
    }

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

    fn names(messages: &[String]) -> Result<Vec<String>, Failure> {
        let programs = read(&messages.join("\n"), &metadata(), Tier::Default)?;
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
        let programs = read(&message, &metadata(), Tier::Default).unwrap();
        let line = programs[0].process.command_line();
        assert!(line.contains("CARGO_MANIFEST_DIR=/w/lock-file ") && line.ends_with(" client-1"), "{line}");
        assert_eq!(programs[0].repeat, "cargo test --all-features --package lock-file --test client");
        assert_eq!(programs[0].log_name(), "lock-file-test-client.log");
        let programs = read(&message, &metadata(), Tier::All).unwrap();
        assert!(programs[0].process.command_line().contains("DISTLOCK_TESTS=all"));
        assert!(programs[0].repeat.starts_with("DISTLOCK_TESTS=all cargo test "));
    }

    #[test]
    fn a_program_of_several_runs_is_split_into_what_it_lists() {
        let program = |name: &str| Program {
            name: name.to_owned(),
            repeat: format!("repeat {name}"),
            process: Process::new("sh", &["-c", "echo redis: test; echo file: test", "-"]),
        };
        let split = split(vec![program("a"), program("b")], &["b".to_owned()]).unwrap();
        let names: Vec<_> = split.iter().map(|program| program.name.as_str()).collect();
        assert_eq!(names, ["a", "b -- redis", "b -- file"]);
        assert_eq!(split[2].repeat, "repeat b -- file");
        assert!(split[2].process.command_line().ends_with(" - file"), "{split:?}");
    }

    #[test]
    fn an_answer_without_programs_is_no_success() {
        assert!(names(&[]).is_err());
        assert!(names(&[artifact("lib", "lock_file", false, None)]).is_err());
    }
}
