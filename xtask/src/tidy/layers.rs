//! The folders of the core are layers: each imports only from those below it.

use super::{Finding, Workspace};

pub(super) const CORE: &str = "lock-core/src/";

/// Each layer, with the layers that it may import from.
const LAYERS: &[(&str, &[&str])] = &[
    ("types", &[]),
    ("runtime", &["types"]),
    ("spi", &["runtime", "types"]),
    ("memory", &["spi", "runtime", "types"]),
    ("policy", &["spi", "runtime", "types"]),
    ("api", &["memory", "policy", "spi", "runtime", "types"]),
];

/// What `super` is in a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Parent {
    IsTheRoot,
    IsTheLayer,
}

pub(super) fn import_downwards(workspace: &Workspace) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in workspace.tree.with_ending("rs") {
        let Some(path) = file.path.strip_prefix(CORE).filter(|path| *path != "lib.rs") else { continue };
        let folder = path.split_once('/').map_or(path, |(folder, _)| folder);
        let Some((layer, below)) = LAYERS.iter().find(|(layer, _)| *layer == folder) else {
            findings.push(Finding::in_file(&file.path, "is in no layer of the core"));
            continue;
        };
        let is_own_file = path.strip_suffix("/mod.rs") == Some(folder);
        let parent = if is_own_file { Parent::IsTheRoot } else { Parent::IsTheLayer };
        for (number, imported) in imports(&file.text, parent) {
            let is_permitted = imported == *layer || below.contains(&imported);
            if !is_permitted {
                let problem = format!("the layer {layer:?} does not import from {imported:?}");
                findings.push(Finding::at(&file.path, number, problem));
            }
        }
    }
    findings
}

/// Returns the first word after each `crate::`, except in comments. In the file of a layer `super::` leads to the other
/// layers too, and below it `super::super` may lead anywhere.
fn imports(text: &str, parent: Parent) -> impl Iterator<Item = (usize, &str)> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//"));
    lines.flat_map(move |(index, line)| {
        let from_the_root = line.split("crate::").skip(1).map(first_word);
        let upwards = line.contains("super::super").then_some("super::super");
        let to_the_side =
            line.split("super::").skip(1).map(first_word).filter(move |_| parent == Parent::IsTheRoot);
        from_the_root.chain(upwards).chain(to_the_side).map(move |word| (index + 1, word))
    })
}

fn first_word(text: &str) -> &str {
    let end = text.find(|letter: char| !letter.is_alphanumeric() && letter != '_').unwrap_or(text.len());
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::Metadata;
    use crate::tidy::tree::Tree;

    fn found(path: &str, text: &str) -> Vec<String> {
        let package =
            r#"{"workspace_root": "/w", "packages": [{"name": "a", "manifest_path": "/w/a/Cargo.toml"}]}"#;
        let metadata = Metadata::parse(package).unwrap();
        let workspace = Workspace { tree: Tree::of(&[(path, text)]), metadata };
        import_downwards(&workspace).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_layer_imports_from_itself_and_from_those_below() {
        let text =
            "use crate::spi::Wait;\nuse crate::policy::local::Start;\n/// See [`x`](crate::LockClient).\n";
        assert_eq!(found("lock-core/src/policy/attempts.rs", text), Vec::<String>::new());
    }

    #[test]
    fn an_import_from_above_from_the_root_or_past_the_folder_is_found() {
        let text = "use crate::api::client;\nfn f(x: crate::LockClient) {}\nuse super::super::api;\n";
        assert_eq!(
            found("lock-core/src/spi/host.rs", text),
            [
                "lock-core/src/spi/host.rs:1: the layer \"spi\" does not import from \"api\"",
                "lock-core/src/spi/host.rs:2: the layer \"spi\" does not import from \"LockClient\"",
                "lock-core/src/spi/host.rs:3: the layer \"spi\" does not import from \"super::super\"",
            ]
        );
    }

    #[test]
    fn an_import_from_above_through_the_parent_of_a_layer_is_found() {
        let text = "use super::policy::local::Start;\nuse super::types::url;\n";
        assert_eq!(
            found("lock-core/src/spi/mod.rs", text),
            ["lock-core/src/spi/mod.rs:1: the layer \"spi\" does not import from \"policy\""]
        );
        assert_eq!(found("lock-core/src/spi/context.rs", "use super::Validity;\n"), Vec::<String>::new());
    }

    #[test]
    fn a_file_belongs_to_a_layer() {
        assert_eq!(found("lock-core/src/lock.rs", ""), ["lock-core/src/lock.rs: is in no layer of the core"]);
        assert_eq!(found("lock-core/src/lib.rs", "use crate::api::x;"), Vec::<String>::new());
        assert_eq!(found("lock-redis/src/link.rs", "use crate::x;"), Vec::<String>::new());
    }
}
