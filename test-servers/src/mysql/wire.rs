//! The part of the protocol that the tests need: packets, a login without a password, text statements.

use std::path::Path;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::{Failure, Outcome};

/// The first byte of a request to run a statement.
pub(super) const QUERY: u8 = 0x03;

/// The first byte of a request to end the connection.
pub(super) const QUIT: u8 = 0x01;

/// The first bytes of answers.
pub(super) const OK: u8 = 0x00;
pub(super) const ERROR: u8 = 0xff;
pub(super) const END_OF_ROWS: u8 = 0xfe;

/// Capabilities that a client may announce.
pub(super) const SPEAKS_TLS: u32 = 1 << 11;
pub(super) const NO_END_OF_COLUMNS: u32 = 1 << 24;
const VERSION_41: u32 = 1 << 9;
const SECURE_LOGIN: u32 = 1 << 15;
const PLUGINS: u32 = 1 << 19;

/// Another result follows this one.
pub(super) const MORE_RESULTS: u16 = 8;

const HEADER: usize = 4;

/// One packet: its number in the exchange, and its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Packet<'a> {
    pub(super) sequence: u8,
    pub(super) payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Returns the first packet in `bytes`, and its length in bytes; `None` when it is not complete yet.
    pub(super) fn first(bytes: &'a [u8]) -> Option<(Self, usize)> {
        let [low, middle, high, sequence, rest @ ..] = bytes else { return None };
        let length = usize::from(*low) | usize::from(*middle) << 8 | usize::from(*high) << 16;
        let payload = rest.get(..length)?;
        Some((Self { sequence: *sequence, payload }, HEADER + length))
    }

    pub(super) fn kind(&self) -> Option<u8> {
        self.payload.first().copied()
    }

    /// Returns whether it ends rows or columns: an error, or a short packet with the mark.
    pub(super) fn ends_rows(&self) -> bool {
        // If the client announces that it needs no end of columns, the end of rows is an OK packet with that mark,
        // which is longer. A row that begins with this byte has a value of more than 16 MB.
        self.kind() == Some(ERROR) || self.kind() == Some(END_OF_ROWS)
    }
}

/// Creates a packet with this content.
pub(super) fn packet(sequence: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX).to_le_bytes();
    let mut bytes = vec![length[0], length[1], length[2], sequence];
    bytes.extend_from_slice(payload);
    bytes
}

/// Reads a length-encoded number; returns it and the bytes after it.
pub(super) fn number(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (&first, rest) = bytes.split_first()?;
    let width = match first {
        0xfc => 2,
        0xfd => 3,
        0xfe => 8,
        0..=0xfa => return Some((u64::from(first), rest)),
        _ => return None,
    };
    let mut value = 0;
    for (position, byte) in rest.get(..width)?.iter().enumerate() {
        value |= u64::from(*byte) << (8 * position);
    }
    Some((value, &rest[width..]))
}

/// Reads one value of a text row; returns it and the bytes after it. NULL is `None`.
fn value(bytes: &[u8]) -> Option<(Option<String>, &[u8])> {
    if let Some((&0xfb, rest)) = bytes.split_first() {
        return Some((None, rest));
    }
    let (length, rest) = number(bytes)?;
    let length = usize::try_from(length).ok()?;
    let text = String::from_utf8_lossy(rest.get(..length)?).into_owned();
    Some((Some(text), &rest[length..]))
}

/// Returns the text of an error packet.
fn error_text(payload: &[u8]) -> String {
    let code = payload.get(1..3).map_or(0, |code| u16::from_le_bytes([code[0], code[1]]));
    let text = payload.get(9..).unwrap_or_default();
    format!("{code}: {}", String::from_utf8_lossy(text))
}

/// A connection of a user with all privileges, bypassing all proxies. Its locks are held until it ends.
#[derive(Debug)]
pub struct MySqlSession {
    stream: UnixStream,
    bytes: Vec<u8>,
}

/// One row: a text for each column, `None` for NULL.
pub type Row = Vec<Option<String>>;

impl MySqlSession {
    /// Connects as root, which has no password and may connect only through the socket.
    pub(super) async fn connect(socket: &Path) -> Outcome<Self> {
        let mut this = Self { stream: UnixStream::connect(socket).await?, bytes: Vec::new() };
        let greeting = this.next().await?;
        if greeting.first() == Some(&ERROR) {
            return Err(Failure::new(error_text(&greeting)));
        }
        let mut login = Vec::new();
        login.extend((VERSION_41 | SECURE_LOGIN | PLUGINS).to_le_bytes());
        login.extend((1_u32 << 24).to_le_bytes());
        // utf8_general_ci, which all servers know.
        login.push(33);
        login.extend([0; 23]);
        login.extend(b"root\0");
        login.push(0);
        login.extend(b"mysql_native_password\0");
        this.stream.write_all(&packet(1, &login)).await?;
        let mut answer = this.next().await?;
        if answer.first() == Some(&END_OF_ROWS) {
            this.stream.write_all(&packet(3, &[])).await?;
            answer = this.next().await?;
        }
        match answer.first() {
            Some(&OK) => Ok(this),
            _ => Err(Failure::new(error_text(&answer))),
        }
    }

    /// Runs a statement, and returns its rows.
    ///
    /// # Errors
    /// When there is no answer, or the server refuses.
    ///
    /// # Cancel safety
    /// After a dropped query the session is no longer usable.
    pub async fn query(&mut self, statement: &str) -> Outcome<Vec<Row>> {
        let mut request = vec![QUERY];
        request.extend_from_slice(statement.as_bytes());
        self.stream.write_all(&packet(0, &request)).await?;
        let first = self.next().await?;
        match first.first() {
            Some(&OK) => return Ok(Vec::new()),
            Some(&ERROR) => return Err(Failure::new(error_text(&first))),
            _ => {}
        }
        // The columns, up to their end.
        while self.next().await?.first() != Some(&END_OF_ROWS) {}
        let mut rows = Vec::new();
        loop {
            let row = self.next().await?;
            match row.first() {
                Some(&ERROR) => return Err(Failure::new(error_text(&row))),
                Some(&END_OF_ROWS) if row.len() < 9 => return Ok(rows),
                _ => rows.push(values(&row)?),
            }
        }
    }

    async fn next(&mut self) -> Outcome<Vec<u8>> {
        loop {
            if let Some((packet, length)) = Packet::first(&self.bytes) {
                let payload = packet.payload.to_vec();
                self.bytes.drain(..length);
                return Ok(payload);
            }
            if self.stream.read_buf(&mut self.bytes).await? == 0 {
                return Err(Failure::new("the connection ended before the answer"));
            }
        }
    }
}

fn values(mut row: &[u8]) -> Outcome<Row> {
    let mut values = Vec::new();
    while !row.is_empty() {
        let (text, rest) = value(row).ok_or_else(|| Failure::new("a row that makes no sense"))?;
        values.push(text);
        row = rest;
    }
    Ok(values)
}
