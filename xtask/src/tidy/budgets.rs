//! How many lines of code each crate may have. The file of the budgets says what counts.

use std::collections::{BTreeMap, BTreeSet};

use super::{File, Finding, Workspace, has_ending, in_file, regex};

const FILE: &str = "budgets.toml";

/// Before what is for tests or for the documentation alone.
const HIDDEN: [&str; 4] = ["#[cfg(test)]", "#[cfg(doc)]", "#[cfg(doctest)]", "#[cfg(all(doctest"];

/// The endings of code.
const CODE: [&str; 3] = ["rs", "lua", "java"];

pub(super) fn are_kept(workspace: &Workspace) -> Vec<Finding> {
    let text = workspace.file(FILE).map_or("", |file| &file.text);
    let budgets: BTreeMap<String, usize> = match toml::from_str(text) {
        Ok(budgets) => budgets,
        Err(error) => return vec![in_file(FILE, error)],
    };
    let sizes = sizes(workspace);
    let names: BTreeSet<_> =
        workspace.metadata.packages.iter().map(|package| package.name.as_str()).collect();
    let over = names.iter().filter_map(|name| {
        let (size, budget) = (*sizes.get(name)?, budgets.get(*name).copied().unwrap_or(0));
        (size > budget).then(|| format!("{name} has {size} lines, and a budget of {budget}"))
    });
    let idle = budgets.keys().filter(|name| !names.contains(name.as_str()));
    let problems = over.chain(idle.map(|name| format!("there is no crate {name}")));
    problems.map(|problem| in_file(FILE, problem)).collect()
}

/// Returns the lines of code of each crate, by the name of its folder.
fn sizes(workspace: &Workspace) -> BTreeMap<&str, usize> {
    let tests: Vec<_> = workspace.with_ending("rs").flat_map(modules_for_tests).collect();
    let is_code = |path: &str| {
        CODE.iter().any(|ending| has_ending(path, ending))
            && !path.split('/').any(|folder| ["tests", "examples"].contains(&folder))
            && !tests.iter().any(|module| path.starts_with(module))
    };
    let mut sizes = BTreeMap::new();
    for file in workspace.files.iter().filter(|file| is_code(&file.path)) {
        let package = file.path.split('/').next().unwrap_or_default();
        let lines = product(&file.text).lines().filter(|line| !line.trim().is_empty()).count();
        *sizes.entry(package).or_default() += lines;
    }
    sizes
}

/// Returns how the paths begin of the modules that a file includes for tests alone.
fn modules_for_tests(file: &File) -> Vec<String> {
    let module = regex(r"#\[cfg\(test\)\]\s+(?:pub(?:\(\w+\))? )?mod (\w+);");
    let path = file.path.trim_end_matches(".rs");
    let folder = ["/mod", "/lib", "/main"].iter().find_map(|name| path.strip_suffix(name)).unwrap_or(path);
    let names = module.captures_iter(&file.text).map(|found| found[1].to_owned());
    names.flat_map(|name| [format!("{folder}/{name}.rs"), format!("{folder}/{name}/")]).collect()
}

/// Returns the code without comments, which leave empty lines behind.
pub(super) fn without_comments(text: &str) -> String {
    let is_comment = |line: &str| line.starts_with("//") || line.starts_with("--");
    let lines = text.lines().map(|line| if is_comment(line.trim_start()) { "" } else { line });
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns the code that is compiled into the crate: without comments, tests, and what is for the docs alone.
pub(crate) fn product(text: &str) -> String {
    let code = without_comments(text);
    let (mut kept, mut lines) = (Vec::new(), code.lines());
    while let Some(line) = lines.next() {
        if !HIDDEN.iter().any(|hidden| line.trim_start().starts_with(hidden)) {
            kept.push(line);
            continue;
        }
        // The item below its attributes ends with a brace below its beginning, or else with its first line.
        let end = line.replace(line.trim_start(), "}");
        let item = lines.find(|line| !line.trim_start().starts_with("#["));
        if item.is_some_and(|first| first.ends_with('{')) {
            lines.find(|line| line.trim_end_matches(';') == end);
        }
    }
    kept.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::metadata_of;
    use crate::tidy::workspace;

    fn found(budgets: &str, files: &[(&str, &str)]) -> Vec<String> {
        let metadata = metadata_of(["a", "b"].map(|name| serde_json::json!({"name": name})));
        let workspace = workspace(&[files, &[(FILE, budgets)]].concat());
        are_kept(&Workspace { metadata, ..workspace })
    }

    #[test]
    fn a_crate_with_more_lines_than_its_budget_is_found() {
        let files =
            [("a/src/lib.rs", "fn a() {\n}\n"), ("a/src/b/c.lua", "return 1\n"), ("b/src/main.rs", "x\n")];
        assert_eq!(found("a = 3\nb = 50\n", &files), [""; 0]);
        assert_eq!(found("a = 2\nb = 50\n", &files), ["budgets.toml: a has 3 lines, and a budget of 2"]);
    }

    #[test]
    fn what_is_blank_a_comment_or_a_test_does_not_count() {
        let code = "//! A\n\n// b\n/// c\nmod d; // e\n    // f\n#[cfg(test)]\nmod g;\n\n#[cfg(test)]\nmod tests {\n    x\n}\n";
        let files = [
            ("a/src/lib.rs", code),
            ("a/src/g.rs", "x\n"),
            ("a/src/g/h.rs", "x\n"),
            ("a/src/i/mod.rs", "#[cfg(test)]\npub(crate) mod j;\n"),
            ("a/src/i/j.rs", "x\n"),
            ("a/src/b.lua", "-- x\n\n"),
            ("a/tests/k/l.rs", "x\n"),
            ("a/src/m/tests/n.rs", "x\n"),
            ("a/examples/o.rs", "x\n"),
            ("a/README.md", "x\n"),
        ];
        assert_eq!(found("a = 1\nb = 0\n", &files), [""; 0]);
        assert_eq!(found("a = 0\nb = 0\n", &files).len(), 1);
    }

    #[test]
    fn each_crate_has_a_budget_and_each_budget_a_crate() {
        let found_here = found("a = 1\nc = 1\n", &[("b/src/lib.rs", "x\n")]);
        assert_eq!(
            found_here,
            ["budgets.toml: b has 1 lines, and a budget of 0", "budgets.toml: there is no crate c"]
        );
        assert_eq!(found("a = 'many'\n", &[]).len(), 1);
    }
}
