//! Matches replies to the requests of an etcd connection, which speaks gRPC: frames of HTTP/2, each of one stream.
//!
//! Headers are compressed, so the kind of a request is told from its message: which fields it has, and what a transaction does first.

use prost::Message;

use crate::proxy::{Conversation, Reply, Request, Subject};

/// What a client sends before its first frame.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const FRAME_HEADER: usize = 9;
const DATA: u8 = 0;

/// What comes before the message in the first data of a stream: whether it is compressed, and its length.
const MESSAGE_HEADER: usize = 5;

/// A number of a lease is larger, and a length of one is smaller.
const LARGEST_LENGTH: i64 = 1 << 40;

/// A kind of request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum EtcdRequest {
    /// A transaction that creates a key under a lease.
    Create,
    /// A transaction that gives a key another value.
    Change,
    /// A transaction that deletes a key.
    Delete,
    /// A sign of life for a lease, or its end.
    KeepAlive,
}

impl From<EtcdRequest> for Subject {
    fn from(request: EtcdRequest) -> Self {
        Self::Kind(request as u8)
    }
}

/// A conversation that knows the kind of a request.
#[derive(Debug, Default)]
pub struct EtcdConversation {
    has_begun: bool,
}

impl Conversation for EtcdConversation {
    fn request(&mut self, bytes: &[u8]) -> Option<Request> {
        if !self.has_begun {
            let length = (bytes.len() >= PREFACE.len()).then_some(PREFACE.len())?;
            self.has_begun = true;
            return Some(Request { length, number: None, subject: None });
        }
        let frame = Frame::first_in(bytes)?;
        let message = frame.payload.get(MESSAGE_HEADER..).filter(|_| frame.kind == DATA);
        let subject = message.and_then(kind_of).map(Subject::from);
        Some(Request { length: frame.length, number: subject.map(|_| frame.stream), subject })
    }

    fn reply(&mut self, bytes: &[u8]) -> Option<Reply> {
        let frame = Frame::first_in(bytes)?;
        // The first frame of the answer; the others follow it.
        Some(Reply::new(frame.length, Some(frame.stream)))
    }
}

/// One frame.
struct Frame<'a> {
    length: usize,
    kind: u8,
    stream: u64,
    payload: &'a [u8],
}

impl<'a> Frame<'a> {
    /// The first one in these bytes, if it is complete.
    fn first_in(bytes: &'a [u8]) -> Option<Self> {
        let (header, rest) = bytes.split_at_checked(FRAME_HEADER)?;
        let size = header[..3].iter().fold(0, |size, byte| size << 8 | usize::from(*byte));
        let stream = header[5..].iter().fold(0, |stream, byte| stream << 8 | u64::from(*byte));
        let payload = rest.get(..size)?;
        Some(Self { length: FRAME_HEADER + size, kind: header[3], stream, payload })
    }
}

/// A request for a lease, a sign of life for one, or its end.
#[derive(Message)]
struct Lease {
    #[prost(int64, tag = "1")]
    number: i64,
}

/// The steps of a transaction whose conditions hold.
#[derive(Message)]
struct Transaction {
    #[prost(message, repeated, tag = "2")]
    steps: Vec<Step>,
}

#[derive(Message)]
struct Step {
    #[prost(message, optional, tag = "2")]
    put: Option<Put>,
    #[prost(bytes = "vec", optional, tag = "3")]
    delete: Option<Vec<u8>>,
}

#[derive(Message)]
struct Put {
    #[prost(bool, tag = "6")]
    keeps_lease: bool,
}

/// The kind of request that this message is, if it is one of those that are known.
fn kind_of(message: &[u8]) -> Option<EtcdRequest> {
    if let Ok(Lease { number: number @ 1.. }) = Lease::decode(message) {
        return (number >= LARGEST_LENGTH).then_some(EtcdRequest::KeepAlive);
    }
    match Transaction::decode(message).ok()?.steps.first()? {
        Step { put: Some(put), .. } if put.keeps_lease => Some(EtcdRequest::Change),
        Step { put: Some(_), .. } => Some(EtcdRequest::Create),
        Step { delete, .. } => delete.as_ref().map(|_| EtcdRequest::Delete),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn bytes(number: u8, value: &[u8]) -> Vec<u8> {
        [&[number << 3 | 2, u8::try_from(value.len()).unwrap()], value].concat()
    }

    fn frame(kind: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
        let header = [0, 0, u8::try_from(payload.len()).unwrap(), kind, 1, 0, 0, 0, stream];
        [&header, payload].concat()
    }

    fn data(stream: u8, message: &[u8]) -> Vec<u8> {
        frame(DATA, stream, &[&[0, 0, 0, 0, u8::try_from(message.len()).unwrap()], message].concat())
    }

    fn begun() -> EtcdConversation {
        let mut conversation = EtcdConversation::default();
        assert_eq!(conversation.request(&PREFACE[..7]), None);
        assert_eq!(conversation.request(PREFACE).unwrap().length, PREFACE.len());
        conversation
    }

    #[test]
    fn a_request_is_known_by_its_message() {
        let condition = bytes(1, &bytes(3, b"key"));
        let put = bytes(2, &bytes(2, &bytes(1, b"key")));
        let change = bytes(2, &bytes(2, &[&bytes(1, b"key")[..], &[6 << 3, 1]].concat()));
        let delete = bytes(2, &bytes(3, &bytes(1, b"key")));
        let range = [bytes(1, b"key"), bytes(2, b"kez")].concat();
        let large: Vec<u8> = [&[1 << 3][..], &[0xff; 8], &[0x01]].concat();
        for (message, kind) in [
            ([&condition[..], &put, &delete].concat(), Some(EtcdRequest::Create)),
            ([&condition[..], &change].concat(), Some(EtcdRequest::Change)),
            ([&condition[..], &delete, &put].concat(), Some(EtcdRequest::Delete)),
            (large, Some(EtcdRequest::KeepAlive)),
            (vec![1 << 3, 5], None),
            (range, None),
            (b"no message".to_vec(), None),
        ] {
            let request = begun().request(&data(3, &message)).unwrap();
            assert_eq!(request.subject, kind.map(Subject::from), "{message:?}");
        }
    }

    #[test]
    fn a_frame_of_its_stream_answers_a_request() {
        let mut conversation = begun();
        let asked = data(5, &[&[1 << 3][..], &[0xff; 8], &[0x01]].concat());
        assert_eq!(conversation.request(&asked[..12]), None);
        assert_eq!(conversation.request(&asked).unwrap().number, Some(5));
        assert_eq!(conversation.reply(&frame(1, 5, b"x")).unwrap().answers, Some(5));
    }
}
