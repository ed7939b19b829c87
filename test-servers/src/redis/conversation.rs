//! Matches replies to the requests of a Redis connection, and finds which operation a request is for.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use lock_core::Operation;

use super::resp::{Value, parse};
use crate::proxy::{Conversation, IN_ORDER, Reply, Request, Subject};

/// The digest of each script, as in `EVALSHA`, and the operation that the script is for.
pub type Digests = HashMap<String, Operation>;

/// A conversation that finds the operation of an `EVALSHA` from its digest.
///
/// TLS hides the requests: then no operation is recognised.
#[derive(Debug)]
pub struct RedisConversation {
    digests: Arc<Digests>,
    /// How many messages answer each request that has not been answered yet, one for each channel; `None` for one reply.
    open: VecDeque<Option<usize>>,
}

impl RedisConversation {
    /// Creates the conversation of a new connection.
    pub fn new(digests: Arc<Digests>) -> Self {
        Self { digests, open: VecDeque::new() }
    }

    fn operation_of(&self, words: &[Value]) -> Option<Operation> {
        let is_script = command(words).is_some_and(|command| command.starts_with("EVALSHA"));
        let digest = words.get(1).filter(|_| is_script)?.as_text()?;
        self.digests.get(&digest.to_ascii_lowercase()).copied()
    }

    /// Returns the number of the request that `value` completes.
    fn answered_by(&mut self, value: &Value) -> Option<u64> {
        if kind(value).ends_with("subscribe") {
            // Without messages, it is the end of a subscription that ended by itself.
            let left = self.open.front_mut()?.as_mut()?;
            *left -= 1;
            if *left > 0 {
                return None;
            }
        } else if is_message(value) {
            return None;
        }
        // A refused subscription also has one reply.
        IN_ORDER.filter(|_| self.open.pop_front().is_some())
    }
}

impl Conversation for RedisConversation {
    fn request(&mut self, bytes: &[u8]) -> Option<Request> {
        let Ok(parsed) = parse(bytes) else { return Request::whole(bytes) };
        let (value, length) = parsed?;
        let words = value.items();
        self.open.push_back(messages_for(words));
        Some(Request { length, number: IN_ORDER, subject: self.operation_of(words).map(Subject::from) })
    }

    fn reply(&mut self, bytes: &[u8]) -> Option<Reply> {
        let Ok(parsed) = parse(bytes) else { return Reply::whole(bytes) };
        let (value, length) = parsed?;
        let reply = Reply::new(length, self.answered_by(&value));
        let is_unknown = matches!(&value, Value::Error(text) if text.starts_with("NOSCRIPT"));
        Some(Reply { is_understood: !is_unknown, ..reply })
    }
}

fn command(words: &[Value]) -> Option<String> {
    Some(words.first()?.as_text()?.to_ascii_uppercase())
}

fn messages_for(words: &[Value]) -> Option<usize> {
    let command = command(words)?;
    command.ends_with("SUBSCRIBE").then_some(words.len().saturating_sub(1).max(1))
}

/// Returns the first word of a message; in version 2 of the protocol messages are lists.
fn kind(value: &Value) -> &str {
    value.items().first().and_then(Value::as_text).unwrap_or_default()
}

fn is_message(value: &Value) -> bool {
    matches!(value, Value::Push(_)) || ["message", "pmessage", "smessage"].contains(&kind(value))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::super::resp;
    use super::*;

    const DIGEST: &str = "0123456789abcdef0123456789abcdef01234567";

    fn conversation() -> RedisConversation {
        let digests = Digests::from([(DIGEST.to_owned(), Operation::Renew)]);
        RedisConversation::new(Arc::new(digests))
    }

    fn ask(conversation: &mut RedisConversation, words: &[&str]) -> Request {
        conversation.request(&resp::request(words)).unwrap()
    }

    fn answers(conversation: &mut RedisConversation, reply: &str) -> Option<u64> {
        let reply = conversation.reply(reply.as_bytes()).unwrap();
        assert!(reply.is_understood);
        reply.answers
    }

    #[test]
    fn a_script_is_recognised_by_its_digest() {
        let mut conversation = conversation();
        let operations = [
            ask(&mut conversation, &["EVALSHA", DIGEST, "1", "k"]).subject,
            ask(&mut conversation, &["evalsha", &DIGEST.to_uppercase(), "1", "k"]).subject,
            ask(&mut conversation, &["EVALSHA", "another", "1", "k"]).subject,
            ask(&mut conversation, &["GET", DIGEST]).subject,
        ];
        assert_eq!(operations, [Some(Operation::Renew.into()), Some(Operation::Renew.into()), None, None]);
    }

    #[test]
    fn replies_answer_requests_in_order() {
        let mut conversation = conversation();
        for _ in 0..3 {
            assert_eq!(ask(&mut conversation, &["PING"]).number, IN_ORDER);
        }
        assert_eq!(answers(&mut conversation, "+PONG\r\n"), IN_ORDER);
        assert_eq!(answers(&mut conversation, ">3\r\n+message\r\n+c\r\n+text\r\n"), None);
        assert_eq!(answers(&mut conversation, "-ERR no\r\n"), IN_ORDER);
        assert_eq!(answers(&mut conversation, "*1\r\n+x\r\n"), IN_ORDER);
        assert_eq!(answers(&mut conversation, "+PONG\r\n"), None);
    }

    #[test]
    fn a_subscription_is_answered_by_a_message_for_each_channel() {
        let mut conversation = conversation();
        ask(&mut conversation, &["SUBSCRIBE", "a", "b"]);
        ask(&mut conversation, &["SUBSCRIBE", "c"]);
        ask(&mut conversation, &["PING"]);
        assert_eq!(answers(&mut conversation, ">3\r\n+subscribe\r\n+a\r\n:1\r\n"), None);
        assert_eq!(answers(&mut conversation, ">3\r\n+subscribe\r\n+b\r\n:2\r\n"), IN_ORDER);
        assert_eq!(answers(&mut conversation, "-NOPERM no channels for you\r\n"), IN_ORDER);
        assert_eq!(answers(&mut conversation, "+PONG\r\n"), IN_ORDER);
        assert_eq!(answers(&mut conversation, "+PONG\r\n"), None);
    }

    #[test]
    fn a_script_that_the_server_does_not_know_was_not_carried_out() {
        let mut conversation = conversation();
        ask(&mut conversation, &["EVALSHA", DIGEST, "0"]);
        let reply = conversation.reply(b"-NOSCRIPT No matching script.\r\n").unwrap();
        assert_eq!((reply.answers, reply.is_understood), (IN_ORDER, false));
    }

    #[test]
    fn what_is_not_understood_passes_as_a_whole() {
        let mut conversation = conversation();
        let hello = b"\x16\x03\x01\x02\x00";
        let request = conversation.request(hello).unwrap();
        assert_eq!((request.length, request.subject), (hello.len(), None));
        assert_eq!(conversation.reply(hello).unwrap().length, hello.len());
        assert_eq!(conversation.reply(b"+PO"), None);
    }
}
