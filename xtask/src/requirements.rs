//! What must be installed on the machine before the checks run. The `Cargo.toml` of each crate says what its tests need, as
//! `[[package.metadata.suite.needs]]`.

use serde_json::Value;

use crate::failure::Failure;
use crate::metadata::{Metadata, Package};
use crate::process::Process;

/// One program or component that the checks need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Requirement {
    pub(crate) name: String,
    /// A command that succeeds if it is installed.
    pub(crate) proof: Vec<String>,
    pub(crate) source: Source,
    /// The names in `DISTLOCK_SKIP` that leave it out, together with the tests that need it. Without names it is always
    /// needed.
    pub(crate) skip_words: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    /// A package of Debian and Ubuntu.
    Package(String),
    /// A component of the Rust toolchain.
    Component(String),
}

/// Returns what the checks need: the tools, and what the crates say that their tests need.
pub(crate) fn all(metadata: &Metadata) -> Result<Vec<Requirement>, Failure> {
    let tools = [
        tool("rustfmt", &["cargo", "fmt", "--version"], Source::Component("rustfmt".to_owned())),
        tool("clippy", &["cargo", "clippy", "--version"], Source::Component("clippy".to_owned())),
        tool("flock", &["flock", "--version"], Source::Package("util-linux".to_owned())),
    ];
    let mut requirements: Vec<_> = tools.into();
    for package in &metadata.packages {
        for row in package.suite["needs"].as_array().into_iter().flatten() {
            requirements.push(read(row).ok_or_else(|| unreadable(package))?);
        }
    }
    Ok(requirements)
}

fn tool(name: &str, proof: &[&str], source: Source) -> Requirement {
    let proof = proof.iter().map(|&word| word.to_owned()).collect();
    Requirement { name: name.to_owned(), proof, source, skip_words: Vec::new() }
}

fn read(row: &Value) -> Option<Requirement> {
    Some(Requirement {
        name: row["name"].as_str()?.to_owned(),
        proof: words(&row["proof"]).filter(|proof| !proof.is_empty())?,
        source: Source::Package(row["package"].as_str()?.to_owned()),
        skip_words: words(&row["skip"])?,
    })
}

fn words(list: &Value) -> Option<Vec<String>> {
    list.as_array()?.iter().map(|word| word.as_str().map(str::to_owned)).collect()
}

fn unreadable(package: &Package) -> Failure {
    Failure::new(format!(
        "{}: each of package.metadata.suite.needs has a name, a proof, a package, and skip, the words that leave it out",
        package.manifest
    ))
}

impl Requirement {
    pub(crate) fn is_present(&self) -> bool {
        let Some((program, arguments)) = self.proof.split_first() else {
            return false;
        };
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        Process::new(program, &arguments).succeeds()
    }

    /// Returns whether `skip`, the value of `DISTLOCK_SKIP` (words between commas), names it.
    pub(crate) fn is_left_out_by(&self, skip: &str) -> bool {
        skip.split(',').any(|named| self.skip_words.iter().any(|word| word == named.trim()))
    }

    /// Returns the line that tells the user what to do.
    pub(crate) fn remedy(&self) -> String {
        let name = &self.name;
        let line = match &self.source {
            Source::Component(component) => format!("{name} is missing: rustup component add {component}"),
            Source::Package(package) => {
                format!("{name} is missing: install it (on Debian and Ubuntu: apt-get install {package})")
            }
        };
        match self.skip_words.first() {
            Some(word) => format!("{line}, or leave its tests out with DISTLOCK_SKIP={word}"),
            None => line,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(proof: &str, skip: &str) -> Requirement {
        let manifest = format!(
            r#"{{"packages": [{{"name": "a", "manifest_path": "a/Cargo.toml", "metadata": {{"suite": {{"needs": [
                {{"name": "a server", "proof": {proof}, "package": "some-server", "skip": {skip}}}]}}}}}}]}}"#
        );
        all(&Metadata::parse(&manifest).unwrap()).unwrap().pop().unwrap()
    }

    fn server() -> Requirement {
        of(r#"["sh", "-c", "exit 1"]"#, r#"["some", "all"]"#)
    }

    #[test]
    fn presence_is_what_the_proof_says() {
        assert!(!server().is_present());
        assert!(of(r#"["true"]"#, "[]").is_present());
        assert!(!Requirement { proof: Vec::new(), ..server() }.is_present());
    }

    #[test]
    fn only_words_of_its_own_leave_it_out() {
        assert!(server().is_left_out_by("other, some"));
        assert!(server().is_left_out_by("all"));
        assert!(!server().is_left_out_by("another"));
        assert!(!server().is_left_out_by(""));
        assert!(!of(r#"["true"]"#, "[]").is_left_out_by("some"));
    }

    #[test]
    fn the_remedy_is_one_line_that_names_the_package() {
        let line = server().remedy();
        assert!(
            line.contains("apt-get install some-server") && line.contains("DISTLOCK_SKIP=some"),
            "{line}"
        );
        assert_eq!(line.lines().count(), 1);
    }

    #[test]
    fn a_row_that_cannot_be_proven_or_read_is_an_error_that_names_its_manifest() {
        for row in [
            r#"{"name": "a", "proof": [], "package": "p", "skip": []}"#,
            r#"{"name": "a", "proof": ["true"], "package": "p"}"#,
            r#"{"name": "a", "proof": ["true", 1], "package": "p", "skip": []}"#,
            r#"{"proof": ["true"], "package": "p", "skip": []}"#,
        ] {
            let manifest = format!(
                r#"{{"packages": [{{"name": "a", "manifest_path": "a/Cargo.toml", "metadata": {{"suite": {{"needs": [{row}]}}}}}}]}}"#
            );
            let failure = all(&Metadata::parse(&manifest).unwrap()).unwrap_err().to_string();
            assert!(failure.contains("a/Cargo.toml"), "{row}: {failure}");
        }
    }
}
