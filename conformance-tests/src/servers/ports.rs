//! Ports that nobody uses.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use crate::failure::{Failure, Outcome};

/// Below the ports that the system gives to outgoing connections: a server that is away for a while finds its port free
/// when it comes back.
const CANDIDATES: Range<u16> = 15_000..32_000;

const MOST_TRIED: u64 = 200;

static GIVEN: Mutex<Option<HashSet<u16>>> = Mutex::new(None);

/// A port of the loopback address on which nobody listens, and which this program has not been given before.
///
/// Another program may take it before it is used, which a server that is started there has to expect.
///
/// # Errors
/// When none of many is free.
pub fn free_port() -> Outcome<u16> {
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    let given = given.get_or_insert_default();
    let random = RandomState::new();
    for number in 0..MOST_TRIED {
        let span = u64::from(CANDIDATES.end - CANDIDATES.start);
        let offset = u16::try_from(random.hash_one(number) % span).unwrap_or_default();
        let port = CANDIDATES.start + offset;
        if !given.contains(&port) && TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            given.insert(port);
            return Ok(port);
        }
    }
    Err(Failure::new(format!("none of {MOST_TRIED} ports of {} is free", Ipv4Addr::LOCALHOST)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test

    use super::*;

    #[test]
    fn no_port_is_given_twice() {
        let ports: HashSet<_> = (0..50).map(|_| free_port().unwrap()).collect();
        assert_eq!(ports.len(), 50);
        assert!(ports.iter().all(|port| CANDIDATES.contains(port)));
    }
}
