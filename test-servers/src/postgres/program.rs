//! Finds the programs of the server, and copies a prepared data folder instead of creating a new one.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::folders::{copy, kept, run};
use crate::{During, Failure, Outcome};

pub(super) const MISSING: &str = "postgres is not installed: install PostgreSQL 14 or newer (on Debian and Ubuntu: apt-get \
                                  install postgresql), or leave its tests out with DISTLOCK_SKIP=postgres";

/// Debian keeps the programs of each version here, and not in the path.
const VERSIONS: &str = "/usr/lib/postgresql";

/// The user and the group of programs that need no rights.
const NOBODY: u32 = 65_534;

/// The server's programs, and the user as whom they run.
#[derive(Debug, Clone)]
pub(super) struct Program {
    folder: Option<PathBuf>,
    /// The server refuses to run as root.
    user: Option<u32>,
}

impl Program {
    pub(super) fn find() -> Self {
        let user = rustix::process::geteuid().is_root().then_some(NOBODY);
        Self { folder: newest_version(), user }
    }

    /// Returns a command that runs one of the programs as the server's user.
    pub(super) fn command(&self, name: &str) -> Command {
        self.command_at(self.folder.as_ref().map_or_else(|| name.into(), |bin| bin.join(name)))
    }

    /// Returns a command that runs another program as the server's user.
    pub(super) fn command_at(&self, path: impl AsRef<Path>) -> Command {
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

    /// Copies a fresh data folder to `data`. The first call creates it, which takes seconds.
    pub(super) fn fill(&self, data: &Path) -> Outcome {
        let output = self.command("postgres").arg("--version").output().map_err(|_| Failure::new(MISSING))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let version = text.split_whitespace().nth(2).unwrap_or("unknown");
        let template = kept(&format!("postgres-data-3-{version}"), |made| self.make(made))?;
        copy(&template, data).during("copy the data folder")?;
        fs::set_permissions(data, fs::Permissions::from_mode(0o700)).during(data.display())
    }

    /// Gives a folder, with everything in it, to the server's user.
    pub(super) fn give(&self, folder: &Path) -> Outcome {
        let Some(user) = self.user else { return Ok(()) };
        give_to(user, folder).during(format_args!("give {} to the server", folder.display()))
    }

    fn make(&self, template: &Path) -> Outcome {
        // The server's user may not reach the folders of this one.
        let work = tempfile::Builder::new().prefix("distlock-postgres-init-").tempdir()?;
        self.give(work.path())?;
        let (data, statement) = (work.path().join("data"), work.path().join("statement"));
        let mut command = self.command("initdb");
        command.arg("-D").arg(&data).args(["-U", super::SUPERUSER, "--auth=trust", "--encoding=UTF8"]);
        command.args(["--no-locale", "--no-sync", "--wal-segsize=1", "--no-instructions"]);
        run(&mut command, MISSING)?;
        // A server that runs creates one from a copy, at each start.
        fs::write(&statement, format!("ALTER DATABASE postgres RENAME TO {}\n", super::DATABASE))?;
        let mut alone = self.command("postgres");
        alone
            .arg("--single")
            .arg("-D")
            .arg(&data)
            .args(["-c", "exit_on_error=on", "template1"])
            .stdin(fs::File::open(&statement)?);
        run(&mut alone, MISSING)?;
        copy(&data, template).during("copy the data folder")
    }
}

/// Returns the programs of the newest version that Debian's packages have brought; `None` for those in the path.
fn newest_version() -> Option<PathBuf> {
    let versions = fs::read_dir(VERSIONS).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    let with_server = versions.filter(|folder| folder.join("bin/initdb").exists());
    let number = |folder: &PathBuf| folder.file_name()?.to_str()?.parse::<u32>().ok();
    with_server.max_by_key(number).map(|folder| folder.join("bin"))
}

fn give_to(user: u32, path: &Path) -> std::io::Result<()> {
    if path.is_dir() {
        for entry in fs::read_dir(path)? {
            give_to(user, &entry?.path())?;
        }
    }
    chown(path, Some(user), Some(user))
}
