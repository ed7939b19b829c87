//! Looks for what the checks need, as the crates' manifests say under `[[package.metadata.suite.needs]]`. Installs what is
//! missing if that is possible without a password; otherwise says what to install. What is missing of the Rust toolchain, its
//! own commands say.

use std::fs;
use std::path::Path;

use cargo_metadata::Metadata;
use serde::Deserialize;

use crate::console::Console;
use crate::context::Context;
use crate::failure::Failure;
use crate::process::Process;

/// What `target` has after all steps from an empty one, and a little more; in kibibytes.
const NEEDED: u64 = 7 << 20;

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

pub(super) fn run(context: &Context) -> Result<(), Failure> {
    let skip = std::env::var("DISTLOCK_SKIP").unwrap_or_default();
    let metadata = context.metadata()?;
    has_room(metadata.target_directory.as_std_path(), context)?;
    let mut missing = Vec::new();
    for requirement in requirements(&metadata)? {
        if requirement.is_left_out_by(&skip) {
            context.skip(&format!("{}, left out by DISTLOCK_SKIP", requirement.name));
        } else if !requirement.is_present() {
            missing.push(requirement);
        }
    }
    if !missing.is_empty() {
        let rights = rights_to_install().ok_or_else(|| all_remedies(&missing))?;
        install(rights, missing.iter().map(|requirement| requirement.package.as_str()).collect())?;
    }
    still_missing(&missing)
}

/// Refuses a disk that the first build would fill: compilers and linkers fail late there, with messages that do not say why.
fn has_room(target: &Path, context: &Context) -> Result<(), Failure> {
    if target.join("suite").exists() {
        return Ok(()); // of an earlier run, whose files are there already
    }
    let folder = target.display().to_string();
    if let Some(left) = kibibytes_left(&Process::new("df", &["-Pk", &folder]).stdout()?) {
        return enough(&folder, left);
    }
    context.skip("free disk space: df answered something else than numbers");
    Ok(())
}

/// Reads the last line that `df -Pk` printed.
fn kibibytes_left(output: &str) -> Option<u64> {
    output.lines().last()?.split_whitespace().nth(3)?.parse().ok()
}

fn enough(folder: &str, left: u64) -> Result<(), Failure> {
    if left >= NEEDED {
        return Ok(());
    }
    Err(Failure::new(format!(
        "the checks need {} GiB in {folder}, and {} MiB are free: free some space, or set CARGO_TARGET_DIR to a folder on \
         another disk",
        NEEDED >> 20,
        left >> 10
    )))
}

/// Returns what the crates say that their tests need.
fn requirements(metadata: &Metadata) -> Result<Vec<Requirement>, Failure> {
    let mut requirements = Vec::new();
    for package in &metadata.packages {
        let rows = package.metadata["suite"]["needs"].as_array().cloned().unwrap_or_default();
        for row in rows {
            let row = serde_json::from_value(row).map_err(|error| {
                Failure::new(format!("{}: package.metadata.suite.needs: {error}", package.manifest_path))
            })?;
            requirements.push(row);
        }
    }
    Ok(requirements)
}

impl Requirement {
    fn is_present(&self) -> bool {
        let words: Vec<_> = self.proof.iter().map(String::as_str).collect();
        words.split_first().is_some_and(|(program, arguments)| Process::new(program, arguments).succeeds())
    }

    /// Returns whether `skip`, the value of `DISTLOCK_SKIP` (words between commas), names it.
    fn is_left_out_by(&self, skip: &str) -> bool {
        skip.split(',').any(|named| self.skip.iter().any(|word| word == named.trim()))
    }

    /// Returns the line that tells the user what to do.
    fn remedy(&self) -> String {
        let Self { name, package, skip, .. } = self;
        let or = skip.first().map(|word| format!(", or leave its tests out with DISTLOCK_SKIP={word}"));
        let or = or.unwrap_or_default();
        format!("{name} is missing: install it (on Debian and Ubuntu: apt-get install {package}){or}")
    }
}

/// Even if a package is installed, its program may not run.
fn still_missing(missing: &[Requirement]) -> Result<(), Failure> {
    match missing.iter().find(|requirement| !requirement.is_present()) {
        None => Ok(()),
        Some(Requirement { name, proof, .. }) => {
            let failure = Failure::new(format!("{name} is still missing after it was installed"));
            Err(failure.repeated_by(proof.join(" ")))
        }
    }
}

fn all_remedies(missing: &[Requirement]) -> Failure {
    Failure::new(missing.iter().map(Requirement::remedy).collect::<Vec<_>>().join("\n       "))
}

/// Returns what to put before `apt-get`; `None` if there is none, or if it would need a password.
fn rights_to_install() -> Option<&'static [&'static str]> {
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    if !is_debian_or_ubuntu(&release) {
        return None;
    }
    let is_root = Process::new("id", &["-u"]).stdout().is_ok_and(|user| user.trim() == "0");
    let has_sudo = || Process::new("sudo", &["-n", "true"]).succeeds();
    if is_root { Some(&["env"]) } else { has_sudo().then_some(&["sudo", "-n", "env"]) }
}

/// Parses the text of `/etc/os-release`.
fn is_debian_or_ubuntu(release: &str) -> bool {
    let values =
        release.lines().filter_map(|line| line.strip_prefix("ID=").or(line.strip_prefix("ID_LIKE=")));
    let mut words = values.flat_map(|value| value.trim_matches('"').split_whitespace());
    words.any(|word| word == "debian" || word == "ubuntu")
}

/// Uses the existing package lists, and updates them only if that fails: both outdated lists and machines that cannot reach
/// the package server are common.
fn install(rights: &[&str], mut packages: Vec<&str>) -> Result<(), Failure> {
    packages.dedup();
    Console::detail(&format!("installing {}", packages.join(", ")));
    let options = ["install", "-y", "-qq", "-o", "Dpkg::Use-Pty=0", "--no-install-recommends"];
    let install = apt_get(rights, &[&options, &packages[..]].concat());
    install.run().or_else(|_| {
        apt_get(rights, &["update", "-qq"]).run()?;
        install.run()
    })
}

fn apt_get(rights: &[&str], arguments: &[&str]) -> Process {
    let never_ask = ["DEBIAN_FRONTEND=noninteractive", "apt-get"];
    let words = [rights, &never_ask, arguments].concat();
    Process::new(words[0], &words[1..])
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::context::metadata_of;

    fn read(row: &Value) -> Result<Vec<Requirement>, Failure> {
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
        let lines = all_remedies(&[server(), of(&[], &[])]).to_string();
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
            let failure = read(&row).unwrap_err().to_string();
            assert!(failure.contains("a/Cargo.toml"), "{row}: {failure}");
        }
    }

    #[test]
    fn distributions_are_distinguished() {
        assert!(is_debian_or_ubuntu("NAME=x\nID=debian\n"));
        assert!(is_debian_or_ubuntu("ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n"));
        assert!(!is_debian_or_ubuntu("ID=fedora\nVERSION_ID=debian\n"));
        assert!(!is_debian_or_ubuntu(""));
    }

    #[test]
    fn what_cannot_be_run_after_its_installation_is_an_error() {
        assert!(still_missing(&[server()]).unwrap_err().to_string().contains("a server is still missing"));
        assert_eq!(still_missing(&[of(&["true"], &[])]), Ok(()));
    }

    #[test]
    fn apt_get_is_never_able_to_ask() {
        let line = apt_get(&["sudo", "-n", "env"], &["update"]).command_line();
        assert_eq!(line, "sudo -n env DEBIAN_FRONTEND=noninteractive apt-get update");
    }

    #[test]
    fn a_full_disk_is_refused_with_both_sizes() {
        let df = "Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/sda1 100 60 40960 60% /\n";
        let failure = enough("target", kibibytes_left(df).unwrap()).unwrap_err().to_string();
        assert!(failure.contains("7 GiB in target, and 40 MiB are free"), "{failure}");
        assert_eq!(enough("target", NEEDED), Ok(()));
        assert_eq!(kibibytes_left(""), None);
    }
}
