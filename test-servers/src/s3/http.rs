//! Messages of HTTP/1.1 whose length is in their head.

use crate::proxy::Malformed;

/// A request or an answer.
pub(super) struct Message<'a> {
    /// The first line.
    pub(super) start: &'a str,
    head: &'a str,
    pub(super) body: &'a [u8],
    /// Of the whole message, in bytes.
    pub(super) length: usize,
}

impl<'a> Message<'a> {
    /// Reads the first message; `None` when it is not complete yet.
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Option<Self>, Malformed> {
        const END: &[u8] = b"\r\n\r\n";
        let Some(end) = bytes.windows(END.len()).position(|window| window == END) else { return Ok(None) };
        let head = std::str::from_utf8(&bytes[..end]).map_err(|_| Malformed)?;
        let (start, head) = head.split_once("\r\n").unwrap_or((head, ""));
        let mut message = Self { start, head, body: &[], length: end + END.len() };
        let body = message.header("content-length").map_or(Ok(0), str::parse).map_err(|_| Malformed)?;
        let Some(content) = bytes.get(message.length..message.length + body) else { return Ok(None) };
        (message.body, message.length) = (content, message.length + body);
        Ok(Some(message))
    }

    pub(super) fn header(&self, name: &str) -> Option<&'a str> {
        let mut headers = self.head.lines().filter_map(|line| line.split_once(':'));
        headers.find(|(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    }
}
