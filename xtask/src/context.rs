//! The context of every step: the root of the workspace, the way to call cargo, the console, and what was skipped so far.

use std::cell::RefCell;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use cargo_metadata::{Metadata, MetadataCommand};

use crate::console::Console;
use crate::failure::Failure;
use crate::process::Process;
use crate::tier::Tier;

#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) console: Console,
    pub(crate) tier: Tier,
    root: PathBuf,
    incremental: Incremental,
    skipped: RefCell<Vec<String>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Incremental {
    AsConfigured,
    /// A first build would write gigabytes for a second one that is seldom the next step.
    Off,
}

impl Context {
    pub(crate) fn new(console: Console, tier: Tier) -> Self {
        let own = Path::new(env!("CARGO_MANIFEST_DIR"));
        let root = own.parent().unwrap_or(own).to_owned();
        // Cargo has built this program beside what it will build now.
        let target = std::env::current_exe().unwrap_or_default().with_file_name("incremental");
        Self { console, tier, root, incremental: Incremental::after(&target), skipped: RefCell::default() }
    }

    /// The folder of the workspace's `Cargo.toml`.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the cargo that started this program, so that a toolchain chosen with `cargo +nightly xtask` is kept.
    pub(crate) fn cargo(&self, arguments: &[&str]) -> Process {
        let process = Process::new(&cargo(), arguments).within(&self.root);
        match self.incremental {
            Incremental::AsConfigured => process,
            Incremental::Off => process.with_variable("CARGO_INCREMENTAL", "0"),
        }
    }

    /// What cargo says of the workspace's own crates, without their dependencies.
    pub(crate) fn metadata(&self) -> Result<Metadata, Failure> {
        let mut command = MetadataCommand::new();
        command.cargo_path(cargo()).current_dir(&self.root).no_deps();
        command.exec().map_err(|error| Failure::new(format!("cargo metadata cannot be understood: {error}")))
    }

    /// Reports what is not checked, now and once more at the end: nothing is skipped silently.
    pub(crate) fn skip(&self, what: &str) {
        self.console.skipped(what);
        self.skipped.borrow_mut().push(what.to_owned());
    }

    pub(crate) fn skipped(&self) -> Vec<String> {
        self.skipped.borrow().clone()
    }
}

fn cargo() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned())
}

impl Incremental {
    /// Decides by the folder that has the files of incremental builds: if only this program has some, no build was made.
    fn after(folder: &Path) -> Self {
        let is_of_another = |name: OsString| !name.to_string_lossy().starts_with("xtask");
        let mut names =
            std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name());
        if names.any(is_of_another) { Self::AsConfigured } else { Self::Off }
    }
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
        assert_eq!(Incremental::after(&folder), Incremental::Off);
        std::fs::create_dir_all(folder.join("xtask-1a2b")).unwrap();
        assert_eq!(Incremental::after(&folder), Incremental::Off);
        std::fs::create_dir_all(folder.join("lock_core-1a2b")).unwrap();
        assert_eq!(Incremental::after(&folder), Incremental::AsConfigured);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
