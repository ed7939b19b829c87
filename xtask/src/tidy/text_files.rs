//! Rules about all text files.

use super::{Finding, Workspace, at, in_file};

const MOST_LINES: usize = 700;

/// Concatenated here, so that this file does not break its own rule.
const MARKERS: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];

pub(super) fn length(workspace: &Workspace) -> Vec<Finding> {
    let counts = workspace.tree.files().iter().map(|file| (file, file.text.lines().count()));
    let too_long = counts.filter(|(_, count)| *count > MOST_LINES);
    let problem = format!("more than {MOST_LINES} are several modules, not one");
    too_long.map(|(file, count)| in_file(&file.path, format!("{count} lines: {problem}"))).collect()
}

pub(super) fn left_to_do(workspace: &Workspace) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in workspace.tree.files() {
        let is_no_letter = |letter: char| !letter.is_alphanumeric();
        let has_marker = |line: &str| line.split(is_no_letter).any(|word| MARKERS.contains(&word));
        let lines = file.text.lines().enumerate().filter(|(_, line)| has_marker(line));
        findings.extend(
            lines.map(|(index, _)| at(&file.path, index + 1, "do it, or say in an issue what is open")),
        );
    }
    findings
}

/// A workspace of its own cannot inherit settings from ours.
pub(super) fn lints_of_the_workspace(workspace: &Workspace) -> Vec<Finding> {
    let manifests = workspace.tree.with_ending("toml").filter(|file| file.path.ends_with("/Cargo.toml"));
    let strict = |text: &str| text.contains("[lints]\nworkspace = true\n") || text.contains("[workspace]\n");
    let loose = manifests.filter(|manifest| !strict(&manifest.text));
    loose.map(|manifest| in_file(&manifest.path, "lacks `[lints]` with `workspace = true`")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::metadata_of;
    use crate::tidy::tree::Tree;

    fn workspace(files: &[(&str, &str)]) -> Workspace {
        Workspace { tree: Tree::of(files), metadata: metadata_of([]) }
    }

    #[test]
    fn a_long_file_is_found() {
        let (fits, long) = ("x\n".repeat(MOST_LINES), "x\n".repeat(MOST_LINES + 1));
        let found = length(&workspace(&[("a.rs", &fits), ("b.rs", &long)]));
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("b.rs: 701 lines"), "{found:?}");
    }

    #[test]
    fn a_marker_is_found_as_a_word() {
        let text = format!("fine\n// {}: later\nmy{}s\n", MARKERS[0], MARKERS[0]);
        let found = left_to_do(&workspace(&[("a.rs", &text)]));
        assert!(found.len() == 1 && found[0].starts_with("a.rs:2:"), "{found:?}");
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
        assert!(found.len() == 1 && found[0].starts_with("a/Cargo.toml:"), "{found:?}");
    }
}
