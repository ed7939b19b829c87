//! Distinguishes requests from replies: the part of a proxy that depends on the protocol.

use lock_core::Operation;

use crate::Failure;

/// The first request in what a client sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Its length in bytes.
    pub length: usize,
    /// The number that its reply has; requests of one number are answered in their order. `None` if it is not answered.
    pub number: Option<u64>,
    /// The kind of request, if known.
    pub subject: Option<Subject>,
}

/// The number of all requests of a connection that answers them in their order.
pub(crate) const IN_ORDER: Option<u64> = Some(0);

/// The kind of a request, as far as a proxy can apply faults to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Subject {
    /// It is for this operation of a client, and for no other.
    Operation(Operation),
    /// It is of the kind to which the conversation gives this number, and which clients use for several purposes.
    Kind(u8),
}

impl From<Operation> for Subject {
    fn from(operation: Operation) -> Self {
        Self::Operation(operation)
    }
}

/// The first reply in what a server sent, or the first message without a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reply {
    /// Its length in bytes.
    pub length: usize,
    /// The number of the request that this reply completes, the oldest that has not been answered.
    pub answers: Option<u64>,
    /// Whether the server knew that request. If not, the client is going to ask in another way.
    pub is_understood: bool,
}

impl Request {
    /// Returns what is one request as a whole, because it cannot be understood; `None` when there is nothing.
    pub fn whole(bytes: &[u8]) -> Option<Self> {
        (!bytes.is_empty()).then_some(Self { length: bytes.len(), number: None, subject: None })
    }
}

impl Reply {
    /// Returns the reply to a request that was carried out, or to none.
    pub fn new(length: usize, answers: Option<u64>) -> Self {
        Self { length, answers, is_understood: true }
    }

    /// Returns what is one reply as a whole, because it cannot be understood; `None` when there is nothing.
    pub fn whole(bytes: &[u8]) -> Option<Self> {
        (!bytes.is_empty()).then_some(Self::new(bytes.len(), None))
    }
}

/// The requests and replies of one connection. In an unknown protocol, all bytes that have arrived are one request, or one reply.
pub trait Conversation: Send {
    /// Returns the first request in `bytes`; `None` when it is not complete yet. Called once for each.
    fn request(&mut self, bytes: &[u8]) -> Option<Request> {
        Request::whole(bytes)
    }

    /// Returns the first reply in `bytes`; `None` when it is not complete yet. Called once for each.
    fn reply(&mut self, bytes: &[u8]) -> Option<Reply> {
        Reply::whole(bytes)
    }
}

/// The bytes do not follow the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed;

impl From<Malformed> for Failure {
    fn from(_: Malformed) -> Self {
        Self::new("what came does not follow the protocol")
    }
}

/// A conversation in an unknown protocol.
pub(super) struct Opaque;

impl Conversation for Opaque {}
