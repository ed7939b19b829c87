//! Matches replies to the statements of a PostgreSQL connection, and finds which operation a statement is for.

use crate::proxy::{Conversation, IN_ORDER, Reply, Request};
use crate::sql::{OperationOf, request};

/// The first bytes of messages.
const QUERY: u8 = b'Q';
const SYNC: u8 = b'S';
const READY: u8 = b'Z';

/// What the first message of a connection asks for.
const VERSION_3: u32 = 196_608;
const ENCRYPTION: u32 = 80_877_103;

/// A conversation that finds the operation of a statement from its text.
///
/// TLS hides the statements: then no operation is recognised.
pub struct PostgresConversation {
    operation_of: OperationOf,
    part: Part,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// The client has not said yet what it wants.
    Beginning,
    /// The client has asked for encryption, and the server answers with one byte.
    AskedForEncryption,
    Encrypted,
    Login,
    Statements,
}

impl PostgresConversation {
    /// Creates the conversation of a new connection.
    pub fn new(operation_of: OperationOf) -> Self {
        Self { operation_of, part: Part::Beginning }
    }

    /// Processes the first message of a connection, which has no kind.
    fn begin(&mut self, bytes: &[u8]) -> Option<usize> {
        let length = length(bytes)?;
        let content = bytes.get(4..length)?;
        self.part = match content.first_chunk().map(|code| u32::from_be_bytes(*code)) {
            Some(ENCRYPTION) => Part::AskedForEncryption,
            Some(VERSION_3) => Part::Login,
            _ => Part::Encrypted,
        };
        Some(length)
    }
}

impl Conversation for PostgresConversation {
    fn request(&mut self, bytes: &[u8]) -> Option<Request> {
        match self.part {
            Part::Encrypted => Request::whole(bytes),
            Part::Beginning => {
                let length = self.begin(bytes)?;
                Some(request(length, false, None, self.operation_of))
            }
            part => {
                let (message, length) = Message::first(bytes)?;
                let is_answered = part == Part::Statements && matches!(message.kind, QUERY | SYNC);
                let text = (message.kind == QUERY).then_some(message.content);
                Some(request(length, is_answered, text, self.operation_of))
            }
        }
    }

    fn reply(&mut self, bytes: &[u8]) -> Option<Reply> {
        if self.part == Part::Encrypted {
            return Reply::whole(bytes);
        }
        if self.part == Part::AskedForEncryption {
            let answer = bytes.first()?;
            self.part = if *answer == b'S' { Part::Encrypted } else { Part::Beginning };
            return Some(Reply::new(1, None));
        }
        let (message, length) = Message::first(bytes)?;
        let answers = match (message.kind, self.part) {
            (READY, Part::Login) => {
                self.part = Part::Statements;
                None
            }
            (READY, _) => IN_ORDER,
            _ => None,
        };
        Some(Reply::new(length, answers))
    }
}

/// One message: its kind, and its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Message<'a> {
    kind: u8,
    content: &'a [u8],
}

impl<'a> Message<'a> {
    /// Returns the first message in `bytes`, and its length in bytes; `None` when it is not complete yet.
    fn first(bytes: &'a [u8]) -> Option<(Self, usize)> {
        let (&kind, rest) = bytes.split_first()?;
        let length = length(rest)?;
        Some((Self { kind, content: rest.get(4..length)? }, length + 1))
    }
}

/// Returns the length with which `bytes` begin.
fn length(bytes: &[u8]) -> Option<usize> {
    usize::try_from(u32::from_be_bytes(*bytes.first_chunk()?)).ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use lock_core::Operation;

    use super::*;
    use crate::proxy::Subject;

    /// The first message of a connection, without a kind.
    fn startup() -> Vec<u8> {
        let content = [&VERSION_3.to_be_bytes()[..], b"user\0me\0database\0db\0\0"].concat();
        message(b' ', &content).split_off(1)
    }

    fn message(kind: u8, content: &[u8]) -> Vec<u8> {
        let length = u32::try_from(content.len() + 4).unwrap().to_be_bytes();
        [&[kind], &length[..], content].concat()
    }

    fn conversation() -> PostgresConversation {
        let operation_of = |text: &str| text.contains("release").then_some(Operation::Release);
        PostgresConversation::new(operation_of)
    }

    fn logged_in() -> PostgresConversation {
        let mut conversation = conversation();
        conversation.request(&startup()).unwrap();
        for reply in [message(b'R', &[0; 4]), message(READY, b"I")] {
            assert_eq!(conversation.reply(&reply).unwrap().answers, None);
        }
        conversation
    }

    #[test]
    fn a_statement_is_answered_when_the_server_is_ready_for_the_next() {
        let mut conversation = logged_in();
        let request = conversation.request(&message(QUERY, b"SELECT release\0")).unwrap();
        assert_eq!((request.number, request.subject), (IN_ORDER, Some(Subject::from(Operation::Release))));
        for kind in [b'T', b'D', b'C'] {
            assert_eq!(conversation.reply(&message(kind, b"\0\0")).unwrap().answers, None);
        }
        assert_eq!(conversation.reply(&message(READY, b"I")).unwrap().answers, IN_ORDER);
        assert_eq!(conversation.request(&message(QUERY, b"SELECT\0")).unwrap().subject, None);
    }

    #[test]
    fn what_is_incomplete_waits() {
        let mut conversation = logged_in();
        let request = message(QUERY, b"SELECT 1\0");
        assert_eq!(conversation.request(&request[..request.len() - 1]), None);
        assert_eq!(conversation.reply(b"Z\0\0"), None);
    }

    #[test]
    fn what_is_encrypted_passes_as_a_whole() {
        let mut conversation = conversation();
        let asking = [8_u32.to_be_bytes(), ENCRYPTION.to_be_bytes()].concat();
        assert_eq!(conversation.request(&asking).unwrap().length, asking.len());
        assert_eq!(conversation.reply(b"S").unwrap().length, 1);
        assert_eq!(conversation.request(b"\x16\x03\x01").unwrap().length, 3);
        assert_eq!(conversation.reply(b"\x16\x03").unwrap().length, 2);
        assert_eq!(conversation.request(b""), None);
    }
}
