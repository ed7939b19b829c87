//! Ports that nobody uses.

use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use crate::failure::{Failure, Outcome};

/// Below the ports that the system gives to outgoing connections: a server that is away for a while finds its port free
/// when it comes back.
const CANDIDATES: Range<u16> = 15_000..32_000;

/// How many ports a program takes at once.
const BLOCK: u16 = 25;

const MOST_TRIED: u64 = 2_000;

/// The block from which ports are given now, and those from which all are given.
static BLOCKS: Mutex<Vec<Block>> = Mutex::new(Vec::new());

/// Ports that only one program gives away, for as long as it runs: a server or a proxy that is away does not hold its own, and
/// the clients of that one, which look for it there, must not find somebody else's.
///
/// Whose they are shows in who has the first one for UDP, of which nothing else is made here. It needs no file, and ends with
/// the program in any case.
struct Block {
    left: Range<u16>,
    _mark: UdpSocket,
}

impl Block {
    /// The block that begins with this port, if nobody has it.
    fn at(first: u16) -> Option<Self> {
        let mark = UdpSocket::bind((Ipv4Addr::LOCALHOST, first)).ok()?;
        Some(Self { left: first..first + BLOCK, _mark: mark })
    }

    /// The next port on which nobody listens.
    fn next(&mut self) -> Option<u16> {
        self.left.find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
    }
}

/// A port of the loopback address on which nobody listens, and which neither this program nor another one that runs has been
/// given by this before.
///
/// Some other program may take it before it is used, which a server that is started there has to expect.
///
/// # Errors
/// When none of many is free.
pub fn free_port() -> Outcome<u16> {
    let mut blocks = BLOCKS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(port) = blocks.last_mut().and_then(Block::next) {
        return Ok(port);
    }
    let random = RandomState::new();
    let count = u64::try_from(CANDIDATES.len()).unwrap_or(u64::MAX) / u64::from(BLOCK);
    for number in 0..MOST_TRIED {
        let offset = u16::try_from(random.hash_one(number) % count).unwrap_or_default();
        let Some(mut block) = Block::at(CANDIDATES.start + offset * BLOCK) else { continue };
        let port = block.next();
        blocks.push(block);
        if let Some(port) = port {
            return Ok(port);
        }
    }
    Err(Failure::new(format!("no {BLOCK} ports of {} are free", Ipv4Addr::LOCALHOST)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test

    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_port_is_given_twice() {
        let ports: HashSet<_> = (0..60).map(|_| free_port().unwrap()).collect();
        assert_eq!(ports.len(), 60);
        assert!(ports.iter().all(|port| CANDIDATES.contains(port)));
    }

    /// Other programs see the mark as this one does.
    #[test]
    fn a_block_is_nobody_elses_for_as_long_as_it_is_kept() {
        let port = free_port().unwrap();
        let first = port - (port - CANDIDATES.start) % BLOCK;
        assert!(Block::at(first).is_none());
    }

    #[test]
    fn a_port_on_which_somebody_listens_is_passed_over() {
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        let mark = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        assert_eq!(Block { left: port..port + 1, _mark: mark }.next(), None);
    }
}
