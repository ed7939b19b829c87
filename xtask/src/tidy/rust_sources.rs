//! Rules about Rust files, which are read as text: an attribute is at the start of its line, as rustfmt leaves it.

use super::{Finding, Workspace, at};

/// The one module that may have unsafe code. Elsewhere the lint of that name, which the workspace denies, stays as it is.
const UNSAFE: &str = "distlock-cli/src/system.rs";

/// Concatenated here, so that this file does not break its own rule.
const LINT: &str = concat!("unsafe", "_code");

pub(super) fn one_unsafe_module(workspace: &Workspace) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in workspace.tree.with_ending("rs").filter(|file| file.path != UNSAFE) {
        let lines = file.text.lines().map(|line| line.replace("#![forbid(", "")).enumerate();
        let loose = lines.filter(|(_, line)| line.contains(LINT) && !line.starts_with(LINT));
        findings.extend(
            loose.map(|(index, _)| at(&file.path, index + 1, format!("{LINT} is for {UNSAFE} alone"))),
        );
    }
    findings
}

pub(super) fn reasons_for_allowed_lints(workspace: &Workspace) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in workspace.tree.with_ending("rs") {
        let lines: Vec<&str> = file.text.lines().map(str::trim).collect();
        let attributes = (0..lines.len()).filter(|&index| lines[index].starts_with('#'));
        let mute = attributes.filter(|&index| switches_a_lint_off_without_reason(&lines, index));
        findings.extend(
            mute.map(|index| {
                at(&file.path, index + 1, "says no reason = \"…\" and has no comment beside it")
            }),
        );
    }
    findings
}

/// Judges the attribute that begins at this line. Documentation is about the item, not about the attribute.
fn switches_a_lint_off_without_reason(lines: &[&str], start: usize) -> bool {
    let attribute =
        lines[start..].split_inclusive(|line| line.contains(']')).next().unwrap_or_default().concat();
    let is_commented = start > 0 && lines[start - 1].starts_with("// ") || attribute.contains("//");
    let switches_off = attribute.contains("allow(") || attribute.contains("expect(");
    switches_off && !is_commented && !attribute.contains("reason = ")
}

/// The macros of `tracing`, as they are called in this project: with the name of the crate before them.
const LOGGING: [&str; 6] = ["trace!(", "debug!(", "info!(", "warn!(", "error!(", "_span!("];

pub(super) fn one_log_target(workspace: &Workspace) -> Vec<Finding> {
    let sources = workspace.tree.with_ending("rs").filter(|file| is_logging_source(&file.path));
    let calls = sources.flat_map(|file| calls_without_target(&file.text).map(move |line| (file, line)));
    calls.map(|(file, line)| at(&file.path, line, "logs without target: \"distlock\"")).collect()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::metadata_of;
    use crate::tidy::tree::Tree;

    fn workspace(files: &[(&str, &str)]) -> Workspace {
        Workspace { tree: Tree::of(files), metadata: metadata_of([]) }
    }

    fn lines(findings: &[Finding]) -> Vec<usize> {
        findings.iter().map(|finding| finding.split(':').nth(1).unwrap().parse().unwrap()).collect()
    }

    #[test]
    fn unsafety_is_admitted_in_one_module_of_the_command() {
        let text = format!("#![forbid({LINT})]\n#![allow({LINT})]\n#[expect(\n    {LINT},\n)]\n");
        let of = |path| lines(&one_unsafe_module(&workspace(&[(path, &text)])));
        assert_eq!(of("lock-file/src/a.rs"), [2, 4]);
        assert!(of(UNSAFE).is_empty());
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
        assert!(one_log_target(&workspace(&[("lock-core/tests/a.rs", &text)])).is_empty());
    }
}
