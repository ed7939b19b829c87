//! Starts the `redis-server` of a run: the one of the tests, on a free port of the loopback address, without
//! persistence.

use test_servers::RedisServer;

use crate::failure::{Context, Outcome};
use crate::runtimes::RuntimeKind;
use crate::subject::Server;

/// Starts a server and waits until it answers.
pub(super) fn start() -> Outcome<Box<dyn Server>> {
    let starting = async { RedisServer::start().await.context("no server of its own (--url names another)") };
    Ok(Box::new(RuntimeKind::CurrentThread.run(starting)?))
}

impl Server for RedisServer {
    fn url(&self) -> String {
        self.url()
    }

    fn process(&self) -> u32 {
        self.pid()
    }
}
