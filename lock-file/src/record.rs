//! The record that a holder or a waiter writes into its file, for inspection.

use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, SystemTime};

use lock_core::{AcquireRequest, FencingToken, HolderId, Mode, Participant};
use lock_kit::ClientRecord;
use serde::{Deserialize, Serialize};

use crate::failure::Failure;

/// One holder or waiter, as JSON on one line. Readers ignore fields that they do not know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) id: String,
    /// The lock's name as its user writes it; the file's name may be a hash of it.
    pub(crate) name: String,
    #[serde(flatten)]
    pub(crate) client: ClientRecord,
    /// Whether it is a reader's. How many permits a member of a semaphore has is in the name of its file.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) shared: bool,
    /// Milliseconds since 1970.
    pub(crate) since_unix_ms: u64,
    /// A decimal string, because many readers of JSON lose digits of large numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) token: Option<String>,
}

/// Longer than any record: a name of 512 bytes may need six times as many in JSON.
const MAX_LENGTH: usize = 16 * 1024;

impl Record {
    pub(crate) fn of_request(request: &AcquireRequest) -> Self {
        Self {
            id: request.id().to_string(),
            name: request.name().as_str().to_owned(),
            client: (&**request.holder()).into(),
            shared: request.mode() == Mode::Shared,
            since_unix_ms: unix_milliseconds(),
            token: None,
        }
    }

    /// The record of a holder that holds the lock from now on.
    pub(crate) fn of_holder(&self, token: u64) -> Self {
        Self { since_unix_ms: unix_milliseconds(), token: Some(token.to_string()), ..self.clone() }
    }

    /// The same record with another value.
    pub(crate) fn with_value(mut self, value: Option<String>) -> Self {
        self.client.value = value;
        self
    }

    pub(crate) fn token(&self) -> Option<u64> {
        self.token.as_ref()?.parse().ok()
    }

    /// Writes the record into an empty file.
    pub(crate) fn write(&self, file: impl AsFd, path: &Path) -> Result<(), Failure> {
        self.write_over(0, file, path)
    }

    /// Writes the record over one of this length, in one step: the file is never empty in between.
    pub(crate) fn write_over(&self, length: usize, file: impl AsFd, path: &Path) -> Result<(), Failure> {
        let mut line = serde_json::to_vec(self).map_err(|error| Failure::Broken {
            cause: format!("a record cannot be written: {error}"),
            remedy: "".into(),
        })?;
        line.push(b'\n');
        line.resize(line.len().max(length), b'\n');
        write_all(file, &line, path)
    }

    /// Reads the record in a file, if it is a valid one: a process that was killed while writing has left none.
    pub(crate) fn read(file: impl AsFd) -> Option<Self> {
        let mut text = vec![0; MAX_LENGTH];
        let mut length = 0;
        while length < text.len() {
            match rustix::io::pread(file.as_fd(), &mut text[length..], length as u64).ok()? {
                0 => break,
                count => length += count,
            }
        }
        serde_json::from_slice(&text[..length]).ok()
    }

    /// Those with this record hold the lock, or wait for it, in that mode.
    pub(crate) fn participant(&self, mode: Mode) -> Participant {
        let mut participant = Participant::new(HolderId::new(&self.id)).with_mode(mode);
        participant.token = self.token().map(FencingToken::new);
        participant.since = SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(self.since_unix_ms));
        self.client.clone().describe(&mut participant);
        participant
    }
}

fn unix_milliseconds() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Writes `bytes` at the beginning of a file.
pub(crate) fn write_all(file: impl AsFd, bytes: &[u8], path: &Path) -> Result<(), Failure> {
    let mut written = 0;
    while written < bytes.len() {
        match rustix::io::pwrite(file.as_fd(), &bytes[written..], written as u64) {
            Ok(0) => return Err(Failure::system("write", path, rustix::io::Errno::NOSPC)),
            Ok(count) => written += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(Failure::system("write", path, errno)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Other versions and operators read it.
    #[test]
    fn the_stored_form_is_what_it_was() {
        let client = ClientRecord { host: "h".to_owned(), pid: 7, ..ClientRecord::default() };
        let (id, name) = ("1f".to_owned(), "a/b".to_owned());
        let waiter = Record { id, name, client, shared: false, since_unix_ms: 5, token: None };
        let holder = Record { shared: true, token: Some("9".to_owned()), ..waiter.clone() };
        for (record, stored) in [
            (waiter, r#"{"id":"1f","name":"a/b","host":"h","pid":7,"since_unix_ms":5}"#),
            (
                holder,
                r#"{"id":"1f","name":"a/b","host":"h","pid":7,"shared":true,"since_unix_ms":5,"token":"9"}"#,
            ),
        ] {
            assert_eq!(serde_json::to_string(&record).unwrap(), stored);
            assert_eq!(serde_json::from_str::<Record>(stored).unwrap(), record);
        }
    }
}
