//! Finds the programs of etcd: those that are installed, or those of Debian's newest suite.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::folders::{kept, run};
use crate::{During, Outcome};

pub(super) const MISSING: &str = "etcd for tests comes from Debian's newest suite, and apt-get is missing or cannot reach it: install etcd \
                                  3.5.28 or newer with etcdctl, or leave its tests out with DISTLOCK_SKIP=etcd";

/// Downloads and unpacks the packages into the folder `$1`, from the site of this machine's own suite. Installs nothing. The suites that
/// follow are tried in turn: the newest one moves on, and may for some days have no package that this machine can unpack or run.
const FETCH: &str = r#"
set -e
site=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 'Component: main' | grep -i debian | head -n 1)
test -n "$site"
fetch_into() {
    work=$(mktemp -d) && cd "$work" && mkdir -p lists/partial cache/archives/partial
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $site $2 main" >sources.list
    apt() {
        apt-get -qq -o Dir::Etc::SourceList="$work/sources.list" -o Dir::Etc::SourceParts=/dev/null -o Acquire::Languages=none \
            -o Dir::State::Lists="$work/lists" -o Dir::Cache="$work/cache" -o APT::Sandbox::User="$(id -un)" "$@"
    }
    apt update && apt download etcd-server etcd-client && for file in *.deb; do dpkg-deb -x "$file" unpacked || return; done
    unpacked/usr/bin/etcd --version >/dev/null && mv unpacked/usr/bin "$1" && cd / && rm -r "$work"
}
fetch_into "$1" "$2" || fetch_into "$1" "$3"
"#;

/// The suites with the newest server, and one with a server of etcd 3.4.
const NEWEST: [&str; 2] = ["sid", "stable"];
const OLDEST: [&str; 2] = ["bookworm", "oldstable"];

/// The folder of the programs of etcd 3.4, which is the oldest that can be used.
pub(super) fn oldest() -> Outcome<PathBuf> {
    kept("etcd-3.4", |folder| fetch(folder, OLDEST))
}

/// The folder of the programs; empty for those that are installed.
pub(super) fn folder() -> Outcome<PathBuf> {
    let is_installed = |program: &str| {
        let version =
            Command::new(program).arg(if program == "etcd" { "--version" } else { "version" }).output();
        version.is_ok_and(|output| is_new_enough(&String::from_utf8_lossy(&output.stdout)))
    };
    if is_installed("etcd") && is_installed("etcdctl") {
        return Ok(PathBuf::new());
    }
    kept("etcd", |folder| fetch(folder, NEWEST))
}

/// Whether the first line ends with a version from 3.5 on.
fn is_new_enough(text: &str) -> bool {
    let version = text.lines().next().and_then(|line| line.split_whitespace().last()).unwrap_or_default();
    let mut numbers = version.split('.').map_while(|part| part.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(3), Some(5))
}

fn fetch(folder: &Path, suites: [&str; 2]) -> Outcome {
    let mut command = Command::new("sh");
    command.args(["-c", FETCH, "sh"]).arg(folder).args(suites);
    run(&mut command, "sh is missing").during(MISSING)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_server_is_not_used() {
        for (text, is_new) in [
            ("etcd Version: 3.5.30\nGit SHA: x", true),
            ("etcdctl version: 3.6.9\nAPI version: 3.6", true),
            ("etcd Version: 3.4.23", false),
            ("", false),
        ] {
            assert_eq!(is_new_enough(text), is_new, "{text}");
        }
    }
}
