//! Folders: one that outlasts the tests, and what is prepared in it once.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{During, Failure, Outcome};

/// Returns a folder of this user that outlasts the tests.
fn cache() -> Outcome<PathBuf> {
    let home = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = home.or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")));
    let none = || Failure::new("neither XDG_CACHE_HOME nor HOME says where servers for tests may be kept");
    let folder = home.ok_or_else(none)?.join("distlock-servers");
    fs::create_dir_all(&folder).during(folder.display())?;
    Ok(folder)
}

/// Returns the folder of this name that outlasts the tests. If there is none yet, `make` creates it, as the only one in
/// a temporary folder.
pub(crate) fn kept(name: &str, make: impl FnOnce(&Path) -> Outcome) -> Outcome<PathBuf> {
    let kept = cache()?.join(name.replace('/', "-"));
    if kept.exists() {
        return Ok(kept);
    }
    // One makes it and the others wait, also in other programs: each would download or initialise as much as all of them.
    let turn = fs::File::create(kept.with_added_extension("lock"))?;
    turn.lock()?;
    if kept.exists() {
        return Ok(kept);
    }
    let work = tempfile::Builder::new().prefix("distlock-init-").tempdir_in(cache()?)?;
    let fresh = work.path().join("fresh");
    make(&fresh)?;
    fs::rename(&fresh, &kept).during(kept.display())?;
    Ok(kept)
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

/// Runs a program to its end; `missing` is the text for one that does not exist.
pub(crate) fn run(command: &mut Command, missing: &str) -> Outcome {
    let program = command.get_program().display().to_string();
    let output = command.output().map_err(|error| match error.kind() {
        ErrorKind::NotFound => Failure::new(missing),
        _ => Failure::new(format!("{program}: {error}")),
    })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Failure::new(format!("{program}: {}\n{}", output.status, said.trim_end())))
}
