//! Which files mention a backend by name: few, and the page for authors of backends lists them.

use std::collections::BTreeSet;

use super::{File, Finding, Workspace, at, in_file, regex};

const PAGE: &str = "docs/backends/writing-one.md";
/// The title of the list on that page, whose rows begin with a path.
const TITLE: &str = "## In this repository";

/// Crates that are named like a backend but are none, and the reference backend, which tests and examples of all crates use.
const NO_BACKENDS: [&str; 7] = ["core", "kit", "sql", "register", "entries", "bench", "memory"];

pub(super) fn are_known_by_few_files(workspace: &Workspace) -> Vec<Finding> {
    let listed = workspace.file(PAGE).map(|page| listed(&page.text)).unwrap_or_default();
    let (mut findings, mut idle) = (Vec::new(), listed.clone());
    let crates = workspace.metadata.packages.iter().map(|package| package.name.as_str());
    let backends = crates.filter_map(|name| name.strip_prefix("lock-"));
    for backend in backends.filter(|name| !NO_BACKENDS.contains(name)) {
        for (file, offset) in knowing(backend, workspace) {
            idle.remove(file.path.as_str());
            if !listed.contains(file.path.as_str()) {
                let problem = format!("knows the backend {backend}, and {PAGE} does not list it");
                findings.push(at(file, offset, problem));
            }
        }
    }
    findings.extend(idle.iter().map(|path| in_file(PAGE, format!("lists {path}, which knows no backend"))));
    findings
}

fn listed(page: &str) -> BTreeSet<&str> {
    let rows =
        page.lines().skip_while(|line| *line != TITLE).skip(1).take_while(|line| !line.starts_with('#'));
    let cells = rows.filter_map(|line| line.strip_prefix('|')?.split('|').next());
    cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect()
}

/// Returns the files that mention the backend at the beginning of a word and are not its own, each with the place where it does.
fn knowing<'a>(backend: &str, workspace: &'a Workspace) -> Vec<(&'a File, usize)> {
    // Where the name is a common word, the rule looks for the name of the crate.
    let prefix = if backend == "file" { "lock[-_]" } else { "" };
    let mention = regex(&format!("(?i)(?:^|[^a-z0-9]){prefix}{backend}"));
    let others = workspace.files.iter().filter(|file| !is_own(&file.path, backend));
    let place = |file: &File| Some(mention.find(file.text.split("\n#[cfg(test)]").next()?)?.end() - 1);
    others.filter_map(|file| Some((file, place(file)?))).collect()
}

/// Whether a file is the backend's own: its crate, its page, a test, a server for tests, or what is measured of it.
fn is_own(path: &str, backend: &str) -> bool {
    let (folders, name) = path.rsplit_once('/').unwrap_or(("", path));
    let own = [&format!("lock-{backend}"), backend, "tests"];
    folders.split('/').any(|folder| own.contains(&folder))
        || name == "tests.rs"
        || path.starts_with(&format!("docs/backends/{backend}"))
        || path.starts_with("test-servers/")
        || path.starts_with("lock-bench/") && folders != "lock-bench/src"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::metadata_of;
    use crate::tidy::workspace;

    const LIST: &str = "# Page\n| `other.md` | not in the list |\n## In this repository\n\n| file | |\n|---|---|\n\
                        | `Cargo.toml`, `CHANGELOG.md` | a row |\n## Next\n| `more.md` | not either |\n";

    fn found(page: &str, files: &[(&str, &str)]) -> Vec<String> {
        let crates = ["lock-core", "lock-bench", "lock-gopher", "lock-file", "distlock"];
        let metadata = metadata_of(crates.map(|name| serde_json::json!({"name": name})));
        let workspace = workspace(&[files, &[(PAGE, page)]].concat());
        are_known_by_few_files(&Workspace { metadata, ..workspace })
    }

    const ROW: (&str, &str) = ("Cargo.toml", "a\nlock-gopher = 1\n");
    const NEWS: (&str, &str) = ("CHANGELOG.md", "The backend gopher\n");

    #[test]
    fn files_on_the_list_and_its_own_may_know_a_backend() {
        let own = [
            ROW,
            ("lock-gopher/src/a.rs", "gopher"),
            ("docs/backends/gopher.md", "Gopher"),
            ("lock-bench/src/gopher/mod.rs", "Gopher"),
            ("distlock-cli/tests/command/x.rs", "gopher"),
            ("xtask/src/a.rs", "fn a() {}\n#[cfg(test)]\nmod tests { gopher }"),
            ("docs/a.md", "a file, file:, the file backend, and the thread distlock-file"),
            NEWS,
        ];
        assert_eq!(found(LIST, &own), Vec::<String>::new());
    }

    #[test]
    fn another_file_that_knows_one_is_found_with_its_line() {
        let text = "x\nThe Gopher backend\n";
        assert_eq!(
            found(LIST, &[ROW, NEWS, ("docs/a.md", text)]),
            [format!("docs/a.md:2: knows the backend gopher, and {PAGE} does not list it")]
        );
        assert_eq!(found(LIST, &[ROW, NEWS, ("docs/a.md", "lock_file")]).len(), 1);
        assert_eq!(
            found(LIST, &[ROW, NEWS, ("lock-file/src/a.rs", "gopher")]).len(),
            1,
            "one backend knows another"
        );
    }

    #[test]
    fn a_file_on_the_list_that_knows_none_is_found() {
        assert_eq!(found(LIST, &[NEWS]), [format!("{PAGE}: lists Cargo.toml, which knows no backend")]);
    }
}
