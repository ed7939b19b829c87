//! Checks the features of the facade. Each backend alone, none and all compile without warnings. With each feature, its
//! backend is included, and no other backend is. No other feature enables `testing`, which no program should contain.
//!
//! The name connects the two: the feature `NAME` includes the crate `lock-NAME`. Features that only combine others, such as
//! `default`, include no crate of their own.

use std::collections::{BTreeMap, BTreeSet};

use crate::console::Console;
use crate::context::Context;
use crate::failure::Failure;

const FACADE: &str = "distlock";
const CORE: &str = "lock-core";
/// What backends share.
const KIT: &str = "lock-kit";

/// All that a program may have together. It compiles, besides each backend alone.
const ALL: &str = "full";

/// What tests of users need, and nothing else.
const TESTING: &str = "testing";

type Features = BTreeMap<String, Vec<String>>;

pub(super) fn run(context: &Context) -> Result<(), Failure> {
    let metadata = context.metadata()?;
    let crates: BTreeSet<String> = metadata.packages.iter().map(|package| package.name.to_string()).collect();
    let facade = metadata.packages.iter().find(|package| package.name == FACADE);
    let features = &facade.ok_or_else(|| Failure::new(format!("there is no crate {FACADE}")))?.features;
    compiles(context, "")?;
    contains(context, "", &BTreeSet::new())?;
    for feature in features.keys() {
        if feature == ALL || crates.contains(&format!("lock-{feature}")) {
            compiles(context, feature)?;
        }
        contains(context, feature, &expected(feature, features, &crates))?;
    }
    Ok(())
}

fn facade(feature: &str) -> [&str; 5] {
    ["--package", FACADE, "--no-default-features", "--features", feature]
}

/// Clippy instead of check, so that code which only a disabled feature uses is an error too.
fn compiles(context: &Context, feature: &str) -> Result<(), Failure> {
    context.cargo(&[&["clippy", "--quiet"], &facade(feature)[..], &["--", "-D", "warnings"]].concat()).run()
}

fn contains(context: &Context, feature: &str, expected: &BTreeSet<String>) -> Result<(), Failure> {
    let options = ["tree", "--edges", "normal,build", "--prefix", "none", "--format", "{p} {f}"];
    let tree = context.cargo(&[&options, &facade(feature)[..]].concat());
    let found = found_in(&tree.stdout()?);
    Console::detail(&format!("{feature:?}: {}", listed(&found)));
    compare(feature, expected, &found).map_err(|failure| failure.repeated_by(tree.command_line()))
}

fn compare(feature: &str, expected: &BTreeSet<String>, found: &BTreeSet<String>) -> Result<(), Failure> {
    if expected == found {
        return Ok(());
    }
    let (expected, found) = (listed(expected), listed(found));
    let what = format!("with the feature {feature:?} alone, {FACADE} should contain {{{expected}}}");
    Err(Failure::new(format!("{what} but contains {{{found}}}")))
}

/// Returns what a feature has to include, by its name and by the names of the features that it enables: backend crates,
/// and `testing`.
fn expected(feature: &str, features: &Features, crates: &BTreeSet<String>) -> BTreeSet<String> {
    let enabled = features[feature].iter().filter(|name| features.contains_key(*name));
    let mut expected: BTreeSet<String> =
        enabled.flat_map(|name| expected(name, features, crates)).filter(|name| name != TESTING).collect();
    expected.extend(Some(format!("lock-{feature}")).filter(|name| crates.contains(name)));
    expected.extend((feature == TESTING).then(|| TESTING.to_owned()));
    expected
}

/// Returns the backend crates in the output of `cargo tree`, one crate per line, its name first, and `testing` if the core has
/// that feature.
fn found_in(tree: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for line in tree.lines() {
        match line.split_whitespace().next().unwrap_or_default() {
            CORE if line.contains(TESTING) => drop(found.insert(TESTING.to_owned())),
            CORE | KIT => {}
            name if name.starts_with("lock-") => drop(found.insert(name.to_owned())),
            _ => {}
        }
    }
    found
}

fn listed(names: &BTreeSet<String>) -> String {
    names.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
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
        assert_eq!(compare("file", &set(&["lock-file"]), &set(&["lock-file"])), Ok(()));
        let stowaway = compare("file", &set(&["lock-file"]), &set(&["lock-file", "lock-redis"])).unwrap_err();
        assert!(stowaway.to_string().contains("{lock-file, lock-redis}"), "{stowaway}");
        assert!(compare("file", &set(&["lock-file"]), &set(&[])).is_err());
    }
}
