//! What the files of the core import, read as text: the folders of `lock-core/src` are layers, and each imports only from those
//! below it; and no circle of imports crosses a folder.

use std::collections::{BTreeMap, BTreeSet};

use super::budgets::{product, without_comments};
use super::{Finding, Workspace, in_file, line_of, regex};

const CORE: &str = "lock-core/src/";

/// Each layer, with the layers that it may import from.
const LAYERS: [(&str, &[&str]); 5] = [
    ("types", &[]),
    ("runtime", &["types"]),
    ("spi", &["runtime", "types"]),
    ("policy", &["spi", "runtime", "types"]),
    ("api", &["policy", "spi", "runtime", "types"]),
];

/// The words between the `::` of a path, from the root of the crate.
type Module<'a> = Vec<&'a str>;

pub(super) fn layers_import_downwards(workspace: &Workspace) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in files(workspace).into_iter().filter(|(path, _)| *path != "lib.rs") {
        let (folder, file) = (path.split('/').next(), format!("{CORE}{path}"));
        let Some((layer, below)) = LAYERS.iter().find(|(layer, _)| Some(*layer) == folder) else {
            findings.push(in_file(&file, "is in no layer of the core"));
            continue;
        };
        for (line, import) in imports(&module_of(path), &without_comments(text)) {
            let from = import.first().copied().unwrap_or_default();
            if from != *layer && !below.contains(&from) {
                let problem = format!("the layer {layer:?} does not import from {from:?}");
                findings.push(format!("{file}:{line}: {problem}"));
            }
        }
    }
    findings
}

pub(super) fn circles_stay_in_a_folder(workspace: &Workspace) -> Vec<Finding> {
    let files = files(workspace);
    let modules = files.iter().map(|(path, _)| (module_of(path), *path)).collect();
    let imports: BTreeMap<_, _> =
        files.iter().map(|(path, text)| (*path, imported(path, text, &modules))).collect();
    let folder = |path: &str| path.rfind('/').map(|end| path[..end].to_owned());
    let pairs = imports.iter().flat_map(|(file, direct)| direct.iter().map(move |other| (*file, *other)));
    let circles =
        pairs.filter(|(file, other)| folder(file) != folder(other) && reaches(other, file, &imports));
    let problem = |other| format!("imports {CORE}{other}, which leads back to it");
    circles.map(|(file, other)| in_file(&format!("{CORE}{file}"), problem(other))).collect()
}

/// Returns the paths of the core's files, below [`CORE`], and their texts.
fn files(workspace: &Workspace) -> Vec<(&str, &str)> {
    let files = workspace.with_ending("rs");
    files.filter_map(|file| Some((file.path.strip_prefix(CORE)?, file.text.as_str()))).collect()
}

fn module_of(path: &str) -> Module<'_> {
    let mut words: Vec<_> = path.trim_end_matches(".rs").split('/').collect();
    words.pop_if(|word| matches!(*word, "mod" | "lib"));
    words
}

/// Whether imports lead from `from` to `to`.
fn reaches(from: &str, to: &str, imports: &BTreeMap<&str, BTreeSet<&str>>) -> bool {
    let (mut seen, mut open) = (BTreeSet::from([from]), vec![from]);
    while let Some(file) = open.pop() {
        open.extend(imports.get(file).into_iter().flatten().filter(|next| seen.insert(**next)));
    }
    seen.contains(to)
}

/// Returns the files that `text` imports from.
fn imported<'a>(path: &str, text: &str, modules: &BTreeMap<Module<'_>, &'a str>) -> BTreeSet<&'a str> {
    let (this, code) = (module_of(path), product(text));
    // The longest part of a path that is a module. The root re-exports what is below, and imports count where it comes from.
    let longest = |path: &[&str]| {
        (1..=path.len()).rev().find_map(|length| modules.get(&path[..length]).map(|file| (length, *file)))
    };
    let named = imports(&this, &code).into_iter().filter_map(|(_, path)| longest(&path));
    // A module's own children: `use reports::Event;`, `pub use permits::Semaphore;`.
    let uses = code.lines().filter_map(|line| line.split_once("use "));
    let children = uses.flat_map(|(_, tree)| paths(&this, tree)).filter_map(|path| longest(&path));
    let children = children.filter(|(length, _)| *length > this.len());
    named.chain(children).map(|(_, file)| file).filter(|file| *file != path).collect()
}

/// Returns what `code`, the code of a module, names from the root of the crate or from a parent, with the line.
fn imports<'a>(module: &[&'a str], code: &'a str) -> Vec<(usize, Module<'a>)> {
    let root = regex("crate::|(?:super::)+");
    let imports = root.find_iter(code).flat_map(|root| {
        let above = root.as_str().matches("super").count();
        let from = if above == 0 { 0 } else { module.len().saturating_sub(above) };
        let line = line_of(code, root.start());
        paths(&module[..from], &code[root.end()..]).into_iter().map(move |path| (line, path))
    });
    imports.collect()
}

/// Returns the paths of a `use` tree, or the path of an expression, that begins with `prefix`.
fn paths<'a>(prefix: &[&'a str], tree: &'a str) -> Vec<Module<'a>> {
    let (mut open, mut path, mut found) = (Vec::new(), prefix.to_vec(), Vec::new());
    for token in regex(r"(?s)\w+|::|.").find_iter(tree).map(|token| token.as_str()) {
        match token {
            "::" => {}
            "{" => open.push(path.clone()),
            "," | "}" if !open.is_empty() => {
                found.push(std::mem::take(&mut path));
                if token == "}" {
                    open.pop();
                } else {
                    path = open.last().cloned().unwrap_or_default();
                }
            }
            word if word.starts_with(|first: char| first.is_alphanumeric() || first == '_') => {
                path.push(word);
            }
            _ if open.is_empty() => break,
            _ => {}
        }
    }
    found.push(path);
    found.retain(|path| path.len() > prefix.len());
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::workspace;

    fn layers(path: &str, text: &str) -> Vec<String> {
        layers_import_downwards(&workspace(&[(path, text)]))
    }

    fn circles(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<_> = files.iter().map(|(path, text)| (format!("{CORE}{path}"), *text)).collect();
        let files: Vec<_> = files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
        circles_stay_in_a_folder(&workspace(&files)).iter().map(|finding| finding.replace(CORE, "")).collect()
    }

    #[test]
    fn a_layer_imports_from_itself_and_from_those_below() {
        let text =
            "use crate::spi::Wait;\nuse crate::policy::local::Start;\n/// See [`x`](crate::LockClient).\n";
        assert_eq!(layers("lock-core/src/policy/attempts.rs", text), Vec::<String>::new());
    }

    #[test]
    fn an_import_from_above_from_the_root_or_past_the_folder_is_layers() {
        let text = "use crate::api::client;\nfn f(x: crate::LockClient) {}\nuse super::super::api;\n";
        assert_eq!(
            layers("lock-core/src/spi/host.rs", text),
            [
                "lock-core/src/spi/host.rs:1: the layer \"spi\" does not import from \"api\"",
                "lock-core/src/spi/host.rs:2: the layer \"spi\" does not import from \"LockClient\"",
                "lock-core/src/spi/host.rs:3: the layer \"spi\" does not import from \"api\"",
            ]
        );
    }

    #[test]
    fn an_import_from_above_through_the_parent_of_a_layer_is_layers() {
        let text = "use super::policy::local::Start;\nuse super::types::url;\n";
        assert_eq!(
            layers("lock-core/src/spi/mod.rs", text),
            ["lock-core/src/spi/mod.rs:1: the layer \"spi\" does not import from \"policy\""]
        );
        assert_eq!(layers("lock-core/src/spi/context.rs", "use super::Validity;\n"), Vec::<String>::new());
    }

    #[test]
    fn a_file_belongs_to_a_layer() {
        assert_eq!(
            layers("lock-core/src/lock.rs", ""),
            ["lock-core/src/lock.rs: is in no layer of the core"]
        );
        assert_eq!(layers("lock-core/src/lib.rs", "use crate::api::x;"), Vec::<String>::new());
        assert_eq!(layers("lock-redis/src/link.rs", "use crate::x;"), Vec::<String>::new());
    }

    #[test]
    fn a_circle_between_folders_is_found_at_each_import_that_leaves_a_folder() {
        let hold = "use crate::policy::{entry::Observer, log};\n";
        let entry = "use crate::policy::shared_entries::Sharing;\n";
        let shared = "use crate::policy::hold::HoldCore;\n";
        assert_eq!(
            circles(&[
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
            circles(&[
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
            circles(&[
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
