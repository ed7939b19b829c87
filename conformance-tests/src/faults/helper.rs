//! Another process that acquires a lock: this program once more, controlled by environment variables.

use std::io::{Read, Write};
use std::process::{ExitCode, Stdio};

use crate::{During, Failure, Outcome};
use lock_core::{LockClient, LockError};
use rustix::process::{Pid, Signal};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use super::wait::{soon, until};

const URL: &str = "DISTLOCK_FAULTS_URL";
const NAME: &str = "DISTLOCK_FAULTS_NAME";

/// Set for a process that acquires the read side.
const READS: &str = "DISTLOCK_FAULTS_READS";

/// The beginning of the line that reports a loss.
const LOST: &str = "lost: ";

/// A process that acquires a lock, reports it, and holds it until the process is ended.
#[derive(Debug)]
pub struct Helper {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Helper {
    /// Starts a process that acquires the lock with this name through a client of this URL, and waits until it is
    /// connected. It ends with this handle.
    ///
    /// # Errors
    /// When it cannot be started, or cannot connect. It prints the reason on standard error.
    ///
    /// # Cancel safety
    /// The future may be dropped at any time; the process ends then.
    pub async fn start(url: &str, name: &str) -> Outcome<Self> {
        Self::run(Command::new(std::env::current_exe()?).env(URL, url).env(NAME, name)).await
    }

    /// As [`start`](Self::start), for the read side.
    ///
    /// # Errors
    /// Same as [`start`](Self::start).
    ///
    /// # Cancel safety
    /// Same as [`start`](Self::start).
    pub async fn start_reader(url: &str, name: &str) -> Outcome<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        Self::run(command.env(URL, url).env(NAME, name).env(READS, "1")).await
    }

    async fn run(command: &mut Command) -> Outcome<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().during("start a helper")?;
        let output = child.stdout.take().ok_or_else(|| Failure::new("a helper without an output"))?;
        let mut helper = Self { child, lines: BufReader::new(output).lines() };
        helper.says("connected").await?;
        Ok(helper)
    }

    /// Waits until it prints this line: `connected`, `acquired` or `lost: ` with the reason.
    ///
    /// # Errors
    /// When it ends first, or does not print the line within [`PATIENCE`](super::PATIENCE).
    ///
    /// # Cancel safety
    /// The future may be dropped at any time. The lines that it has read before that are lost.
    pub async fn says(&mut self, word: &str) -> Outcome {
        self.line(word, |line| (line == word).then_some(())).await
    }

    /// Waits until it reports that it has lost the lock, and returns the reason.
    ///
    /// # Errors
    /// Same as [`says`](Self::says).
    ///
    /// # Cancel safety
    /// Same as [`says`](Self::says).
    pub async fn lost(&mut self) -> Outcome<String> {
        self.line(LOST, |line| line.strip_prefix(LOST).map(str::to_owned)).await
    }

    /// Returns the next line for which `wanted` returns a value.
    async fn line<T>(&mut self, what: &str, wanted: impl Fn(&str) -> Option<T>) -> Outcome<T> {
        let mut others = Vec::new();
        loop {
            let Some(line) = soon(format!("the helper's {what:?}"), self.lines.next_line()).await?? else {
                return Err(Failure::new(format!("the helper ended without {what:?}, after {others:?}")));
            };
            match wanted(&line) {
                Some(found) => return Ok(found),
                None => others.push(line),
            }
        }
    }

    /// Waits until it holds the lock.
    ///
    /// # Errors
    /// Same as [`says`](Self::says).
    ///
    /// # Cancel safety
    /// Same as [`says`](Self::says).
    pub async fn acquired(&mut self) -> Outcome {
        self.says("acquired").await
    }

    /// Kills it with a signal that it cannot catch, and waits until it is gone.
    ///
    /// # Errors
    /// When it has been killed before.
    ///
    /// # Cancel safety
    /// The signal is sent immediately; a future that is dropped does not wait for its effect.
    pub async fn kill(&mut self) -> Outcome {
        self.child.kill().await.during("kill the helper")
    }

    /// Suspends it, and waits until it has stopped: the signal is sent immediately and takes effect later.
    ///
    /// # Errors
    /// When it is gone.
    ///
    /// # Cancel safety
    /// The signal is sent immediately; a future that is dropped does not wait for its effect.
    pub async fn stop(&self) -> Outcome {
        let process = self.signal(Signal::STOP)?;
        until("the helper stands still", || async { stands_still(process) }).await
    }

    /// Resumes it, and waits until it runs.
    ///
    /// # Errors
    /// When it is gone.
    ///
    /// # Cancel safety
    /// The signal is sent immediately; a future that is dropped does not wait for its effect.
    pub async fn resume(&self) -> Outcome {
        let process = self.signal(Signal::CONT)?;
        until("the helper runs on", || async { Ok(!stands_still(process)?) }).await
    }

    fn signal(&self, signal: Signal) -> Outcome<u32> {
        let process = self.child.id().ok_or_else(|| Failure::new("the helper is gone"))?;
        let pid = i32::try_from(process).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| Failure::new(format!("{process} is no process")))?;
        rustix::process::kill_process(pid, signal)
            .map_err(std::io::Error::from)
            .during(format_args!("send {signal:?} to the helper"))?;
        Ok(process)
    }
}

/// Returns whether the process is stopped, according to the system.
fn stands_still(process: u32) -> Outcome<bool> {
    let status = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    Ok(status.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T')))
}

/// Runs this process as a helper, if it was started as one. Call this first in the main function. `connect` makes the
/// client of a URL.
pub fn run_if_asked(connect: impl AsyncFnOnce(&str) -> Result<LockClient, LockError>) -> Option<ExitCode> {
    let (url, name) = (std::env::var(URL).ok()?, std::env::var(NAME).ok()?);
    Some(match run(connect, &url, &name) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("helper: {failure}");
            ExitCode::FAILURE
        }
    })
}

fn run(connect: impl AsyncFnOnce(&str) -> Result<LockClient, LockError>, url: &str, name: &str) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = connect(url).await?;
        say("connected")?;
        let reads = std::env::var_os(READS).is_some();
        let lock = if reads { client.rw_lock(name)?.read() } else { client.mutex(name)? };
        let guard = lock.acquire().await?;
        say("acquired")?;
        // Ends with the process that started it.
        let ended = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()));
        tokio::select! {
            _ = ended => {}
            Some(reason) = guard.lost() => {
                say(&format!("{LOST}{reason}"))?;
                return Ok(());
            }
        }
        Ok(guard.release().await?)
    })
}

fn say(word: &str) -> Outcome {
    let mut output = std::io::stdout().lock();
    writeln!(output, "{word}")?;
    Ok(output.flush()?)
}
