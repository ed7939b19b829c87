//! A proxy between clients and a server that disturbs their connections as networks do.

mod connection;
mod conversation;
mod shared;
#[cfg(test)]
mod tests;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lock_core::spi::Mutex;
use tokio::sync::watch;

use crate::Outcome;
use crate::service::Service;
use conversation::Opaque;
use shared::{Ends, Fault, Flow, Part, Shared, Way, cut, shut};

pub use conversation::{Conversation, Reply, Request, Subject};
pub(crate) use conversation::{IN_ORDER, Malformed};
pub use shared::{Direction, Losing};

/// A proxy in front of a server, on a port of its own. It also has a thread of its own, so that it keeps working
/// whatever a test does to its runtime.
///
/// Dropping it ends it, with all connections.
pub struct TcpProxy {
    shared: Arc<Shared>,
    /// The first one, and those of other servers.
    services: Vec<Service>,
}

impl TcpProxy {
    /// Starts a proxy for an unknown protocol: [`TcpProxy::lose_reply`] and similar methods never see a request.
    ///
    /// # Errors
    /// When it cannot listen.
    pub fn start(target: SocketAddr) -> Outcome<Self> {
        Self::with_conversation(target, || Box::new(Opaque))
    }

    /// Starts a proxy for the protocol of the conversations that `make` creates, one for each connection.
    ///
    /// # Errors
    /// When it cannot listen.
    pub fn with_conversation(
        target: SocketAddr,
        make: impl Fn() -> Box<dyn Conversation> + Send + Sync + 'static,
    ) -> Outcome<Self> {
        let shared = Arc::new(Shared {
            target: Mutex::new(target),
            make_conversation: Box::new(make),
            is_open: watch::Sender::new(true),
            flows: watch::Sender::default(),
            reached: watch::Sender::default(),
            over: watch::Sender::default(),
            holds: AtomicU64::default(),
            armed: Mutex::default(),
            links: Mutex::default(),
            abandoned: Mutex::default(),
            counts: Mutex::default(),
        });
        let mut this = Self { shared, services: Vec::new() };
        this.listen(None)?;
        Ok(this)
    }

    /// Returns the address for clients.
    pub fn address(&self) -> SocketAddr {
        self.services[0].address
    }

    /// Returns an address for clients of another server. Faults are for the connections there, too.
    ///
    /// # Errors
    /// When it cannot listen.
    pub fn and_to(&mut self, target: SocketAddr) -> Outcome<SocketAddr> {
        self.listen(Some(target))
    }

    fn listen(&mut self, target: Option<SocketAddr>) -> Outcome<SocketAddr> {
        let shared = Arc::clone(&self.shared);
        let service = Service::start("tcp-proxy", self.shared.is_open.subscribe(), move |client| {
            let target = target.unwrap_or_else(|| *shared.target.lock());
            connection::serve(client, target, Arc::clone(&shared))
        })?;
        let address = service.address;
        self.services.push(service);
        Ok(address)
    }

    /// Sets the server of new connections. Existing connections stay with theirs.
    pub fn turn_to(&self, target: SocketAddr) {
        *self.shared.target.lock() = target;
    }

    /// Returns how many connections it has now.
    pub fn connections(&self) -> usize {
        self.shared.links.lock().len()
    }

    /// Returns how many connections clients have not closed. A server may keep one that its client has closed: ZooKeeper reads
    /// nothing from those that it accepted before it was ready.
    pub fn connected_clients(&self) -> usize {
        let links = self.shared.links.lock();
        links.iter().filter(|(ends, _)| !*ends.is_closed_by_client.borrow()).count()
    }

    /// Returns how many requests of this kind it has seen so far.
    pub fn requests(&self, subject: impl Into<Subject>) -> u64 {
        self.shared.counts.lock().get(&subject.into()).copied().unwrap_or_default()
    }

    /// Ends all connections, on both sides. It accepts new ones.
    pub fn cut(&self) {
        self.shared.links.lock().drain(..).for_each(|link| cut(&link));
    }

    /// Ends one connection, on both sides: the one that reaches the server from `port`. Returns whether there was one.
    pub fn cut_from(&self, port: u16) -> bool {
        let comes_from = |ends: &Ends| ends.server.local_addr().is_ok_and(|address| address.port() == port);
        let mut links = self.shared.links.lock();
        links.extract_if(.., |(ends, _)| comes_from(ends)).map(|link| cut(&link)).count() > 0
    }

    /// Ends all connections on the server side only. The clients do not notice, and receive nothing, until
    /// [`TcpProxy::heal`] ends the connections on their side as well. It accepts new ones.
    pub fn cut_at_server(&self) {
        let mut abandoned = self.shared.abandoned.lock();
        for (ends, task) in self.shared.links.lock().drain(..) {
            task.abort();
            shut(&ends.server);
            abandoned.push(ends);
        }
    }

    /// Accepts no new connections: clients that try are refused.
    pub fn refuse(&self) {
        self.shared.is_open.send_replace(false);
    }

    /// Ends all connections and accepts no new ones.
    pub fn sever(&self) {
        self.refuse();
        self.cut();
    }

    /// Forwards nothing in this direction until [`TcpProxy::heal`], which delivers what has arrived meanwhile, as a
    /// system does when packets get through again. Connections are accepted and kept.
    pub fn blackhole(&self, direction: Direction) {
        self.flow(direction, |flow| flow.is_blackhole = true);
    }

    /// Delays everything in this direction by this time.
    pub fn delay(&self, direction: Direction, by: Duration) {
        self.flow(direction, |flow| flow.delay = by);
    }

    /// Forwards everything in this direction in small pieces: single bytes, unless much data arrives at once.
    pub fn slice(&self, direction: Direction) {
        self.flow(direction, |flow| flow.is_sliced = true);
    }

    fn flow(&self, direction: Direction, change: impl FnOnce(&mut Flow)) {
        self.shared.flows.send_modify(|flows| change(&mut flows[direction as usize]));
    }

    /// Loses the reply to the next request of this kind, which the server carries out.
    pub fn lose_reply(&self, subject: impl Into<Subject>, losing: Losing) {
        self.arm(subject.into(), Part::Reply, Way::Lose(losing));
    }

    /// Loses the next request of this kind: the server does not carry it out.
    pub fn lose_request(&self, subject: impl Into<Subject>, losing: Losing) {
        self.arm(subject.into(), Part::Request, Way::Lose(losing));
    }

    /// Holds back the reply to the next request of this kind, which the server carries out, and everything after that
    /// reply on the same connection, until [`TcpProxy::let_go`].
    pub fn hold_reply(&self, subject: impl Into<Subject>) {
        self.hold(subject.into(), Part::Reply);
    }

    /// Holds back the next request of this kind, and everything after it on the same connection, until
    /// [`TcpProxy::let_go`].
    pub fn hold_request(&self, subject: impl Into<Subject>) {
        self.hold(subject.into(), Part::Request);
    }

    fn hold(&self, subject: Subject, part: Part) {
        let number = self.shared.holds.fetch_add(1, Ordering::SeqCst) + 1;
        self.arm(subject, part, Way::Hold(number));
    }

    fn arm(&self, subject: Subject, to: Part, way: Way) {
        self.shared.armed.lock().push(Fault { subject, to, way });
    }

    /// Waits until the message has arrived that the last hold is for.
    ///
    /// # Cancel safety
    /// Dropping the future only stops the waiting.
    pub async fn is_held(&self) {
        let last = self.shared.holds.load(Ordering::SeqCst);
        // This proxy keeps the other end.
        let _ = self.shared.reached.subscribe().wait_for(|reached| *reached >= last).await;
    }

    /// Releases everything that is held back, and cancels holds that have not begun yet.
    pub fn let_go(&self) {
        let last = self.shared.holds.load(Ordering::SeqCst);
        self.shared.over.send_modify(|over| *over = last.max(*over));
    }

    /// Ends every fault: what arrives from now on, and what was held back, is forwarded. What was lost stays lost.
    pub fn heal(&self) {
        self.shared.armed.lock().clear();
        self.shared.abandoned.lock().drain(..).for_each(|ends| shut(&ends.client));
        self.let_go();
        self.shared.flows.send_replace(Default::default());
        self.shared.is_open.send_replace(true);
    }
}

impl fmt::Debug for TcpProxy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "TcpProxy({} to {})", self.address(), *self.shared.target.lock())
    }
}
