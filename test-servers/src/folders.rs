//! Folders: one that outlasts the tests, and copies of prepared ones.

use std::fs;
use std::path::{Path, PathBuf};

use crate::{During, Failure, Outcome};

/// Returns a folder of this user that outlasts the tests.
pub(crate) fn cache() -> Outcome<PathBuf> {
    let home = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = home.or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")));
    let folder = home
        .ok_or_else(|| {
            Failure::new("neither XDG_CACHE_HOME nor HOME says where servers for tests may be kept")
        })?
        .join("distlock-servers");
    fs::create_dir_all(&folder).during(folder.display())?;
    Ok(folder)
}

/// Copies a folder with everything in it.
pub(crate) fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
