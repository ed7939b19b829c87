//! Checks links between the pages of the workspace: the file exists, and so does the heading. It does not check external
//! links, because the result would depend on the day.

use super::tree::{File, Tree};
use super::{Finding, Workspace, at};

pub(super) fn resolve(workspace: &Workspace) -> Vec<Finding> {
    let pages = workspace.tree.with_ending("md");
    pages.flat_map(|page| broken_links(page, &workspace.tree)).collect()
}

fn broken_links(page: &File, tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (line, text) in text_lines(&page.text) {
        let without_code = text.split('`').step_by(2).collect::<Vec<_>>().join("`");
        for target in targets(&without_code) {
            if let Err(problem) = follow(target, page, tree) {
                findings.push(at(&page.path, line, format!("link to {target}: {problem}")));
            }
        }
    }
    findings
}

fn follow(target: &str, page: &File, tree: &Tree) -> Result<(), &'static str> {
    if target.contains("://") || target.starts_with("mailto:") {
        return Ok(());
    }
    let (path, heading) =
        target.split_once('#').map_or((target, None), |(path, heading)| (path, Some(heading)));
    let path = if path.is_empty() { Some(page.path.clone()) } else { resolved(&page.path, path) };
    let path = path.filter(|path| tree.has(path)).ok_or("there is no such file or folder")?;
    let (Some(heading), Some(file)) = (heading, tree.file(&path)) else {
        return Ok(());
    };
    let is_there = !file.has_ending("md") || has_heading(&file.text, heading);
    if is_there { Ok(()) } else { Err("the page has no such heading") }
}

/// Resolves `target`, relative to the page at `from`; returns `None` when it leads out of the workspace.
pub(crate) fn resolved(from: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

/// Returns the lines that are not code, counted from 1.
fn text_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    let lines = text.lines().enumerate().filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        !in_code && !is_fence
    });
    lines.map(|(index, line)| (index + 1, line))
}

/// Returns the targets of `[text](target)` and `[text]: target` in a line.
fn targets(line: &str) -> Vec<&str> {
    let inline = line.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next());
    let reference =
        line.strip_prefix('[').and_then(|rest| rest.split_once("]: ")).map(|(_, target)| target.trim());
    inline.chain(reference).collect()
}

/// Returns whether a heading of the page has this anchor: lower case, words between hyphens, without punctuation.
fn has_heading(text: &str, anchor: &str) -> bool {
    let headings = text_lines(text).filter(|(_, line)| line.starts_with('#'));
    headings.map(|(_, line)| line.trim_start_matches('#').trim()).any(|heading| {
        let kept = heading.chars().filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
        kept.flat_map(char::to_lowercase).collect::<String>().replace(' ', "-") == anchor
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::metadata_of;

    fn problems(files: &[(&str, &str)]) -> Vec<String> {
        let workspace = Workspace { tree: Tree::of(files), metadata: metadata_of([]) };
        resolve(&workspace)
    }

    #[test]
    fn links_to_pages_headings_and_the_world_resolve() {
        let readme = "[a](docs/a.md) [b](docs/a.md#what-exec-does-and-why) [c](https://example.org/x) [d](#top)\n\n# Top\n";
        let page =
            "# What `exec` does, and why\n[up](../README.md) ![x](b/../a.md)\n[ref]: ../README.md#top\n";
        assert_eq!(problems(&[("README.md", readme), ("docs/a.md", page)]), [""; 0]);
    }

    #[test]
    fn each_broken_link_is_found_with_its_line() {
        let readme = "fine\n[a](docs/b.md) and [b](docs/a.md#nothing)\n[c](../out.md)\n[d]: gone.md\n";
        let found = problems(&[("README.md", readme), ("docs/a.md", "# Something\n")]);
        assert_eq!(found.len(), 4, "{found:?}");
        assert!(found[0].starts_with("README.md:2: link to docs/b.md"), "{found:?}");
        assert!(found[1].contains("no such heading"), "{found:?}");
    }

    #[test]
    fn paths_are_resolved_beside_the_file() {
        assert_eq!(resolved("src/scripts/mod.rs", "grant.lua").as_deref(), Some("src/scripts/grant.lua"));
        assert_eq!(resolved("src/lib.rs", "../README.md").as_deref(), Some("README.md"));
        assert_eq!(resolved("src/lib.rs", "../../README.md"), None);
    }

    #[test]
    fn code_holds_no_links_and_no_headings() {
        let text = "`[a](b.md)`\n```sh\n# top\n[a](b.md)\n```\n[x](#top)\n";
        assert_eq!(problems(&[("a.md", text)]), ["a.md:6: link to #top: the page has no such heading"]);
    }
}
