//! Telling requests from replies: what a protocol has to say about itself.

use lock_core::Operation;

/// The first request of what a client sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// How many bytes it is long.
    pub length: usize,
    /// A number that no other request of this connection has.
    pub number: u64,
    /// What it is, where that is known.
    pub subject: Option<Subject>,
}

/// What a request is, as far as a proxy can be told to do something to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Subject {
    /// It is for this operation of a client, and for no other.
    Operation(Operation),
    /// The protocol has this name for it, and clients use it as they need it.
    Named(&'static str),
}

impl From<Operation> for Subject {
    fn from(operation: Operation) -> Self {
        Self::Operation(operation)
    }
}

/// Whether the server did what it was asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Execution {
    /// It did, or failed at it.
    Done,
    /// It did not know the request, and is going to be asked in another way.
    NotUnderstood,
}

/// The first reply, or message that nobody asked for, of what a server sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reply {
    /// How many bytes it is long.
    pub length: usize,
    /// The number of the request that this answers to the end.
    pub answers: Option<u64>,
    /// What came of that request.
    pub execution: Execution,
}

/// What goes to and fro on one connection.
pub trait Conversation: Send {
    /// The first request in `bytes`; `None` when it is not whole yet. Called once for each.
    fn request(&mut self, bytes: &[u8]) -> Option<Request>;

    /// The first reply in `bytes`; `None` when it is not whole yet. Called once for each.
    fn reply(&mut self, bytes: &[u8]) -> Option<Reply>;
}

/// A conversation that nobody understands: all that has come is one request, or one reply.
#[derive(Debug, Default)]
pub(super) struct Opaque;

impl Conversation for Opaque {
    fn request(&mut self, bytes: &[u8]) -> Option<Request> {
        (!bytes.is_empty()).then_some(Request { length: bytes.len(), number: 0, subject: None })
    }

    fn reply(&mut self, bytes: &[u8]) -> Option<Reply> {
        (!bytes.is_empty()).then_some(Reply {
            length: bytes.len(),
            answers: None,
            execution: Execution::Done,
        })
    }
}
