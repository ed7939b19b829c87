//! What an attempt asks for, and how a waiter describes itself.

use std::fmt::Write as _;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lock_core::{AttemptId, HolderId, HolderInfo, LockName, Mode, Operation, Participant};
use lock_kit::ClientRecord;
use serde::{Deserialize, Serialize};

use crate::statement::{COMMENT, word};

/// An attempt's request for a lock.
#[derive(Debug, Clone)]
pub struct Claim<K> {
    /// The lock.
    pub key: K,
    /// The name that its users gave it.
    pub name: LockName,
    /// The attempt.
    pub id: AttemptId,
    /// How it is asked for.
    pub mode: Mode,
    /// What the table of tokens is to say of the holder, if it says who holds such a lock.
    pub holder: Option<Arc<ClientRecord>>,
    /// How many tokens the grant reserves, its own included.
    pub sections: NonZeroU32,
}

/// A waiter's description of itself. It is part of its statement, which operators can see at the server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiter {
    /// Its attempt.
    pub id: String,
    /// Its client.
    #[serde(flatten)]
    pub client: ClientRecord,
    /// The mode, unless it is exclusive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// In microseconds since the epoch, by the waiter's clock.
    pub since: u64,
}

impl Waiter {
    pub(crate) fn of<K>(claim: &Claim<K>, info: &HolderInfo) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            id: claim.id.to_string(),
            client: ClientRecord::of_waiter(info),
            mode: word_of(claim.mode),
            since: now.as_micros().try_into().unwrap_or(u64::MAX),
        }
    }

    /// Returns it as a comment that nothing in it can end early, or nest: some servers know comments in comments.
    pub fn comment(&self) -> String {
        let text = ascii_json(self).replace('*', "\\u002a");
        format!("{COMMENT}{} {text}*/", word(Operation::Acquire))
    }

    /// Reads it from the text of a statement.
    pub fn of_statement(statement: &str) -> Option<Self> {
        let (_, rest) = statement.split_once(COMMENT)?;
        let (comment, _) = rest.split_once("*/")?;
        let (_, text) = comment.split_once(' ')?;
        serde_json::from_str(text).ok()
    }

    /// Returns what a status says of it.
    pub fn participant(self) -> Participant {
        let mut participant =
            Participant::new(HolderId::new(&self.id)).with_mode(mode_of(self.mode.as_deref()));
        self.client.describe(&mut participant);
        participant.since = moment(self.since);
        participant
    }
}

/// Returns a value as JSON with escapes for everything that a database in any encoding may lack.
pub fn ascii_json(value: &impl Serialize) -> String {
    let mut json = String::new();
    for character in serde_json::to_string(value).unwrap_or_default().chars() {
        if character.is_ascii() {
            json.push(character);
        } else {
            for unit in character.encode_utf16(&mut [0; 2]) {
                // Writing to a string cannot fail.
                let _ = write!(json, "\\u{unit:04x}");
            }
        }
    }
    json
}

/// Returns a moment in microseconds since the epoch as time.
pub fn moment(microseconds: u64) -> Option<SystemTime> {
    UNIX_EPOCH.checked_add(Duration::from_micros(microseconds))
}

/// Returns a mode as it is written in a statement or a record; an exclusive one is left out.
pub fn word_of(mode: Mode) -> Option<String> {
    match mode {
        Mode::Shared => Some("shared".to_owned()),
        Mode::Permits { take, of } => Some(format!("{take}/{of}")),
        _ => None,
    }
}

/// Reads a mode that was written so.
pub fn mode_of(word: Option<&str>) -> Mode {
    let permits = word.and_then(|word| word.split_once('/'));
    let permits = permits.and_then(|(take, of)| Some((take.parse().ok()?, of.parse().ok()?)));
    match (word, permits) {
        (_, Some((take, of))) => Mode::Permits { take, of },
        (Some("shared"), None) => Mode::Shared,
        _ => Mode::Exclusive,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statement::operation_of;

    /// Other versions read it.
    #[test]
    fn the_form_in_a_statement_is_what_it_was() {
        let client = ClientRecord { host: "h".to_owned(), pid: 7, ..ClientRecord::default() };
        let writer = Waiter { id: "1f".to_owned(), client, mode: None, since: 5 };
        let reader = Waiter { mode: Some("shared".to_owned()), ..writer.clone() };
        for (waiter, stored) in [
            (writer, r#"/*distlock acquire {"id":"1f","host":"h","pid":7,"since":5}*/"#),
            (reader, r#"/*distlock acquire {"id":"1f","host":"h","pid":7,"mode":"shared","since":5}*/"#),
        ] {
            assert_eq!(waiter.comment(), stored);
            assert_eq!(Waiter::of_statement(stored), Some(waiter));
        }
    }

    #[test]
    fn nothing_that_a_waiter_is_called_leaves_its_comment() {
        for label in
            ["plain", "*/ DROP TABLE x; /*", "'quoted\\", "\u{1F512} \0 */*/", "*\\/", "/*/*", "/*/", "*/*"]
        {
            let label = Some(label.to_owned());
            let client = ClientRecord { host: "h".to_owned(), pid: 1, label, ..ClientRecord::default() };
            let waiter = Waiter { id: "ff".to_owned(), client, mode: None, since: 7 };
            let statement = format!("SELECT {} GET_LOCK('a',9)", waiter.comment());
            let count = |part: &str| statement.matches(part).count();
            assert_eq!((count("*/"), count("/*")), (1, 1), "{statement}");
            assert!(statement.is_ascii(), "{statement}");
            assert_eq!(operation_of(&statement), Some(Operation::Acquire));
            assert_eq!(Waiter::of_statement(&statement), Some(waiter));
        }
    }

    #[test]
    fn a_mode_is_read_again() {
        let [two, five] = [2, 5].map(|number| NonZeroU32::new(number).unwrap());
        for mode in [Mode::Exclusive, Mode::Shared, Mode::Permits { take: two, of: five }] {
            assert_eq!(mode_of(word_of(mode).as_deref()), mode);
        }
        assert_eq!(mode_of(Some("0/5")), Mode::Exclusive);
    }
}
