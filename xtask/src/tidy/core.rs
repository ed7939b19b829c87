//! What the files of the core import, read as text: the folders of `lock-core/src` are layers, and each imports only from those
//! below it.

use super::budgets::without_comments;
use super::{Finding, Workspace, in_file, line_of, regex};

const CORE: &str = "lock-core/src/";

/// From below.
const LAYERS: [&str; 5] = ["types", "runtime", "spi", "policy", "api"];

pub(super) fn layers_import_downwards(workspace: &Workspace) -> Vec<Finding> {
    let (mut findings, import) = (Vec::new(), regex(r"\b(crate::|(?:super::)+)(\w+|\{)"));
    for file in workspace.with_ending("rs") {
        let Some(path) = file.path.strip_prefix(CORE).filter(|path| *path != "lib.rs") else { continue };
        let height = |name: &str| LAYERS.iter().position(|layer| *layer == name);
        let layer = path.split('/').next().unwrap_or_default();
        let Some(own) = height(layer) else {
            findings.push(in_file(&file.path, "is in no layer of the core"));
            continue;
        };
        let depth = path.trim_end_matches("/mod.rs").split('/').count();
        let code = without_comments(&file.text);
        for found in import.captures_iter(&code) {
            let [root, name] = [1, 2].map(|part| found.get(part).map_or("", |part| part.as_str()));
            let is_from_root = root == "crate::" || root.matches("super").count() >= depth;
            if is_from_root && height(name).is_none_or(|other| other > own) {
                let line = line_of(&code, found.get(0).map_or(0, |whole| whole.start()));
                let problem = format!("the layer {layer:?} does not import from {name:?}");
                findings.push(format!("{}:{line}: {problem}", file.path));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::workspace;

    fn layers(path: &str, text: &str) -> Vec<String> {
        layers_import_downwards(&workspace(&[(path, text)]))
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
        assert_eq!(layers("lock-core/src/api/several/mod.rs", "use super::client;\n"), Vec::<String>::new());
    }

    #[test]
    fn a_list_at_the_root_hides_the_layers() {
        assert_eq!(
            layers("lock-core/src/api/mod.rs", "use crate::{policy, spi};\n"),
            ["lock-core/src/api/mod.rs:1: the layer \"api\" does not import from \"{\""]
        );
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
}
