//! Checks the features of the facade. Each backend alone, none and all compile without warnings. With each feature, its
//! backend is included, and no other backend is. No other feature enables `testing`, which no program should contain.
//!
//! The name connects the two: the feature `NAME` includes the crate `lock-NAME`. Features that only combine others, such as
//! `default`, include no crate of their own.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, anyhow, ensure};

use crate::console::{DETAIL, say};
use crate::context::Context;
use crate::process::{self, line, to_repeat};

const FACADE: &str = "distlock";
const CORE: &str = "lock-core";
/// What backends share.
const KIT: &str = "lock-kit";

/// What compiles, besides each backend: nothing, and all that a program may have together.
const COMPILES: [&str; 2] = ["", "full"];

/// What tests of users need, and nothing else.
const TESTING: &str = "testing";

type Features = BTreeMap<String, Vec<String>>;

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
        let found = found_in(&process::output(tree.args(["--format", "{p} {f}"]))?);
        say(DETAIL, format_args!("{feature:?}: {found:?}"));
        let compared = compare(feature, &expected(feature, features, &crates), &found);
        compared.map_err(|error| anyhow!("{error}{}", to_repeat(&line(&tree))))?;
    }
    Ok(())
}

fn compare(feature: &str, expected: &BTreeSet<String>, found: &BTreeSet<String>) -> Result<()> {
    let what = format!("with the feature {feature:?} alone, {FACADE} should contain {expected:?}");
    ensure!(expected == found, "{what} but contains {found:?}");
    Ok(())
}

/// Returns what a feature has to include, by its name and by the names of the features that it enables: backend crates,
/// and `testing`.
fn expected(feature: &str, features: &Features, crates: &BTreeSet<String>) -> BTreeSet<String> {
    let enabled = features.get(feature).into_iter().flatten().filter(|name| features.contains_key(*name));
    let expected = enabled.flat_map(|name| expected(name, features, crates)).filter(|name| name != TESTING);
    let own = Some(format!("lock-{feature}")).filter(|name| crates.contains(name));
    expected.chain(own).chain((feature == TESTING).then(|| TESTING.to_owned())).collect()
}

/// Returns the backend crates in the output of `cargo tree`, one crate per line, its name first, and `testing` if the core has
/// that feature.
fn found_in(tree: &str) -> BTreeSet<String> {
    let found = tree.lines().filter_map(|line| match line.split_whitespace().next()? {
        CORE => line.contains(TESTING).then_some(TESTING),
        KIT => None,
        name => name.starts_with("lock-").then_some(name),
    });
    found.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn features() -> Features {
        let table = [
            ("default", vec!["memory", "file"]),
            ("memory", vec!["dep:lock-memory"]),
            ("file", vec!["dep:lock-file"]),
            ("testing", vec!["memory", "lock-memory/testing"]),
            ("careless", vec!["testing"]),
        ];
        let owned = |names: Vec<&str>| names.into_iter().map(str::to_owned).collect();
        table.into_iter().map(|(name, enables)| (name.to_owned(), owned(enables))).collect()
    }

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn a_feature_includes_what_it_is_named_after_and_what_the_features_that_it_enables_do() {
        let expected =
            |feature| expected(feature, &features(), &set(&["lock-file", "lock-memory", "lock-core"]));
        assert_eq!(expected("file"), set(&["lock-file"]));
        assert_eq!(expected("default"), set(&["lock-file", "lock-memory"]));
        assert_eq!(expected("testing"), set(&["lock-memory", "testing"]));
        assert_eq!(expected("careless"), set(&["lock-memory"]), "no other feature may bring it along");
    }

    #[test]
    fn backends_and_testing_are_found_in_the_tree() {
        let tree = "distlock v0.1.0 (/w/distlock) testing\nlock-core v0.1.0 metrics\nlock-kit v0.1.0\nlock-file v0.1.0\ntokio v1.0.0 testing\n\
            lock-file v0.1.0 (*)\n";
        assert_eq!(found_in(tree), set(&["lock-file"]));
        assert_eq!(found_in("lock-core v0.1.0 (/w/lock-core) metrics,testing\n"), set(&["testing"]));
    }

    #[test]
    fn a_stowaway_and_an_absence_are_both_errors() {
        compare("file", &set(&["lock-file"]), &set(&["lock-file"])).unwrap();
        let stowaway = compare("file", &set(&["lock-file"]), &set(&["lock-file", "lock-redis"])).unwrap_err();
        assert!(stowaway.to_string().contains(r#"{"lock-file", "lock-redis"}"#), "{stowaway}");
        assert!(compare("file", &set(&["lock-file"]), &set(&[])).is_err());
    }
}
