//! A ZooKeeper server of our own: the one of the tests, on a free port of the loopback.

use std::sync::OnceLock;

use conformance_tests::servers::ZooKeeperServer;

use crate::failure::{Context, Outcome};
use crate::runtimes::RuntimeKind;
use crate::subject::Server;

/// The process of the one that this program has started.
static PROCESS: OnceLock<u32> = OnceLock::new();

/// Starts one and waits until it answers.
pub(super) fn start() -> Outcome<Box<dyn Server>> {
    let starting =
        async { ZooKeeperServer::start().await.context("no server of its own (--url names another)") };
    let server = RuntimeKind::CurrentThread.run(starting)?;
    PROCESS.get_or_init(|| server.pid());
    Ok(Box::new(server))
}

pub(super) fn own_process() -> Option<u32> {
    PROCESS.get().copied()
}

impl Server for ZooKeeperServer {
    fn url(&self) -> String {
        self.url()
    }
}
