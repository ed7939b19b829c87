//! Which crates may depend on which. Tests may use more than the product does, except in the core.

use super::{Finding, Workspace};
use crate::metadata::{Package, Purpose};

/// A crate, and the crates of the workspace that its product may use. A `*` at the end matches any ending; the first matching
/// row counts.
const MAY_USE: &[(&str, &[&str])] = &[
    ("lock-core", &[]),
    ("lock-bench", &["distlock", "test-servers"]),
    ("lock-*", &["lock-core"]),
    ("distlock", &["lock-*", "distlock-macros"]),
    ("distlock-macros", &[]),
    ("distlock-cli", &["distlock"]),
    ("conformance-tests", &["lock-core"]),
    ("test-servers", &["conformance-tests", "lock-core"]),
    ("xtask", &[]),
];

/// The only external crates that the core may use. Adding a name is a decision: every user compiles the core.
const CORE_MAY_USE: &[&str] = &[
    "async-trait",
    "futures-core",
    "getrandom",
    "humantime",
    "metrics",
    "percent-encoding",
    "rustix",
    "sha2",
    "thiserror",
    "tokio",
    "tracing",
];

/// Programs with command-line arguments.
const COMMANDS: [&str; 2] = ["distlock-cli", "lock-bench"];
const ARGUMENT_PARSER: &str = "clap";

pub(super) fn direction(workspace: &Workspace) -> Vec<Finding> {
    workspace.metadata.packages.iter().flat_map(|package| wrong_directions(package, workspace)).collect()
}

fn wrong_directions(package: &Package, workspace: &Workspace) -> Vec<Finding> {
    let Some((_, allowed)) = MAY_USE.iter().find(|(pattern, _)| fits(&package.name, pattern)) else {
        return vec![finding(package, "no row of MAY_USE in xtask says what this crate may depend on")];
    };
    product(package)
        .filter(|name| workspace.metadata.has(name))
        .filter(|name| !allowed.iter().any(|pattern| fits(name, pattern)))
        .map(|name| finding(package, &format!("depends on {name}; it may only use {allowed:?}")))
        .collect()
}

pub(super) fn argument_parser(workspace: &Workspace) -> Vec<Finding> {
    let others =
        workspace.metadata.packages.iter().filter(|package| !COMMANDS.contains(&package.name.as_str()));
    others
        .filter(|package| package.dependencies.iter().any(|used| used.name.starts_with(ARGUMENT_PARSER)))
        .map(|package| {
            finding(package, &format!("depends on {ARGUMENT_PARSER}, which is for {COMMANDS:?} alone"))
        })
        .collect()
}

pub(super) fn core_stays_small(workspace: &Workspace) -> Vec<Finding> {
    let core = workspace.metadata.packages.iter().filter(|package| package.name == "lock-core");
    core.flat_map(|core| {
        product(core)
            .filter(|name| !workspace.metadata.has(name) && !CORE_MAY_USE.contains(name))
            .map(|name| {
                finding(core, &format!("depends on {name}, which CORE_MAY_USE in xtask does not list"))
            })
            .collect::<Vec<_>>()
    })
    .collect()
}

fn product(package: &Package) -> impl Iterator<Item = &str> {
    let product = package.dependencies.iter().filter(|used| used.purpose == Purpose::Product);
    product.map(|used| used.name.as_str())
}

fn fits(name: &str, pattern: &str) -> bool {
    pattern.strip_suffix('*').map_or(name == pattern, |start| name.starts_with(start))
}

fn finding(package: &Package, problem: &str) -> Finding {
    Finding::in_file(&package.manifest, problem)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::Metadata;
    use crate::tidy::tree::Tree;

    /// Creates a workspace of crates, each with its dependencies; a name after `dev:` is for tests.
    fn workspace(crates: &[(&str, &[&str])]) -> Workspace {
        let dependency = |used: &&str| match used.strip_prefix("dev:") {
            Some(name) => format!(r#"{{"name": "{name}", "kind": "dev"}}"#),
            None => format!(r#"{{"name": "{used}", "kind": null}}"#),
        };
        let package = |(name, uses): &(&str, &[&str])| {
            let uses: Vec<String> = uses.iter().map(dependency).collect();
            format!(
                r#"{{"name": "{name}", "manifest_path": "{name}", "dependencies": [{}]}}"#,
                uses.join(",")
            )
        };
        let packages: Vec<String> = crates.iter().map(package).collect();
        let metadata = Metadata::parse(&format!(r#"{{"packages": [{}]}}"#, packages.join(","))).unwrap();
        Workspace { tree: Tree::default(), metadata }
    }

    fn places(findings: &[Finding]) -> Vec<&str> {
        findings.iter().map(|finding| finding.place.as_str()).collect()
    }

    #[test]
    fn the_arrows_point_to_the_core() {
        let sound = workspace(&[
            ("lock-core", &["tokio"]),
            ("lock-file", &["lock-core", "rustix", "dev:conformance-tests"]),
            ("conformance-tests", &["lock-core"]),
            ("distlock", &["lock-core", "lock-file"]),
        ]);
        assert_eq!(direction(&sound), []);

        let wrong = workspace(&[
            ("lock-core", &["lock-file"]),
            ("lock-file", &["lock-core", "lock-redis"]),
            ("lock-redis", &[]),
            ("newcomer", &[]),
        ]);
        assert_eq!(places(&direction(&wrong)), ["lock-core", "lock-file", "newcomer"]);
    }

    #[test]
    fn clap_is_for_programs_with_arguments_alone() {
        let used = workspace(&[
            ("distlock-cli", &["clap"]),
            ("lock-bench", &["clap"]),
            ("xtask", &["clap"]),
            ("distlock", &["dev:clap_complete"]),
        ]);
        assert_eq!(places(&argument_parser(&used)), ["xtask", "distlock"]);
    }

    #[test]
    fn a_client_crate_in_the_core_is_found() {
        let used =
            workspace(&[("lock-core", &["tokio", "redis", "dev:proptest"]), ("lock-redis", &["redis"])]);
        assert_eq!(places(&core_stays_small(&used)), ["lock-core"]);
    }
}
