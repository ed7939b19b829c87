//! A separate process for what is measured per process: its memory and its processor time then belong only to the
//! clients.

use std::process::Stdio;
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::worker::{URL_VARIABLE, Work};
use crate::contender::{Contender, Target};
use crate::failure::{Context, Failure, Outcome};

const ANSWER_WITHIN: Duration = Duration::from_secs(120);
const END_WITHIN: Duration = Duration::from_secs(20);

pub(super) struct Worker {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer<T> {
    Done(T),
    Failed(String),
}

impl Worker {
    pub(super) fn start(
        subject: &str,
        contender: &Contender,
        work: Work,
        count: usize,
        target: &Target,
    ) -> Outcome<Self> {
        let program = std::env::current_exe().context("the path of this program")?;
        let mut command = Command::new(program);
        command.args(["worker", subject, contender.id, work.name(), &count.to_string()]);
        command.arg(target.lease.as_millis().to_string());
        // Not an argument, which other users could read: it may contain a password.
        command.env(URL_VARIABLE, &target.url);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().context("a process of its own for the clients")?;
        let input = child.stdin.take().context("the process has no input")?;
        let output = child.stdout.take().context("the process has no output")?;
        Ok(Self { child, input, output: BufReader::new(output).lines() })
    }

    /// Waits for the answer to the last command.
    pub(super) async fn hear<T: DeserializeOwned>(&mut self) -> Outcome<T> {
        let line = tokio::time::timeout(ANSWER_WITHIN, self.output.next_line()).await;
        let line = line.context("the clients' process does not answer")?.context("the clients' process")?;
        let line = line.context("the clients' process has ended")?;
        match serde_json::from_str(&line).context("the clients' process")? {
            Answer::Done(answer) => Ok(answer),
            Answer::Failed(text) => Err(Failure::new(text)),
        }
    }

    pub(super) async fn say(&mut self, word: &str) -> Outcome<()> {
        let line = format!("{word}\n");
        self.input.write_all(line.as_bytes()).await.context("the clients' process")
    }

    /// Lets it release its holds.
    pub(super) async fn end(self) {
        let Self { mut child, input, output } = self;
        drop(input);
        // If it takes too long, dropping it kills it.
        let _ = tokio::time::timeout(END_WITHIN, child.wait()).await;
        drop(output);
    }
}
