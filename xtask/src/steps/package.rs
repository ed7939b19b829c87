//! Packs each published crate as for a registry, and checks that the package is complete. That includes the fields of the
//! manifest, the README, the licences, and each file that the source includes.
//!
//! It does not build the packages (`--no-verify`). Cargo can do that offline, each with its packed siblings, but the two
//! smallest crates alone take a minute and a half of processor time, and the sources are those that the suite compiles.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::console::Console;
use crate::context::Context;
use crate::failure::Failure;
use crate::metadata::Package;

const FILES: [&str; 4] = ["Cargo.toml", "README.md", "LICENSE-MIT", "LICENSE-APACHE"];

pub(super) fn run(context: &Context) -> Result<(), Failure> {
    let metadata = context.metadata()?;
    let (published, private): (Vec<_>, Vec<_>) =
        metadata.packages.iter().partition(|crate_| crate_.published);
    let mut problems = Vec::new();
    for package in &published {
        problems.extend(problems_of(package, context)?.into_iter().map(|problem| (&package.name, problem)));
    }
    for (name, problem) in &problems {
        Console::detail(&format!("{name}: {problem}"));
    }
    if !problems.is_empty() {
        return Err(Failure::new(format!("{} things named above are missing", problems.len())));
    }
    // Everything that packing looks up is then on this machine, so that it needs no network.
    context.cargo(&["fetch", "--quiet"]).run()?;
    let all = ["package", "--quiet", "--offline", "--workspace", "--no-verify", "--allow-dirty"];
    let without = private.iter().flat_map(|package| ["--exclude", &package.name]);
    context.cargo(&all.into_iter().chain(without).collect::<Vec<_>>()).run()?;
    Console::detail(&format!("{} crates are packed", published.len()));
    Ok(())
}

fn problems_of(package: &Package, context: &Context) -> Result<Vec<String>, Failure> {
    let list = ["package", "--quiet", "--list", "--allow-dirty", "--package", &package.name];
    let list = context.cargo(&list).stdout()?;
    let files: BTreeSet<&str> = list.lines().collect();
    let folder = context.root().join(Path::new(&package.manifest).parent().unwrap_or(Path::new("")));
    let mut problems: Vec<String> =
        package.unsaid.iter().map(|key| format!("the manifest does not say {key}")).collect();
    for file in FILES.into_iter().filter(|file| !files.contains(file)) {
        problems.push(format!("the package has no {file}"));
    }
    for &source in files.iter().filter(|file| is_source(file)) {
        let text = fs::read_to_string(folder.join(source))
            .map_err(|error| Failure::new(format!("{}/{source} cannot be read: {error}", package.name)))?;
        let missing = included(&text).into_iter().map(|path| resolved(source, path));
        for path in missing.filter(|path| !files.contains(path.as_str())) {
            problems.push(format!("{source} includes {path}, which is not in the package"));
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
    items
        .flat_map(|item| item.split("include_str!(\"").skip(1).chain(item.split("include_bytes!(\"").skip(1)))
        .filter_map(|after| after.split('"').next())
        .collect()
}

/// Resolves a path beside `source`; one that leads out of the package keeps its first `..`.
fn resolved(source: &str, path: &str) -> String {
    let mut parts: Vec<&str> = source.split('/').collect();
    parts.pop();
    for part in path.split('/') {
        match part {
            "." => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => drop(parts.pop()),
            name => parts.push(name),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn paths_are_resolved_beside_the_source() {
        assert_eq!(resolved("src/scripts/mod.rs", "grant.lua"), "src/scripts/grant.lua");
        assert_eq!(resolved("src/lib.rs", "../README.md"), "README.md");
        assert_eq!(resolved("src/lib.rs", "../../README.md"), "../README.md");
    }
}
