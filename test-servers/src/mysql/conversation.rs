//! Matches replies to the statements of a MySQL connection, and finds which operation a statement is for.

use super::packet::{
    END, ERROR, MORE_RESULTS, NO_END_OF_COLUMNS, OK, Packet, QUERY, QUIT, SPEAKS_TLS, number,
};
use crate::proxy::{Conversation, IN_ORDER, Reply, Request};
use crate::sql::{OperationOf, request};

/// A conversation that finds the operation of a statement from its text.
///
/// TLS hides the statements: then no operation is recognised.
pub struct MySqlConversation {
    operation_of: OperationOf,
    /// Whether there is a packet between columns and rows.
    columns_have_end: bool,
    part: Part,
}

/// Which part of an answer comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// What the server sends without a request, until the login is over.
    Login,
    /// All that follows is encrypted.
    Encrypted,
    Head,
    /// The columns and the rows, with so many marks of an end among them.
    Rows(u8),
}

impl MySqlConversation {
    /// Creates the conversation of a new connection.
    pub fn new(operation_of: OperationOf) -> Self {
        Self { operation_of, columns_have_end: true, part: Part::Login }
    }

    fn read_login(&mut self, payload: &[u8]) {
        let Some(abilities) = payload.first_chunk().map(|bytes| u32::from_le_bytes(*bytes)) else { return };
        self.columns_have_end = abilities & NO_END_OF_COLUMNS == 0;
        // A request for TLS ends before the name of the user.
        if abilities & SPEAKS_TLS != 0 && payload.len() <= 32 {
            self.part = Part::Encrypted;
        }
    }

    /// Processes the next packet of the server; returns whether it ends the answer.
    fn ends_answer(&mut self, packet: &Packet<'_>) -> bool {
        let (next, ends) = match (self.part, packet.kind()) {
            (Part::Login, Some(OK)) if packet.sequence > 0 => (Part::Head, false),
            (Part::Head, Some(OK)) => (Part::Head, is_last(packet.payload)),
            (Part::Head | Part::Rows(_), Some(ERROR))
            | (Part::Head, None)
            | (Part::Rows(..=1), Some(END)) => (Part::Head, true),
            (Part::Head, _) => (Part::Rows(if self.columns_have_end { 2 } else { 1 }), false),
            (Part::Rows(marks), Some(END)) => (Part::Rows(marks - 1), false),
            (part, _) => (part, false),
        };
        self.part = next;
        ends
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
        if self.part == Part::Encrypted {
            return Request::whole(bytes);
        }
        let (packet, length) = Packet::first(bytes)?;
        if self.part == Part::Login {
            if packet.sequence == 1 {
                self.read_login(packet.payload);
            }
            return Some(request(length, false, None, self.operation_of));
        }
        let text = packet.payload.split_first().filter(|(kind, _)| **kind == QUERY).map(|(_, text)| text);
        Some(request(length, packet.kind() != Some(QUIT), text, self.operation_of))
    }

    fn reply(&mut self, bytes: &[u8]) -> Option<Reply> {
        if self.part == Part::Encrypted {
            return Reply::whole(bytes);
        }
        let (packet, length) = Packet::first(bytes)?;
        let answers = IN_ORDER.filter(|_| self.ends_answer(&packet));
        Some(Reply::new(length, answers))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use lock_core::Operation;

    use super::super::packet::packet;
    use super::*;
    use crate::proxy::Subject;

    fn conversation(abilities: u32) -> MySqlConversation {
        let operation_of = |text: &str| text.contains("release").then_some(Operation::Release);
        let mut conversation = MySqlConversation::new(operation_of);
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
            assert_eq!(
                (request.number, request.subject),
                (IN_ORDER, Some(Subject::from(Operation::Release)))
            );
            assert_eq!(hear(&mut conversation, b"\x02"), None);
            assert_eq!(hear(&mut conversation, b"\x03def"), None);
            assert_eq!(hear(&mut conversation, b"\x03def"), None);
            if marked {
                assert_eq!(hear(&mut conversation, b"\xfe\0\0\x02\0"), None);
            }
            assert_eq!(hear(&mut conversation, b"\x011\x012"), None);
            assert_eq!(hear(&mut conversation, b"\xfe\0\0\x02\0"), IN_ORDER);
        }
    }

    #[test]
    fn errors_and_short_answers_answer() {
        let mut conversation = conversation(0);
        let first = ask(&mut conversation, "KILL 1");
        assert_eq!((first.subject, hear(&mut conversation, b"\0\0\0\x02\0\0\0")), (None, IN_ORDER));
        ask(&mut conversation, "KILL 1");
        assert_eq!(hear(&mut conversation, b"\xff\x46\x04#HY000no"), IN_ORDER);
    }

    #[test]
    fn what_is_encrypted_passes_as_a_whole() {
        let operation_of = |_: &str| None;
        let mut conversation = MySqlConversation::new(operation_of);
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
