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
    let cache = cache()?;
    let kept = cache.join(name.replace('/', "-"));
    if kept.exists() {
        return Ok(kept);
    }
    // One makes it and the others wait, also in other programs: each would download or initialise as much as all of them.
    let turn = fs::File::create(kept.with_added_extension("lock"))?;
    turn.lock()?;
    if kept.exists() {
        return Ok(kept);
    }
    let work = tempfile::Builder::new().prefix("distlock-init-").tempdir_in(cache)?;
    let fresh = work.path().join("fresh");
    make(&fresh)?;
    fs::rename(&fresh, &kept).during(kept.display())?;
    Ok(kept)
}

/// Fills the new folder `data` with what `make` creates once for each version of a server's program, which takes seconds; `missing` is
/// the text for a program that does not exist.
pub(crate) fn fill(
    data: &Path,
    program: &mut Command,
    missing: &str,
    make: impl FnOnce(&Path) -> Outcome,
) -> Outcome {
    let said = output(program.arg("--version"), missing)?;
    let version =
        said.split_whitespace().find(|word| word.starts_with(|letter: char| letter.is_ascii_digit()));
    let name = Path::new(program.get_program()).file_name().unwrap_or_default().display();
    copy(&kept(&format!("{name}-data-4-{}", version.unwrap_or("unknown")), make)?, data)
}

/// Copies a folder with everything in it to a new one.
pub(crate) fn copy(from: &Path, to: &Path) -> Outcome {
    run(Command::new("cp").arg("-R").args([from, to]), "cp is missing").during("copy the data folder")
}

/// Runs a program to its end; `missing` is the text for one that does not exist.
pub(crate) fn run(command: &mut Command, missing: &str) -> Outcome {
    output(command, missing).map(drop)
}

/// Runs a program to its end, and returns what it prints.
fn output(command: &mut Command, missing: &str) -> Outcome<String> {
    let program = command.get_program().display().to_string();
    let output = command.output().map_err(|error| match error.kind() {
        ErrorKind::NotFound => Failure::new(missing),
        _ => Failure::new(format!("{program}: {error}")),
    })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Failure::new(format!("{program}: {}\n{}", output.status, said.trim_end())))
}
