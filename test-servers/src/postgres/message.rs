//! The part of the protocol that a proxy has to know: messages.

/// The first bytes of messages.
pub(super) const QUERY: u8 = b'Q';
pub(super) const SYNC: u8 = b'S';
pub(super) const READY: u8 = b'Z';

/// What the first message of a connection asks for.
pub(super) const VERSION_3: u32 = 196_608;
pub(super) const ENCRYPTION: u32 = 80_877_103;

/// One message: its kind, and its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Message<'a> {
    pub(super) kind: u8,
    pub(super) content: &'a [u8],
}

impl<'a> Message<'a> {
    /// Returns the first message in `bytes`, and its length in bytes; `None` when it is not complete yet.
    pub(super) fn first(bytes: &'a [u8]) -> Option<(Self, usize)> {
        let (&kind, rest) = bytes.split_first()?;
        let length = length(rest)?;
        Some((Self { kind, content: rest.get(4..length)? }, length + 1))
    }
}

/// Returns the length with which `bytes` begin.
pub(super) fn length(bytes: &[u8]) -> Option<usize> {
    usize::try_from(u32::from_be_bytes(*bytes.first_chunk()?)).ok()
}
