//! Finds the programs of the server, and copies a prepared data folder instead of creating a new one.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::folders::{copy, fill, run};
use crate::{During, Outcome};

pub(super) const MISSING: &str = "postgres is not installed: install PostgreSQL 14 or newer (on Debian and Ubuntu: apt-get \
                                  install postgresql), or leave its tests out with DISTLOCK_SKIP=postgres";

/// Debian keeps the programs of each version here, and not in the path.
const VERSIONS: &str = "/usr/lib/postgresql";

/// The user and the group of programs that need no rights.
const NOBODY: u32 = 65_534;

/// What a PostgreSQL has of its own: its programs, and the user as whom they run.
#[derive(Debug)]
pub struct Postgres {
    folder: Option<PathBuf>,
    /// The server refuses to run as root.
    user: Option<u32>,
}

impl Postgres {
    pub(super) fn installed() -> Self {
        let user = rustix::process::geteuid().is_root().then_some(NOBODY);
        Self { folder: newest_version(), user }
    }

    /// Returns a command that runs one of the programs as the server's user.
    pub(super) fn program(&self, name: &str) -> Command {
        self.program_at(self.folder.as_ref().map_or_else(|| name.into(), |bin| bin.join(name)))
    }

    /// Returns a command that runs another program as the server's user.
    pub(super) fn program_at(&self, path: impl AsRef<Path>) -> Command {
        let mut command = Command::new(path.as_ref());
        // Messages in English, and no settings of this user's clients.
        command.env_clear().env("LC_ALL", "C").env("TZ", "UTC");
        if let Some(path) = std::env::var_os("PATH") {
            command.env("PATH", path);
        }
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
        command
    }

    /// Copies a fresh data folder to `data`.
    pub(super) fn fill(&self, data: &Path) -> Outcome {
        fill(data, &mut self.program("postgres"), MISSING, |made| self.make(made))
    }

    /// Gives a folder, with everything in it, to the server's user.
    pub(super) fn give(&self, folder: &Path) -> Outcome {
        let Some(user) = self.user else { return Ok(()) };
        let mut chown = Command::new("chown");
        chown.args(["-R", &format!("{user}:{user}")]).arg(folder);
        run(&mut chown, "chown is missing").during("give the files to the server")
    }

    fn make(&self, template: &Path) -> Outcome {
        // The server's user may not reach the folders of this one.
        let work = tempfile::Builder::new().prefix("distlock-postgres-init-").tempdir()?;
        self.give(work.path())?;
        let (data, statement) = (work.path().join("data"), work.path().join("statement"));
        let mut command = self.program("initdb");
        command.arg("-D").arg(&data).args(["-U", super::SUPERUSER, "--auth=trust", "--encoding=UTF8"]);
        command.args(["--no-locale", "--no-sync", "--wal-segsize=1", "--no-instructions"]);
        run(&mut command, MISSING)?;
        // A server that runs creates one from a copy, at each start.
        fs::write(&statement, format!("ALTER DATABASE postgres RENAME TO {}\n", super::DATABASE))?;
        let mut alone = self.program("postgres");
        alone
            .arg("--single")
            .arg("-D")
            .arg(&data)
            .args(["-c", "exit_on_error=on", "template1"])
            .stdin(fs::File::open(&statement)?);
        run(&mut alone, MISSING)?;
        copy(&data, template)
    }
}

/// Returns the programs of the newest version that Debian's packages have brought; `None` for those in the path.
fn newest_version() -> Option<PathBuf> {
    let versions = fs::read_dir(VERSIONS).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    let with_server = versions.filter(|folder| folder.join("bin/initdb").exists());
    let number = |folder: &PathBuf| folder.file_name()?.to_str()?.parse::<u32>().ok();
    with_server.max_by_key(number).map(|folder| folder.join("bin"))
}
