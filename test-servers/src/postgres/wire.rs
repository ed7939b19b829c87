//! The part of the protocol that the tests need: messages, a login without a password, simple queries.

use std::path::Path;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::Row;
use crate::{Failure, Outcome};

/// The first bytes of messages.
pub(super) const QUERY: u8 = b'Q';
pub(super) const SYNC: u8 = b'S';
pub(super) const READY: u8 = b'Z';
const ERROR: u8 = b'E';
const ROW: u8 = b'D';
const LOGIN: u8 = b'R';

/// What the first message of a connection asks for.
pub(super) const VERSION_3: u32 = 196_608;
pub(super) const ENCRYPTION: u32 = 80_877_103;

/// One message: its kind, and its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Message<'a> {
    pub(super) kind: u8,
    pub(super) content: &'a [u8],
}

impl<'a> Message<'a> {
    /// Returns the first message in `bytes`, and its length in bytes; `None` when it is not complete yet.
    pub(super) fn first(bytes: &'a [u8]) -> Option<(Self, usize)> {
        let (&kind, rest) = bytes.split_first()?;
        let length = length(rest)?;
        Some((Self { kind, content: rest.get(4..length)? }, length + 1))
    }

    /// Returns the text of an error: its code, and what the server says.
    fn error_text(&self) -> String {
        let fields = self.content.split(|byte| *byte == 0).filter_map(|field| field.split_first());
        let said = fields.filter(|(kind, _)| matches!(kind, b'C' | b'M'));
        said.map(|(_, text)| String::from_utf8_lossy(text)).collect::<Vec<_>>().join(": ")
    }

    /// Returns the values of a row.
    fn values(&self) -> Option<Row> {
        let mut rest = self.content.get(2..)?;
        let mut row = Row::new();
        while let Some((size, behind)) = rest.split_first_chunk() {
            let Ok(size) = usize::try_from(i32::from_be_bytes(*size)) else {
                row.push(None);
                rest = behind;
                continue;
            };
            row.push(Some(String::from_utf8_lossy(behind.get(..size)?).into_owned()));
            rest = &behind[size..];
        }
        Some(row)
    }
}

/// Returns the length with which `bytes` begin.
pub(super) fn length(bytes: &[u8]) -> Option<usize> {
    usize::try_from(u32::from_be_bytes(*bytes.first_chunk()?)).ok()
}

/// Creates a message with this content.
pub(super) fn message(kind: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind];
    bytes.extend(body(content));
    bytes
}

fn body(content: &[u8]) -> Vec<u8> {
    let length = u32::try_from(content.len() + 4).unwrap_or(u32::MAX);
    [&length.to_be_bytes(), content].concat()
}

/// Creates the first message of a connection.
pub(super) fn startup(user: &str, database: &str) -> Vec<u8> {
    let mut content = VERSION_3.to_be_bytes().to_vec();
    content.extend(format!("user\0{user}\0database\0{database}\0\0").bytes());
    body(&content)
}

/// A connection of a user with all privileges, bypassing all proxies. Its locks are held until it ends.
#[derive(Debug)]
pub struct PostgresSession {
    stream: UnixStream,
    bytes: Vec<u8>,
}

impl PostgresSession {
    /// Connects as the superuser, which has no password and may connect only through the socket.
    pub(super) async fn connect(socket: &Path, database: &str) -> Outcome<Self> {
        let mut this = Self { stream: UnixStream::connect(socket).await?, bytes: Vec::new() };
        this.stream.write_all(&startup(super::SUPERUSER, database)).await?;
        this.rows().await?;
        Ok(this)
    }

    /// Runs statements, and returns the rows of all of them.
    ///
    /// # Errors
    /// When there is no answer, or the server refuses.
    ///
    /// # Cancel safety
    /// After a dropped query the session is no longer usable.
    pub async fn query(&mut self, statement: &str) -> Outcome<Vec<Row>> {
        let text = [statement.as_bytes(), b"\0"].concat();
        self.send(&message(QUERY, &text)).await?;
        self.rows().await
    }

    /// Sends these bytes as they are: messages of the protocol, or parts of messages.
    ///
    /// # Errors
    /// When the connection has ended.
    ///
    /// # Cancel safety
    /// After a dropped call the session is no longer usable.
    pub async fn send(&mut self, bytes: &[u8]) -> Outcome {
        Ok(self.stream.write_all(bytes).await?)
    }

    /// Reads until the server is ready for the next statement.
    async fn rows(&mut self) -> Outcome<Vec<Row>> {
        let mut rows = Vec::new();
        let mut refusal = None;
        loop {
            let bytes = self.next().await?;
            let Some((message, _)) = Message::first(&bytes) else { return Err(broken()) };
            match message.kind {
                READY => return refusal.map_or(Ok(rows), Err),
                ROW => rows.push(message.values().ok_or_else(broken)?),
                ERROR => refusal = Some(Failure::new(message.error_text())),
                LOGIN if message.content != [0; 4] => {
                    return Err(Failure::new("the server wants a password"));
                }
                _ => {}
            }
        }
    }

    async fn next(&mut self) -> Outcome<Vec<u8>> {
        loop {
            if let Some((_, length)) = Message::first(&self.bytes) {
                return Ok(self.bytes.drain(..length).collect());
            }
            if self.stream.read_buf(&mut self.bytes).await? == 0 {
                return Err(Failure::new("the connection ended before the answer"));
            }
        }
    }
}

fn broken() -> Failure {
    Failure::new("an answer that makes no sense")
}
