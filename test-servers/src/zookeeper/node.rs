//! The nodes of a server.

use super::jute::{Reader, Writer};
use crate::proxy::Malformed;

/// The kind of a new node, with its number in the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeKind {
    /// The node stays until it is deleted.
    Lasting = 0,
    /// Like `Lasting`, with the next number of its parent appended to its name.
    Numbered = 2,
    /// The server removes the node some time after its last child was deleted.
    Container = 4,
}

/// A node, as the server stores it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ZooKeeperNode {
    /// The data of the node.
    pub data: Vec<u8>,
    /// The number of the change that created it: `czxid`.
    pub created: i64,
    /// The number of the change that last wrote its data: `mzxid`.
    pub written: i64,
    /// How often its data has been written.
    pub version: i32,
    /// The session that it ends with, if it is ephemeral.
    pub session: Option<i64>,
    /// The number of its children.
    pub children: i32,
}

impl ZooKeeperNode {
    pub(super) fn read(answer: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(answer);
        let data = reader.bytes()?.to_vec();
        let (created, written) = (reader.long()?, reader.long()?);
        // When it was created and written, in wall-clock time.
        let _ = (reader.long()?, reader.long()?);
        let (version, _child_version, _access_version) = (reader.int()?, reader.int()?, reader.int()?);
        let owner = reader.long()?;
        let _length = reader.int()?;
        let children = reader.int()?;
        // The owner of a container is a number that no session has.
        let session = (owner != 0 && owner != i64::MIN).then_some(owner);
        Ok(Self { data, created, written, version, session, children })
    }
}

/// An access list: who may do what to a node. Servers refuse an empty one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Access(Vec<(i32, String, String)>);

impl Access {
    /// Creates an empty access list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an access list that allows every client everything.
    pub fn anybody() -> Self {
        Self::new().grant("cdrwa", "world", "anyone")
    }

    /// Grants these rights (`c`reate and `d`elete children, `r`ead, `w`rite, `a`dminister) to the clients that the
    /// scheme and the identity describe: `("r", "world", "anyone")`.
    #[must_use]
    pub fn grant(mut self, rights: &str, scheme: &str, identity: &str) -> Self {
        let bits = [('r', 1), ('w', 2), ('c', 4), ('d', 8), ('a', 16)];
        let granted = bits.iter().filter(|(right, _)| rights.contains(*right)).map(|(_, bit)| bit).sum();
        self.0.push((granted, scheme.to_owned(), identity.to_owned()));
        self
    }

    pub(super) fn write(&self, writer: Writer) -> Writer {
        let count = i32::try_from(self.0.len()).unwrap_or(i32::MAX);
        self.0.iter().fold(writer.int(count), |writer, (granted, scheme, identity)| {
            writer.int(*granted).text(scheme).text(identity)
        })
    }
}

/// Sorts the names of children: those with a number at their end by that number, before all others.
pub(super) fn in_order(mut names: Vec<String>) -> Vec<String> {
    names.sort_by_key(|name| {
        let number = name.len().checked_sub(NUMBER).and_then(|start| name.get(start..));
        let number = number.and_then(|number| number.parse::<u64>().ok());
        (number.unwrap_or(u64::MAX), name.clone())
    });
    names
}

/// The length of the number that a server appends.
const NUMBER: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_are_sorted_by_their_numbers() {
        let names = ["z", "b-0000000002", "_c_x-lock-0000000010", "a-0000000003"].map(str::to_owned);
        assert_eq!(in_order(names.to_vec()), ["b-0000000002", "a-0000000003", "_c_x-lock-0000000010", "z"]);
    }

    #[test]
    fn rights_are_written_as_bits() {
        let written = Access::new().grant("rd", "world", "anyone").write(Writer::default()).0;
        let expected = Writer::default().int(1).int(9).text("world").text("anyone").0;
        assert_eq!(written, expected);
    }
}
