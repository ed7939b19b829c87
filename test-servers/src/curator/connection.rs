//! The connection between a test and the Java program: each line is a number and a message, in both directions.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lock_core::spi::Mutex;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{ChildStdin, ChildStdout};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::{Outcome, ServerProcess};

/// How long the program may take to start and connect. The value is generous: it costs time only when something is
/// wrong.
const CONNECTED_WITHIN: Duration = Duration::from_secs(90);

/// The answers that callers wait for, by number; `None` when no more answers will come.
type Awaited = Arc<Mutex<Option<HashMap<u64, oneshot::Sender<String>>>>>;

#[derive(Debug)]
pub(super) struct Connection {
    said: AtomicU64,
    output: tokio::sync::Mutex<ChildStdin>,
    awaited: Awaited,
    reader: JoinHandle<()>,
}

impl Connection {
    /// Waits until `process` is connected to its servers.
    pub(super) async fn begin(process: &ServerProcess) -> Outcome<Self> {
        let (input, output) = process.take_pipes().ok_or_else(|| process.failure("has no pipes"))?;
        let mut lines = BufReader::new(ChildStdout::from_std(output)?).lines();
        match tokio::time::timeout(CONNECTED_WITHIN, lines.next_line()).await {
            Ok(Ok(Some(_))) => {}
            Ok(_) => return Err(process.failure("has ended before it was connected to its servers")),
            Err(_) => return Err(process.failure(&format!("is not ready within {CONNECTED_WITHIN:?}"))),
        }
        let awaited: Awaited = Arc::new(Mutex::new(Some(HashMap::new())));
        let reader = tokio::spawn(read(lines, Arc::clone(&awaited)));
        let output = tokio::sync::Mutex::new(ChildStdin::from_std(input)?);
        Ok(Self { said: AtomicU64::new(1), output, awaited, reader })
    }

    /// Sends the words, and waits for the answer. Returns it with its number; `None` when the program has ended.
    pub(super) async fn ask(&self, words: &[&str]) -> Option<(u64, String)> {
        let number = self.said.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = oneshot::channel();
        self.awaited.lock().as_mut()?.insert(number, sender);
        let line = format!("{number}\t{}\n", words.join("\t"));
        self.output.lock().await.write_all(line.as_bytes()).await.ok()?;
        Some((number, receiver.await.ok()?))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// Passes the answers on until there are no more.
async fn read(mut lines: Lines<BufReader<ChildStdout>>, awaited: Awaited) {
    while let Ok(Some(line)) = lines.next_line().await {
        let Some((number, answer)) = line.split_once('\t') else { break };
        let Ok(number) = number.parse() else { break };
        let sender = awaited.lock().as_mut().and_then(|awaited| awaited.remove(&number));
        if let Some(sender) = sender {
            // The caller may have stopped waiting.
            let _ = sender.send(answer.to_owned());
        }
    }
    *awaited.lock() = None;
}
