//! The folders of the core are layers: each imports only from those below it.

use super::imports::{CORE, imports, module_of, without_comments};
use super::{Finding, Workspace, at, in_file};

/// Each layer, with the layers that it may import from.
const LAYERS: &[(&str, &[&str])] = &[
    ("types", &[]),
    ("runtime", &["types"]),
    ("spi", &["runtime", "types"]),
    ("policy", &["spi", "runtime", "types"]),
    ("api", &["policy", "spi", "runtime", "types"]),
];

pub(super) fn import_downwards(workspace: &Workspace) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in workspace.tree.with_ending("rs") {
        let Some(path) = file.path.strip_prefix(CORE).filter(|path| *path != "lib.rs") else { continue };
        let folder = path.split_once('/').map_or(path, |(folder, _)| folder);
        let Some((layer, below)) = LAYERS.iter().find(|(layer, _)| *layer == folder) else {
            findings.push(in_file(&file.path, "is in no layer of the core"));
            continue;
        };
        for (line, import) in imports(&module_of(path), &without_comments(&file.text)) {
            let from = import.first().copied().unwrap_or_default();
            if from != *layer && !below.contains(&from) {
                findings.push(at(
                    &file.path,
                    line,
                    format!("the layer {layer:?} does not import from {from:?}"),
                ));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::metadata_of;
    use crate::tidy::tree::Tree;

    fn found(path: &str, text: &str) -> Vec<String> {
        import_downwards(&Workspace { tree: Tree::of(&[(path, text)]), metadata: metadata_of([]) })
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
                "lock-core/src/spi/host.rs:3: the layer \"spi\" does not import from \"api\"",
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
