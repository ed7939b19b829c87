//! Runs other programs: never with a terminal to ask questions on, and always with a command line that repeats the call by
//! hand.

use std::ffi::OsStr;
use std::fmt::Display;
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Error, Result, anyhow, bail, ensure};

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

/// Returns the same call of another program.
pub(crate) fn copied(command: &Command, program: &OsStr) -> Command {
    let mut copy = self::command(program, "");
    copy.args(command.get_args()).current_dir(command.get_current_dir().unwrap_or(Path::new(".")));
    copy.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    copy
}

/// Returns the command line that runs the same program from the root of the workspace.
pub(crate) fn line(command: &Command) -> String {
    let variables = command.get_envs().filter_map(|(name, value)| {
        Some(format!("{}={}", name.to_string_lossy(), quoted(&value?.to_string_lossy())))
    });
    let program = Path::new(command.get_program()).file_name().unwrap_or_default();
    let words = [program].into_iter().chain(command.get_args());
    variables.chain(words.map(|word| quoted(&word.to_string_lossy()))).collect::<Vec<_>>().join(" ")
}

/// The end of a message, in a line of its own.
pub(crate) fn to_repeat(command_line: &str) -> String {
    format!("\nTo repeat this command:  {command_line}")
}

/// Runs it, showing its output as it comes.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    output(command.stdout(Stdio::inherit())).map(drop)
}

/// Runs it and returns its standard output.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    match command.output() {
        Ok(output) if output.status.success() => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        Ok(output) => Err(failed(command, format_args!("ended with {}", output.status))),
        Err(error) => Err(failed(command, format_args!("could not be started: {error}"))),
    }
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

/// Runs it in place of this program where the system can do that: it gets the terminal with its input and Ctrl-C.
pub(crate) fn take_over(command: &mut Command) -> Result<()> {
    command.stdin(Stdio::inherit());
    #[cfg(unix)]
    return Err(std::os::unix::process::CommandExt::exec(command).into());
    #[cfg(not(unix))]
    run(command)
}

fn failed(command: &Command, what: impl Display) -> Error {
    let line = line(command);
    anyhow!("`{line}` {what}{}", to_repeat(&line))
}

/// Quotes a text for a POSIX shell if necessary.
fn quoted(text: &str) -> String {
    let plain = |character: char| character.is_ascii_alphanumeric() || "-_./=,:+@".contains(character);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
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
    fn the_command_line_can_be_typed_into_a_shell() {
        let mut process = command("/usr/bin/cargo", "doc");
        process.args(["it's", ""]).env("RUSTDOCFLAGS", "-D warnings");
        assert_eq!(line(&process), r"RUSTDOCFLAGS='-D warnings' cargo doc 'it'\''s' ''");
        let copy = copied(process.current_dir("/w"), OsStr::new("/copies/cargo"));
        assert_eq!(line(&copy), line(&process));
        assert_eq!(
            (copy.get_program(), copy.get_current_dir()),
            (OsStr::new("/copies/cargo"), Some(Path::new("/w")))
        );
    }

    #[test]
    fn a_failing_program_says_how_to_repeat_it() {
        let failure = run(&mut sh("exit 3")).unwrap_err().to_string();
        assert!(failure.contains("exit status: 3"), "{failure}");
        assert!(failure.ends_with("\nTo repeat this command:  sh -c 'exit 3'"), "{failure}");
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
        assert_eq!(output(&mut copied(&echo, OsStr::new("sh"))).unwrap(), "lock-file none\n");
    }

    #[test]
    fn standard_output_of_a_failing_program_is_not_taken_for_an_answer() {
        assert_eq!(output(&mut sh("echo yes")).unwrap(), "yes\n");
        assert!(output(&mut sh("echo yes; exit 1")).is_err());
    }
}
