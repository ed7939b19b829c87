//! Checks the features of the facade. Each backend alone, none and all compile without warnings. With each feature, its
//! backend is included, and no other backend is. No other feature enables `testing`, which no program should contain.
//!
//! The name connects the two: the feature `NAME` includes the crate `lock-NAME`. Features that only combine others, such as
//! `default`, include no crate of their own.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};

use crate::context::Context;
use crate::process;

const FACADE: &str = "distlock";
const CORE: &str = "lock-core";
/// What backends share.
const SHARED: [&str; 4] = ["lock-kit", "lock-sql", "lock-register", "lock-entries"];

/// What compiles, besides each backend: nothing, and all that a program may have together.
const COMPILES: [&str; 2] = ["", "full"];

/// What tests of users need, and nothing else.
const TESTING: &str = "testing";

pub(super) fn run(context: &Context) -> Result<()> {
    let packages = &context.metadata.packages;
    let crates: BTreeSet<String> = packages.iter().map(|package| package.name.to_string()).collect();
    let facade = packages.iter().find(|package| package.name == FACADE);
    let features = &facade.with_context(|| format!("there is no crate {FACADE}"))?.features;
    for feature in [""].into_iter().chain(features.keys().map(String::as_str)) {
        let selection = format!("--package {FACADE} --no-default-features --features={feature}");
        if COMPILES.contains(&feature) || crates.contains(&format!("lock-{feature}")) {
            // Clippy instead of check, so that code which only a disabled feature uses is an error too.
            process::run(&mut context.cargo(&format!("clippy --quiet {selection} -- -D warnings")))?;
        }
        let mut tree = context.cargo(&format!("tree --edges normal,build --prefix none {selection}"));
        let tree = process::output(tree.args(["--format", "{p} {f}"]))?;
        judge(feature, &tree, &crates)?;
    }
    Ok(())
}

/// Checks the output of `cargo tree`, one crate per line, its name first and its features last: its backends are those that the
/// facade's own features name.
fn judge(feature: &str, tree: &str, crates: &BTreeSet<String>) -> Result<()> {
    let features = |name: &str| {
        let line = tree.lines().find(|line| line.split(' ').next() == Some(name));
        line.and_then(|line| line.rsplit(' ').next()).unwrap_or_default().split(',')
    };
    let named = features(FACADE).map(|name| format!("lock-{name}")).filter(|name| crates.contains(name));
    let is_backend = |name: &&str| name.starts_with("lock-") && *name != CORE && !SHARED.contains(name);
    let found = tree.lines().filter_map(|line| line.split(' ').next()).filter(is_backend);
    let (named, found): (BTreeSet<_>, BTreeSet<_>) = (named.collect(), found.collect());
    let is_same = named.iter().map(String::as_str).eq(found.iter().copied());
    ensure!(is_same, "with {feature:?} alone, {FACADE} should contain {named:?} but contains {found:?}");
    let has = features(CORE).any(|name| name == TESTING);
    ensure!(has == (feature == TESTING), "with {feature:?} alone, {TESTING} of {CORE}: {has}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(feature: &str, tree: &str) -> Result<(), String> {
        let crates = ["distlock", "lock-core", "lock-file", "lock-kit", "lock-memory"].map(str::to_owned);
        judge(feature, tree, &crates.into()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_feature_includes_the_backends_that_the_features_it_enables_are_named_after() {
        let tree = "distlock v0.1.0 (/w/distlock) default,file,memory\nlock-core v0.1.0 (/w/lock-core) metrics\n\
            lock-kit v0.1.0 \nlock-file v0.1.0 \ntokio v1.0.0 testing\nlock-file v0.1.0 (*)\nlock-memory v0.1.0 \n";
        judged("default", tree).unwrap();
        judged("", "distlock v0.1.0 (/w/distlock) \nlock-core v0.1.0 \n").unwrap();
    }

    #[test]
    fn a_stowaway_and_an_absence_are_both_errors() {
        let file = "distlock v0.1.0 file\nlock-core v0.1.0 \n";
        let stowaway =
            judged("file", &format!("{file}lock-file v0.1.0 \nlock-memory v0.1.0 \n")).unwrap_err();
        assert!(stowaway.ends_with(r#"contains {"lock-file", "lock-memory"}"#), "{stowaway}");
        assert!(judged("file", file).is_err());
    }

    #[test]
    fn testing_is_enabled_by_the_feature_of_that_name_alone() {
        let tree = "distlock v0.1.0 careless,testing\nlock-core v0.1.0 metrics,testing\n";
        judged("testing", tree).unwrap();
        assert!(judged("careless", tree).unwrap_err().contains("testing of lock-core: true"));
        assert!(judged("testing", &tree.replace("metrics,testing", "")).is_err());
    }
}
