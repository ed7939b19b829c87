//! The tables of mutants: `mutants.toml` of each crate.

use std::path::{Component, Path, PathBuf};

use serde::Deserialize;

use crate::failure::Failure;

/// The name of a table, in the folder of its crate.
pub(crate) const FILE: &str = "mutants.toml";

/// One defect that a test has to find.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct Mutant {
    pub(crate) name: String,
    /// The promise that it breaks.
    pub(crate) breaks: String,
    /// Relative to the crate.
    file: PathBuf,
    /// A text that occurs once in the file.
    from: String,
    to: String,
    /// A package, `--lib` or `--test NAME`, and a filter.
    pub(crate) killed_by: Option<String>,
    tier: Option<Tier>,
    /// Why no test finds it yet.
    pub(crate) survives: Option<String>,
    /// The folder of the crate, relative to the workspace.
    #[serde(skip)]
    pub(crate) package: String,
}

/// The tier of the suite that has the test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Tier {
    Default,
    All,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    mutant: Vec<Mutant>,
}

/// Parses the table of the crate in the folder `package`.
pub(crate) fn parse(package: &str, text: &str) -> Result<Vec<Mutant>, Failure> {
    let table: Table =
        toml::from_str(text).map_err(|error| Failure::new(format!("{package}/{FILE}: {error}")))?;
    let of_package = |mutant| Mutant { package: package.to_owned(), ..mutant };
    Ok(table.mutant.into_iter().map(of_package).collect())
}

impl Mutant {
    /// The changed file, relative to the workspace.
    pub(crate) fn path(&self) -> String {
        let mut path = PathBuf::new();
        for part in Path::new(&self.package).join(&self.file).components() {
            match part {
                Component::ParentDir => drop(path.pop()),
                part => path.push(part),
            }
        }
        path.to_string_lossy().replace('\\', "/")
    }

    /// The defective file.
    pub(crate) fn applied_to(&self, text: &str) -> Result<String, &'static str> {
        match text.matches(&self.from).count() {
            1 => Ok(text.replacen(&self.from, &self.to, 1)),
            0 => Err("its `from` does not occur in the file"),
            _ => Err("its `from` occurs more than once"),
        }
    }

    /// What is wrong with this entry, beside its text.
    pub(crate) fn problem(&self) -> Option<&'static str> {
        match (&self.killed_by, &self.survives, self.tier) {
            (None, None, _) => Some("has neither `killed-by` nor `survives`"),
            (Some(_), None, None) => Some("has no `tier`"),
            _ if self.from == self.to || self.from.is_empty() => Some("changes nothing"),
            _ => None,
        }
    }
}
