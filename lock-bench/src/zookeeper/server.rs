//! Starts the ZooKeeper server of a run: the one of the tests, on a free port of the loopback address.

use test_servers::ZooKeeperServer;

use crate::failure::{Context, Outcome};
use crate::runtimes::RuntimeKind;
use crate::subject::Server;

/// Starts a server and waits until it answers.
pub(super) fn start() -> Outcome<Box<dyn Server>> {
    let starting =
        async { ZooKeeperServer::start().await.context("no server of its own (--url names another)") };
    Ok(Box::new(RuntimeKind::CurrentThread.run(starting)?))
}

impl Server for ZooKeeperServer {
    fn url(&self) -> String {
        self.url()
    }

    fn process(&self) -> u32 {
        self.pid()
    }
}
