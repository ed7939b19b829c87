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

    /// Returns the number, if it is one.
    pub fn as_integer(&self) -> Option<i64> {
        match self {
            Self::Integer(number) => Some(*number),
            _ => None,
        }
    }

    /// Returns the items of the list; none if it is not a list.
    pub fn items(&self) -> &[Self] {
        match self {
            Self::List(items) | Self::Push(items) => items,
            _ => &[],
        }
    }

    fn of_bytes(bytes: &[u8]) -> Self {
        Self::Text(String::from_utf8_lossy(bytes).into_owned())
    }
}

/// Returns the first value in `bytes`, and its length; `None` when it is not complete yet.
pub(super) fn parse(bytes: &[u8]) -> Result<Option<(Value, usize)>, Malformed> {
    let mut reader = Reader { bytes, position: 0 };
    match reader.value() {
        Ok(value) => Ok(Some((value, reader.position))),
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

struct Reader<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl<'a> Reader<'a> {
    fn value(&mut self) -> Result<Value, Stop> {
        let kind = *self.bytes.get(self.position).ok_or(Stop::Incomplete)?;
        // Check the kind first: bytes that are not of the protocol need not have an end.
        if !b"+-:$*_#,(=%~>".contains(&kind) {
            return Err(Stop::Malformed);
        }
        self.position += 1;
        let line = self.line()?;
        match kind {
            b'-' => Ok(Value::Error(String::from_utf8_lossy(line).into_owned())),
            b':' => Ok(Value::Integer(number(line)?)),
            b'_' => Ok(Value::Null),
            b'$' | b'=' => Ok(self.blob(line)?.map_or(Value::Null, Value::of_bytes)),
            b'*' | b'~' => self.list(line, 1),
            b'%' => self.list(line, 2),
            b'>' => Ok(Value::Push(self.list(line, 1)?.items().to_vec())),
            _ => Ok(Value::of_bytes(line)),
        }
    }

    fn line(&mut self) -> Result<&'a [u8], Stop> {
        let rest = &self.bytes[self.position..];
        let length = rest.windows(2).position(|pair| pair == b"\r\n").ok_or(Stop::Incomplete)?;
        self.position += length + 2;
        Ok(&rest[..length])
    }

    fn blob(&mut self, length: &[u8]) -> Result<Option<&'a [u8]>, Stop> {
        let Ok(length) = usize::try_from(number(length)?) else { return Ok(None) };
        let end = self.position.checked_add(length).ok_or(Stop::Malformed)?;
        if self.bytes.len() < end + 2 {
            return Err(Stop::Incomplete);
        }
        let blob = &self.bytes[self.position..end];
        self.position = end + 2;
        Ok(Some(blob))
    }

    fn list(&mut self, count: &[u8], each: usize) -> Result<Value, Stop> {
        let Ok(count) = usize::try_from(number(count)?) else { return Ok(Value::Null) };
        let mut items = Vec::new();
        for _ in 0..count.saturating_mul(each) {
            items.push(self.value()?);
        }
        Ok(Value::List(items))
    }
}

fn number(line: &[u8]) -> Result<i64, Stop> {
    std::str::from_utf8(line).ok().and_then(|text| text.parse().ok()).ok_or(Stop::Malformed)
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
