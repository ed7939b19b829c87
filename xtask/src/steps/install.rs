//! Installs what the checks need if that is possible without a password; otherwise says what to install.

use std::fs;

use super::disk;
use crate::console::Console;
use crate::context::Context;
use crate::failure::Failure;
use crate::process::Process;
use crate::requirements::{self, Requirement, Source};

pub(super) fn run(context: &Context) -> Result<(), Failure> {
    let skip = std::env::var("DISTLOCK_SKIP").unwrap_or_default();
    let metadata = context.metadata()?;
    disk::check(context, &metadata)?;
    let requirements = requirements::all(&metadata)?;
    let mut missing = Vec::new();
    for requirement in &requirements {
        if requirement.is_left_out_by(&skip) {
            context.skip(&format!("{}, left out by DISTLOCK_SKIP", requirement.name));
        } else if !requirement.is_present() {
            missing.push(requirement);
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    let packages = packages_for(&missing)?;
    let Some(installer) = Installer::of_this_machine() else {
        return Err(all_remedies(&missing));
    };
    Console::detail(&format!("installing {}", packages.join(", ")));
    installer.install(&packages)?;
    still_missing(&missing)
}

/// Returns the packages that provide what is missing; an error if no package provides something of it.
fn packages_for<'a>(missing: &[&'a Requirement]) -> Result<Vec<&'a str>, Failure> {
    let mut packages = Vec::new();
    for requirement in missing {
        match &requirement.source {
            Source::Package(package) => packages.push(package.as_str()),
            Source::Component(_) => return Err(all_remedies(missing)),
        }
    }
    packages.dedup();
    Ok(packages)
}

/// Even if a package is installed, its program may not run.
fn still_missing(missing: &[&Requirement]) -> Result<(), Failure> {
    match missing.iter().find(|requirement| !requirement.is_present()) {
        None => Ok(()),
        Some(requirement) => {
            let proof = requirement.proof.join(" ");
            Err(Failure::new(format!("{} is still missing after it was installed", requirement.name))
                .repeated_by(proof))
        }
    }
}

fn all_remedies(missing: &[&Requirement]) -> Failure {
    let lines: Vec<String> = missing.iter().map(|requirement| requirement.remedy()).collect();
    Failure::new(lines.join("\n       "))
}

/// apt-get, with the necessary rights.
struct Installer {
    prefix: &'static [&'static str],
}

impl Installer {
    /// Returns `None` if there is no apt-get, or if it would need a password.
    fn of_this_machine() -> Option<Self> {
        let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
        if !is_debian_or_ubuntu(&release) || !Process::new("apt-get", &["--version"]).succeeds() {
            return None;
        }
        if Process::new("id", &["-u"]).stdout().is_ok_and(|user| user.trim() == "0") {
            return Some(Self { prefix: &["env"] });
        }
        let sudo = Process::new("sudo", &["-n", "true"]).succeeds();
        sudo.then_some(Self { prefix: &["sudo", "-n", "env"] })
    }

    /// Uses the existing package lists, and updates them only if that fails: both outdated lists and machines that
    /// cannot reach the package server are common.
    fn install(&self, packages: &[&str]) -> Result<(), Failure> {
        let options = ["install", "-y", "-qq", "-o", "Dpkg::Use-Pty=0", "--no-install-recommends"];
        let install = self.apt_get(&[&options, packages].concat());
        install.run().or_else(|_| {
            self.apt_get(&["update", "-qq"]).run()?;
            install.run()
        })
    }

    fn apt_get(&self, arguments: &[&str]) -> Process {
        let never_ask = ["DEBIAN_FRONTEND=noninteractive", "apt-get"];
        let words = [self.prefix, &never_ask, arguments].concat();
        Process::new(words[0], &words[1..])
    }
}

/// Parses the text of `/etc/os-release`.
fn is_debian_or_ubuntu(release: &str) -> bool {
    release
        .lines()
        .filter_map(|line| line.strip_prefix("ID=").or_else(|| line.strip_prefix("ID_LIKE=")))
        .flat_map(|value| value.trim_matches('"').split_whitespace())
        .any(|word| word == "debian" || word == "ubuntu")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing(name: &str, source: Source) -> Requirement {
        Requirement { name: name.to_owned(), proof: vec!["false".to_owned()], source, skip_words: Vec::new() }
    }

    fn package() -> Requirement {
        missing("flock", Source::Package("util-linux".to_owned()))
    }

    fn component() -> Requirement {
        missing("clippy", Source::Component("clippy".to_owned()))
    }

    #[test]
    fn distributions_are_distinguished() {
        assert!(is_debian_or_ubuntu("NAME=x\nID=debian\n"));
        assert!(is_debian_or_ubuntu("ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n"));
        assert!(!is_debian_or_ubuntu("ID=fedora\nVERSION_ID=debian\n"));
        assert!(!is_debian_or_ubuntu(""));
    }

    #[test]
    fn a_missing_component_is_named_and_not_looked_for_in_a_package() {
        assert_eq!(packages_for(&[&package(), &package()]), Ok(vec!["util-linux"]));
        let failure = packages_for(&[&package(), &component()]).unwrap_err().to_string();
        assert!(
            failure.contains("util-linux") && failure.contains("rustup component add clippy"),
            "{failure}"
        );
    }

    #[test]
    fn what_cannot_be_run_after_its_installation_is_an_error() {
        assert!(still_missing(&[&package()]).unwrap_err().to_string().contains("flock is still missing"));
        assert_eq!(still_missing(&[&Requirement { proof: vec!["true".to_owned()], ..package() }]), Ok(()));
    }

    #[test]
    fn apt_get_is_never_able_to_ask() {
        let line = Installer { prefix: &["sudo", "-n", "env"] }.apt_get(&["update"]).command_line();
        assert_eq!(line, "sudo -n env DEBIAN_FRONTEND=noninteractive apt-get update");
    }
}
