//! Matches answers to the requests of a connection to an object store, and finds which operation a write is for.

use lock_core::Operation;

use super::http::Message;
use crate::proxy::{Conversation, IN_ORDER, Reply, Request, Subject};

/// A conversation in which `operation_of` finds the operation of a `PUT` from its content.
#[derive(Debug)]
pub struct S3Conversation {
    operation_of: fn(&[u8]) -> Option<Operation>,
}

impl S3Conversation {
    /// Creates the conversation of a new connection.
    pub fn new(operation_of: fn(&[u8]) -> Option<Operation>) -> Self {
        Self { operation_of }
    }
}

impl Conversation for S3Conversation {
    fn request(&mut self, bytes: &[u8]) -> Option<Request> {
        let Ok(parsed) = Message::parse(bytes) else { return Request::whole(bytes) };
        let message = parsed?;
        let operation =
            message.start.starts_with("PUT ").then(|| (self.operation_of)(message.body)).flatten();
        Some(Request { length: message.length, number: IN_ORDER, subject: operation.map(Subject::from) })
    }

    fn reply(&mut self, bytes: &[u8]) -> Option<Reply> {
        let Ok(parsed) = Message::parse(bytes) else { return Reply::whole(bytes) };
        Some(Reply::new(parsed?.length, IN_ORDER))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn conversation() -> S3Conversation {
        S3Conversation::new(|content| (content == b"renewal").then_some(Operation::Renew))
    }

    #[test]
    fn a_write_is_recognised_by_its_content() {
        let mut conversation = conversation();
        let put = b"PUT /b/k HTTP/1.1\r\nContent-Length: 7\r\n\r\nrenewalGET /";
        assert!(conversation.request(&put[..45]).is_none(), "it is not complete");
        let request = conversation.request(put).unwrap();
        assert_eq!((request.length, request.number), (put.len() - 5, IN_ORDER));
        assert_eq!(request.subject, Some(Operation::Renew.into()));
        let get = conversation.request(b"GET /b/k HTTP/1.1\r\n\r\n").unwrap();
        assert_eq!((get.number, get.subject), (IN_ORDER, None));
    }

    #[test]
    fn answers_come_in_order() {
        let mut conversation = conversation();
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokHTTP";
        let reply = conversation.reply(answer).unwrap();
        assert_eq!((reply.length, reply.answers), (answer.len() - 4, IN_ORDER));
        let empty = b"HTTP/1.1 412 Precondition Failed\r\n\r\n";
        assert_eq!(conversation.reply(empty).unwrap().answers, IN_ORDER);
    }
}
