//! Free ports for the servers of tests.

use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::ops::Range;

use lock_core::spi::Mutex;

use crate::{Failure, Outcome};

/// These ports are below the range that the system uses for outgoing connections, so a server that is away for a while
/// finds its port free when it returns.
const CANDIDATES: Range<u16> = 15_000..32_000;

/// How many ports a program reserves at once.
const BLOCK: u16 = 25;

const MOST_TRIED: u64 = 2_000;

/// The block from which ports are taken now, and the earlier blocks, from which all ports have been taken.
static BLOCKS: Mutex<Vec<Block>> = Mutex::new(Vec::new());

/// Ports that only one program uses, as long as it runs. A server or a proxy that is away does not occupy its port, and
/// its clients, which look for it there, must not find a server of another program.
///
/// The program that has bound the first port of the block for UDP has reserved the block; UDP is not used for anything
/// else here. That needs no file, and ends with the program in any case.
struct Block {
    left: Range<u16>,
    _mark: UdpSocket,
}

impl Block {
    /// Reserves the block that begins with this port, if no program has it.
    fn at(first: u16) -> Option<Self> {
        let mark = UdpSocket::bind((Ipv4Addr::LOCALHOST, first)).ok()?;
        Some(Self { left: first..first + BLOCK, _mark: mark })
    }

    /// Listens on the next port on which no program listens.
    fn next(&mut self) -> Option<TcpListener> {
        self.left.find_map(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok())
    }
}

/// Returns a port of the loopback address on which no program listens. Neither this program nor another running program
/// has got this port from this function before.
///
/// The port may be taken when it is used: by another kind of program, or by a process that this one starts meanwhile, which has
/// the sockets of this one until it becomes its program. Code that starts a server must expect that.
///
/// # Errors
/// When none of many is free.
pub fn free_port() -> Outcome<u16> {
    Ok(free_listener()?.local_addr()?.port())
}

/// Listens on such a port.
pub(crate) fn free_listener() -> Outcome<TcpListener> {
    let mut blocks = BLOCKS.lock();
    if let Some(listener) = blocks.last_mut().and_then(Block::next) {
        return Ok(listener);
    }
    let random = RandomState::new();
    let count = u64::try_from(CANDIDATES.len()).unwrap_or(u64::MAX) / u64::from(BLOCK);
    for number in 0..MOST_TRIED {
        let offset = u16::try_from(random.hash_one(number) % count).unwrap_or_default();
        let Some(mut block) = Block::at(CANDIDATES.start + offset * BLOCK) else { continue };
        let listener = block.next();
        blocks.push(block);
        if let Some(listener) = listener {
            return Ok(listener);
        }
    }
    Err(Failure::new(format!("no {BLOCK} ports of {} are free", Ipv4Addr::LOCALHOST)))
}

/// How often a server is started while other programs take ports that were free.
const STARTS: usize = 5;

/// Starts a server on free ports. If another program has taken one of them meanwhile, starts it again on others, unless
/// the port is `chosen`.
pub(crate) async fn on_free_ports<T, F: Future<Output = Outcome<T>>>(
    chosen: Option<u16>,
    start: impl Fn() -> F,
) -> Outcome<T> {
    let starts = if chosen.is_some() { 1 } else { STARTS };
    for _ in 1..starts {
        match start().await {
            Err(failure) if is_port_taken(&failure.to_string()) => {}
            outcome => return outcome,
        }
    }
    start().await
}

/// Returns whether the end of a server's log says that the port is taken: the second text is MySQL's last.
fn is_port_taken(log: &str) -> bool {
    log.contains("Address already in use")
        || (log.contains("Do you already have another") && log.contains("port"))
}

/// Returns a word that other users cannot guess: a port is open to every user of the machine.
pub(crate) fn random_word() -> String {
    format!("{:016x}{:016x}", RandomState::new().hash_one(1), RandomState::new().hash_one(2))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use std::cell::Cell;
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_port_is_given_twice() {
        let ports: HashSet<_> = (0..60).map(|_| free_port().unwrap()).collect();
        assert_eq!(ports.len(), 60);
        assert!(ports.iter().all(|port| CANDIDATES.contains(port)));
    }

    #[tokio::test]
    async fn a_server_that_finds_its_port_taken_is_started_again() {
        let starts = Cell::new(0);
        let fails = |log: &'static str| {
            let starts = &starts;
            move || {
                starts.set(starts.get() + 1);
                async move { Outcome::<()>::Err(Failure::new(log)) }
            }
        };
        for (chosen, log, expected) in [
            (None, "bind: Address already in use", STARTS),
            (None, "Do you already have another mysqld server running on port: 1?", STARTS),
            (None, "no memory", 1),
            (Some(1), "bind: Address already in use", 1),
        ] {
            starts.set(0);
            assert_eq!(on_free_ports(chosen, fails(log)).await, Err(Failure::new(log)));
            assert_eq!(starts.get(), expected, "{log}");
        }
    }

    /// Other programs see the reservation as this one does.
    #[test]
    fn a_block_has_one_user_for_as_long_as_it_is_kept() {
        let port = free_port().unwrap();
        let first = port - (port - CANDIDATES.start) % BLOCK;
        assert!(Block::at(first).is_none());
    }

    #[test]
    fn a_port_that_is_in_use_is_passed_over() {
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        let mark = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        assert!(Block { left: port..port + 1, _mark: mark }.next().is_none());
    }
}
