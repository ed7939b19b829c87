//! Rules about the tables of mutants.

use std::collections::BTreeSet;

use super::{Finding, Workspace, in_file};
use crate::mutants::table;

/// Each entry can be applied: `cargo xtask mutants`, which takes minutes, would say so late.
pub(super) fn can_be_applied(workspace: &Workspace) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in workspace.tree.with_ending("toml") {
        let Some(package) = file.path.strip_suffix(table::FILE).and_then(|path| path.strip_suffix('/'))
        else {
            continue;
        };
        let mutants = table::parse(package, &file.text).unwrap_or_else(|failure| {
            findings.push(in_file(&file.path, failure.to_string()));
            Vec::new()
        });
        let mut names = BTreeSet::new();
        for mutant in &mutants {
            let twice = (!names.insert(&mutant.name)).then_some("is there twice");
            let text = workspace.tree.file(&mutant.path()).map_or("", |changed| &changed.text);
            let problems = [twice, mutant.problem(), mutant.applied_to(text).err()];
            let problems = problems.into_iter().flatten();
            findings
                .extend(problems.map(|problem| in_file(&file.path, format!("{:?}: {problem}", mutant.name))));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::metadata_of;
    use crate::tidy::tree::Tree;

    #[test]
    fn an_entry_that_cannot_be_applied_is_found() {
        let entry = |name: &str, from: &str| {
            format!(
                "[[mutant]]\nname = '{name}'\nbreaks = 'x'\nfile = 'b.rs'\nfrom = '{from}'\nto = ''\n\
                 killed-by = 'a --lib x'\ntier = 'default'\n"
            )
        };
        let found = |table: &str| {
            let tree = Tree::of(&[("a/mutants.toml", table), ("a/b.rs", "one two two")]);
            can_be_applied(&Workspace { tree, metadata: metadata_of([]) }).len()
        };
        let good = entry("good", "one");
        assert_eq!(found(&good), 0);
        assert_eq!(found(&format!("{good}{}", entry("many", "two"))), 1);
        assert_eq!(found(&format!("{good}{}", entry("none", "three"))), 1);
        assert_eq!(found(&format!("{good}{good}")), 1);
        assert_eq!(found("[[mutant]]\nname = 'a'\n"), 1);
    }
}
