//! The test programs of the workspace, as cargo names them after the build.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use super::order;
use super::verdict::Verdict;
use crate::failure::Failure;
use crate::metadata::Metadata;
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
    let lines = messages.lines().filter(|line| line.starts_with('{'));
    let messages: Vec<Value> = lines.filter_map(|line| serde_json::from_str(line).ok()).collect();
    let tests = messages.iter().filter(|message| {
        message["reason"] == "compiler-artifact"
            && message["profile"]["test"] == true
            && message["executable"].is_string()
    });
    let programs = tests.map(|message| program(message, metadata, tier)).collect::<Option<Vec<_>>>();
    match programs {
        Some(programs) if !programs.is_empty() => Ok(programs),
        Some(_) => Err(Failure::new("cargo has built no test program")),
        None => Err(Failure::new("what cargo says of a test program cannot be understood")),
    }
}

/// Creates a program with the folder and the variables that `cargo test` would give it.
fn program(message: &Value, metadata: &Metadata, tier: Tier) -> Option<Program> {
    let manifest = Path::new(message["manifest_path"].as_str()?);
    let folder = manifest.parent()?;
    let package =
        metadata.packages.iter().find(|package| metadata.root.join(&package.manifest) == manifest)?;
    let target = &message["target"];
    let selection = match target["kind"][0].as_str()? {
        kind @ ("test" | "bin" | "example" | "bench") => format!("--{kind} {}", target["name"].as_str()?),
        _ => "--lib".to_owned(),
    };
    let name = format!("{} {selection}", package.name);
    let mut process = Process::new(message["executable"].as_str()?, &[])
        .within(folder)
        .with_variable("CARGO_MANIFEST_DIR", folder.to_str()?)
        .with_variable("CARGO_MANIFEST_PATH", manifest.to_str()?)
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
    use super::*;

    const METADATA: &str = r#"{"workspace_root": "/w", "target_directory": "/w/target", "packages": [
        {"name": "lock-file", "manifest_path": "/w/lock-file/Cargo.toml"}
    ]}"#;

    fn artifact(kind: &str, name: &str, test: bool, executable: &str) -> String {
        format!(
            r#"{{"reason": "compiler-artifact", "manifest_path": "/w/lock-file/Cargo.toml",
                "target": {{"kind": ["{kind}"], "name": "{name}"}}, "profile": {{"test": {test}}},
                "executable": {executable}}}"#
        )
        .replace('\n', "")
    }

    fn names(messages: &[String]) -> Result<Vec<String>, Failure> {
        let programs = read(&messages.join("\n"), &Metadata::parse(METADATA)?, Tier::Default)?;
        Ok(programs.into_iter().map(|program| program.name).collect())
    }

    #[test]
    fn programs_that_test_are_found_and_no_others() {
        let messages = [
            "Compiling lock-file".to_owned(),
            artifact("lib", "lock_file", false, "null"),
            artifact("bin", "helper", false, r#""/w/target/debug/helper""#),
            artifact("lib", "lock_file", true, r#""/w/target/debug/deps/lock_file-1""#),
            artifact("test", "client", true, r#""/w/target/debug/deps/client-1""#),
            r#"{"reason": "build-finished", "success": true}"#.to_owned(),
        ];
        assert_eq!(names(&messages).unwrap(), ["lock-file --lib", "lock-file --test client"]);
    }

    #[test]
    fn a_program_runs_where_cargo_would_run_it() {
        let message = artifact("test", "client", true, r#""/w/target/debug/deps/client-1""#);
        let programs = read(&message, &Metadata::parse(METADATA).unwrap(), Tier::Default).unwrap();
        let line = programs[0].process.command_line();
        assert!(
            line.contains("CARGO_MANIFEST_DIR=/w/lock-file ") && line.ends_with("/deps/client-1"),
            "{line}"
        );
        assert_eq!(programs[0].repeat, "cargo test --all-features --package lock-file --test client");
        assert_eq!(programs[0].log_name(), "lock-file-test-client.log");
        let programs = read(&message, &Metadata::parse(METADATA).unwrap(), Tier::All).unwrap();
        assert!(programs[0].process.command_line().contains("DISTLOCK_TESTS=all"));
        assert!(programs[0].repeat.starts_with("DISTLOCK_TESTS=all cargo test "));
    }

    #[test]
    fn an_answer_without_programs_is_no_success() {
        assert!(names(&[]).is_err());
        assert!(names(&[artifact("lib", "lock_file", false, "null")]).is_err());
    }
}
