//! Packs each published crate as for a registry, and checks that the package is complete. That includes the fields of the
//! manifest, the README, the licences, and each file that the source includes.
//!
//! It does not build the packages (`--no-verify`). Cargo can do that offline, each with its packed siblings, but the two
//! smallest crates alone take a minute and a half of processor time, and the sources are those that the suite compiles.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use cargo_metadata::Package;
use serde_json::json;

use crate::context::Context;
use crate::process;
use crate::tidy::{has_ending, product, regex, resolved};

const FILES: [&str; 4] = ["Cargo.toml", "README.md", "LICENSE-MIT", "LICENSE-APACHE"];

/// What a published manifest says, as paths into what cargo says of it.
const SAYS: &str =
    "description license readme documentation keywords categories metadata/docs/rs/all-features";

pub(super) fn run(context: &Context) -> Result<()> {
    let is_private = |package: &&Package| package.publish.as_ref().is_some_and(Vec::is_empty);
    let (private, published): (Vec<_>, Vec<_>) = context.metadata.packages.iter().partition(is_private);
    let mut problems = Vec::new();
    for package in &published {
        let found = [unsaid(package), missing(package, context)?].concat();
        problems.extend(found.iter().map(|problem| format!("{}: {problem}", package.name)));
    }
    ensure!(problems.is_empty(), problems.join("\n       "));
    // Everything that packing looks up is then on this machine, so that it needs no network.
    process::run(&mut context.cargo("fetch --quiet"))?;
    let mut cargo = context.cargo("package --quiet --offline --workspace --no-verify --allow-dirty");
    process::run(cargo.args(private.iter().flat_map(|package| ["--exclude", package.name.as_str()])))
}

/// Returns what the manifest of a published crate lacks.
fn unsaid(package: &Package) -> Vec<String> {
    let (manifest, nothing) = (json!(package), [json!(null), json!([]), json!(false)]);
    let said = |key: &str| manifest.pointer(&format!("/{key}")).filter(|value| !nothing.contains(value));
    let unsaid = SAYS.split(' ').filter(|key| said(key).is_none());
    unsaid.map(|key| format!("the manifest does not say {key}")).collect()
}

/// Returns what lacks in the package.
fn missing(package: &Package, context: &Context) -> Result<Vec<String>> {
    let list = format!("package --quiet --list --allow-dirty --package {}", package.name);
    let list = process::output(&mut context.cargo(&list))?;
    let files: Vec<&str> = list.lines().collect();
    let absent = FILES.into_iter().filter(|file| !files.contains(file));
    let mut problems: Vec<_> = absent.map(|file| format!("the package has no {file}")).collect();
    for source in files.iter().filter(|file| file.starts_with("src/") && has_ending(file, "rs")) {
        let path = package.manifest_path.with_file_name(source);
        let text = fs::read_to_string(&path).with_context(|| format!("{path} cannot be read"))?;
        for path in included(&text) {
            if resolved(source, &path).is_none_or(|path| !files.contains(&path.as_str())) {
                problems.push(format!("{source} includes {path}, which is not in the package"));
            }
        }
    }
    Ok(problems)
}

/// Returns the files that a source includes when its crate is built: not for its tests alone.
fn included(source: &str) -> Vec<String> {
    let inclusion = regex(r#"include_(?:str|bytes)!\("([^"]*)""#);
    inclusion.captures_iter(&product(source)).map(|found| found[1].to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::metadata_of;

    #[test]
    fn inclusions_are_found_except_those_of_tests() {
        let source = "fn a() { f(include_str!(\"a.lua\"), include_bytes!(\"../b.bin\")) }\n\n\
            #[cfg(doctest)]\n#[doc = include_str!(\"../../README.md\")]\npub struct Readme;\n\n\
            #[cfg(all(doctest, feature = \"memory\"))]\n#[doc = include_str!(\"../../docs/a.md\")]\npub struct A;\n\n\
            #[cfg(test)]\nmod tests { const PAGE: &str = include_str!(\"../../page.md\"); }\n";
        assert_eq!(included(source), ["a.lua", "../b.bin"]);
        assert_eq!(
            included("#[doc = include_str!(\"../../README.md\")]\npub struct Readme;"),
            ["../../README.md"]
        );
        assert_eq!(included("fn a() { b(\"c\") }"), Vec::<&str>::new());
    }

    #[test]
    fn a_manifest_says_what_a_registry_shows() {
        let package = |value| unsaid(&metadata_of([value]).packages[0]);
        let given = json!({"name": "a", "description": "b", "license": "MIT", "readme": "README.md", "keywords": ["c"],
            "categories": ["concurrency"], "metadata": {"docs": {"rs": {"all-features": true}}}});
        assert_eq!(package(given), ["the manifest does not say documentation"]);
        assert_eq!(package(json!({"name": "a"})).len(), 7);
    }
}
