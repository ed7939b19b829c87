//! The files of the core import each other without circles, except within a folder.

use std::collections::{BTreeMap, BTreeSet};

use super::layers::CORE;
use super::{Finding, Workspace};

/// The files of the core by the path of their module.
type Modules<'a> = BTreeMap<Vec<&'a str>, &'a str>;

pub(super) fn stay_in_a_folder(workspace: &Workspace) -> Vec<Finding> {
    let files: Vec<_> = workspace.tree.with_ending("rs").filter(|file| file.path.starts_with(CORE)).collect();
    let modules: Modules<'_> = files.iter().map(|file| (module_of(&file.path), file.path.as_str())).collect();
    let imports: BTreeMap<&str, BTreeSet<&str>> =
        files.iter().map(|file| (file.path.as_str(), imported(&file.path, &file.text, &modules))).collect();
    let mut findings = Vec::new();
    for (file, direct) in &imports {
        for other in direct.iter().filter(|other| folder(other) != folder(file)) {
            if reaches(other, file, &imports) {
                findings.push(Finding::in_file(file, format!("imports {other}, which leads back to it")));
            }
        }
    }
    findings
}

/// Whether imports lead from `from` to `to`.
fn reaches(from: &str, to: &str, imports: &BTreeMap<&str, BTreeSet<&str>>) -> bool {
    let (mut seen, mut open) = (BTreeSet::from([from]), vec![from]);
    while let Some(file) = open.pop() {
        if file == to {
            return true;
        }
        open.extend(imports.get(file).into_iter().flatten().filter(|next| seen.insert(**next)));
    }
    false
}

/// Returns the path of the module in `path`, without the name of the crate.
fn module_of(path: &str) -> Vec<&str> {
    let path = path.strip_prefix(CORE).unwrap_or(path).trim_end_matches(".rs");
    let mut segments: Vec<_> = path.split('/').collect();
    if matches!(segments.last(), Some(&("mod" | "lib"))) {
        segments.pop();
    }
    segments
}

fn folder(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

/// Returns the files that `text` imports from.
fn imported<'a>(path: &'a str, text: &str, modules: &Modules<'a>) -> BTreeSet<&'a str> {
    let this = module_of(path);
    let text = code(text);
    let mut found = Vec::new();
    for (at, _) in text.match_indices("crate::") {
        paths(Vec::new(), &text[at + "crate::".len()..], &mut found);
    }
    for (at, _) in text.match_indices("super::") {
        let parent = this[..this.len().saturating_sub(1)].to_vec();
        paths(parent, &text[at + "super::".len()..], &mut found);
    }
    for line in text.lines().filter_map(|line| line.split_once("use ")) {
        // A module's own children: `use reports::Event;`, `pub use permits::Semaphore;`.
        let mut relative = Vec::new();
        paths(this.clone(), line.1, &mut relative);
        found.extend(
            relative
                .into_iter()
                .filter(|path| longest(path, modules).is_some_and(|(length, _)| length > this.len())),
        );
    }
    let files = found.iter().filter_map(|path| longest(path, modules)).map(|(_, file)| file);
    files.filter(|file| *file != path).collect()
}

/// Returns the file of the longest part of `path` that is a module, and the length of that part. The root re-exports
/// what is below, and imports count where it comes from.
fn longest<'a>(path: &[&str], modules: &Modules<'a>) -> Option<(usize, &'a str)> {
    (1..=path.len()).rev().find_map(|length| modules.get(&path[..length]).map(|file| (length, *file)))
}

/// Adds the paths of a `use` tree, or the path of an expression, that begins with `prefix`.
fn paths<'a>(mut prefix: Vec<&'a str>, text: &'a str, found: &mut Vec<Vec<&'a str>>) {
    let mut rest = text.trim_start();
    loop {
        if let Some(tree) = rest.strip_prefix('{') {
            for branch in branches(tree) {
                paths(prefix.clone(), branch, found);
            }
            return;
        }
        let end = rest.find(|letter: char| !letter.is_alphanumeric() && letter != '_').unwrap_or(rest.len());
        if end > 0 {
            prefix.push(&rest[..end]);
        }
        match rest[end..].strip_prefix("::") {
            Some(further) => rest = further,
            None => break,
        }
    }
    found.push(prefix);
}

/// Splits what is between two braces at its commas. `tree` begins behind the first of them.
fn branches(tree: &str) -> Vec<&str> {
    let (mut depth, mut begin, mut found) = (0_usize, 0, Vec::new());
    for (at, letter) in tree.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            '}' => {
                found.push(&tree[begin..at]);
                break;
            }
            ',' if depth == 0 => {
                found.push(&tree[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    found
}

/// Returns the code that is compiled into the library: without comments, tests, and imports for the docs alone.
fn code(text: &str) -> String {
    let mut kept = String::new();
    let mut lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    while let Some(line) = lines.next() {
        if !matches!(line.trim_start(), "#[cfg(test)]" | "#[cfg(doc)]") {
            kept.push_str(line);
            kept.push('\n');
            continue;
        }
        let indent = line.len() - line.trim_start().len();
        // The item behind the attribute ends with a semicolon, or with a brace below its beginning.
        let Some(first) = lines.next() else { break };
        if !first.ends_with(';') && first.ends_with('{') {
            let end = format!("{}}}", " ".repeat(indent));
            lines.by_ref().find(|line| line.trim_end_matches(';') == end);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::Metadata;
    use crate::tidy::tree::Tree;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let package =
            r#"{"workspace_root": "/w", "packages": [{"name": "a", "manifest_path": "/w/a/Cargo.toml"}]}"#;
        let metadata = Metadata::parse(package).unwrap();
        let files: Vec<_> = files.iter().map(|(path, text)| (format!("{CORE}{path}"), *text)).collect();
        let files: Vec<_> = files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
        let workspace = Workspace { tree: Tree::of(&files), metadata };
        stay_in_a_folder(&workspace).iter().map(|finding| finding.to_string().replace(CORE, "")).collect()
    }

    #[test]
    fn a_circle_between_folders_is_found_at_each_import_that_leaves_a_folder() {
        let hold = "use crate::policy::{entry::Observer, log};\n";
        let entry = "use crate::policy::shared_entries::Sharing;\n";
        let shared = "use crate::policy::hold::HoldCore;\n";
        assert_eq!(
            found(&[
                ("policy/hold/mod.rs", hold),
                ("policy/entry.rs", entry),
                ("policy/shared_entries.rs", shared)
            ]),
            [
                "policy/hold/mod.rs: imports policy/entry.rs, which leads back to it",
                "policy/shared_entries.rs: imports policy/hold/mod.rs, which leads back to it",
            ]
        );
    }

    #[test]
    fn paths_from_a_parent_and_to_children_count() {
        let parent = "mod run;\npub use run::Runner;\nuse super::client::LockClient;\n";
        let child = "fn f() { super::super::client::connect() }\n";
        let client = "use crate::api::election::Election;\n";
        assert_eq!(
            found(&[
                ("api/election/mod.rs", parent),
                ("api/election/run.rs", child),
                ("api/client.rs", client)
            ]),
            [
                "api/client.rs: imports api/election/mod.rs, which leads back to it",
                "api/election/mod.rs: imports api/client.rs, which leads back to it",
            ]
        );
    }

    #[test]
    fn circles_of_one_folder_of_tests_and_of_docs_are_none() {
        let lock = "use crate::api::guard::LockGuard;\n";
        let guard = "use crate::api::lock::Lock;\n";
        let several = "use crate::api::lock::Lock;\n#[cfg(doc)]\nuse crate::api::client::LockClient;\n";
        let client = "use crate::api::several::MultiLocks;\n";
        let tests = "//! See [x](crate::api::client::f).\n#[cfg(test)]\nmod tests {\n    use crate::api::client::LockClient;\n}\n";
        assert_eq!(
            found(&[
                ("api/lock.rs", lock),
                ("api/guard.rs", guard),
                ("api/several/mod.rs", several),
                ("api/several/joint.rs", tests),
                ("api/client.rs", client),
            ]),
            Vec::<String>::new()
        );
    }
}
