//! Rules about Rust files, which are read as text: an attribute is at the start of its line, as rustfmt leaves it.

use super::tree::File;
use super::{Finding, Workspace};

const FORBIDS: &str = "#![forbid(unsafe_code)]";

pub(super) fn libraries_forbid_unsafe(workspace: &Workspace) -> Vec<Finding> {
    let forbids = |root: &str| {
        let file = workspace.tree.file(root);
        file.is_some_and(|file| file.text.lines().any(|line| line.trim() == FORBIDS))
    };
    let roots = workspace.metadata.packages.iter().filter_map(|package| package.library.as_deref());
    roots
        .filter(|root| !forbids(root))
        .map(|root| Finding::in_file(root, format!("lacks {FORBIDS}")))
        .collect()
}

pub(super) fn one_unsafe_module(workspace: &Workspace) -> Vec<Finding> {
    let mut audited = None;
    let mut findings = Vec::new();
    for (file, attribute) in attributes_of(workspace).filter(|(_, attribute)| attribute.admits_unsafe()) {
        let is_command = file.path.starts_with("distlock-cli/");
        if !is_command || *audited.get_or_insert(&file.path) != &file.path {
            findings.push(Finding::at(
                &file.path,
                attribute.line,
                "allows unsafe code outside the one audited module",
            ));
        }
    }
    findings
}

pub(super) fn reasons_for_allowed_lints(workspace: &Workspace) -> Vec<Finding> {
    attributes_of(workspace)
        .filter(|(_, attribute)| attribute.switches_a_lint_off() && !attribute.has_reason())
        .map(|(file, attribute)| {
            Finding::at(&file.path, attribute.line, "says no reason = \"…\" and has no comment beside it")
        })
        .collect()
}

pub(super) fn reasons_for_ignored_tests(workspace: &Workspace) -> Vec<Finding> {
    attributes_of(workspace)
        .filter(|(_, attribute)| attribute.text == "#[ignore]")
        .map(|(file, attribute)| Finding::at(&file.path, attribute.line, "#[ignore] without = \"reason\""))
        .collect()
}

/// The macros of `tracing`, as they are called in this project: with the name of the crate before them.
const LOGGING: [&str; 6] = ["trace!(", "debug!(", "info!(", "warn!(", "error!(", "_span!("];

pub(super) fn one_log_target(workspace: &Workspace) -> Vec<Finding> {
    let sources = workspace.tree.with_ending("rs").filter(|file| is_logging_source(&file.path));
    let calls = sources.flat_map(|file| calls_without_target(&file.text).map(move |line| (file, line)));
    calls.map(|(file, line)| Finding::at(&file.path, line, "logs without target: \"distlock\"")).collect()
}

/// Test programs may log as they like.
fn is_logging_source(path: &str) -> bool {
    let is_library = path.starts_with("lock-") && !path.starts_with("lock-bench/") && path.contains("/src/");
    is_library || path.starts_with("distlock")
}

fn calls_without_target(text: &str) -> impl Iterator<Item = usize> {
    let is_part_of_a_name = |at: usize, call: &str| {
        !call.starts_with('_')
            && text[..at].ends_with(|before: char| before == '_' || before.is_alphanumeric())
    };
    let calls = LOGGING.iter().flat_map(|call| text.match_indices(call));
    let ends = calls.filter(|(at, call)| !is_part_of_a_name(*at, call)).map(|(at, call)| at + call.len());
    let names_it = |end: &usize| text[*end..].trim_start().starts_with("target: \"distlock\"");
    let mut lines: Vec<_> =
        ends.filter(|end| !names_it(end)).map(|end| text[..end].lines().count()).collect();
    lines.sort_unstable();
    lines.into_iter()
}

fn attributes_of(workspace: &Workspace) -> impl Iterator<Item = (&File, Attribute)> {
    workspace
        .tree
        .with_ending("rs")
        .flat_map(|file| attributes(&file.text).into_iter().map(move |found| (file, found)))
}

#[derive(Debug)]
struct Attribute {
    line: usize,
    /// The text from `#` to the closing bracket, on one line.
    text: String,
    /// Whether there is a comment on the line before it or after it on the same line.
    commented: bool,
}

impl Attribute {
    fn switches_a_lint_off(&self) -> bool {
        self.text.contains("allow(") || self.text.contains("expect(")
    }

    fn has_reason(&self) -> bool {
        self.commented || self.text.contains("reason = ")
    }

    fn admits_unsafe(&self) -> bool {
        self.switches_a_lint_off() && self.text.contains("unsafe_code")
    }
}

fn attributes(text: &str) -> Vec<Attribute> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let starts = |line: &str| line.starts_with("#[") || line.starts_with("#![");
    (0..lines.len()).filter(|&index| starts(lines[index])).map(|index| attribute(&lines, index)).collect()
}

fn attribute(lines: &[&str], start: usize) -> Attribute {
    let mut text = String::new();
    for line in &lines[start..] {
        let (code, comment) =
            line.split_once("//").map_or((*line, false), |(code, _)| (code.trim_end(), true));
        text.push_str(code);
        let closed = text.matches('[').count() <= text.matches(']').count();
        if comment || closed {
            let before = start.checked_sub(1).map_or("", |index| lines[index]);
            return Attribute { line: start + 1, text, commented: comment || is_plain_comment(before) };
        }
    }
    Attribute { line: start + 1, text, commented: false }
}

/// Documentation is about the item, not about the attribute.
fn is_plain_comment(line: &str) -> bool {
    line.starts_with("//") && !line.starts_with("///") && !line.starts_with("//!")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::Metadata;
    use crate::tidy::tree::Tree;

    fn workspace(files: &[(&str, &str)]) -> Workspace {
        let package = r#"{"workspace_root": "/w", "packages": [{"name": "a", "manifest_path": "/w/a/Cargo.toml",
            "targets": [{"kind": ["lib"], "src_path": "/w/a/src/lib.rs"}]}]}"#;
        Workspace { tree: Tree::of(files), metadata: Metadata::parse(package).unwrap() }
    }

    fn lines(findings: &[Finding]) -> Vec<usize> {
        findings.iter().filter_map(|finding| finding.line).collect()
    }

    #[test]
    fn a_library_that_does_not_forbid_unsafe_code_is_found() {
        let sound = workspace(&[("a/src/lib.rs", "//! Docs.\n#![forbid(unsafe_code)]\n")]);
        assert_eq!(libraries_forbid_unsafe(&sound), []);
        assert_eq!(
            libraries_forbid_unsafe(&workspace(&[("a/src/lib.rs", "// #![forbid(unsafe_code)]\n")])).len(),
            1
        );
        assert_eq!(libraries_forbid_unsafe(&workspace(&[])).len(), 1, "a root that was not read is no proof");
    }

    #[test]
    fn unsafe_code_is_admitted_in_one_module_of_the_command() {
        let admits = "#![allow(unsafe_code, reason = \"x\")]\n";
        assert_eq!(one_unsafe_module(&workspace(&[("distlock-cli/src/a.rs", admits)])), []);
        assert_eq!(one_unsafe_module(&workspace(&[("lock-file/src/a.rs", admits)])).len(), 1);
        let two = [("distlock-cli/src/a.rs", admits), ("distlock-cli/src/b.rs", admits)];
        assert_eq!(one_unsafe_module(&workspace(&two)).len(), 1);
    }

    #[test]
    fn a_lint_is_switched_off_with_a_reason() {
        let text = [
            "",
            "#[allow(dead_code)]",
            "#[allow(dead_code, reason = \"x\")]",
            "#[allow(dead_code)] // because",
            "// because",
            "#[expect(dead_code)]",
            "/// About the item.",
            "#[cfg_attr(test, allow(dead_code))]",
            "#[expect(",
            "    dead_code,",
            "    reason = \"x\"",
            ")]",
            "    #![allow(",
            "        dead_code",
            "    )]",
            "#[should_panic(expected = \"allow\")]",
            "fn f() { x.expect(\"y\") }",
        ]
        .join("\n");
        assert_eq!(lines(&reasons_for_allowed_lints(&workspace(&[("a.rs", &text)]))), [2, 8, 13]);
    }

    #[test]
    fn what_is_logged_without_the_one_target_is_found() {
        let text = [
            "tracing::warn!(\"lost\");",
            "tracing::warn!(target: \"distlock\", \"lost\");",
            "info!(",
            "    target: \"distlock\",",
            ");",
            "debug!(target: \"other\", \"lost\");",
            "let span = tracing::debug_span!(\"lock\");",
            "compile_error!(\"not here\");",
        ]
        .join("\n");
        assert_eq!(lines(&one_log_target(&workspace(&[("lock-core/src/a.rs", &text)]))), [1, 6, 7]);
        assert_eq!(one_log_target(&workspace(&[("lock-core/tests/a.rs", &text)])), []);
    }

    #[test]
    fn an_ignored_test_says_why() {
        let text = "#[ignore = \"slow\"]\n#[ignore]\n";
        assert_eq!(lines(&reasons_for_ignored_tests(&workspace(&[("a.rs", text)]))), [2]);
    }
}
