//! The state that the handle of a proxy shares with its connections.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lock_core::spi::Mutex;
use rustix::net::Shutdown;
use tokio::net::TcpStream;
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

/// What happens to a connection when a request or a reply is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Losing {
    /// The connection ends before it, on both sides.
    Cut,
    /// Half of it arrives, and then the connection is reset.
    ResetHalfway,
    /// It never arrives, and neither does anything after it in the same direction of that connection. Otherwise the
    /// connection stays as it is.
    Silence,
}

/// A fault for the next request of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fault {
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

/// Whether new connections are accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Door {
    Open,
    Closed,
}

/// How bytes are forwarded in one direction.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Flow {
    pub(super) is_blackhole: bool,
    pub(super) is_sliced: bool,
    pub(super) delay: Duration,
}

/// How bytes are forwarded in both directions.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Flows {
    to_server: Flow,
    to_client: Flow,
}

impl Flows {
    pub(super) fn of(&self, direction: Direction) -> &Flow {
        match direction {
            Direction::ToServer => &self.to_server,
            Direction::ToClient => &self.to_client,
        }
    }

    pub(super) fn of_mut(&mut self, direction: Direction) -> &mut Flow {
        match direction {
            Direction::ToServer => &mut self.to_server,
            Direction::ToClient => &mut self.to_client,
        }
    }
}

/// The two sockets of a connection, and the task that forwards between them.
struct Link {
    client: Arc<TcpStream>,
    server: Arc<TcpStream>,
    task: AbortHandle,
}

impl Link {
    fn cut(&self) {
        self.task.abort();
        for socket in [&self.client, &self.server] {
            // It may already have ended.
            let _ = rustix::net::shutdown(socket, Shutdown::Both);
        }
    }
}

pub(super) type MakeConversation = Box<dyn Fn() -> Box<dyn Conversation> + Send + Sync>;

pub(super) struct Shared {
    target: Mutex<SocketAddr>,
    pub(super) make_conversation: MakeConversation,
    pub(super) door: watch::Sender<Door>,
    pub(super) flows: watch::Sender<Flows>,
    /// The number of the last hold that has a message, and of the last one that is over.
    pub(super) reached: watch::Sender<u64>,
    pub(super) over: watch::Sender<u64>,
    pub(super) resets_next_reply: AtomicBool,
    holds: AtomicU64,
    armed: Mutex<Vec<(Subject, Fault)>>,
    links: Mutex<HashMap<u64, Link>>,
    /// The client sides of connections that have ended at the server, kept open.
    abandoned: Mutex<Vec<Arc<TcpStream>>>,
    counts: Mutex<HashMap<Subject, u64>>,
}

impl Shared {
    pub(super) fn new(target: SocketAddr, make_conversation: MakeConversation) -> Self {
        Self {
            target: Mutex::new(target),
            make_conversation,
            door: watch::Sender::new(Door::Open),
            flows: watch::Sender::default(),
            reached: watch::Sender::new(0),
            over: watch::Sender::new(0),
            resets_next_reply: AtomicBool::new(false),
            holds: AtomicU64::new(0),
            armed: Mutex::default(),
            links: Mutex::default(),
            abandoned: Mutex::default(),
            counts: Mutex::default(),
        }
    }

    pub(super) fn target(&self) -> SocketAddr {
        *self.target.lock()
    }

    pub(super) fn turn_to(&self, target: SocketAddr) {
        *self.target.lock() = target;
    }

    pub(super) fn arm(&self, subject: Subject, fault: Fault) {
        self.armed.lock().push((subject, fault));
    }

    /// Applies a fault that did not happen to one reply to the next one.
    pub(super) fn arm_again(&self, subject: Subject, fault: Fault) {
        self.armed.lock().insert(0, (subject, fault));
    }

    pub(super) fn disarm_all(&self) {
        self.armed.lock().clear();
        self.resets_next_reply.store(false, Ordering::SeqCst);
    }

    pub(super) fn next_hold(&self) -> u64 {
        self.holds.fetch_add(1, Ordering::SeqCst) + 1
    }

    pub(super) fn last_hold(&self) -> u64 {
        self.holds.load(Ordering::SeqCst)
    }

    /// Counts a request, and takes the fault for it or for its reply.
    pub(super) fn note_request(&self, subject: Subject) -> Option<Fault> {
        *self.counts.lock().entry(subject).or_default() += 1;
        let mut armed = self.armed.lock();
        let position = armed.iter().position(|(wanted, _)| *wanted == subject)?;
        Some(armed.remove(position).1)
    }

    pub(super) fn count(&self, subject: Subject) -> u64 {
        self.counts.lock().get(&subject).copied().unwrap_or_default()
    }

    /// Registers a connection, so that it can be cut with all others. Returns whether it may continue: the door may
    /// have been closed meanwhile.
    pub(super) fn register(
        &self,
        id: u64,
        client: &Arc<TcpStream>,
        server: &Arc<TcpStream>,
        task: AbortHandle,
    ) -> bool {
        let mut links = self.links.lock();
        let is_open = *self.door.borrow() == Door::Open;
        if is_open {
            links.insert(id, Link { client: Arc::clone(client), server: Arc::clone(server), task });
        }
        is_open
    }

    pub(super) fn forget(&self, id: u64) {
        self.links.lock().remove(&id);
    }

    pub(super) fn connections(&self) -> usize {
        self.links.lock().len()
    }

    /// Ends every connection, immediately and on both sides.
    pub(super) fn cut(&self) {
        self.links.lock().drain().for_each(|(_, link)| link.cut());
    }

    /// Ends every connection at the server, and leaves its client waiting.
    pub(super) fn cut_at_server(&self) {
        let mut abandoned = self.abandoned.lock();
        for (_, Link { client, server, task }) in self.links.lock().drain() {
            task.abort();
            // It may already have ended.
            let _ = rustix::net::shutdown(&server, Shutdown::Both);
            abandoned.push(client);
        }
    }

    pub(super) fn forget_abandoned(&self) {
        for client in self.abandoned.lock().drain(..) {
            // It may already have ended.
            let _ = rustix::net::shutdown(&client, Shutdown::Both);
        }
    }

    /// Ends the connection that reaches the server from `port`. Returns whether there was one.
    pub(super) fn cut_from(&self, port: u16) -> bool {
        let mut links = self.links.lock();
        let comes_from = |link: &Link| link.server.local_addr().is_ok_and(|address| address.port() == port);
        let id = links.iter().find(|(_, link)| comes_from(link)).map(|(id, _)| *id);
        id.and_then(|id| links.remove(&id)).map(|link| link.cut()).is_some()
    }
}
