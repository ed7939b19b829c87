//! The protocol of Redis: parses what a server sends, and encodes requests.

use crate::proxy::Malformed;

/// A value that a server sends, in version 2 or 3 of the protocol.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Value {
    /// No value.
    Null,
    /// `OK` and similar, or a text.
    Text(String),
    /// An error.
    Error(String),
    /// A whole number.
    Integer(i64),
    /// A list, a set, or a map as a list of keys and values.
    List(Vec<Value>),
    /// A message that answers no request.
    Push(Vec<Value>),
}

impl Value {
    /// Returns the text, if it is one.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the texts in the list; none if it is not a list.
    pub fn texts(&self) -> Vec<&str> {
        self.items().iter().filter_map(Self::as_text).collect()
    }

    /// Returns the items of the list; none if it is not a list.
    pub(super) fn items(&self) -> &[Self] {
        match self {
            Self::List(items) | Self::Push(items) => items,
            _ => &[],
        }
    }
}

/// Returns the first value in `bytes`, and its length; `None` when it is not complete yet.
pub(super) fn parse(bytes: &[u8]) -> Result<Option<(Value, usize)>, Malformed> {
    let mut rest = bytes;
    match value(&mut rest) {
        Ok(value) => Ok(Some((value, bytes.len() - rest.len()))),
        Err(Stop::Incomplete) => Ok(None),
        Err(Stop::Malformed) => Err(Malformed),
    }
}

/// Encodes a request for the server.
pub(super) fn request(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
    }
    bytes
}

enum Stop {
    Incomplete,
    Malformed,
}

/// Takes a value from the beginning of `bytes`.
fn value(bytes: &mut &[u8]) -> Result<Value, Stop> {
    let (&kind, rest) = bytes.split_first().ok_or(Stop::Incomplete)?;
    // Check the kind first: bytes that are not of the protocol need not have an end.
    if !b"+-:$*_#,(=%~>".contains(&kind) {
        return Err(Stop::Malformed);
    }
    let end = rest.windows(2).position(|pair| pair == b"\r\n").ok_or(Stop::Incomplete)?;
    let line = String::from_utf8_lossy(&rest[..end]).into_owned();
    *bytes = &rest[end + 2..];
    let number = || line.parse::<i64>().map_err(|_| Stop::Malformed);
    Ok(match kind {
        b'-' => Value::Error(line),
        b':' => Value::Integer(number()?),
        b'_' => Value::Null,
        b'$' | b'=' | b'*' | b'~' | b'%' | b'>' => match (kind, usize::try_from(number()?)) {
            (_, Err(_)) => Value::Null,
            (b'$' | b'=', Ok(length)) => blob(bytes, length)?,
            (b'>', Ok(count)) => Value::Push(list(bytes, count)?),
            (b'%', Ok(pairs)) => Value::List(list(bytes, pairs.saturating_mul(2))?),
            (_, Ok(count)) => Value::List(list(bytes, count)?),
        },
        _ => Value::Text(line),
    })
}

fn blob(bytes: &mut &[u8], length: usize) -> Result<Value, Stop> {
    let (blob, rest) = bytes.split_at_checked(length).ok_or(Stop::Incomplete)?;
    *bytes = rest.get(2..).ok_or(Stop::Incomplete)?;
    Ok(Value::Text(String::from_utf8_lossy(blob).into_owned()))
}

fn list(bytes: &mut &[u8], count: usize) -> Result<Vec<Value>, Stop> {
    (0..count).map(|_| value(bytes)).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn text(text: &str) -> Value {
        Value::Text(text.to_owned())
    }

    #[test]
    fn every_kind_of_value_is_read() {
        for (bytes, value) in [
            ("+OK\r\n", text("OK")),
            ("-ERR no\r\n", Value::Error("ERR no".to_owned())),
            (":-7\r\n", Value::Integer(-7)),
            ("$5\r\na\r\nb!\r\n", text("a\r\nb!")),
            ("$-1\r\n", Value::Null),
            ("_\r\n", Value::Null),
            ("*-1\r\n", Value::Null),
            ("*2\r\n:1\r\n*0\r\n", Value::List(vec![Value::Integer(1), Value::List(vec![])])),
            ("%1\r\n+a\r\n:1\r\n", Value::List(vec![text("a"), Value::Integer(1)])),
            (">2\r\n+message\r\n$1\r\nx\r\n", Value::Push(vec![text("message"), text("x")])),
            ("#t\r\n", text("t")),
        ] {
            let whole = format!("{bytes}+next\r\n");
            assert_eq!(parse(whole.as_bytes()), Ok(Some((value, bytes.len()))), "{bytes:?}");
        }
    }

    #[test]
    fn a_value_that_is_not_whole_is_waited_for() {
        let whole = "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n";
        for length in 0..whole.len() {
            assert_eq!(parse(&whole.as_bytes()[..length]), Ok(None), "{length} bytes");
        }
        assert!(parse(whole.as_bytes()).unwrap().is_some());
    }

    #[test]
    fn what_is_not_the_protocol_is_not_waited_for() {
        for bytes in ["\u{16}\u{3}\u{1}", "GET k\r\n", "$x\r\n", ":1a\r\n"] {
            assert_eq!(parse(bytes.as_bytes()), Err(Malformed), "{bytes:?}");
        }
    }

    #[test]
    fn a_request_reads_as_what_it_says() {
        let (value, _) = parse(&request(&["SET", "k", "a b\r\n"])).unwrap().unwrap();
        assert_eq!(value, Value::List(vec![text("SET"), text("k"), text("a b\r\n")]));
    }
}
