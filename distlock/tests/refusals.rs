//! What the compiler says about a wrong use of `#[locked]`, and where the error points.
//!
//! `TRYBUILD=overwrite cargo test -p distlock --features macros --test refusals` writes the expected output anew.

#![allow(clippy::expect_used, clippy::print_stderr, reason = "a test")]

use std::env;
use std::process::Command;

/// The compiler whose words the errors have.
const COMPILER: &str = "rustc 1.95.";

/// The compiler's flags. Without this variable the cases are compiled with other flags than what they depend on, which is
/// then compiled twice.
const FLAGS: (&str, &str) = (
    "CARGO_ENCODED_RUSTFLAGS",
    "--cfg\u{1f}trybuild\u{1f}--verbose\u{1f}-Adead_code\u{1f}--diagnostic-width=140",
);

#[test]
fn errors_point_at_what_is_wrong() {
    if env::var_os(FLAGS.0).is_some() {
        return compare();
    }
    let program = env::current_exe().expect("this program has a path");
    let again = Command::new(program)
        .args(["--nocapture", "errors_point_at_what_is_wrong"])
        .env(FLAGS.0, FLAGS.1)
        .status();
    assert!(again.expect("this program starts again").success(), "see above");
}

fn compare() {
    let compiler = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = Command::new(compiler).arg("--version").output().expect("the compiler tells its version");
    let version = String::from_utf8_lossy(&version.stdout).into_owned();
    if version.starts_with(COMPILER) {
        trybuild::TestCases::new().compile_fail("tests/refusals/*.rs");
    } else {
        eprintln!(
            "not compared: the errors that the compiler writes, because this is {version} and not {COMPILER}"
        );
    }
}
