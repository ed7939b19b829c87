//! What the compiler says about a wrong use of `#[locked]`, and where the error points.
//!
//! The cases are compiled as users compile them, against the library that this program is linked with; nothing is built for
//! them. `DISTLOCK_EXPECT=write cargo test -p distlock --features macros --test all -- refusals::` writes the expected
//! errors anew.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stderr, reason = "tests")]

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::SystemTime;

use serde_json::Value;

/// The compiler whose words the errors have.
const COMPILER: &str = "rustc 1.95.";

#[test]
fn errors_point_at_what_is_wrong() {
    let version = String::from_utf8(rustc().arg("--version").output().unwrap().stdout).unwrap();
    if !version.starts_with(COMPILER) {
        eprintln!("not compared: the errors that the compiler writes, because this is {version}");
        return;
    }
    let library = library();
    for case in files_in(Path::new("tests/refusals"), "rs") {
        let (said, expected) = (errors(&case, &library), case.with_extension("txt"));
        assert_ne!(said, "", "{}: compiles", case.display());
        if env::var_os("DISTLOCK_EXPECT").is_some() {
            fs::write(&expected, &said).unwrap();
        }
        assert_eq!(said, fs::read_to_string(&expected).unwrap(), "{}", case.display());
    }
}

/// The newest build of the facade with which a right use compiles: cargo has just brought that of this program up to date, and
/// keeps those with other features beside it.
fn library() -> PathBuf {
    let mut builds = files_in(&dependencies(), "rlib");
    builds.retain(|file| file.file_name().unwrap().to_str().unwrap().starts_with("libdistlock-"));
    let age =
        |file: &PathBuf| file.metadata().and_then(|file| file.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
    builds.sort_by_key(age);
    let right = Path::new("tests/refusals/right/use.rs");
    let compiles = |build: &PathBuf| compiled(right, build).status.success();
    builds.into_iter().rev().find(compiles).expect("a library with the attribute")
}

fn dependencies() -> PathBuf {
    env::current_exe().unwrap().parent().unwrap().to_owned()
}

fn files_in(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|found| found == extension)).collect()
}

fn rustc() -> Command {
    Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()))
}

fn compiled(case: &Path, library: &Path) -> Output {
    let (folder, externs) = (tempfile::tempdir().unwrap(), format!("distlock={}", library.display()));
    let mut rustc = rustc();
    rustc.args([
        "--edition=2024",
        "--emit=metadata",
        "--error-format=json",
        "-Adead_code",
        "--extern",
        &externs,
    ]);
    rustc.arg("-L").arg(dependencies()).arg("--out-dir").arg(folder.path()).arg(case).output().unwrap()
}

/// The errors, each with its place, what stands at other places in the case, and the help for it.
fn errors(case: &Path, library: &Path) -> String {
    let said = String::from_utf8(compiled(case, library).stderr).unwrap();
    let errors = said.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    // The compiler's last word counts the errors, and has no place.
    let errors = errors.filter(|error| !error["spans"].as_array().unwrap().is_empty());
    errors.map(|error| written(&error, "error")).collect::<Vec<_>>().join("\n")
}

fn written(error: &Value, level: &str) -> String {
    let mut written = format!("{level}: {}\n", error["message"].as_str().unwrap());
    let of_case = |span: &&Value| span["file_name"].as_str().unwrap().starts_with("tests");
    for span in error["spans"].as_array().unwrap().iter().filter(of_case) {
        let label = span["label"].as_str().or(span["suggested_replacement"].as_str()).unwrap_or_default();
        let ends = [&span["line_start"], &span["column_start"], &span["line_end"], &span["column_end"]];
        let [line, column, last_line, end] = ends.map(|number| number.as_u64().unwrap());
        let place = format!("  {line}:{column} to {last_line}:{end} {label}");
        written += place.trim_end();
        written.push('\n');
    }
    let children = error["children"].as_array().unwrap().iter();
    written.extend(children.map(written_child));
    written
}

fn written_child(child: &Value) -> String {
    let text = written(child, child["level"].as_str().unwrap());
    text.lines().fold(String::new(), |all, line| all + "  " + line + "\n")
}
