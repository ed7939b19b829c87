//! Finds the default folder of a user's locks.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use lock_core::{ErrorKind, LockError, Operation};
use nix::unistd::{User, geteuid};

use crate::network;

/// The folder of this user's locks if the user names none.
///
/// It depends only on the user's id, never on the environment, because a cron job and a shell must use the same one. It is
/// `.local/state/distlock` in the home directory from the system's user database, if that directory exists, belongs to the user
/// and is not on a network file system; otherwise `/var/tmp/distlock-<uid>`. A client creates the folder when it first opens it.
///
/// **A service that sees another home directory does not share the folder**, as with `ProtectHome=tmpfs`, `PrivateTmp=yes` or
/// `DynamicUser=yes` of systemd. Name a folder for such services.
///
/// # Errors
/// [`ErrorKind::Server`] when the user database cannot be read.
pub fn default_folder() -> Result<PathBuf, LockError> {
    let id = geteuid();
    let user = User::from_uid(id).map_err(|error| {
        LockError::new(ErrorKind::Server, Operation::Connect)
            .because(format!("the user database has no answer for user {id}: {error}"))
            .remedy("name a folder: file:/absolute/path")
            .caused_by(std::io::Error::from(error))
    })?;
    Ok(folder_for(id.as_raw(), user.as_ref().map(|user| user.dir.as_path())))
}

fn folder_for(id: u32, home: Option<&Path>) -> PathBuf {
    match home.filter(|home| is_usable(home, id)) {
        Some(home) => home.join(".local/state/distlock"),
        None => PathBuf::from(format!("/var/tmp/distlock-{id}")),
    }
}

fn is_usable(home: &Path, id: u32) -> bool {
    let is_own_folder = std::fs::metadata(home).is_ok_and(|found| found.is_dir() && found.uid() == id);
    home.is_absolute() && is_own_folder && !network::is_network(home)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_in_the_home_if_that_is_the_users_own() {
        let home = tempfile::tempdir().unwrap();
        let id = geteuid().as_raw();
        assert_eq!(folder_for(id, Some(home.path())), home.path().join(".local/state/distlock"));
        let elsewhere = PathBuf::from(format!("/var/tmp/distlock-{}", id + 1));
        assert_eq!(folder_for(id + 1, Some(home.path())), elsewhere);
        assert_eq!(folder_for(id + 1, None), elsewhere);
        assert_eq!(folder_for(id + 1, Some(&home.path().join("missing"))), elsewhere);
    }

    #[test]
    fn does_not_listen_to_the_environment() {
        let folder = default_folder().unwrap();
        let home = User::from_uid(geteuid()).unwrap().unwrap().dir;
        assert!(folder.starts_with(home) || folder.starts_with("/var/tmp"));
    }
}
