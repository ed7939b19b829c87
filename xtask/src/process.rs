//! Runs other programs: never with a terminal to ask questions on, and always with a command line that repeats the call by
//! hand.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::failure::Failure;

/// How the failure of a program begins whose time is over.
pub(crate) const HANGS: &str = "did not end within";

/// How often to check a program that has a time limit.
const LOOK_EVERY: Duration = Duration::from_millis(20);

#[derive(Debug, Clone)]
pub(crate) struct Process {
    program: String,
    arguments: Vec<String>,
    variables: Vec<(String, String)>,
    folder: Option<PathBuf>,
}

impl Process {
    pub(crate) fn new(program: &str, arguments: &[&str]) -> Self {
        Self {
            program: program.to_owned(),
            arguments: arguments.iter().map(|&argument| argument.to_owned()).collect(),
            variables: Vec::new(),
            folder: None,
        }
    }

    #[must_use]
    pub(crate) fn within(mut self, folder: &Path) -> Self {
        self.folder = Some(folder.to_owned());
        self
    }

    #[must_use]
    pub(crate) fn with_variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    #[must_use]
    pub(crate) fn with_arguments(mut self, arguments: &[&str]) -> Self {
        self.arguments.extend(arguments.iter().map(|&argument| argument.to_owned()));
        self
    }

    /// Copies the program into the folder, and runs the copy.
    pub(crate) fn copied_into(mut self, folder: &Path) -> Result<Self, Failure> {
        let original = PathBuf::from(&self.program);
        let copy = folder.join(original.file_name().unwrap_or_default());
        // Not over a copy that runs.
        let _ = fs::remove_file(&copy);
        fs::copy(&original, &copy).map_err(|error| self.failure(&format!("cannot be copied: {error}")))?;
        self.program = copy.display().to_string();
        Ok(self)
    }

    /// Returns the command line that runs the same program from the root of the workspace.
    pub(crate) fn command_line(&self) -> String {
        let variables = self.variables.iter().map(|(name, value)| format!("{name}={}", quoted(value)));
        let program = Path::new(&self.program).file_name().unwrap_or_default().to_string_lossy();
        let words = [program.into_owned()].into_iter().chain(self.arguments.clone());
        variables.chain(words.map(|word| quoted(&word))).collect::<Vec<_>>().join(" ")
    }

    /// Runs it, showing its output as it comes.
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let status = self.command().status().map_err(|error| self.not_started(&error))?;
        if status.success() { Ok(()) } else { Err(self.failure(&format!("ended with {status}"))) }
    }

    /// Runs it for no longer than `limit`, with all its output in `file`. A failure describes what it did, without its
    /// name, which the caller adds.
    pub(crate) fn run_into(&self, file: &File, limit: Duration) -> Result<(), Failure> {
        let run = || {
            let mut child = self.command().stdout(file.try_clone()?).stderr(file.try_clone()?).spawn()?;
            end_within(&mut child, limit)
        };
        match run() {
            Ok(Some(status)) if status.success() => Ok(()),
            Ok(Some(status)) => Err(Failure::new(format!("ended with {status}"))),
            Ok(None) => Err(Failure::new(format!("{HANGS} {limit:?} and was killed"))),
            Err(error) => Err(Failure::new(format!("could not be run: {error}"))),
        }
    }

    /// Runs it and returns its standard output; standard error is shown as it comes.
    pub(crate) fn stdout(&self) -> Result<String, Failure> {
        let output =
            self.command().stderr(Stdio::inherit()).output().map_err(|error| self.not_started(&error))?;
        if !output.status.success() {
            return Err(self.failure(&format!("ended with {}", output.status)));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Runs a program that has to fail, and returns its standard error.
    pub(crate) fn refusal(&self) -> Result<String, Failure> {
        let output = self.command().output().map_err(|error| self.not_started(&error))?;
        if output.status.success() {
            return Err(self.failure("succeeded, and should have failed"));
        }
        Ok(String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// Runs it in place of this program where the system can do that: it gets the terminal with its input and Ctrl-C.
    pub(crate) fn take_over(&self) -> Result<(), Failure> {
        #[cfg(unix)]
        return Err(self
            .not_started(&std::os::unix::process::CommandExt::exec(self.command().stdin(Stdio::inherit()))));
        #[cfg(not(unix))]
        self.run()
    }

    /// Returns whether it can be started and succeeds; its output is not shown.
    pub(crate) fn succeeds(&self) -> bool {
        self.command().output().is_ok_and(|output| output.status.success())
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).stdin(Stdio::null());
        for (name, _) in std::env::vars_os().filter(|(name, _)| is_of_this_crate(name)) {
            command.env_remove(name);
        }
        command.envs(self.variables.iter().cloned());
        if let Some(folder) = &self.folder {
            command.current_dir(folder);
        }
        command
    }

    fn not_started(&self, error: &std::io::Error) -> Failure {
        self.failure(&format!("could not be started: {error}"))
    }

    fn failure(&self, what: &str) -> Failure {
        Failure::new(format!("`{}` {what}", self.command_line())).repeated_by(self.command_line())
    }
}

/// Waits for a program to end, and kills it if it does not end in time. It stays in the process group of this program,
/// so that a Ctrl-C reaches it too. Programs that it has started itself are not killed.
fn end_within(child: &mut Child, limit: Duration) -> std::io::Result<Option<ExitStatus>> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if start.elapsed() >= limit {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(LOOK_EVERY);
    }
}

/// Returns whether `cargo run` sets this variable for this crate. If another cargo inherits it, it rebuilds some
/// dependencies, because their build scripts ask to run again when one of these variables changes.
fn is_of_this_crate(variable: &OsStr) -> bool {
    let name = variable.to_string_lossy();
    name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
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

    #[test]
    fn the_command_line_can_be_typed_into_a_shell() {
        let process =
            Process::new("cargo", &["doc", "it's", ""]).with_variable("RUSTDOCFLAGS", "-D warnings");
        assert_eq!(process.command_line(), r"RUSTDOCFLAGS='-D warnings' cargo doc 'it'\''s' ''");
    }

    #[test]
    fn a_failing_program_says_how_to_repeat_it() {
        let failure = Process::new("sh", &["-c", "exit 3"]).run().unwrap_err();
        assert_eq!(failure.repeat(), Some("sh -c 'exit 3'"));
        assert!(failure.to_string().contains("exit status: 3"), "{failure}");
    }

    #[test]
    fn a_program_that_is_missing_is_a_failure_and_not_a_success() {
        let missing = Process::new("no-such-program-anywhere", &[]);
        assert!(!missing.succeeds());
        assert!(missing.run().unwrap_err().to_string().contains("could not be started"));
        assert!(missing.stdout().is_err());
    }

    #[test]
    fn what_cargo_says_of_this_crate_is_kept_from_others() {
        let echo = "echo ${CARGO_PKG_NAME-none} ${CARGO_MANIFEST_DIR-none}";
        assert_eq!(Process::new("sh", &["-c", echo]).stdout().as_deref(), Ok("none none\n"));
        let given = Process::new("sh", &["-c", echo]).with_variable("CARGO_PKG_NAME", "lock-file");
        assert_eq!(given.stdout().as_deref(), Ok("lock-file none\n"));
    }

    #[test]
    fn what_has_to_fail_is_heard_and_must_not_succeed() {
        assert_eq!(Process::new("sh", &["-c", "echo no >&2; exit 1"]).refusal().as_deref(), Ok("no\n"));
        assert!(Process::new("true", &[]).refusal().is_err());
    }

    #[test]
    fn standard_output_of_a_failing_program_is_not_taken_for_an_answer() {
        assert_eq!(Process::new("sh", &["-c", "echo yes"]).stdout().as_deref(), Ok("yes\n"));
        assert!(Process::new("sh", &["-c", "echo yes; exit 1"]).stdout().is_err());
    }
}
