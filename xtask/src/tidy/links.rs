//! Checks links between the pages of the workspace: the file exists, and so does the heading. It does not check external
//! links, because the result would depend on the day.

use regex_lite::Captures;

use super::{File, Finding, Workspace, at, has_ending, regex};

/// Code, which has no links: blocks and words.
const BLOCK: &str = r"(?ms)^ *```.*?^ *```";
const WORDS: &str = r"`[^`\n]*`";
/// `[text](target)` and `[text]: target`.
const LINK: &str = r"(?m)\]\(([^) \n]+)|^\[[^\]\n]*\]: *(\S+)";

pub(super) fn resolve(workspace: &Workspace) -> Vec<Finding> {
    workspace.with_ending("md").flat_map(|page| broken_links(page, workspace)).collect()
}

fn broken_links(page: &File, workspace: &Workspace) -> Vec<Finding> {
    let (text, link) = (without(WORDS, &without(BLOCK, &page.text)), regex(LINK));
    let links = link.captures_iter(&text).filter_map(|link| link.get(1).or(link.get(2)));
    let broken = links.filter_map(|target| {
        let problem = follow(target.as_str(), page, workspace).err()?;
        Some(at(page, target.start(), format_args!("link to {}: {problem}", target.as_str())))
    });
    broken.collect()
}

fn follow(target: &str, page: &File, workspace: &Workspace) -> Result<(), &'static str> {
    if target.contains("://") || target.starts_with("mailto:") {
        return Ok(());
    }
    let (path, heading) = target.split_once('#').unwrap_or((target, ""));
    let path = if path.is_empty() { Some(page.path.clone()) } else { resolved(&page.path, path) };
    let is_at = |file: &File, path: &str| {
        file.path.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let file = path.and_then(|path| workspace.files.iter().find(|file| is_at(file, &path)));
    let file = file.ok_or("there is no such file or folder")?;
    let is_there = heading.is_empty() || !has_ending(&file.path, "md") || has_heading(&file.text, heading);
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

/// Returns the text with as many bytes and lines, and with blanks where the pattern matches.
fn without(pattern: &str, text: &str) -> String {
    let blank = |letter: char| if letter == '\n' { "\n".to_owned() } else { " ".repeat(letter.len_utf8()) };
    let blanks = |code: &Captures<'_>| code[0].chars().map(blank).collect::<String>();
    regex(pattern).replace_all(text, blanks).into_owned()
}

/// Returns whether a heading of the page has this anchor: lower case, words between hyphens, without punctuation.
fn has_heading(text: &str, anchor: &str) -> bool {
    without(BLOCK, text).lines().filter(|line| line.starts_with('#')).any(|heading| {
        let heading = heading.trim_start_matches('#').trim();
        let kept = heading.chars().filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
        kept.flat_map(char::to_lowercase).collect::<String>().replace(' ', "-") == anchor
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::workspace;

    fn problems(files: &[(&str, &str)]) -> Vec<String> {
        resolve(&workspace(files))
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
