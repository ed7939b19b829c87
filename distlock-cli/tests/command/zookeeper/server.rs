//! The locks of one test at a server, with blocking calls.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use test_servers::{NodeKind, ServerOptions, TcpProxy, ZooKeeperNode, ZooKeeperServer, left_out};
use tokio::runtime::{Builder, Runtime};

use crate::at_a_server::{self, place, shared};
use crate::support::Sandbox;

static RUNNING: Mutex<Weak<ZooKeeperServer>> = Mutex::new(Weak::new());

pub(super) struct Server {
    zookeeper: Arc<ZooKeeperServer>,
    way: TcpProxy,
    /// The folder of the locks.
    folder: String,
    runtime: Runtime,
}

impl Server {
    /// A part of a server without access control that other tests use as well; `None` if the user left its tests out.
    pub(super) fn start() -> Option<Self> {
        Self::of(|start| shared(&RUNNING, || start(ServerOptions::new())))
    }

    /// A server of this test alone.
    pub(super) fn start_with(options: ServerOptions) -> Option<Self> {
        Self::of(|start| Arc::new(start(options)))
    }

    fn of(
        server: impl FnOnce(&dyn Fn(ServerOptions) -> ZooKeeperServer) -> Arc<ZooKeeperServer>,
    ) -> Option<Self> {
        if let Some(reason) = left_out("zookeeper") {
            eprintln!("zookeeper: {reason}");
            return None;
        }
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let zookeeper = server(&|options| runtime.block_on(ZooKeeperServer::start_with(options)).unwrap());
        let way = TcpProxy::start(zookeeper.address()).unwrap();
        Some(Self { zookeeper, way, folder: format!("/{}", place()), runtime })
    }

    /// The URL without any option, but with the login that the server was started with.
    pub(super) fn url(&self) -> String {
        self.url_of(self.way.address(), &[])
    }

    fn url_of(&self, address: SocketAddr, options: &[(&str, &str)]) -> String {
        self.zookeeper.url_of(&[address], &self.folder, options)
    }

    pub(super) fn place_with(&self, options: &[(&str, &str)]) -> Sandbox {
        Sandbox::at(self.url_of(self.way.address(), options))
    }

    /// The nodes of the lock, the holder's first, each with its path.
    pub(super) fn nodes(&self, lock: &str) -> Vec<(String, ZooKeeperNode)> {
        self.runtime.block_on(async {
            let directory = format!("{}/{lock}", self.folder);
            let mut nodes = Vec::new();
            for name in self.zookeeper.children(&directory).await.unwrap().unwrap_or_default() {
                let path = format!("{directory}/{name}");
                if let Some(node) = self.zookeeper.node(&path).await.unwrap() {
                    nodes.push((path, node));
                }
            }
            nodes
        })
    }

    /// Creates a numbered node of a lock, as another program would.
    pub(super) fn create(&self, lock: &str, node: &str, data: &[u8]) {
        let path = format!("{}/{lock}/{node}", self.folder);
        self.runtime.block_on(self.zookeeper.create(&path, data, NodeKind::Numbered)).unwrap();
    }

    pub(super) fn delete(&self, path: &str) {
        assert!(self.runtime.block_on(self.zookeeper.delete(path)).unwrap(), "{path} was not there");
    }

    /// Ends a client's session, and with it all that the session has.
    pub(super) fn close_session(&self, session: i64) {
        // There may have been no session: the call is repeated if its client has acted in between.
        self.runtime.block_on(self.zookeeper.close_session(session)).unwrap();
    }
}

impl at_a_server::Server for Server {
    const NAME: &'static str = "zookeeper";
    const BRIEF: &'static str = "15s";
    const AWAY: &'static str = "can be reached";
    const SILENT: &'static str = "can be reached";
    const LOOPS: [usize; 2] = [4, 8];

    fn address(&self) -> SocketAddr {
        self.zookeeper.address()
    }

    fn way(&self) -> &TcpProxy {
        &self.way
    }

    fn place_at(&self, address: SocketAddr, silence: &str) -> Sandbox {
        Sandbox::at(self.url_of(address, &[("session_timeout", silence)]))
    }

    fn elsewhere(&self) -> Sandbox {
        Sandbox::at(self.url().replace(&self.folder, &format!("/elsewhere{}", self.folder)))
    }

    /// A client has to hear from the servers within two thirds of a session.
    fn lease_in(silence: Duration) -> Duration {
        silence * 2 / 3
    }
}
