//! Rules about files that are read as text. In those about Rust, an attribute is at the start of its line, as rustfmt leaves it.

use super::{File, Finding, Workspace, at, in_file, regex};
use crate::mutants;

const MOST_LINES: usize = 700;

/// The one module that may have unsafe code. Elsewhere the lint of that name, which the workspace denies, stays as it is.
const UNSAFE: &str = "distlock-cli/src/system.rs";

/// Returns where the text of one of the files matches `pattern`, and what matches does not have `excuse`.
fn found<'a>(files: impl Iterator<Item = &'a File>, pattern: &str, excuse: &str, why: &str) -> Vec<Finding> {
    let (pattern, excuse) = (regex(pattern), regex(excuse));
    let matches = files.flat_map(|file| pattern.find_iter(&file.text).map(move |found| (file, found)));
    let wrong = matches.filter(|(_, found)| !excuse.is_match(found.as_str()));
    wrong.map(|(file, found)| at(file, found.start(), why)).collect()
}

pub(super) fn one_unsafe_module(workspace: &Workspace) -> Vec<Finding> {
    let files = workspace.with_ending("rs").filter(|file| file.path != UNSAFE);
    let problem = format!("unsafe code is for {UNSAFE} alone");
    found(files, "unsafe_cod[e].*|.*unsafe_cod[e]", r"^#!\[forbid\(", &problem)
}

/// The macros of `tracing`, as they are called in this project. Test programs may log as they like.
pub(super) fn one_log_target(workspace: &Workspace) -> Vec<Finding> {
    let is_library = |path: &str| path.starts_with("lock-") && !path.starts_with("lock-bench/");
    let sources = workspace.with_ending("rs").filter(|File { path, .. }| {
        is_library(path) && path.contains("/src/") || path.starts_with("distlock")
    });
    let call = r#"(?:\b(?:trace|debug|info|warn|error)|_span)!\(\s*(?:target: "\w*")?"#;
    found(sources, call, r#"target: "distlock""#, "logs without target: \"distlock\"")
}

/// What a page tells a reader to write into a manifest: a release that there will be.
pub(super) fn one_release(workspace: &Workspace) -> Vec<Finding> {
    let Some(package) = workspace.metadata.packages.first() else { return Vec::new() };
    let release = format!("\"{}.{}\"", package.version.major, package.version.minor);
    let line = r#"(?m)(?:^|`)(?:distlock|lock-|conformance-)[-\w]* = (?:\{ version = )?"[^"]*""#;
    found(workspace.with_ending("md"), line, &format!("{release}$"), &format!("the workspace is {release}"))
}

/// The entries of a table of mutants have nothing to do with each other.
pub(super) fn length(workspace: &Workspace) -> Vec<Finding> {
    let counts = workspace.files.iter().map(|file| (file, file.text.lines().count()));
    let too_long = counts.filter(|(file, count)| *count > MOST_LINES && !file.path.ends_with(mutants::FILE));
    let problem = format!("more than {MOST_LINES} are several modules, not one");
    too_long.map(|(file, count)| in_file(&file.path, format!("{count} lines: {problem}"))).collect()
}

/// A workspace of its own cannot inherit settings from ours.
pub(super) fn lints_of_the_workspace(workspace: &Workspace) -> Vec<Finding> {
    let strict = |text: &str| text.contains("[lints]\nworkspace = true\n") || text.contains("[workspace]\n");
    let manifests = workspace.with_ending("toml").filter(|file| file.path.ends_with("/Cargo.toml"));
    let loose = manifests.filter(|manifest| !strict(&manifest.text));
    loose.map(|manifest| in_file(&manifest.path, "lacks `[lints]` with `workspace = true`")).collect()
}

/// Each entry can be applied: `cargo xtask mutants`, which takes minutes, would say so late.
pub(super) fn mutants(workspace: &Workspace) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in workspace.with_ending("toml") {
        let Some((package, mutants::FILE)) = file.path.split_once('/') else { continue };
        let text = |path: &str| workspace.file(path).map_or("", |changed| &changed.text);
        match mutants::parse(package, &file.text) {
            Err(error) => findings.push(in_file(&file.path, error)),
            Ok(mutants) => findings.extend(mutants.iter().filter_map(|mutant| {
                let problem = mutant.applied_to(text(&mutant.file)).err()?;
                Some(in_file(&file.path, format_args!("{:?}: {problem}", mutant.name)))
            })),
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::workspace;

    fn lines(findings: &[Finding]) -> Vec<usize> {
        findings.iter().map(|finding| finding.split(':').nth(1).unwrap().parse().unwrap()).collect()
    }

    #[test]
    fn unsafety_is_admitted_in_one_module_of_the_command() {
        let lint = concat!("unsafe", "_code");
        let text = format!("#![forbid({lint})]\n#![allow({lint})]\n#[expect(\n    {lint},\n)]\n");
        let of = |path| lines(&one_unsafe_module(&workspace(&[(path, &text)])));
        assert_eq!(of("lock-file/src/a.rs"), [2, 4]);
        assert!(of("distlock-cli/src/system.rs").is_empty());
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

    #[test]
    fn a_long_file_is_found() {
        let (fits, long) = ("x\n".repeat(MOST_LINES), "x\n".repeat(MOST_LINES + 1));
        let found = length(&workspace(&[("a.rs", &fits), ("b.rs", &long)]));
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("b.rs: 701 lines"), "{found:?}");
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

    #[test]
    fn a_page_that_asks_for_another_release_is_found() {
        let text = "distlock = { version = \"0.1\", features = [\"a\"] }\ntokio = { version = \"1\" }\n`lock-file = \"0.2\"`\n\
                    distlock-macros = { version = \"0.1.7\" }\nlockAtLeast = \"1h\"\n@Lock(lock = \"1\")\n";
        let found = |version: &str| {
            let package = serde_json::json!({"name": "distlock", "version": version});
            let metadata = crate::context::metadata_of([package]);
            lines(&one_release(&Workspace { metadata, ..workspace(&[("docs/a.md", text)]) }))
        };
        assert_eq!((found("0.1.4"), found("0.2.0")), (vec![3, 4], vec![1, 4]));
    }

    #[test]
    fn an_entry_that_cannot_be_applied_is_found() {
        let entry = |name: &str, from: &str| {
            format!(
                "[[mutant]]\nname = '{name}'\nbreaks = 'x'\nfile = 'b.rs'\nfrom = '{from}'\nto = ''\n\
                 killed-by = 'a --lib x'\ntier = 'default'\n"
            )
        };
        let found =
            |table: &str| mutants(&workspace(&[("a/mutants.toml", table), ("a/b.rs", "one two two")])).len();
        let good = entry("good", "one");
        assert_eq!(found(&good), 0);
        assert_eq!(found(&format!("{good}{}", entry("many", "two"))), 1);
        assert_eq!(found(&format!("{good}{}", entry("none", "three"))), 1);
        assert_eq!(found(&format!("{good}{good}")), 1);
        assert_eq!(found("[[mutant]]\nname = 'a'\n"), 1);
    }
}
