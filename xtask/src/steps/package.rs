//! Packs each published crate as for a registry, and checks that the package is complete. That includes the fields of the
//! manifest, the README, the licences, and each file that the source includes.
//!
//! It does not build the packages (`--no-verify`). Cargo can do that offline, each with its packed siblings, but the two
//! smallest crates alone take a minute and a half of processor time, and the sources are those that the suite compiles.

use std::collections::BTreeSet;
use std::path::Path;

use cargo_metadata::Package;

use crate::console::Console;
use crate::context::Context;
use crate::failure::{Failure, read};
use crate::tidy::resolved;

const FILES: [&str; 4] = ["Cargo.toml", "README.md", "LICENSE-MIT", "LICENSE-APACHE"];

pub(super) fn run(context: &Context) -> Result<(), Failure> {
    let metadata = context.metadata()?;
    let is_private = |package: &&Package| package.publish.as_ref().is_some_and(Vec::is_empty);
    let (private, published): (Vec<_>, Vec<_>) = metadata.packages.iter().partition(is_private);
    let mut problems = Vec::new();
    for package in &published {
        let found = unsaid(package).into_iter().chain(missing(package, context)?);
        problems.extend(found.map(|problem| format!("{}: {problem}", package.name)));
    }
    if !problems.is_empty() {
        return Err(Failure::new(problems.join("\n       ")));
    }
    // Everything that packing looks up is then on this machine, so that it needs no network.
    context.cargo(&["fetch", "--quiet"]).run()?;
    let all = ["package", "--quiet", "--offline", "--workspace", "--no-verify", "--allow-dirty"];
    let without = private.iter().flat_map(|package| ["--exclude", package.name.as_str()]);
    context.cargo(&all.into_iter().chain(without).collect::<Vec<_>>()).run()?;
    Console::detail(&format!("{} crates are packed", published.len()));
    Ok(())
}

/// Returns what the manifest of a published crate lacks.
fn unsaid(package: &Package) -> Vec<String> {
    let fields = [
        ("description", package.description.is_some()),
        ("license", package.license.is_some()),
        ("readme", package.readme.is_some()),
        ("documentation", package.documentation.is_some()),
        ("keywords", !package.keywords.is_empty()),
        ("categories", !package.categories.is_empty()),
        ("package.metadata.docs.rs.all-features", package.metadata["docs"]["rs"]["all-features"] == true),
    ];
    let unsaid = fields.into_iter().filter(|(_, is_said)| !is_said);
    unsaid.map(|(key, _)| format!("the manifest does not say {key}")).collect()
}

/// Returns what lacks in the package.
fn missing(package: &Package, context: &Context) -> Result<Vec<String>, Failure> {
    let list = ["package", "--quiet", "--list", "--allow-dirty", "--package", &package.name];
    let list = context.cargo(&list).stdout()?;
    let files: BTreeSet<&str> = list.lines().collect();
    let absent = FILES.into_iter().filter(|file| !files.contains(file));
    let mut problems: Vec<_> = absent.map(|file| format!("the package has no {file}")).collect();
    for source in files.iter().filter(|file| is_source(file)) {
        let text = read(package.manifest_path.with_file_name(source).as_std_path())?;
        for path in included(&text) {
            if resolved(source, path).is_none_or(|path| !files.contains(path.as_str())) {
                problems.push(format!("{source} includes {path}, which is not in the package"));
            }
        }
    }
    Ok(problems)
}

fn is_source(file: &str) -> bool {
    file.starts_with("src/") && Path::new(file).extension().is_some_and(|ending| ending == "rs")
}

/// Returns the files that a source includes when its crate is built: not for its tests alone.
fn included(source: &str) -> Vec<&str> {
    let (product, _tests) = source.split_once("#[cfg(test)]\nmod ").unwrap_or((source, ""));
    let items = product.split("\n\n").filter(|item| !item.contains("doctest"));
    let files = items.flat_map(|item| item.split("include_").skip(1)).filter_map(|rest| {
        let rest = rest.strip_prefix("str!(\"").or_else(|| rest.strip_prefix("bytes!(\""))?;
        rest.split('"').next()
    });
    files.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::context::metadata_of;

    #[test]
    fn inclusions_are_found_except_those_of_tests() {
        let source = "fn a() { f(include_str!(\"a.lua\"), include_bytes!(\"../b.bin\")) }\n\n\
            #[cfg(doctest)]\n#[doc = include_str!(\"../../README.md\")]\npub struct Readme;\n\n\
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
