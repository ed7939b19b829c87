//! The files of the core import each other without circles, except within a folder.

use std::collections::{BTreeMap, BTreeSet};

use super::imports::{CORE, Module, imports, module_of, paths, product};
use super::{Finding, Workspace, in_file};

/// The files of the core by their modules. All paths are below [`CORE`].
type Modules<'a> = BTreeMap<Module<'a>, &'a str>;

pub(super) fn stay_in_a_folder(workspace: &Workspace) -> Vec<Finding> {
    let files = workspace.tree.with_ending("rs");
    let files: Vec<_> =
        files.filter_map(|file| Some((file.path.strip_prefix(CORE)?, file.text.as_str()))).collect();
    let modules: Modules<'_> = files.iter().map(|(path, _)| (module_of(path), *path)).collect();
    let imports: BTreeMap<_, _> =
        files.iter().map(|(path, text)| (*path, imported(path, text, &modules))).collect();
    let mut findings = Vec::new();
    for (file, direct) in &imports {
        for other in direct.iter().filter(|other| folder(other) != folder(file)) {
            if reaches(other, file, &imports) {
                let problem = format!("imports {CORE}{other}, which leads back to it");
                findings.push(in_file(&format!("{CORE}{file}"), problem));
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

fn folder(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

/// Returns the files that `text` imports from.
fn imported<'a>(path: &'a str, text: &str, modules: &Modules<'a>) -> BTreeSet<&'a str> {
    let (this, code) = (module_of(path), product(text));
    let named = imports(&this, &code).into_iter().filter_map(|(_, path)| longest(&path, modules));
    // A module's own children: `use reports::Event;`, `pub use permits::Semaphore;`.
    let uses = code.lines().filter_map(|line| line.split_once("use "));
    let children = uses.flat_map(|(_, tree)| paths(&this, tree)).filter_map(|path| longest(&path, modules));
    let children = children.filter(|(length, _)| *length > this.len());
    named.chain(children).map(|(_, file)| file).filter(|file| *file != path).collect()
}

/// Returns the file of the longest part of `path` that is a module, and the length of that part. The root re-exports
/// what is below, and imports count where it comes from.
fn longest<'a>(path: &[&str], modules: &Modules<'a>) -> Option<(usize, &'a str)> {
    (1..=path.len()).rev().find_map(|length| modules.get(&path[..length]).map(|file| (length, *file)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::metadata_of;
    use crate::tidy::tree::Tree;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<_> = files.iter().map(|(path, text)| (format!("{CORE}{path}"), *text)).collect();
        let files: Vec<_> = files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
        let workspace = Workspace { tree: Tree::of(&files), metadata: metadata_of([]) };
        stay_in_a_folder(&workspace).iter().map(|finding| finding.replace(CORE, "")).collect()
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
                "api/election/run.rs: imports api/client.rs, which leads back to it",
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
