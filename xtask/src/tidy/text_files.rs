//! Rules about all text files.

use super::{Finding, Workspace};

const MOST_LINES: usize = 700;

/// Concatenated here, so that this file does not break its own rule.
const MARKERS: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];

pub(super) fn length(workspace: &Workspace) -> Vec<Finding> {
    let too_long =
        |count: usize| format!("{count} lines: more than {MOST_LINES} are several modules, not one");
    let counts = workspace.tree.files().iter().map(|file| (file, file.text.lines().count()));
    counts
        .filter(|(_, count)| *count > MOST_LINES)
        .map(|(file, count)| Finding::in_file(&file.path, too_long(count)))
        .collect()
}

pub(super) fn left_to_do(workspace: &Workspace) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in workspace.tree.files() {
        for (index, line) in file.text.lines().enumerate() {
            if let Some(marker) = MARKERS.iter().find(|marker| has_word(line, marker)) {
                findings.push(Finding::at(
                    &file.path,
                    index + 1,
                    format!("{marker}: do it, or say in an issue what is open"),
                ));
            }
        }
    }
    findings
}

fn has_word(line: &str, word: &str) -> bool {
    line.split(|character: char| !character.is_alphanumeric()).any(|found| found == word)
}

pub(super) fn lints_of_the_workspace(workspace: &Workspace) -> Vec<Finding> {
    let manifests = workspace.tree.with_ending("toml").filter(|file| file.path.ends_with("/Cargo.toml"));
    manifests
        .filter(|manifest| !is_a_workspace_of_its_own(&manifest.text) && !takes_lints(&manifest.text))
        .map(|manifest| Finding::in_file(&manifest.path, "lacks `[lints]` with `workspace = true`"))
        .collect()
}

/// Such a workspace cannot inherit settings from ours.
fn is_a_workspace_of_its_own(manifest: &str) -> bool {
    manifest.lines().any(|line| line.trim() == "[workspace]")
}

fn takes_lints(manifest: &str) -> bool {
    let section = manifest.lines().map(str::trim).skip_while(|line| *line != "[lints]").skip(1);
    section.take_while(|line| !line.starts_with('[')).any(|line| line == "workspace = true")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::Metadata;
    use crate::tidy::tree::Tree;

    fn workspace(files: &[(&str, &str)]) -> Workspace {
        Workspace { tree: Tree::of(files), metadata: Metadata::default() }
    }

    #[test]
    fn a_long_file_is_found() {
        let (fits, long) = ("x\n".repeat(MOST_LINES), "x\n".repeat(MOST_LINES + 1));
        let found = length(&workspace(&[("a.rs", &fits), ("b.rs", &long)]));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].place, "b.rs");
    }

    #[test]
    fn a_marker_is_found_as_a_word() {
        let text = format!("fine\n// {}: later\nmy{}s\n", MARKERS[0], MARKERS[0]);
        let found = left_to_do(&workspace(&[("a.rs", &text)]));
        assert_eq!(found.iter().map(|finding| finding.line).collect::<Vec<_>>(), [Some(2)]);
    }

    #[test]
    fn a_crate_with_lints_of_its_own_is_found() {
        let own = "[lints]\n[dependencies]\nworkspace = true\n";
        let shared = "[dependencies]\n\n[lints]\nworkspace = true\n";
        let found = lints_of_the_workspace(&workspace(&[
            ("a/Cargo.toml", own),
            ("b/Cargo.toml", shared),
            ("Cargo.toml", "[workspace]\n"),
            ("b/peer/Cargo.toml", "[workspace]\n\n[package]\n"),
        ]));
        assert_eq!(found.iter().map(|finding| finding.place.as_str()).collect::<Vec<_>>(), ["a/Cargo.toml"]);
    }
}
