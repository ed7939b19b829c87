//! A server of a test's own, for tests that know no futures.

use conformance_tests::servers::{RedisOptions, RedisServer, TcpProxy, Value, left_out};
use tokio::runtime::{Builder, Runtime};

use crate::support::Place;

/// A server, which ends with the test.
pub(super) struct Server {
    redis: RedisServer,
    runtime: Runtime,
}

impl Server {
    /// Starts one that lets everybody in; `None` where its tests are left out.
    pub(super) fn start() -> Option<Self> {
        Self::start_with(RedisOptions::new())
    }

    pub(super) fn start_with(options: RedisOptions) -> Option<Self> {
        if let Some(reason) = left_out("redis") {
            eprintln!("redis: {reason}");
            return None;
        }
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let redis = runtime.block_on(RedisServer::start_with(options)).unwrap();
        Some(Self { redis, runtime })
    }

    pub(super) fn url(&self) -> String {
        self.redis.url()
    }

    /// A place whose locks this server keeps, with this lease.
    pub(super) fn place(&self, lease: &str) -> Place {
        Place::at(format!("{}?lease={lease}", self.url()))
    }

    /// The same through a proxy.
    pub(super) fn place_behind(&self, proxy: &TcpProxy, lease: &str) -> Place {
        Place::at(format!("{}?lease={lease}", self.redis.url_at(proxy.address())))
    }

    pub(super) fn proxy(&self) -> TcpProxy {
        TcpProxy::start(self.redis.address()).unwrap()
    }

    pub(super) fn command(&self, words: &[&str]) -> Value {
        self.runtime.block_on(self.redis.command(words)).unwrap()
    }

    /// Stops it as it stands: it answers nobody.
    pub(super) fn stop(&self) {
        self.redis.stop().unwrap();
    }

    pub(super) fn resume(&self) {
        self.redis.resume().unwrap();
    }

    pub(super) fn kill(&self) {
        self.redis.kill().unwrap();
    }
}
