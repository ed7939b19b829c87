//! The context of every step: what cargo says of the workspace, the way to call cargo, and what was skipped so far.

use std::cell::RefCell;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use cargo_metadata::{Metadata, MetadataCommand};
use serde::Deserialize;

use crate::console::{SKIPPED, say};
use crate::process;

/// A tier of the checks: how much a run checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Tier {
    /// What proves on any machine that all of it works.
    Default,
    /// Everything: also what takes long and seldom fails alone.
    All,
}

/// The crate that only measures, and the end of the names of features whose cryptography takes a minute to compile: both are in
/// the wider tier alone.
const WIDE: (&str, &str) = ("lock-bench", "tls");

pub(crate) struct Context {
    pub(crate) tier: Tier,
    /// Of the workspace's own crates, without their dependencies.
    pub(crate) metadata: Metadata,
    pub(crate) is_incremental: bool,
    /// What was not checked.
    pub(crate) skipped: RefCell<Vec<String>>,
}

impl Context {
    pub(crate) fn new(tier: Tier) -> Result<Self> {
        let mut command = MetadataCommand::new();
        command.cargo_path(cargo()).current_dir(env!("CARGO_MANIFEST_DIR")).no_deps();
        let metadata = command.exec().context("cargo metadata cannot be understood")?;
        // Cargo has built this program beside what it will build now.
        let folder = std::env::current_exe().unwrap_or_default().with_file_name("incremental");
        Ok(Self { tier, metadata, is_incremental: is_incremental(&folder), skipped: RefCell::default() })
    }

    pub(crate) fn root(&self) -> &Path {
        self.metadata.workspace_root.as_std_path()
    }

    pub(crate) fn target(&self, path: &str) -> PathBuf {
        self.metadata.target_directory.join(path).into()
    }

    /// Returns the cargo that started this program, so that a toolchain chosen with `cargo +nightly xtask` is kept.
    pub(crate) fn cargo(&self, words: &str) -> Command {
        let mut command = process::command(cargo(), words);
        command.current_dir(self.root());
        if !self.is_incremental {
            command.env("CARGO_INCREMENTAL", "0");
        }
        command
    }

    /// Returns the options of cargo for the crates and the features of a tier.
    pub(crate) fn selection(&self, tier: Tier) -> String {
        if tier == Tier::All {
            return "--workspace --all-features".to_owned();
        }
        let features = self.metadata.packages.iter().flat_map(|package| package.features.keys());
        let narrow: Vec<_> = features.filter(|name| !name.ends_with(WIDE.1)).map(String::as_str).collect();
        format!("--workspace --exclude {} --features {}", WIDE.0, narrow.join(","))
    }

    /// A script of this workspace.
    pub(crate) fn script(&self, path: &str) -> Command {
        let mut command = process::command("sh", path);
        command.current_dir(self.root());
        command
    }

    /// Reports what is not checked, now and once more at the end: nothing is skipped silently.
    pub(crate) fn skip(&self, what: &str) {
        say(SKIPPED, what);
        self.skipped.borrow_mut().push(what.to_owned());
    }
}

fn cargo() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned())
}

/// Whether to make incremental builds. The first would write gigabytes for a second one that is seldom the next step: so not if
/// the folder of their files has only those of this program.
fn is_incremental(folder: &Path) -> bool {
    let is_of_another = |name: OsString| !name.to_string_lossy().starts_with("xtask");
    std::fs::read_dir(folder).into_iter().flatten().flatten().any(|entry| is_of_another(entry.file_name()))
}

/// What cargo would say of crates with the given fields, below `/w`.
#[cfg(test)]
pub(crate) fn metadata_of(crates: impl IntoIterator<Item = serde_json::Value>) -> Metadata {
    use serde_json::{Value, json};
    let filled = |mut defaults: Value, given: Value| {
        defaults.as_object_mut().unwrap().extend(given.as_object().unwrap().clone());
        defaults
    };
    let dependency = |given: &Value| {
        let defaults = json!({"req": "*", "optional": false, "uses_default_features": true, "features": []});
        filled(defaults, given.clone())
    };
    let packages = crates.into_iter().map(|mut given| {
        let dependencies = given["dependencies"].take();
        let dependencies: Vec<_> = dependencies.as_array().into_iter().flatten().map(dependency).collect();
        given["dependencies"] = json!(dependencies);
        let name = given["name"].as_str().unwrap();
        let manifest = format!("/w/{name}/Cargo.toml");
        let defaults =
            json!({"version": "0.1.0", "id": name, "manifest_path": manifest, "targets": [], "features": {}});
        filled(defaults, given)
    });
    let packages: Vec<_> = packages.collect();
    let root = json!({
        "version": 1, "packages": packages, "workspace_members": [], "workspace_root": "/w", "target_directory": "/w/target"
    });
    serde_json::from_value(root).unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incremental_builds_are_off_until_one_was_made() {
        let folder = std::env::temp_dir().join(format!("xtask-incremental-{}", std::process::id()));
        assert!(!is_incremental(&folder));
        std::fs::create_dir_all(folder.join("xtask-1a2b")).unwrap();
        assert!(!is_incremental(&folder));
        std::fs::create_dir_all(folder.join("lock_core-1a2b")).unwrap();
        assert!(is_incremental(&folder));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
