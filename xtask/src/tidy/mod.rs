//! Rules that the compiler does not check. Each is one row in [`RULES`], and `CONTRIBUTING.md` explains them.

mod backends;
mod budgets;
mod core;
mod dependencies;
mod links;
mod texts;

use std::fmt::Display;
use std::fs;
use std::path::Path;

use anyhow::{Result, ensure};
pub(crate) use budgets::product;
use cargo_metadata::Metadata;
pub(crate) use links::resolved;
use regex_lite::Regex;

use crate::console::{DETAIL, ERROR, say};
use crate::context::Context;

/// What a rule checks.
struct Workspace {
    files: Vec<File>,
    metadata: Metadata,
}

#[derive(Debug)]
struct File {
    /// Relative to the root of the workspace, with `/` between its parts.
    path: String,
    text: String,
}

impl Workspace {
    fn read(context: &Context) -> Result<Self> {
        let mut files = Vec::new();
        for path in paths(context.root())? {
            let is_ours = !path.ends_with("Cargo.lock") && !path.contains("LICENSE-");
            let text = if is_ours { fs::read(context.root().join(&path))? } else { Vec::new() };
            files.push(File { path, text: String::from_utf8_lossy(&text).into_owned() });
        }
        Ok(Self { files, metadata: context.metadata.clone() })
    }

    fn with_ending<'a>(&'a self, ending: &'a str) -> impl Iterator<Item = &'a File> {
        self.files.iter().filter(move |file| has_ending(&file.path, ending))
    }

    fn file(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }
}

/// Returns the files below the folder, except what cargo and git put there; in their order, with `/` between the parts.
pub(crate) fn paths(root: &Path) -> Result<Vec<String>> {
    let (mut folders, mut paths) = (vec![root.to_owned()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.extend((!path.ends_with("target") && !path.ends_with(".git")).then_some(path));
            } else {
                paths.push(path.strip_prefix(root)?.to_string_lossy().replace('\\', "/"));
            }
        }
    }
    paths.sort();
    Ok(paths)
}

/// A regular expression that is written in this program.
#[expect(clippy::expect_used, reason = "the tests use each of them")]
pub(crate) fn regex(pattern: &str) -> Regex {
    Regex::new(pattern).expect("a regular expression")
}

pub(crate) fn has_ending(path: &str, ending: &str) -> bool {
    Path::new(path).extension().is_some_and(|found| found == ending)
}

/// One place that breaks a rule, and how.
type Finding = String;

fn in_file(path: &str, problem: impl Display) -> Finding {
    format!("{path}: {problem}")
}

/// In the line that has the byte `offset` of the file's text.
fn at(file: &File, offset: usize, problem: impl Display) -> Finding {
    format!("{}:{}: {problem}", file.path, line_of(&file.text, offset))
}

/// Counts from 1.
fn line_of(text: &str, offset: usize) -> usize {
    text[..offset].matches('\n').count() + 1
}

type Rule = (&'static str, fn(&Workspace) -> Vec<Finding>);

const RULES: &[Rule] = &[
    ("unsafe code is in one module of the command, if anywhere", texts::one_unsafe_module),
    ("everything that is logged has the target distlock", texts::one_log_target),
    ("crates depend on each other in one direction, and the core on little else", dependencies::direction),
    ("the folders of the core import downwards", core::layers_import_downwards),
    ("few files know a backend, and a page lists them", backends::are_known_by_few_files),
    ("every crate takes the lints of the workspace", texts::lints_of_the_workspace),
    ("every crate keeps to its budget of lines", budgets::are_kept),
    ("no file is too long to be one module", texts::length),
    ("every link of every page leads somewhere", links::resolve),
    ("every mutant can be applied", texts::mutants),
    ("a page asks for the release of the workspace", texts::one_release),
];

pub(crate) fn run(context: &Context) -> Result<()> {
    let workspace = Workspace::read(context)?;
    let mut broken = 0;
    for (rule, check) in RULES {
        for finding in check(&workspace) {
            say(ERROR, format_args!("{finding}: {rule}"));
            broken += 1;
        }
    }
    ensure!(broken == 0, "{broken} of the places named above break a rule of the workspace");
    say(DETAIL, format_args!("{} rules hold in {} files", RULES.len(), workspace.files.len()));
    Ok(())
}

#[cfg(test)]
fn workspace(files: &[(&str, &str)]) -> Workspace {
    let file = |&(path, text): &(&str, &str)| File { path: path.to_owned(), text: text.to_owned() };
    Workspace { files: files.iter().map(file).collect(), metadata: crate::context::metadata_of([]) }
}
