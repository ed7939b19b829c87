//! Matches replies to the requests of a ZooKeeper connection, and finds the kind of a request.

use super::jute::{self, Reader};
use crate::proxy::{Conversation, Malformed, Reply, Request, Subject};

/// The kind of a request. A proxy counts requests by kind, and can apply a fault to the next one of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ZooKeeperRequest {
    /// Opens a session or resumes one. It is the first request of every connection.
    Connect,
    /// Creates a node of any kind, alone or together with other changes.
    Create,
    /// Deletes a node, alone or together with other changes, but not together with a new node.
    Delete,
    /// Several changes at once, none of which creates or deletes a node.
    Change,
    /// Checks that some nodes are all as expected, by a transaction that changes nothing.
    Check,
    /// Reads the names of a node's children.
    List,
    /// Reads the paths of a session's own nodes.
    ListOwn,
    /// Reads a node's data.
    Read,
    /// Reads the data or children of several nodes at once.
    ReadMany,
    /// Checks whether a node exists.
    Exists,
    /// Writes the data of a node.
    Write,
    /// Makes the server catch up with the leader.
    Sync,
    /// A heartbeat.
    Ping,
    /// Sets the watches again after a client has lost its connection.
    SetWatches,
    /// Ends the session.
    Close,
    /// Anything else.
    Other,
}

impl ZooKeeperRequest {
    /// Returns the kind for the protocol's number of an operation; `changes` is what follows when that is a list of
    /// changes.
    fn of(operation: i32, changes: Reader<'_>) -> Self {
        match operation {
            1 | 15 | 19 | 21 => Self::Create,
            2 | 20 => Self::Delete,
            3 => Self::Exists,
            4 => Self::Read,
            5 => Self::Write,
            8 | 12 => Self::List,
            9 => Self::Sync,
            11 => Self::Ping,
            13 => Self::Check,
            14 => Self::of_changes(changes).unwrap_or(Self::Change),
            22 => Self::ReadMany,
            101 | 105 => Self::SetWatches,
            103 => Self::ListOwn,
            -11 => Self::Close,
            _ => Self::Other,
        }
    }

    fn of_changes(mut changes: Reader<'_>) -> Result<Self, Malformed> {
        let mut seen = Vec::new();
        loop {
            let operation = changes.int()?;
            let is_end = changes.bool()?;
            let _error = changes.int()?;
            if is_end {
                break;
            }
            let kind = Self::of(operation, Reader(&[]));
            skip(operation, kind, &mut changes)?;
            seen.push(kind);
        }
        let are_all_checks = !seen.is_empty() && seen.iter().all(|kind| *kind == Self::Check);
        let others = if are_all_checks { Self::Check } else { Self::Change };
        Ok([Self::Create, Self::Delete].into_iter().find(|kind| seen.contains(kind)).unwrap_or(others))
    }
}

impl From<ZooKeeperRequest> for Subject {
    fn from(request: ZooKeeperRequest) -> Self {
        Self::Kind(request as u8)
    }
}

/// Skips the content of one change in a list.
fn skip(operation: i32, kind: ZooKeeperRequest, changes: &mut Reader<'_>) -> Result<(), Malformed> {
    use ZooKeeperRequest::{Check, Create, Delete, Write};
    const LIVES_FOR_A_TIME: i32 = 21;
    if !matches!(kind, Create | Write | Delete | Check) {
        return Err(Malformed);
    }
    changes.bytes()?;
    if matches!(kind, Create | Write) {
        changes.bytes()?;
    }
    let access = if kind == Create { changes.int()? } else { 0 };
    for _ in 0..access {
        changes.int()?;
        changes.bytes()?;
        changes.bytes()?;
    }
    changes.int()?;
    if operation == LIVES_FOR_A_TIME {
        changes.long()?;
    }
    Ok(())
}

/// The number of messages that the server sends without a request.
const NOTIFICATION: i32 = -1;

/// A conversation that recognises each request, so that a proxy can apply a fault to a [`ZooKeeperRequest`].
///
/// TLS hides the requests: then no request is recognised.
#[derive(Debug, Default)]
pub struct ZooKeeperConversation {
    has_asked: bool,
    has_answered: bool,
}

/// The first message of each side has no number.
const GREETING: Option<u64> = Some(u64::MAX);

impl ZooKeeperConversation {
    /// Returns the number that client and server use for a request, and its kind. Pings and some others share a number.
    fn request_in(&mut self, message: &[u8]) -> (Option<u64>, ZooKeeperRequest) {
        if !std::mem::replace(&mut self.has_asked, true) {
            return (GREETING, ZooKeeperRequest::Connect);
        }
        let mut reader = Reader(message);
        match (reader.int(), reader.int()) {
            (Ok(shared), Ok(operation)) => (Some(number(shared)), ZooKeeperRequest::of(operation, reader)),
            _ => (None, ZooKeeperRequest::Other),
        }
    }

    fn answered_by(&mut self, message: &[u8]) -> Option<u64> {
        if !std::mem::replace(&mut self.has_answered, true) {
            return GREETING;
        }
        Reader(message).int().ok().filter(|shared| *shared != NOTIFICATION).map(number)
    }
}

fn number(shared: i32) -> u64 {
    u64::from(shared.cast_unsigned())
}

impl Conversation for ZooKeeperConversation {
    fn request(&mut self, bytes: &[u8]) -> Option<Request> {
        let Ok(message) = jute::message(bytes) else { return Request::whole(bytes) };
        let (message, length) = message?;
        let (number, kind) = self.request_in(message);
        Some(Request { length, number, subject: Some(kind.into()) })
    }

    fn reply(&mut self, bytes: &[u8]) -> Option<Reply> {
        let Ok(message) = jute::message(bytes) else { return Reply::whole(bytes) };
        let (message, length) = message?;
        Some(Reply::new(length, self.answered_by(message)))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test says by a panic what is wrong")]

    use super::super::jute::Writer;
    use super::super::node::Access;
    use super::ZooKeeperRequest::{Change, Check, Connect, Create, Delete, List, Ping, Sync};
    use super::*;

    /// Creates a conversation in which both sides have sent their first message.
    fn conversation() -> ZooKeeperConversation {
        let mut conversation = ZooKeeperConversation::default();
        let request = conversation.request(&Writer::default().int(0).long(0).message()).unwrap();
        assert_eq!((request.number, request.subject), (GREETING, Some(Connect.into())));
        assert_eq!(answers(&mut conversation, 0), GREETING);
        conversation
    }

    fn ask(conversation: &mut ZooKeeperConversation, shared: i32, operation: i32, rest: Writer) -> Request {
        let bytes = [Writer::default().int(shared).int(operation).0, rest.0].concat();
        conversation.request(&Writer::default().bytes(&bytes).0).unwrap()
    }

    fn answers(conversation: &mut ZooKeeperConversation, shared: i32) -> Option<u64> {
        let message = Writer::default().int(shared).long(1).int(0).message();
        let reply = conversation.reply(&message).unwrap();
        assert_eq!((reply.length, reply.is_understood), (message.len(), true));
        reply.answers
    }

    fn change(changes: Writer, operation: i32) -> Writer {
        changes.int(operation).bool(false).int(-1)
    }

    fn several(changes: Writer) -> Option<Subject> {
        let end = changes.int(-1).bool(true).int(-1);
        ask(&mut conversation(), 1, 14, end).subject
    }

    fn check(changes: Writer) -> Writer {
        change(changes, 13).text("/a").int(-1)
    }

    fn create(changes: Writer) -> Writer {
        Access::anybody().write(change(changes, 1).text("/a").bytes(b"x")).int(3)
    }

    fn write(changes: Writer) -> Writer {
        change(changes, 5).text("/a").bytes(b"x").int(-1)
    }

    #[test]
    fn a_request_is_recognised_by_its_operation() {
        let mut conversation = conversation();
        let mut subject =
            |operation| ask(&mut conversation, 7, operation, Writer::default()).subject.unwrap();
        assert_eq!([subject(8), subject(12)], [List.into(); 2]);
        assert_eq!([subject(1), subject(15), subject(19)], [Create.into(); 3]);
        assert_eq!([subject(9), subject(11), subject(2)], [Sync.into(), Ping.into(), Delete.into()]);
    }

    #[test]
    fn several_changes_are_what_they_do_together() {
        assert_eq!(several(check(check(Writer::default()))), Some(Check.into()));
        assert_eq!(several(write(create(Writer::default()))), Some(Create.into()));
        assert_eq!(several(create(check(Writer::default()))), Some(Create.into()));
        assert_eq!(several(write(check(Writer::default()))), Some(Change.into()));
        let delete = |changes| change(changes, 2).text("/a").int(-1);
        assert_eq!(several(delete(write(Writer::default()))), Some(Delete.into()));
        assert_eq!(several(Writer::default()), Some(Change.into()));
    }

    #[test]
    fn replies_are_distinguished_by_their_numbers() {
        let mut conversation = conversation();
        for (shared, operation) in [(1, 1), (-2, 11), (2, 4), (-2, 11)] {
            let request = ask(&mut conversation, shared, operation, Writer::default());
            assert_eq!(request.number, Some(number(shared)));
        }
        assert_eq!(answers(&mut conversation, -2), Some(number(-2)));
        assert_eq!(answers(&mut conversation, NOTIFICATION), None);
        assert_eq!(
            [1, 2, -2].map(|shared| answers(&mut conversation, shared)),
            [1, 2, -2].map(|shared| Some(number(shared)))
        );
    }

    #[test]
    fn what_is_not_understood_passes_as_a_whole() {
        let mut conversation = ZooKeeperConversation::default();
        let hello = b"\x16\x03\x01\x02\x00\x01\x00";
        let request = conversation.request(b"ruok").unwrap();
        assert_eq!((request.length, request.subject), (4, None));
        let request = conversation.request(hello).unwrap();
        assert_eq!((request.length, request.subject), (hello.len(), None));
        assert_eq!(conversation.reply(hello).unwrap().length, hello.len());
        assert_eq!(conversation.reply(b"\0\0\0\x08half"), None);
    }
}
