//! Another process that acquires a lock: this program once more, told by a variable what to do.

use std::io::{Read, Write};
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use lock_core::{DistributedLockExt, LockClient, LockError};
use rustix::process::{Pid, Signal};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use super::wait::{soon, until};
use crate::failure::{During, Failure, Outcome};

const URL: &str = "DISTLOCK_FAULTS_URL";
const NAME: &str = "DISTLOCK_FAULTS_NAME";

/// What it says first of a loss.
const LOST: &str = "lost: ";

/// How long a word that must not come is waited for.
const SILENCE: Duration = Duration::from_millis(500);

/// A process that acquires a lock, says so, and holds it until it is ended.
#[derive(Debug)]
pub struct Helper {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Helper {
    /// Starts one that acquires the lock with this name by a client of this URL, and waits until it is connected. It ends with
    /// this handle.
    ///
    /// # Errors
    /// It could not be started, or could not connect, which it says on standard error.
    ///
    /// # Cancel safety
    /// May be dropped at any time; the process ends then.
    pub async fn start(url: &str, name: &str) -> Outcome<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .env(URL, url)
            .env(NAME, name)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .during("start a helper")?;
        let output = child.stdout.take().ok_or_else(|| Failure::new("a helper without an output"))?;
        let mut helper = Self { child, lines: BufReader::new(output).lines() };
        helper.says("connected").await?;
        Ok(helper)
    }

    /// Waits until it says so: `connected`, `acquired` or `lost: ` with the reason.
    ///
    /// # Errors
    /// It has ended without, or has not said so within [`PATIENCE`](super::PATIENCE).
    ///
    /// # Cancel safety
    /// May be dropped at any time. What it said before that is not said again.
    pub async fn says(&mut self, word: &str) -> Outcome {
        self.line(word, |line| (line == word).then_some(())).await
    }

    /// Waits until it says that it has lost the lock: the reason.
    ///
    /// # Errors
    /// As those of [`says`](Self::says).
    ///
    /// # Cancel safety
    /// As that of [`says`](Self::says).
    pub async fn lost(&mut self) -> Outcome<String> {
        self.line(LOST, |line| line.strip_prefix(LOST).map(str::to_owned)).await
    }

    /// The next line for which `wanted` answers something.
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

    /// Whether it has not said so yet, as far as can be known now.
    ///
    /// # Cancel safety
    /// May be dropped at any time. What it said before that is not said again.
    pub async fn has_not_said(&mut self, word: &str) -> bool {
        let said = async {
            while let Ok(Some(line)) = self.lines.next_line().await {
                if line == word {
                    return true;
                }
            }
            false
        };
        !tokio::time::timeout(SILENCE, said).await.unwrap_or(false)
    }

    /// Waits until it holds the lock.
    ///
    /// # Errors
    /// As those of [`says`](Self::says).
    ///
    /// # Cancel safety
    /// As that of [`says`](Self::says).
    pub async fn acquired(&mut self) -> Outcome {
        self.says("acquired").await
    }

    /// Kills it with a signal that it cannot catch, and waits until it is gone.
    ///
    /// # Errors
    /// It has been killed before.
    ///
    /// # Cancel safety
    /// The signal is sent at once; a future that is dropped does not wait for what comes of it.
    pub async fn kill(&mut self) -> Outcome {
        self.child.kill().await.during("kill the helper")
    }

    /// Stops it as it stands, and waits until it has stopped: the signal is sent at once and takes its time.
    ///
    /// # Errors
    /// It is gone.
    ///
    /// # Cancel safety
    /// The signal is sent at once; a future that is dropped does not wait for what comes of it.
    pub async fn stop(&self) -> Outcome {
        let process = self.signal(Signal::STOP)?;
        until("the helper stands still", || async { stands_still(process) }).await
    }

    /// Has it run on, and waits until it does.
    ///
    /// # Errors
    /// It is gone.
    ///
    /// # Cancel safety
    /// The signal is sent at once; a future that is dropped does not wait for what comes of it.
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

/// Whether the process has been stopped, as the system's account of it says.
fn stands_still(process: u32) -> Outcome<bool> {
    let status = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    Ok(status.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T')))
}

/// Does what a helper does, if this process is one: for the first line of a main function. `connect` makes the client of a URL.
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
        let guard = client.lock(name)?.acquire().await?;
        say("acquired")?;
        // Ends with whoever started it.
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
