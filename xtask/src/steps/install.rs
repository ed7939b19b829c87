//! Looks for what the checks need, as the crates' manifests say under `[[package.metadata.suite.needs]]`. Installs what is
//! missing if that is possible without a password; otherwise says what to install. What is missing of the Rust toolchain, its
//! own commands say.

use anyhow::{Context as _, Result, ensure};
use cargo_metadata::Metadata;
use serde::Deserialize;

use crate::console::{DETAIL, say};
use crate::context::Context;
use crate::process::{self, command, succeeds};

/// Whether a disk has room for what `target` has after all steps from an empty one, and for a little more.
const ROOM: &str = r#"df -Pk "$0" | awk 'END { exit $4 < 7 * 1024 * 1024 }'"#;

/// One program that the tests of a crate need.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct Requirement {
    name: String,
    /// A command that succeeds if it is installed.
    proof: Vec<String>,
    /// The package of Debian and Ubuntu.
    package: String,
    /// The names in `DISTLOCK_SKIP` that leave it out, together with the tests that need it. Without names it is always
    /// needed.
    skip: Vec<String>,
}

/// Installs the packages that are its arguments, and never asks for a password. It uses the existing package lists, and updates
/// them only if that fails: both outdated lists and machines that cannot reach the package server are common.
const INSTALL: &str = r#"
command -v apt-get >/dev/null || exit
apt="env DEBIAN_FRONTEND=noninteractive apt-get -qq"
[ "$(id -u)" = 0 ] || apt="sudo -n $apt"
install="$apt install -y -o Dpkg::Use-Pty=0 --no-install-recommends"
$install "$@" || { $apt update && $install "$@"; }
"#;

pub(super) fn run(context: &Context) -> Result<()> {
    has_room(context)?;
    let skip = std::env::var("DISTLOCK_SKIP").unwrap_or_default();
    let (left_out, mut missing): (Vec<_>, Vec<_>) =
        requirements(&context.metadata)?.into_iter().partition(|one| one.is_left_out_by(&skip));
    for requirement in left_out {
        context.skip(&format!("{}, left out by DISTLOCK_SKIP", requirement.name));
    }
    missing.retain(|requirement| !requirement.is_present());
    if !missing.is_empty() {
        let packages: Vec<_> = missing.iter().map(|requirement| requirement.package.as_str()).collect();
        say(DETAIL, format_args!("installing {}", packages.join(", ")));
        // Whatever it says: what counts is what is there afterwards.
        let _ = process::run(command("sh", "-c").arg(INSTALL).arg("install").args(packages));
        missing.retain(|requirement| !requirement.is_present());
    }
    ensure!(missing.is_empty(), remedies(&missing));
    Ok(())
}

/// Refuses a disk that the first build would fill: compilers and linkers fail late there, with messages that do not say why.
fn has_room(context: &Context) -> Result<()> {
    let folder = &context.metadata.target_directory;
    // Where the suite has run before, its files are there already.
    let is_first = !context.target("suite").exists();
    let is_full = is_first && !succeeds(command("sh", "-c").args([ROOM, folder.as_str()]));
    ensure!(!is_full, "{folder} needs 7 GiB: free some space, or set CARGO_TARGET_DIR to another disk");
    Ok(())
}

/// Returns what the crates say that their tests need.
fn requirements(metadata: &Metadata) -> Result<Vec<Requirement>> {
    let mut requirements = Vec::new();
    for package in &metadata.packages {
        let needs = Option::<Vec<Requirement>>::deserialize(&package.metadata["suite"]["needs"]);
        let needs = needs.with_context(|| format!("the suite's needs in {}", package.manifest_path))?;
        requirements.extend(needs.into_iter().flatten());
    }
    Ok(requirements)
}

impl Requirement {
    fn is_present(&self) -> bool {
        let words = self.proof.split_first();
        words.is_some_and(|(program, arguments)| succeeds(command(program, "").args(arguments)))
    }

    /// Returns whether `skip`, the value of `DISTLOCK_SKIP` (words between commas), names it.
    fn is_left_out_by(&self, skip: &str) -> bool {
        skip.split(',').any(|named| self.skip.iter().any(|word| word == named.trim()))
    }
}

/// Returns the lines that tell the user what to do.
fn remedies(missing: &[Requirement]) -> String {
    let lines = missing.iter().map(|Requirement { name, package, skip, .. }| {
        let or = skip.first().map(|word| format!(", or leave its tests out with DISTLOCK_SKIP={word}"));
        let or = or.unwrap_or_default();
        format!("{name} is missing: install it (on Debian and Ubuntu: apt-get install {package}){or}")
    });
    lines.collect::<Vec<_>>().join("\n       ")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::context::metadata_of;

    fn read(row: &Value) -> Result<Vec<Requirement>> {
        requirements(&metadata_of([json!({"name": "a", "metadata": {"suite": {"needs": [row]}}})]))
    }

    fn of(proof: &[&str], skip: &[&str]) -> Requirement {
        let row = json!({"name": "a server", "proof": proof, "package": "some-server", "skip": skip});
        read(&row).unwrap().pop().unwrap()
    }

    fn server() -> Requirement {
        of(&["sh", "-c", "exit 1"], &["some", "all"])
    }

    #[test]
    fn presence_is_what_the_proof_says() {
        assert!(!server().is_present());
        assert!(of(&["true"], &[]).is_present());
        assert!(!of(&[], &[]).is_present());
    }

    #[test]
    fn only_words_of_its_own_leave_it_out() {
        assert!(server().is_left_out_by("other, some"));
        assert!(server().is_left_out_by("all"));
        assert!(!server().is_left_out_by("another"));
        assert!(!server().is_left_out_by(""));
        assert!(!of(&["true"], &[]).is_left_out_by("some"));
    }

    #[test]
    fn the_remedy_is_one_line_that_names_the_package() {
        let lines = remedies(&[server(), of(&[], &[])]);
        let (first, second) = lines.split_once('\n').unwrap();
        assert!(
            first.contains("apt-get install some-server") && first.ends_with("DISTLOCK_SKIP=some"),
            "{first}"
        );
        assert!(second.ends_with("apt-get install some-server)"), "{second}");
    }

    #[test]
    fn a_row_that_cannot_be_read_is_an_error_that_names_its_manifest() {
        for row in [
            json!({"name": "a", "proof": ["true"], "package": "p"}),
            json!({"name": "a", "proof": ["true", 1], "package": "p", "skip": []}),
            json!({"proof": ["true"], "package": "p", "skip": []}),
        ] {
            let failure = format!("{:#}", read(&row).unwrap_err());
            assert!(failure.contains("a/Cargo.toml"), "{row}: {failure}");
        }
    }

    #[test]
    fn a_full_disk_is_refused() {
        let has_room = |free: u64| {
            let df = format!(
                "df() {{ printf 'Filesystem Blocks Used Available\\n/dev/sda1 9 8 {free} /\\n'; }}; {ROOM}"
            );
            succeeds(command("sh", "-c").args([df, "target".to_owned()]))
        };
        assert!(has_room(7 << 20) && !has_room((7 << 20) - 1));
    }
}
