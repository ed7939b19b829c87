//! Runs other programs, never with a terminal to ask questions on.

use std::ffi::OsStr;
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

/// How the failure of a program begins whose time is over.
pub(crate) const HANGS: &str = "did not end within";

/// How often to check a program that has a time limit.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A program with the arguments in `words`. What it writes to standard error is shown as it comes.
pub(crate) fn command(program: impl AsRef<OsStr>, words: &str) -> Command {
    let mut command = Command::new(program);
    command.args(words.split_whitespace()).stdin(Stdio::null()).stderr(Stdio::inherit());
    // What `cargo run` says of this crate: another cargo that inherits it rebuilds the dependencies whose build scripts ask to
    // run again when it changes.
    for (name, _) in std::env::vars_os() {
        if ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|own| name.to_string_lossy().starts_with(own)) {
            command.env_remove(name);
        }
    }
    command
}

/// Returns the words of a call, without its variables: `cargo xtask STEP` repeats all of it.
pub(crate) fn line(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or_default();
    let words = [program].into_iter().chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}

/// Runs it, showing its output as it comes.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    output(command.stdout(Stdio::inherit())).map(drop)
}

/// Runs it and returns its standard output.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let what = match command.output() {
        Ok(output) if output.status.success() => {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Ok(output) => format!("ended with {}", output.status),
        Err(error) => format!("could not be started: {error}"),
    };
    bail!("`{}` {what}", line(command))
}

/// Runs it for no longer than `limit`, with all its output in the file `log`. The error says what it did, without its name.
///
/// It stays in the process group of this program, so that a Ctrl-C reaches it too. Programs that it has started itself are not
/// killed.
pub(crate) fn run_into(log: &Path, limit: Duration, command: &mut Command) -> Result<()> {
    let file = File::create(log).with_context(|| format!("has no file {} to write to", log.display()))?;
    command.stdout(file.try_clone()?).stderr(file);
    let (start, mut child) = (Instant::now(), command.spawn().context("could not be run")?);
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if start.elapsed() >= limit {
            child.kill()?;
            child.wait()?;
            bail!("{HANGS} {limit:?} and was killed");
        }
        thread::sleep(LOOK_EVERY);
    };
    ensure!(status.success(), "ended with {status}");
    Ok(())
}

/// Returns whether it can be started and succeeds; its output is not shown.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    command.stderr(Stdio::null()).output().is_ok_and(|output| output.status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Command {
        let mut command = command("sh", "-c");
        command.arg(script);
        command
    }

    #[test]
    fn a_failing_program_is_named_with_its_words() {
        let failure = run(&mut sh("exit 3")).unwrap_err().to_string();
        assert!(failure.starts_with("`sh -c exit 3` ") && failure.ends_with("exit status: 3"), "{failure}");
    }

    #[test]
    fn a_program_that_is_missing_is_a_failure_and_not_a_success() {
        let mut missing = command("no-such-program-anywhere", "");
        assert!(!succeeds(&mut missing));
        assert!(run(&mut missing).unwrap_err().to_string().contains("could not be started"));
        assert!(output(&mut missing).is_err());
    }

    #[test]
    fn what_cargo_says_of_this_crate_is_kept_from_others() {
        let mut echo = sh("echo ${CARGO_PKG_NAME-none} ${CARGO_MANIFEST_DIR-none}");
        assert_eq!(output(&mut echo).unwrap(), "none none\n");
        assert_eq!(output(echo.env("CARGO_PKG_NAME", "lock-file")).unwrap(), "lock-file none\n");
    }

    #[test]
    fn standard_output_of_a_failing_program_is_not_taken_for_an_answer() {
        assert_eq!(output(&mut sh("echo yes")).unwrap(), "yes\n");
        assert!(output(&mut sh("echo yes; exit 1")).is_err());
    }
}
