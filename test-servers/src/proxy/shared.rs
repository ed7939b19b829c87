//! The state that the handle of a proxy shares with its connections.

use std::collections::HashMap;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use lock_core::spi::Mutex;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::conversation::{Conversation, Subject};

/// A direction of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the clients to the server.
    ToServer,
    /// From the server to the clients.
    ToClient,
}

pub use conformance_tests::Losing;

/// A fault for the next request of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) subject: Subject,
    pub(super) to: Part,
    pub(super) way: Way,
}

/// Which of the two messages of an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Request,
    Reply,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Lose(Losing),
    /// Held back until the hold with this number is over.
    Hold(u64),
}

/// How bytes are forwarded in one direction.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Flow {
    pub(super) is_blackhole: bool,
    pub(super) is_sliced: bool,
    pub(super) delay: Duration,
}

/// The two sockets of a connection.
pub(super) struct Ends {
    pub(super) client: TcpStream,
    pub(super) server: TcpStream,
    pub(super) is_closed_by_client: watch::Sender<bool>,
}

/// Ends both directions of a connection. It may already have ended.
pub(super) fn shut(socket: &TcpStream) {
    let _ = socket.shutdown(Shutdown::Both);
}

/// A connection, and the task that forwards between its ends.
pub(super) type Link = (Arc<Ends>, AbortHandle);

pub(super) fn cut((ends, task): &Link) {
    task.abort();
    shut(&ends.client);
    shut(&ends.server);
}

pub(super) struct Shared {
    pub(super) target: Mutex<SocketAddr>,
    pub(super) make_conversation: Box<dyn Fn() -> Box<dyn Conversation> + Send + Sync>,
    /// Whether new connections are accepted.
    pub(super) is_open: watch::Sender<bool>,
    /// By direction.
    pub(super) flows: watch::Sender<[Flow; 2]>,
    /// The number of the last hold that has a message, and of the last one that is over.
    pub(super) reached: watch::Sender<u64>,
    pub(super) over: watch::Sender<u64>,
    pub(super) holds: AtomicU64,
    pub(super) armed: Mutex<Vec<Fault>>,
    pub(super) links: Mutex<Vec<Link>>,
    /// Connections that have ended at the server, and whose client side is kept open.
    pub(super) abandoned: Mutex<Vec<Arc<Ends>>>,
    pub(super) counts: Mutex<HashMap<Subject, u64>>,
}

impl Shared {
    /// Counts a request, and takes the fault for it or for its reply.
    pub(super) fn note_request(&self, subject: Subject) -> Option<Fault> {
        *self.counts.lock().entry(subject).or_default() += 1;
        let mut armed = self.armed.lock();
        let position = armed.iter().position(|fault| fault.subject == subject)?;
        Some(armed.remove(position))
    }
}
