//! Another process that acquires a lock: this program once more, told by a variable what to do.

use std::io::{Read, Write};
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use conformance_tests::{During, Failure, Outcome};
use lock_core::DistributedLockExt;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::stage::{connect, soon, until};

const URL: &str = "DISTLOCK_FAULTS_URL";
const NAME: &str = "DISTLOCK_FAULTS_NAME";

/// A process that acquires a lock, says so, and holds it until it is ended.
pub struct Helper {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Helper {
    /// Starts one. It ends with this handle.
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

    /// Waits until it says so.
    pub async fn says(&mut self, word: &str) -> Outcome {
        loop {
            match soon(format!("the helper's {word:?}"), self.lines.next_line()).await?? {
                Some(line) if line == word => return Ok(()),
                Some(_) => {}
                None => return Err(Failure::new(format!("the helper ended without {word:?}"))),
            }
        }
    }

    /// Whether it has not said so yet, as far as can be known now.
    pub async fn has_not_said(&mut self, word: &str) -> bool {
        let line = tokio::time::timeout(Duration::from_millis(500), self.lines.next_line()).await;
        !matches!(line, Ok(Ok(Some(line))) if line == word)
    }

    /// Waits until it holds the lock.
    pub async fn acquired(&mut self) -> Outcome {
        self.says("acquired").await
    }

    /// Kills it with a signal that it cannot catch, and waits until it is gone.
    pub async fn kill(&mut self) -> Outcome {
        self.child.kill().await.during("kill the helper")
    }

    /// Stops it as it stands, and waits until it has stopped: the signal is sent at once and takes its time.
    pub async fn stop(&self) -> Outcome {
        self.signal("STOP").await?;
        until("the helper stands still", || async {
            let status = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id().unwrap_or(0)))?;
            Ok(status.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T')))
        })
        .await
    }

    /// Has it run on.
    pub async fn resume(&self) -> Outcome {
        self.signal("CONT").await
    }

    async fn signal(&self, signal: &str) -> Outcome {
        let pid = self.child.id().ok_or_else(|| Failure::new("the helper is gone"))?;
        let sent = Command::new("kill").arg(format!("-{signal}")).arg(pid.to_string()).status().await?;
        if sent.success() { Ok(()) } else { Err(Failure::new(format!("{signal} was not sent: {sent}"))) }
    }
}

/// Does what a helper does, if this process is one.
pub fn run_if_asked() -> Option<ExitCode> {
    let (url, name) = (std::env::var(URL).ok()?, std::env::var(NAME).ok()?);
    Some(match run(&url, &name) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("helper: {failure}");
            ExitCode::FAILURE
        }
    })
}

fn run(url: &str, name: &str) -> Outcome {
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
            _ = guard.lost() => {
                say("lost")?;
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
