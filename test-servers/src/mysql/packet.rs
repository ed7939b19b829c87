//! The part of the protocol that a proxy has to know: packets.

/// The first byte of a request to run a statement.
pub(super) const QUERY: u8 = 0x03;

/// The first byte of a request to end the connection.
pub(super) const QUIT: u8 = 0x01;

/// The first bytes of answers.
pub(super) const OK: u8 = 0x00;
pub(super) const ERROR: u8 = 0xff;
/// Ends the columns, or the rows: a short packet, or an OK packet with this mark from a server whose client needs no end of columns. A row
/// that begins with this byte has a value of more than 16 MB.
pub(super) const END: u8 = 0xfe;

/// Capabilities that a client may announce.
pub(super) const SPEAKS_TLS: u32 = 1 << 11;
pub(super) const NO_END_OF_COLUMNS: u32 = 1 << 24;

/// Another result follows this one.
pub(super) const MORE_RESULTS: u16 = 8;

const HEADER: usize = 4;

/// One packet: its number in the exchange, and its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Packet<'a> {
    pub(super) sequence: u8,
    pub(super) payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Returns the first packet in `bytes`, and its length in bytes; `None` when it is not complete yet.
    pub(super) fn first(bytes: &'a [u8]) -> Option<(Self, usize)> {
        let [low, middle, high, sequence, rest @ ..] = bytes else { return None };
        let length = usize::from(*low) | usize::from(*middle) << 8 | usize::from(*high) << 16;
        let payload = rest.get(..length)?;
        Some((Self { sequence: *sequence, payload }, HEADER + length))
    }

    pub(super) fn kind(&self) -> Option<u8> {
        self.payload.first().copied()
    }
}

/// Creates a packet with this content.
#[cfg(test)]
pub(super) fn packet(sequence: u8, payload: &[u8]) -> Vec<u8> {
    let [low, middle, high, _] = u32::try_from(payload.len()).unwrap_or(u32::MAX).to_le_bytes();
    [&[low, middle, high, sequence], payload].concat()
}

/// Reads a length-encoded number; returns it and the bytes after it.
pub(super) fn number(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (&first, rest) = bytes.split_first()?;
    let width = match first {
        0xfc => 2,
        0xfd => 3,
        0xfe => 8,
        0..=0xfa => return Some((u64::from(first), rest)),
        _ => return None,
    };
    let mut value = 0;
    for (position, byte) in rest.get(..width)?.iter().enumerate() {
        value |= u64::from(*byte) << (8 * position);
    }
    Some((value, &rest[width..]))
}
