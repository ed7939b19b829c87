//! The locks of one test at a server, with blocking calls.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, Weak};

use test_servers::{Certificates, RedisServer, ServerOptions, TcpProxy, Value, left_out};
use tokio::runtime::{Builder, Runtime};

use crate::at_a_server::{self, place, shared};
use crate::support::Sandbox;

static RUNNING: Mutex<Weak<RedisServer>> = Mutex::new(Weak::new());

pub(crate) struct Server {
    redis: Arc<RedisServer>,
    way: TcpProxy,
    place: String,
    runtime: Runtime,
}

impl Server {
    /// A part of a server without access control that other tests use as well; `None` if the user left its tests out.
    pub(crate) fn start() -> Option<Self> {
        Self::of(|start| shared(&RUNNING, || start(ServerOptions::new())))
    }

    /// A server of this test alone.
    pub(crate) fn start_with(options: ServerOptions) -> Option<Self> {
        Self::of(|start| Arc::new(start(options)))
    }

    fn of(server: impl FnOnce(&dyn Fn(ServerOptions) -> RedisServer) -> Arc<RedisServer>) -> Option<Self> {
        if let Some(reason) = left_out("redis") {
            eprintln!("redis: {reason}");
            return None;
        }
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let redis = server(&|options| runtime.block_on(RedisServer::start_with(options)).unwrap());
        let way = TcpProxy::start(redis.address()).unwrap();
        Some(Self { redis, way, place: place(), runtime })
    }

    pub(crate) fn url(&self) -> String {
        self.redis.url_at(self.way.address())
    }

    /// The key of an exclusive hold.
    pub(super) fn key(&self, lock: &str) -> String {
        format!("{}:{{{lock}}}:l", self.place)
    }

    /// The files of a server with TLS.
    pub(super) fn certificates(&self) -> &Certificates {
        self.redis.certificates()
    }

    pub(crate) fn command(&self, words: &[&str]) -> Value {
        self.runtime.block_on(self.redis.command(words)).unwrap()
    }
}

impl at_a_server::Server for Server {
    const NAME: &'static str = "redis";
    const BRIEF: &'static str = "12s";
    const AWAY: &'static str = "check that the server runs and can be reached";
    const SILENT: &'static str = "did not answer";
    const LOOPS: [usize; 2] = [6, 15];

    fn address(&self) -> SocketAddr {
        self.redis.address()
    }

    fn way(&self) -> &TcpProxy {
        &self.way
    }

    fn place_at(&self, address: SocketAddr, silence: &str) -> Sandbox {
        Sandbox::at(format!("{}?lease={silence}&prefix={}", self.redis.url_at(address), self.place))
    }

    fn elsewhere(&self) -> Sandbox {
        Sandbox::at(format!("{}?prefix={}-elsewhere", self.url(), self.place))
    }
}
