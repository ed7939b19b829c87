//! The steps, in the order in which they run: what fails fast comes first.

mod features;
mod install;
mod package;
mod readme;

use std::fs;
use std::process::Stdio;

use anyhow::{Context as _, Result};

use crate::console::{DETAIL, say};
use crate::context::{Context, Tier};
use crate::process::{self, succeeds};
use crate::{suite, tidy};

/// The smallest tier that runs it, its name, what it does, and the words for that.
pub(crate) type Step = (Tier, &'static str, fn(&Context) -> Result<()>, &'static str);

pub(crate) const ALL: &[Step] = &[
    (Tier::Default, "install", install::run, "what the checks need is on this machine, or is installed"),
    (Tier::Default, "fmt", fmt, "the code is formatted"),
    (Tier::Default, "tidy", tidy::run, "the rules of this workspace that no compiler knows"),
    (Tier::Default, "lint", lint, "clippy on every target, warnings are errors"),
    (Tier::All, "docs", docs, "the API documentation builds, warnings are errors"),
    (Tier::All, "book", book, "the pages make a book, and the alerts fire when they should"),
    (Tier::All, "package", package::run, "each published crate can be packed, and lacks nothing"),
    (Tier::All, "readme", readme::run, "the README's first command does what it says"),
    (Tier::Default, "suite", suite::run, "every test of the workspace, doctests included"),
    (Tier::All, "features", features::run, "each feature of the facade, and nothing of another in it"),
    (Tier::All, "outside", outside, "a backend outside of the workspace passes the suite"),
    (Tier::All, "deny", deny, "licences, bans, sources and advisories of the dependencies"),
];

fn fmt(context: &Context) -> Result<()> {
    process::run(&mut context.cargo("fmt --all --check"))
}

fn lint(context: &Context) -> Result<()> {
    let selection = context.selection(context.tier);
    process::run(&mut context.cargo(&format!("clippy {selection} --all-targets -- -D warnings")))
}

fn docs(context: &Context) -> Result<()> {
    process::run(context.cargo("doc --workspace --all-features --no-deps").env("RUSTDOCFLAGS", "-D warnings"))
}

/// Checks the book and the alerts, each if its tool is installed.
fn book(context: &Context) -> Result<()> {
    let report = process::output(&mut context.script("packaging/check.sh"))?;
    report.lines().filter_map(|line| line.strip_prefix("not checked: ")).for_each(|what| context.skip(what));
    Ok(())
}

/// Runs the conformance suite against the example of a backend outside of the workspace.
fn outside(context: &Context) -> Result<()> {
    let folder = "examples/outside-backend";
    // It is compiled with what is on this machine already.
    fs::copy(context.root().join("Cargo.lock"), context.root().join(folder).join("Cargo.lock"))
        .with_context(|| format!("Cargo.lock cannot be copied to {folder}"))?;
    let options = "--quiet --offline --target-dir target --manifest-path";
    process::run(&mut context.cargo(&format!("test {options} {folder}/Cargo.toml")))
}

/// Runs cargo-deny if it is installed. It takes minutes to compile, so this step never installs it.
fn deny(context: &Context) -> Result<()> {
    if !succeeds(&mut context.cargo("deny --version")) {
        context.skip("cargo-deny, which is not installed (cargo install --locked cargo-deny)");
        return Ok(());
    }
    process::run(&mut context.cargo("deny --all-features check licenses bans sources"))?;
    if !succeeds(&mut context.cargo("deny fetch db")) {
        context.skip("advisories, whose database cannot be fetched from here (cargo deny fetch db)");
        return Ok(());
    }
    process::run(&mut context.cargo("deny --all-features check --disable-fetch advisories"))
}

/// `cargo xtask servers NAME`: a server for experiments. An example of `test-servers` starts it, so that this crate still
/// compiles fast.
pub(crate) fn servers(arguments: &[String], context: &Context) -> Result<()> {
    // Cargo may wait for another one first, and says nothing with --quiet.
    say(DETAIL, "building the servers' fixture, which takes minutes the first time");
    let mut cargo = context.cargo("run --quiet --package test-servers --example servers --");
    process::run(cargo.args(arguments).stdin(Stdio::inherit()))
}
