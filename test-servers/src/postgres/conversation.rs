//! Matches replies to the statements of a PostgreSQL connection, and finds which operation a statement is for.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use super::wire::{ENCRYPTION, Message, QUERY, READY, SYNC, VERSION_3, length};
use crate::OperationOf;
use crate::proxy::{Conversation, Execution, Reply, Request, Subject};

/// A conversation that finds the operation of a statement from its text.
///
/// TLS hides the statements: then no operation is recognised.
pub struct PostgresConversation {
    operation_of: Arc<OperationOf>,
    asked: u64,
    /// The numbers of the statements that have not been answered yet, the oldest first.
    open: VecDeque<u64>,
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
    pub fn new(operation_of: Arc<OperationOf>) -> Self {
        Self { operation_of, asked: 0, open: VecDeque::new(), part: Part::Beginning }
    }

    fn number(&mut self) -> u64 {
        self.asked += 1;
        self.asked
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

    fn is_opaque(&self) -> bool {
        self.part == Part::Encrypted
    }
}

impl Conversation for PostgresConversation {
    fn request(&mut self, bytes: &[u8]) -> Option<Request> {
        let without_subject = |length, number| Some(Request { length, number, subject: None });
        if self.is_opaque() {
            return if bytes.is_empty() { None } else { without_subject(bytes.len(), 0) };
        }
        if self.part == Part::Beginning {
            let length = self.begin(bytes)?;
            return without_subject(length, self.number());
        }
        let (message, length) = Message::first(bytes)?;
        let number = self.number();
        if self.part == Part::Statements && matches!(message.kind, QUERY | SYNC) {
            self.open.push_back(number);
        }
        let text = (message.kind == QUERY).then(|| String::from_utf8_lossy(message.content));
        let operation = text.and_then(|text| (self.operation_of)(&text));
        Some(Request { length, number, subject: operation.map(Subject::from) })
    }

    fn reply(&mut self, bytes: &[u8]) -> Option<Reply> {
        let done = |length, answers| Some(Reply { length, answers, execution: Execution::Done });
        if self.is_opaque() {
            return if bytes.is_empty() { None } else { done(bytes.len(), None) };
        }
        if self.part == Part::AskedForEncryption {
            let answer = bytes.first()?;
            self.part = if *answer == b'S' { Part::Encrypted } else { Part::Beginning };
            return done(1, None);
        }
        let (message, length) = Message::first(bytes)?;
        let is_ready = message.kind == READY;
        if is_ready && self.part == Part::Login {
            self.part = Part::Statements;
            return done(length, None);
        }
        done(length, if is_ready { self.open.pop_front() } else { None })
    }
}

impl fmt::Debug for PostgresConversation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("PostgresConversation")
            .field("open", &self.open)
            .field("part", &self.part)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // tests

    use lock_core::Operation;

    use super::super::wire::{message, startup};
    use super::*;

    fn conversation() -> PostgresConversation {
        let operation_of = |text: &str| text.contains("release").then_some(Operation::Release);
        PostgresConversation::new(Arc::new(operation_of))
    }

    fn logged_in() -> PostgresConversation {
        let mut conversation = conversation();
        conversation.request(&startup("me", "db")).unwrap();
        for reply in [message(b'R', &[0; 4]), message(READY, b"I")] {
            assert_eq!(conversation.reply(&reply).unwrap().answers, None);
        }
        conversation
    }

    #[test]
    fn a_statement_is_answered_when_the_server_is_ready_for_the_next() {
        let mut conversation = logged_in();
        let request = conversation.request(&message(QUERY, b"SELECT release\0")).unwrap();
        assert_eq!(request.subject, Some(Subject::from(Operation::Release)));
        for kind in [b'T', b'D', b'C'] {
            assert_eq!(conversation.reply(&message(kind, b"\0\0")).unwrap().answers, None);
        }
        assert_eq!(conversation.reply(&message(READY, b"I")).unwrap().answers, Some(request.number));
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
