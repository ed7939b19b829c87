//! Checks the features of the facade. Each backend alone, none and all compile without warnings. With each feature, its
//! backend is included, and no other backend is. No other feature enables `testing`, which no program should contain.
//!
//! The name connects the two: the feature `NAME` includes the crate `lock-NAME`. The feature `memory`, which is part
//! of the core, and features that only combine others, such as `default`, include no crate of their own.

use std::collections::{BTreeMap, BTreeSet};

use crate::console::Console;
use crate::context::Context;
use crate::failure::Failure;
use crate::metadata::Metadata;

const FACADE: &str = "distlock";
const CORE: &str = "lock-core";
const BACKEND_PREFIX: &str = "lock-";

/// The backend that is part of the core.
const MEMORY: &str = "memory";

/// All features that a program may have together.
const ALL: &str = "full";

/// What tests of users need, and nothing else.
const TESTING: &str = "testing";

type Features = BTreeMap<String, Vec<String>>;

pub(super) fn run(context: &Context) -> Result<(), Failure> {
    let metadata = context.metadata()?;
    let features = &metadata.package(FACADE)?.features;
    compiles(context, &[])?;
    contains(context, &[], &BTreeSet::new())?;
    keeps_testing_apart(features)?;
    for feature in features.keys() {
        let selection = ["--features", feature];
        if [MEMORY, ALL].contains(&feature.as_str()) || metadata.has(&format!("{BACKEND_PREFIX}{feature}")) {
            compiles(context, &selection)?;
        }
        contains(context, &selection, &expected_backends(feature, features, &metadata))?;
    }
    Ok(())
}

fn keeps_testing_apart(features: &Features) -> Result<(), Failure> {
    let mut others = features.keys().filter(|feature| *feature != TESTING);
    match others.find(|feature| switched_on_by(feature, features).contains(TESTING)) {
        Some(feature) => Err(Failure::new(format!("the feature {feature} of {FACADE} enables {TESTING}"))),
        None => Ok(()),
    }
}

fn facade(selection: &[&str]) -> Vec<String> {
    let facade = ["--package", FACADE, "--no-default-features"];
    facade.iter().chain(selection).map(|&word| word.to_owned()).collect()
}

/// Clippy instead of check, so that code which only a disabled feature uses is an error too.
fn compiles(context: &Context, selection: &[&str]) -> Result<(), Failure> {
    let facade = facade(selection);
    let words = ["clippy", "--quiet"].into_iter().chain(facade.iter().map(String::as_str));
    context.cargo(&words.chain(["--", "-D", "warnings"]).collect::<Vec<_>>()).run()
}

fn contains(context: &Context, selection: &[&str], expected: &BTreeSet<String>) -> Result<(), Failure> {
    let name = selection.last().map_or_else(|| "no feature".to_owned(), |feature| format!("{feature} alone"));
    let facade = facade(selection);
    let words = ["tree", "--edges", "normal,build", "--prefix", "none"].into_iter();
    let tree = context.cargo(&words.chain(facade.iter().map(String::as_str)).collect::<Vec<_>>());
    let found = backends_in(&tree.stdout()?);
    compare(&name, expected, &found).map_err(|failure| failure.repeated_by(tree.command_line()))?;
    let backends = if found.is_empty() { "no backend crate".to_owned() } else { listed(&found) };
    Console::detail(&format!("{name}: {backends}"));
    Ok(())
}

fn compare(features: &str, expected: &BTreeSet<String>, found: &BTreeSet<String>) -> Result<(), Failure> {
    if expected == found {
        return Ok(());
    }
    Err(Failure::new(format!(
        "with {features}, {FACADE} should contain {{{}}} but contains {{{}}}",
        listed(expected),
        listed(found)
    )))
}

/// Returns the backend crates that a feature has to include, by its name and by the names of the features that it
/// enables.
fn expected_backends(feature: &str, features: &Features, metadata: &Metadata) -> BTreeSet<String> {
    switched_on_by(feature, features)
        .iter()
        .map(|name| format!("{BACKEND_PREFIX}{name}"))
        .filter(|backend| metadata.has(backend))
        .collect()
}

fn switched_on_by<'a>(feature: &'a str, features: &'a Features) -> BTreeSet<&'a str> {
    let mut seen = BTreeSet::new();
    let mut waiting = vec![feature];
    while let Some(next) = waiting.pop() {
        if seen.insert(next) {
            let enabled = features.get(next).into_iter().flatten().map(String::as_str);
            waiting.extend(enabled.filter(|name| features.contains_key(*name)));
        }
    }
    seen
}

/// Returns the backend crates in the output of `cargo tree`, one crate per line, its name first.
fn backends_in(tree: &str) -> BTreeSet<String> {
    tree.lines()
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| name.starts_with(BACKEND_PREFIX) && *name != CORE)
        .map(str::to_owned)
        .collect()
}

fn listed(names: &BTreeSet<String>) -> String {
    names.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn features() -> Features {
        let table =
            [("default", vec!["memory", "file"]), ("memory", vec![]), ("file", vec!["dep:lock-file"])];
        let owned = |names: Vec<&str>| names.into_iter().map(str::to_owned).collect();
        table.into_iter().map(|(name, enables)| (name.to_owned(), owned(enables))).collect()
    }

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn a_feature_that_gathers_others_brings_theirs() {
        let features = features();
        assert_eq!(switched_on_by("default", &features), BTreeSet::from(["default", "file", "memory"]));
        assert_eq!(switched_on_by("file", &features), BTreeSet::from(["file"]));
    }

    #[test]
    fn a_feature_that_brings_testing_along_is_an_error() {
        let mut features = features();
        features.insert(TESTING.to_owned(), vec!["memory".to_owned()]);
        assert_eq!(keeps_testing_apart(&features), Ok(()));
        features.entry("default".to_owned()).or_default().push(TESTING.to_owned());
        assert!(keeps_testing_apart(&features).is_err());
    }

    #[test]
    fn only_features_with_a_crate_of_their_name_bring_one() {
        let packages = r#"{"packages": [{"name": "lock-file", "manifest_path": "/w/Cargo.toml"}]}"#;
        let metadata = Metadata::parse(packages).unwrap();
        assert_eq!(expected_backends("default", &features(), &metadata), set(&["lock-file"]));
        assert_eq!(expected_backends("memory", &features(), &metadata), set(&[]));
    }

    #[test]
    fn backends_are_found_in_the_tree() {
        let tree = "distlock v0.1.0 (/w/distlock)\nlock-core v0.1.0\nlock-file v0.1.0\ntokio v1.0.0\nlock-file v0.1.0 (*)\n";
        assert_eq!(backends_in(tree), set(&["lock-file"]));
    }

    #[test]
    fn a_stowaway_and_an_absence_are_both_errors() {
        assert_eq!(compare("file alone", &set(&["lock-file"]), &set(&["lock-file"])), Ok(()));
        let stowaway =
            compare("file alone", &set(&["lock-file"]), &set(&["lock-file", "lock-redis"])).unwrap_err();
        assert!(stowaway.to_string().contains("{lock-file, lock-redis}"), "{stowaway}");
        assert!(compare("file alone", &set(&["lock-file"]), &set(&[])).is_err());
    }
}
