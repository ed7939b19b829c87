//! A server of one test, with blocking calls.

use test_servers::{Certificates, Data, RedisOptions, RedisServer, TcpProxy, Value, left_out};
use tokio::runtime::{Builder, Runtime};

use crate::at_a_server;
use crate::support::Sandbox;

/// A server, which ends with the test.
pub(super) struct Server {
    redis: RedisServer,
    runtime: Runtime,
}

impl Server {
    /// Starts a server without access control; `None` if the user left its tests out.
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

    /// The files of a server with TLS.
    pub(super) fn certificates(&self) -> &Certificates {
        self.redis.certificates().unwrap()
    }

    pub(super) fn command(&self, words: &[&str]) -> Value {
        self.runtime.block_on(self.redis.command(words)).unwrap()
    }
}

impl at_a_server::Server for Server {
    const NAME: &'static str = "redis";
    const BRIEF: &'static str = "12s";
    const AWAY: &'static str = "check that the server runs and can be reached";
    const SILENT: &'static str = "did not answer";
    const LOOPS: [usize; 2] = [6, 15];

    fn sandbox(&self, silence: &str) -> Sandbox {
        Sandbox::at(format!("{}?lease={silence}", self.url()))
    }

    fn place_behind(&self, proxy: &TcpProxy, silence: &str) -> Sandbox {
        Sandbox::at(format!("{}?lease={silence}", self.redis.url_at(proxy.address())))
    }

    fn proxy(&self) -> TcpProxy {
        TcpProxy::start(self.redis.address()).unwrap()
    }

    fn elsewhere(&self) -> Sandbox {
        Sandbox::at(format!("{}?prefix=elsewhere", self.url()))
    }

    fn stop(&self) {
        self.redis.stop().unwrap();
    }

    fn resume(&self) {
        self.redis.resume().unwrap();
    }

    fn kill(&self) {
        self.redis.kill().unwrap();
    }

    fn restart(&self) {
        self.runtime.block_on(self.redis.restart(Data::Lost)).unwrap();
    }
}
