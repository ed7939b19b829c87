//! A proxy that stands between clients and a server, and does to their connections what networks do.

mod connection;
mod conversation;
mod shared;
#[cfg(test)]
mod tests;

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::failure::{During, Outcome};
use conversation::Opaque;
use shared::{Door, Fault, Flows, Part, Shared, Way};

pub use conversation::{Conversation, Execution, Reply, Request, Subject};
pub use shared::{Direction, Losing};

/// A proxy in front of a server, on a port of its own. It has a thread of its own, too, so that nothing that a test does to
/// its runtime keeps it from its work.
///
/// Dropping it ends it, with all connections.
pub struct TcpProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl TcpProxy {
    /// A proxy for a protocol that it does not know: [`TcpProxy::lose_reply`] and its like never see a
    /// request.
    ///
    /// # Errors
    /// When it cannot listen.
    pub fn start(target: SocketAddr) -> Outcome<Self> {
        Self::with_conversation(target, || Box::new(Opaque))
    }

    /// A proxy that knows the protocol of the conversations that `make` makes, one for each connection.
    ///
    /// # Errors
    /// When it cannot listen.
    pub fn with_conversation(
        target: SocketAddr,
        make: impl Fn() -> Box<dyn Conversation> + Send + Sync + 'static,
    ) -> Outcome<Self> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, super::free_port()?));
        let listener = std::net::TcpListener::bind(address).during("listen as a proxy")?;
        listener.set_nonblocking(true)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let shared = Arc::new(Shared::new(target, Box::new(make)));
        let (end, ended) = oneshot::channel();
        let serving = Arc::clone(&shared);
        let serve = move || {
            runtime.block_on(async {
                tokio::select! {
                    () = serve(address, listener, &serving) => {}
                    _ = ended => {}
                }
            });
        };
        let thread = std::thread::Builder::new().name("tcp-proxy".to_owned()).spawn(serve)?;
        Ok(Self { address, shared, end: Some(end), thread: Some(thread) })
    }

    /// Where clients find it.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many connections it has now.
    pub fn connections(&self) -> usize {
        self.shared.connections()
    }

    /// How many requests of this kind have come so far.
    pub fn requests(&self, subject: impl Into<Subject>) -> u64 {
        self.shared.count(subject.into())
    }

    /// Ends all connections, on both sides. New ones are taken.
    pub fn cut(&self) {
        self.shared.cut();
    }

    /// Ends one connection, on both sides: the one that the server sees coming from `port`. Answers whether there was one.
    pub fn cut_from(&self, port: u16) -> bool {
        self.shared.cut_from(port)
    }

    /// Ends all connections on the side of the server alone: clients hear nothing of that, nor anything else, until
    /// [`TcpProxy::heal`], which ends them on their side as well. New ones are taken.
    pub fn cut_at_server(&self) {
        self.shared.cut_at_server();
    }

    /// Takes no new connections: whoever tries is refused.
    pub fn refuse(&self) {
        self.shared.door.send_replace(Door::Closed);
    }

    /// Ends all connections and takes no new ones.
    pub fn sever(&self) {
        self.refuse();
        self.cut();
    }

    /// Passes nothing on in this direction until [`TcpProxy::heal`], which delivers what has come meanwhile: as the system
    /// does when packets arrive again. Connections are taken and kept.
    pub fn blackhole(&self, direction: Direction) {
        self.shared.flows.send_modify(|flows| flows.of_mut(direction).is_blackhole = true);
    }

    /// Passes everything on that much later in this direction.
    pub fn delay(&self, direction: Direction, by: Duration) {
        self.shared.flows.send_modify(|flows| flows.of_mut(direction).delay = by);
    }

    /// Passes everything on in small pieces in this direction: single bytes, unless a lot comes at once.
    pub fn slice(&self, direction: Direction) {
        self.shared.flows.send_modify(|flows| flows.of_mut(direction).is_sliced = true);
    }

    /// Passes on half of what the server says next, and resets that connection.
    pub fn reset_next_reply(&self) {
        self.shared.resets_next_reply.store(true, Ordering::SeqCst);
    }

    /// Has the next request of this kind carried out and its reply lost.
    pub fn lose_reply(&self, subject: impl Into<Subject>, losing: Losing) {
        self.shared.arm(subject.into(), Fault { to: Part::Reply, way: Way::Lose(losing) });
    }

    /// Has the next request of this kind lost on its way: the server does not carry it out.
    pub fn lose_request(&self, subject: impl Into<Subject>, losing: Losing) {
        self.shared.arm(subject.into(), Fault { to: Part::Request, way: Way::Lose(losing) });
    }

    /// Has the next request of this kind carried out and its reply kept back until [`TcpProxy::let_replies_go`], and with it
    /// whatever comes after it on the same connection.
    pub fn hold_reply(&self, subject: impl Into<Subject>) {
        self.hold(subject.into(), Part::Reply);
    }

    /// Has the next request of this kind kept back until [`TcpProxy::let_requests_go`], and with it whatever comes after it on
    /// the same connection.
    pub fn hold_request(&self, subject: impl Into<Subject>) {
        self.hold(subject.into(), Part::Request);
    }

    fn hold(&self, subject: Subject, part: Part) {
        let number = self.shared.next_hold();
        self.shared.arm(subject, Fault { to: part, way: Way::Hold(number) });
    }

    /// Waits until the reply is there that the last [`TcpProxy::hold_reply`] keeps back.
    ///
    /// # Cancel safety
    /// Dropping the future stops the waiting, and nothing else.
    pub async fn reply_is_held(&self) {
        self.last_is_held().await;
    }

    /// Waits until the request is there that the last [`TcpProxy::hold_request`] keeps back.
    ///
    /// # Cancel safety
    /// Dropping the future stops the waiting, and nothing else.
    pub async fn request_is_held(&self) {
        self.last_is_held().await;
    }

    async fn last_is_held(&self) {
        let last = self.shared.last_hold();
        // This proxy has the other end.
        let _ = self.shared.reached.subscribe().wait_for(|reached| *reached >= last).await;
    }

    /// Lets everything go that is kept back, or was to be.
    pub fn let_replies_go(&self) {
        self.let_all_go();
    }

    /// Lets everything go that is kept back, or was to be.
    pub fn let_requests_go(&self) {
        self.let_all_go();
    }

    fn let_all_go(&self) {
        let last = self.shared.last_hold();
        self.shared.over.send_modify(|over| *over = last.max(*over));
    }

    /// Ends every fault: what comes from now on, and what was kept back, is passed on. What was lost stays lost.
    pub fn heal(&self) {
        self.shared.disarm_all();
        self.shared.forget_abandoned();
        self.let_all_go();
        self.shared.flows.send_replace(Flows::default());
        self.shared.door.send_replace(Door::Open);
    }
}

impl Drop for TcpProxy {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            // It does nothing that takes time, and has nobody to tell of a panic.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for TcpProxy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("TcpProxy")
            .field("address", &self.address)
            .field("target", &self.shared.target)
            .finish_non_exhaustive()
    }
}

/// Takes connections for as long as the door is open; listens no more while it is closed.
async fn serve(address: SocketAddr, listener: std::net::TcpListener, shared: &Arc<Shared>) {
    let mut door = shared.door.subscribe();
    let mut listener = TcpListener::from_std(listener).ok();
    loop {
        let Some(open) = &listener else {
            if door.wait_for(|door| *door == Door::Open).await.is_err() {
                return;
            }
            listener = TcpListener::bind(address).await.ok();
            if listener.is_none() {
                // Somebody else listens there for the moment.
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            continue;
        };
        tokio::select! {
            biased;
            _ = door.wait_for(|door| *door == Door::Closed) => listener = None,
            accepted = open.accept() => {
                if let Ok((client, _)) = accepted {
                    connection::spawn(client, shared);
                }
            }
        }
    }
}
