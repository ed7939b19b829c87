//! A server of one test, with blocking calls.

use std::net::SocketAddr;
use std::time::Duration;

use test_servers::{Data, TcpProxy, ZooKeeperNode, ZooKeeperOptions, ZooKeeperServer, left_out};
use tokio::runtime::{Builder, Runtime};

use crate::at_a_server;
use crate::support::Sandbox;

/// The folder of the locks.
const FOLDER: &str = "/locks";

/// A server, which ends with the test.
pub(super) struct Server {
    zookeeper: ZooKeeperServer,
    runtime: Runtime,
}

impl Server {
    /// Starts a server without access control; `None` if the user left its tests out.
    pub(super) fn start() -> Option<Self> {
        Self::start_with(ZooKeeperOptions::new())
    }

    pub(super) fn start_with(options: ZooKeeperOptions) -> Option<Self> {
        if let Some(reason) = left_out("zookeeper") {
            eprintln!("zookeeper: {reason}");
            return None;
        }
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let zookeeper = runtime.block_on(ZooKeeperServer::start_with(options)).unwrap();
        Some(Self { zookeeper, runtime })
    }

    /// The URL without any option, but with the login that the server was started with.
    pub(super) fn url(&self) -> String {
        self.url_of(self.zookeeper.address(), &[])
    }

    fn url_of(&self, address: SocketAddr, options: &[(&str, &str)]) -> String {
        self.zookeeper.url_of(&[address], FOLDER, options)
    }

    pub(super) fn place_with(&self, options: &[(&str, &str)]) -> Sandbox {
        Sandbox::at(self.url_of(self.zookeeper.address(), options))
    }

    /// The nodes of the lock, the holder's first, each with its path.
    pub(super) fn nodes(&self, lock: &str) -> Vec<(String, ZooKeeperNode)> {
        self.runtime.block_on(async {
            let directory = format!("{FOLDER}/{lock}");
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

    fn sandbox(&self, silence: &str) -> Sandbox {
        self.place_with(&[("session_timeout", silence)])
    }

    fn place_behind(&self, proxy: &TcpProxy, silence: &str) -> Sandbox {
        Sandbox::at(self.url_of(proxy.address(), &[("session_timeout", silence)]))
    }

    fn proxy(&self) -> TcpProxy {
        self.zookeeper.proxy().unwrap()
    }

    fn elsewhere(&self) -> Sandbox {
        Sandbox::at(self.url().replace(FOLDER, "/elsewhere/locks"))
    }

    /// A client has to hear from the servers within two thirds of a session.
    fn lease_in(silence: Duration) -> Duration {
        silence * 2 / 3
    }

    fn fall_silent(&self) {
        self.kill();
    }

    fn stop(&self) {
        self.zookeeper.stop().unwrap();
    }

    fn resume(&self) {
        self.zookeeper.resume().unwrap();
    }

    fn kill(&self) {
        self.zookeeper.kill().unwrap();
    }

    fn restart(&self) {
        self.zookeeper.begin_restart(Data::Kept).unwrap();
    }
}
