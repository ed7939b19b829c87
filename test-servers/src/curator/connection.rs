//! The connection between a test and the Java program: each line is a number and a message, in both directions.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lock_core::spi::Mutex;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::super::ServerProcess;
use crate::{During, Failure, Outcome};

/// How long the program may take to start and connect. The value is generous: it costs time only when something is
/// wrong.
const CONNECTED_WITHIN: Duration = Duration::from_secs(90);

/// How often to check that the program still runs while it does not connect.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The answers that callers wait for, by number; `None` when no more answers will come.
type Awaited = Arc<Mutex<Option<HashMap<u64, oneshot::Sender<Value>>>>>;

#[derive(Debug)]
pub(super) struct Connection {
    said: AtomicU64,
    output: tokio::sync::Mutex<OwnedWriteHalf>,
    awaited: Awaited,
    reader: JoinHandle<()>,
}

impl Connection {
    /// Waits until `process` has connected to the listener, has sent the word, and is connected to its servers.
    pub(super) async fn begin(listener: &TcpListener, word: &str, process: &ServerProcess) -> Outcome<Self> {
        let beginning = async {
            let (mut lines, output) = hear_word(listener, word, process).await?;
            match lines.next_line().await? {
                Some(_) => Ok((lines, output)),
                None => Err(process.failure("has ended before it was connected to its servers")),
            }
        };
        let begun = tokio::time::timeout(CONNECTED_WITHIN, beginning).await;
        let (lines, output) =
            begun.map_err(|_| process.failure(&format!("is not ready within {CONNECTED_WITHIN:?}")))??;
        let awaited: Awaited = Arc::new(Mutex::new(Some(HashMap::new())));
        let reader = tokio::spawn(read(lines, Arc::clone(&awaited)));
        Ok(Self { said: AtomicU64::new(1), output: tokio::sync::Mutex::new(output), awaited, reader })
    }

    /// Sends the words, and waits for the answer. The error is the program's error message, or `None` when the program
    /// has ended.
    pub(super) async fn ask(&self, words: &[&str]) -> Result<Value, Option<String>> {
        let number = self.said.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = oneshot::channel();
        self.awaited.lock().as_mut().ok_or(None)?.insert(number, sender);
        let line = format!("{number}\t{}\n", words.join("\t"));
        self.output.lock().await.write_all(line.as_bytes()).await.map_err(|_| None)?;
        let answer = receiver.await.map_err(|_| None)?;
        match answer.get("failed").and_then(Value::as_str) {
            Some(text) => Err(Some(text.to_owned())),
            None => Ok(answer),
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// Closes connections of other programs.
async fn hear_word(
    listener: &TcpListener,
    word: &str,
    process: &ServerProcess,
) -> Outcome<(Lines<BufReader<OwnedReadHalf>>, OwnedWriteHalf)> {
    loop {
        let (input, output) = accept(listener, process).await?.into_split();
        let mut lines = BufReader::new(input).lines();
        if lines.next_line().await?.as_deref() == Some(word) {
            return Ok((lines, output));
        }
    }
}

async fn accept(listener: &TcpListener, process: &ServerProcess) -> Outcome<TcpStream> {
    let called = || async {
        match tokio::time::timeout(LOOK_EVERY, listener.accept()).await {
            Ok(accepted) => Ok(accepted?.0),
            Err(_) => Err(Failure::new("it has not called back")),
        }
    };
    let stream = process.ready(called).await?;
    stream.set_nodelay(true).during("the connection to the Java program")?;
    Ok(stream)
}

/// Passes the answers on until there are no more.
async fn read(mut lines: Lines<BufReader<OwnedReadHalf>>, awaited: Awaited) {
    while let Ok(Some(line)) = lines.next_line().await {
        let Some((number, answer)) = line.split_once('\t') else { break };
        let (Ok(number), Ok(answer)) = (number.parse(), serde_json::from_str(answer)) else { break };
        let sender = awaited.lock().as_mut().and_then(|awaited| awaited.remove(&number));
        if let Some(sender) = sender {
            // The caller may have stopped waiting.
            let _ = sender.send(answer);
        }
    }
    *awaited.lock() = None;
}
