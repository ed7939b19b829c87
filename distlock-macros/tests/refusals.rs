//! What `#[locked]` refuses, and where the error points.
//!
//! `TRYBUILD=overwrite cargo test -p distlock-macros --test refusals` writes the expected output anew.

#![allow(clippy::expect_used, clippy::print_stderr)] // a test

use std::process::Command;

/// The compiler whose words the errors in `by_the_compiler` have.
const COMPILER: &str = "rustc 1.95.";

#[test]
fn errors_point_at_what_is_wrong() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/refusals/by_the_attribute/*.rs");
    let compiler = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = Command::new(compiler).arg("--version").output().expect("the compiler tells its version");
    let version = String::from_utf8_lossy(&version.stdout).into_owned();
    if version.starts_with(COMPILER) {
        cases.compile_fail("tests/refusals/by_the_compiler/*.rs");
    } else {
        eprintln!(
            "not compared: the errors that the compiler writes, because this is {version} and not {COMPILER}"
        );
    }
}
