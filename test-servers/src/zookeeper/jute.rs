//! The encoding of ZooKeeper's messages: numbers in network order, texts with their length in front, and each message
//! with its length in front.

use crate::proxy::Malformed;

/// The length in front of each message.
pub(super) const LENGTH: usize = 4;

/// No message is longer. A greater length means that the bytes are not a message.
const LONGEST: usize = 64 << 20;

/// Encodes values, without a length in front.
#[derive(Debug, Clone, Default)]
pub(super) struct Writer(pub(super) Vec<u8>);

impl Writer {
    pub(super) fn bool(mut self, value: bool) -> Self {
        self.0.push(u8::from(value));
        self
    }

    pub(super) fn int(mut self, value: i32) -> Self {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    pub(super) fn long(mut self, value: i64) -> Self {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    pub(super) fn bytes(self, value: &[u8]) -> Self {
        let length = i32::try_from(value.len()).unwrap_or(i32::MAX);
        let mut longer = self.int(length);
        longer.0.extend_from_slice(value);
        longer
    }

    pub(super) fn text(self, value: &str) -> Self {
        self.bytes(value.as_bytes())
    }

    /// Returns the encoded values as a message.
    pub(super) fn message(self) -> Vec<u8> {
        Self::default().bytes(&self.0).0
    }
}

/// Returns the first message in `bytes`, and its length including the length field; `None` when it is not complete yet.
pub(super) fn message(bytes: &[u8]) -> Result<Option<(&[u8], usize)>, Malformed> {
    let Some((front, rest)) = bytes.split_first_chunk::<LENGTH>() else { return Ok(None) };
    let length = usize::try_from(i32::from_be_bytes(*front)).map_err(|_| Malformed)?;
    if length > LONGEST {
        return Err(Malformed);
    }
    Ok(rest.get(..length).map(|message| (message, LENGTH + length)))
}

/// Decodes values.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        self.take(N)?.try_into().map_err(|_| Malformed)
    }

    pub(super) fn bool(&mut self) -> Result<bool, Malformed> {
        Ok(self.array()? != [0])
    }

    pub(super) fn int(&mut self) -> Result<i32, Malformed> {
        Ok(i32::from_be_bytes(self.array()?))
    }

    pub(super) fn long(&mut self) -> Result<i64, Malformed> {
        Ok(i64::from_be_bytes(self.array()?))
    }

    /// A length of -1 means no value.
    pub(super) fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.int()?;
        if length == -1 {
            return Ok(&[]);
        }
        self.take(usize::try_from(length).map_err(|_| Malformed)?)
    }

    pub(super) fn text(&mut self) -> Result<String, Malformed> {
        Ok(String::from_utf8_lossy(self.bytes()?).into_owned())
    }

    pub(super) fn texts(&mut self) -> Result<Vec<String>, Malformed> {
        let count = self.int()?;
        (0..count).map(|_| self.text()).collect()
    }

    /// Returns the bytes that have not been decoded yet.
    pub(super) fn rest(self) -> &'a [u8] {
        self.0
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test says by a panic what is wrong")]

    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let bytes = Writer::default().int(-3).long(1 << 40).bool(true).text("/locks").bytes(b"x").0;
        let mut reader = Reader(&bytes);
        assert_eq!((reader.int(), reader.long(), reader.bool()), (Ok(-3), Ok(1 << 40), Ok(true)));
        assert_eq!((reader.text(), reader.bytes()), (Ok("/locks".to_owned()), Ok(&b"x"[..])));
        assert_eq!((reader.rest(), reader.int()), (&[][..], Err(Malformed)));
        let nothing = Writer::default().int(-1).0;
        assert_eq!(Reader(&nothing).bytes(), Ok(&[][..]));
        let texts = Writer::default().int(2).text("a").text("b").0;
        assert_eq!(Reader(&texts).texts().unwrap(), ["a", "b"]);
    }

    #[test]
    fn a_message_that_is_not_whole_is_waited_for() {
        let whole = Writer::default().int(7).message();
        for length in 0..whole.len() {
            assert_eq!(message(&whole[..length]), Ok(None), "{length} bytes");
        }
        let more = [&whole[..], b"next"].concat();
        assert_eq!(message(&more), Ok(Some((&[0, 0, 0, 7][..], whole.len()))));
    }

    #[test]
    fn what_is_no_message_is_not_waited_for() {
        assert_eq!(message(b"ruok"), Err(Malformed));
        assert_eq!(message(b"\xff\xff\xff\xff"), Err(Malformed));
    }
}
