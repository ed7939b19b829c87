//! Reads what `cargo metadata` says about the crates of this workspace, as far as the steps need it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::failure::Failure;

#[derive(Debug, Default)]
pub(crate) struct Metadata {
    /// The folder of the workspace's `Cargo.toml`.
    pub(crate) root: PathBuf,
    /// The folder that cargo writes to.
    pub(crate) target_directory: PathBuf,
    /// The workspace's own crates, without their dependencies.
    pub(crate) packages: Vec<Package>,
}

#[derive(Debug)]
pub(crate) struct Package {
    pub(crate) name: String,
    /// Its `Cargo.toml`, relative to the root of the workspace, like all paths here.
    pub(crate) manifest: String,
    pub(crate) dependencies: Vec<Dependency>,
    pub(crate) features: BTreeMap<String, Vec<String>>,
    /// The root file of the library, if there is one.
    pub(crate) library: Option<String>,
    /// Whether it is published.
    pub(crate) published: bool,
    /// What the manifest lacks although a published crate needs it.
    pub(crate) unsaid: Vec<&'static str>,
    /// The table `[package.metadata.suite]` of its manifest: what its tests need, and in which order they begin.
    pub(crate) suite: Value,
}

/// What the manifest of a published crate must contain.
const TO_SAY: [&str; 6] = ["description", "license", "readme", "documentation", "keywords", "categories"];

#[derive(Debug)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    pub(crate) purpose: Purpose,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Part of the product.
    Product,
    /// Compiled only for tests, examples and benchmarks.
    Tests,
}

impl Metadata {
    pub(crate) fn parse(json: &str) -> Result<Self, Failure> {
        let unreadable = |what: &str| Failure::new(format!("cargo metadata cannot be understood: {what}"));
        let root: Value = serde_json::from_str(json).map_err(|error| unreadable(&error.to_string()))?;
        let path = |key: &str| PathBuf::from(text(&root, key).unwrap_or_default());
        let (folder, target_directory) = (path("workspace_root"), path("target_directory"));
        let packages =
            list(&root, "packages").iter().map(|value| package(value, &folder)).collect::<Option<Vec<_>>>();
        match packages {
            Some(packages) if !packages.is_empty() => Ok(Self { root: folder, target_directory, packages }),
            Some(_) => Err(unreadable("it lists no packages")),
            None => Err(unreadable("a package lacks its name or manifest")),
        }
    }

    pub(crate) fn package(&self, name: &str) -> Result<&Package, Failure> {
        self.packages
            .iter()
            .find(|package| package.name == name)
            .ok_or_else(|| Failure::new(format!("the workspace has no crate named {name}")))
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.packages.iter().any(|package| package.name == name)
    }
}

fn package(value: &Value, root: &Path) -> Option<Package> {
    let relative = |path: String| match Path::new(&path).strip_prefix(root) {
        Ok(inside) => inside.to_string_lossy().into_owned(),
        Err(_) => path,
    };
    let library = list(value, "targets")
        .iter()
        .find(|target| list(target, "kind").iter().any(is_library))
        .and_then(|target| text(target, "src_path"));
    Some(Package {
        name: text(value, "name")?,
        manifest: relative(text(value, "manifest_path")?),
        dependencies: list(value, "dependencies").iter().filter_map(dependency).collect(),
        features: features(value),
        library: library.map(relative),
        published: value["publish"].as_array().is_none_or(|registries| !registries.is_empty()),
        unsaid: unsaid(value),
        suite: value["metadata"]["suite"].clone(),
    })
}

fn unsaid(package: &Value) -> Vec<&'static str> {
    let is_said = |key: &str| match &package[key] {
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        _ => false,
    };
    let mut unsaid: Vec<_> = TO_SAY.into_iter().filter(|key| !is_said(key)).collect();
    if package["metadata"]["docs"]["rs"]["all-features"] != true {
        unsaid.push("package.metadata.docs.rs.all-features");
    }
    unsaid
}

fn is_library(kind: &Value) -> bool {
    kind.as_str().is_some_and(|kind| kind == "proc-macro" || kind.ends_with("lib"))
}

fn dependency(value: &Value) -> Option<Dependency> {
    let purpose = if value["kind"] == "dev" { Purpose::Tests } else { Purpose::Product };
    Some(Dependency { name: text(value, "name")?, purpose })
}

fn features(package: &Value) -> BTreeMap<String, Vec<String>> {
    let Some(features) = package["features"].as_object() else {
        return BTreeMap::new();
    };
    let enables = |value: &Value| {
        value.as_array().into_iter().flatten().filter_map(|item| item.as_str().map(str::to_owned)).collect()
    };
    features.iter().map(|(name, value)| (name.clone(), enables(value))).collect()
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value, key: &str) -> Option<String> {
    value[key].as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = r#"{"workspace_root": "/w", "packages": [{
        "name": "distlock", "manifest_path": "/w/distlock/Cargo.toml",
        "targets": [{"kind": ["test"], "src_path": "/w/t.rs"}, {"kind": ["lib"], "src_path": "/w/lib.rs"}],
        "dependencies": [{"name": "lock-core", "kind": null}, {"name": "proptest", "kind": "dev"}],
        "features": {"default": ["file"], "file": ["dep:lock-file"]},
        "description": "Locks", "license": "MIT", "readme": "README.md", "keywords": [], "categories": ["concurrency"],
        "metadata": {"docs": {"rs": {"all-features": true}}}, "publish": null
    }]}"#;

    #[test]
    fn what_cargo_says_is_read() {
        let metadata = Metadata::parse(EXAMPLE).unwrap();
        let package = metadata.package("distlock").unwrap();
        assert_eq!(package.manifest, "distlock/Cargo.toml");
        assert_eq!(package.library.as_deref(), Some("lib.rs"));
        assert_eq!(package.features["file"], ["dep:lock-file"]);
        assert_eq!((package.published, &package.unsaid[..]), (true, &["documentation", "keywords"][..]));
        assert_eq!(package.dependencies[0].purpose, Purpose::Product);
        assert_eq!(package.dependencies[1].purpose, Purpose::Tests);
        assert!(metadata.has("distlock") && !metadata.has("lock-file"));
    }

    #[test]
    fn what_no_registry_may_have_is_not_published() {
        let private = EXAMPLE.replace("\"publish\": null", "\"publish\": []");
        assert!(!Metadata::parse(&private).unwrap().package("distlock").unwrap().published);
    }

    #[test]
    fn an_answer_without_packages_is_not_taken_for_an_empty_workspace() {
        for answer in ["", "{}", r#"{"packages": []}"#, r#"{"packages": [{}]}"#] {
            assert!(Metadata::parse(answer).is_err(), "{answer:?}");
        }
    }
}
