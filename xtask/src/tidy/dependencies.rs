//! Which crates may depend on which. Tests may use more than the product does, except in the core.

use cargo_metadata::{DependencyKind, Package};

use super::{Finding, Workspace, in_file};

const CORE: &str = "lock-core";

/// A crate, and the crates of the workspace that its product may use. A `*` at the end matches any ending; the first matching
/// row counts.
const MAY_USE: [(&str, &[&str]); 13] = [
    ("lock-core", &[]),
    ("lock-kit", &["lock-core"]),
    ("lock-sql", &["lock-core", "lock-kit"]),
    ("lock-register", &["lock-core", "lock-kit"]),
    ("lock-entries", &["lock-core", "lock-kit"]),
    ("lock-bench", &["distlock", "test-servers"]),
    ("lock-*", &["lock-core", "lock-kit", "lock-sql", "lock-register", "lock-entries"]),
    ("distlock", &["lock-*", "distlock-macros"]),
    ("distlock-macros", &[]),
    ("distlock-cli", &["distlock"]),
    ("conformance-tests", &["lock-core"]),
    ("test-servers", &["conformance-tests", "lock-core"]),
    ("xtask", &[]),
];

/// The only external crates that the core may use. Adding a name is a decision: every user compiles the core.
const CORE_MAY_USE: &str =
    "async-trait futures-core getrandom humantime metrics rustix sha2 thiserror tokio tracing";

pub(super) fn direction(workspace: &Workspace) -> Vec<Finding> {
    let crates = |name: &str| workspace.metadata.packages.iter().any(|package| package.name == name);
    workspace.metadata.packages.iter().flat_map(|package| wrong_directions(package, crates)).collect()
}

fn wrong_directions(package: &Package, is_a_crate: impl Fn(&str) -> bool) -> Vec<Finding> {
    let manifest = package.manifest_path.as_str();
    let Some((_, allowed)) = MAY_USE.iter().find(|(pattern, _)| fits(&package.name, pattern)) else {
        return vec![in_file(manifest, "no row of MAY_USE in xtask says what this crate may depend on")];
    };
    let is_listed = |name: &str| {
        allowed.iter().any(|pattern| fits(name, pattern))
            || CORE_MAY_USE.split(' ').any(|listed| listed == name)
    };
    let product = package.dependencies.iter().filter(|used| used.kind != DependencyKind::Development);
    let ours = product.map(|used| &used.name).filter(|name| is_a_crate(name) || package.name == CORE);
    let wrong = ours.filter(|name| !is_listed(name));
    wrong.map(|name| in_file(manifest, format!("depends on {name}, which xtask does not list"))).collect()
}

fn fits(name: &str, pattern: &str) -> bool {
    pattern.strip_suffix('*').map_or(name == pattern, |start| name.starts_with(start))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::context::metadata_of;
    use crate::tidy::workspace;

    /// The crates that break the rule, among crates with their dependencies; a name after `dev:` is for tests.
    fn found(crates: &[(&str, &[&str])]) -> Vec<String> {
        let dependency = |used: &&str| match used.strip_prefix("dev:") {
            Some(name) => json!({"name": name, "kind": "dev"}),
            None => json!({"name": used, "kind": null}),
        };
        let package = |(name, uses): &(&str, &[&str])| json!({"name": name, "dependencies": uses.iter().map(dependency).collect::<Vec<_>>()});
        let metadata = metadata_of(crates.iter().map(package));
        let findings = direction(&Workspace { metadata, ..workspace(&[]) });
        findings.iter().map(|finding| finding.split('/').nth(2).unwrap().to_owned()).collect()
    }

    #[test]
    fn the_arrows_point_to_the_core() {
        let sound: [(&str, &[&str]); 5] = [
            ("lock-core", &["tokio"]),
            ("lock-kit", &["lock-core"]),
            ("lock-file", &["lock-core", "lock-kit", "rustix", "dev:conformance-tests"]),
            ("conformance-tests", &["lock-core"]),
            ("distlock", &["lock-core", "lock-file"]),
        ];
        assert_eq!(found(&sound), [""; 0]);
        let wrong: [(&str, &[&str]); 5] = [
            ("lock-core", &["lock-file", "lock-kit"]),
            ("lock-kit", &["lock-redis"]),
            ("lock-file", &["lock-core", "lock-redis"]),
            ("lock-redis", &[]),
            ("newcomer", &[]),
        ];
        assert_eq!(found(&wrong), ["lock-core", "lock-core", "lock-kit", "lock-file", "newcomer"]);
    }

    #[test]
    fn a_client_crate_in_the_core_is_found() {
        let core: &[&str] = &["tokio", "redis", "dev:proptest"];
        assert_eq!(found(&[("lock-core", core), ("lock-redis", &["redis"])]), ["lock-core"]);
    }
}
