//! Matches replies to the statements of a MySQL connection, and finds which operation a statement is for.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use lock_core::Operation;

use super::wire::{ERROR, MORE_RESULTS, NO_END_OF_COLUMNS, OK, Packet, QUERY, QUIT, SPEAKS_TLS, number};
use crate::proxy::{Conversation, Execution, Reply, Request, Subject};

/// Returns which operation a statement is for, by its text.
pub type OperationOf = dyn Fn(&str) -> Option<Operation> + Send + Sync;

/// A conversation that finds the operation of a statement from its text.
///
/// TLS hides the statements: then no operation is recognised.
pub struct MySqlConversation {
    operation_of: Arc<OperationOf>,
    asked: u64,
    /// The numbers of the statements that have not been answered yet, the oldest first.
    open: VecDeque<u64>,
    columns_end: ColumnsEnd,
    part: Part,
    privacy: Privacy,
}

/// Whether there is a packet between columns and rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ColumnsEnd {
    Marked,
    Unmarked,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Privacy {
    Plain,
    Encrypted,
}

/// Which part of an answer comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// What the server sends without a request, until the login is over.
    Login,
    Head,
    Columns(u64),
    EndOfColumns,
    Rows,
}

impl MySqlConversation {
    /// Creates the conversation of a new connection.
    pub fn new(operation_of: Arc<OperationOf>) -> Self {
        Self {
            operation_of,
            asked: 0,
            open: VecDeque::new(),
            columns_end: ColumnsEnd::Marked,
            part: Part::Login,
            privacy: Privacy::Plain,
        }
    }

    fn read_login(&mut self, payload: &[u8]) {
        let Some(&[a, b, c, d]) = payload.get(..4) else { return };
        let abilities = u32::from_le_bytes([a, b, c, d]);
        if abilities & NO_END_OF_COLUMNS != 0 {
            self.columns_end = ColumnsEnd::Unmarked;
        }
        // A request for TLS ends before the name of the user.
        if abilities & SPEAKS_TLS != 0 && payload.len() <= 32 {
            self.privacy = Privacy::Encrypted;
        }
    }

    /// Processes the next packet of the server; returns whether it ends the answer.
    fn ends_answer(&mut self, packet: &Packet<'_>) -> bool {
        match self.part {
            Part::Login => {
                if packet.sequence > 0 && packet.kind() == Some(OK) {
                    self.part = Part::Head;
                }
                false
            }
            Part::Head => match packet.kind() {
                Some(OK) => is_last(packet.payload),
                Some(ERROR) | None => true,
                _ => {
                    self.part = Part::Columns(number(packet.payload).map_or(1, |(count, _)| count));
                    false
                }
            },
            Part::Columns(left) => {
                self.part = match (left, self.columns_end) {
                    (2.., _) => Part::Columns(left - 1),
                    (_, ColumnsEnd::Marked) => Part::EndOfColumns,
                    (_, ColumnsEnd::Unmarked) => Part::Rows,
                };
                false
            }
            Part::EndOfColumns => {
                self.part = Part::Rows;
                false
            }
            Part::Rows => {
                let ends = packet.ends_rows();
                if ends {
                    self.part = Part::Head;
                }
                ends
            }
        }
    }
}

/// Returns whether no other result follows the one that this OK packet ends.
fn is_last(payload: &[u8]) -> bool {
    let flags = || {
        let (_, rest) = number(payload.get(1..)?)?;
        let (_, rest) = number(rest)?;
        Some(u16::from_le_bytes([*rest.first()?, *rest.get(1)?]))
    };
    flags().is_none_or(|flags| flags & MORE_RESULTS == 0)
}

impl Conversation for MySqlConversation {
    fn request(&mut self, bytes: &[u8]) -> Option<Request> {
        if self.privacy == Privacy::Encrypted {
            return (!bytes.is_empty()).then_some(Request { length: bytes.len(), number: 0, subject: None });
        }
        let (packet, length) = Packet::first(bytes)?;
        let number = self.asked;
        self.asked += 1;
        if self.part == Part::Login {
            if packet.sequence == 1 {
                self.read_login(packet.payload);
            }
            return Some(Request { length, number, subject: None });
        }
        if packet.kind() != Some(QUIT) {
            self.open.push_back(number);
        }
        let text = packet.payload.split_first().filter(|(kind, _)| **kind == QUERY).map(|(_, text)| text);
        let operation = text.and_then(|text| (self.operation_of)(&String::from_utf8_lossy(text)));
        Some(Request { length, number, subject: operation.map(Subject::from) })
    }

    fn reply(&mut self, bytes: &[u8]) -> Option<Reply> {
        let done = |length, answers| Some(Reply { length, answers, execution: Execution::Done });
        if self.privacy == Privacy::Encrypted {
            return if bytes.is_empty() { None } else { done(bytes.len(), None) };
        }
        let (packet, length) = Packet::first(bytes)?;
        let answers = if self.ends_answer(&packet) { self.open.pop_front() } else { None };
        done(length, answers)
    }
}

impl fmt::Debug for MySqlConversation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("MySqlConversation")
            .field("open", &self.open)
            .field("part", &self.part)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // tests

    use super::super::wire::packet;
    use super::*;

    fn conversation(abilities: u32) -> MySqlConversation {
        let operation_of = |text: &str| text.contains("release").then_some(Operation::Release);
        let mut conversation = MySqlConversation::new(Arc::new(operation_of));
        let greeting = packet(0, b"\x0a5.7\0");
        assert_eq!(conversation.reply(&greeting).unwrap().answers, None);
        let mut login = abilities.to_le_bytes().to_vec();
        login.extend([0; 40]);
        conversation.request(&packet(1, &login)).unwrap();
        assert_eq!(conversation.reply(&packet(2, b"\0\0\0\x02\0\0\0")).unwrap().answers, None);
        conversation
    }

    fn ask(conversation: &mut MySqlConversation, text: &str) -> Request {
        let mut request = vec![QUERY];
        request.extend(text.as_bytes());
        conversation.request(&packet(0, &request)).unwrap()
    }

    fn hear(conversation: &mut MySqlConversation, payload: &[u8]) -> Option<u64> {
        conversation.reply(&packet(1, payload)).unwrap().answers
    }

    #[test]
    fn a_statement_is_answered_by_the_end_of_its_rows() {
        for (abilities, marked) in [(0, true), (NO_END_OF_COLUMNS, false)] {
            let mut conversation = conversation(abilities);
            let request = ask(&mut conversation, "SELECT release");
            assert_eq!(request.subject, Some(Subject::from(Operation::Release)));
            assert_eq!(hear(&mut conversation, b"\x02"), None);
            assert_eq!(hear(&mut conversation, b"\x03def"), None);
            assert_eq!(hear(&mut conversation, b"\x03def"), None);
            if marked {
                assert_eq!(hear(&mut conversation, b"\xfe\0\0\x02\0"), None);
            }
            assert_eq!(hear(&mut conversation, b"\x011\x012"), None);
            assert_eq!(hear(&mut conversation, b"\xfe\0\0\x02\0"), Some(request.number));
        }
    }

    #[test]
    fn errors_and_short_answers_answer() {
        let mut conversation = conversation(0);
        let first = ask(&mut conversation, "KILL 1");
        assert_eq!((first.subject, hear(&mut conversation, b"\0\0\0\x02\0\0\0")), (None, Some(first.number)));
        let second = ask(&mut conversation, "KILL 1");
        assert_eq!(hear(&mut conversation, b"\xff\x46\x04#HY000no"), Some(second.number));
    }

    #[test]
    fn what_is_encrypted_passes_as_a_whole() {
        let operation_of = |_: &str| None;
        let mut conversation = MySqlConversation::new(Arc::new(operation_of));
        conversation.reply(&packet(0, b"\x0a5.7\0")).unwrap();
        let mut request = SPEAKS_TLS.to_le_bytes().to_vec();
        request.extend([0; 28]);
        conversation.request(&packet(1, &request)).unwrap();
        let hello = b"\x16\x03\x01\x02\0\x01";
        assert_eq!(conversation.request(hello).unwrap().length, hello.len());
        assert_eq!(conversation.reply(hello).unwrap().length, hello.len());
        assert_eq!(conversation.request(b""), None);
    }
}
