//! The harness of the object store backend at Azurite, which speaks as Azure Blob Storage does: one server for each test program, and a
//! proxy in front of it for each case.

#[macro_use]
#[path = "proxied.rs"]
mod proxied;

use std::net::SocketAddr;
use std::time::Duration;

use async_trait::async_trait;
use conformance_tests::{
    Ability, AfterRestart, Failure, Harness, Losing, Outcome, Removal, Routes, ServerChange, Silence,
};
use lock_core::{ClientBuilder, LockClient, LockError, LockName, Operation};
use proxied::{Place, Running, Server, unique};
use test_servers::{AzuriteServer, Direction, S3Conversation, TcpProxy, left_out};
use tokio::sync::Mutex;

use crate::object_store::{LASTING, operation_of};

/// Long enough for a busy machine to renew in time, short enough to wait for its end.
const LEASE: Duration = Duration::from_secs(16);

/// Each request is a process's work in JavaScript: a busy machine takes long.
const PATIENCE: Duration = Duration::from_secs(120);

const fn lacks(ability: Ability) -> Option<&'static str> {
    match ability {
        Ability::RestartServer => Some("Azurite forgets the last writes when it is killed"),
        Ability::Removal(_) => Some("the suite changes objects at the store that speaks S3"),
        other => crate::object_store::lacks(other),
    }
}

/// A container.
pub(crate) struct Container(Fixture);

/// A part of the container and a proxy that no other case uses.
struct Fixture {
    server: Server<AzuriteServer>,
    proxy: TcpProxy,
    prefix: String,
}

static RUNNING: Mutex<Running<AzuriteServer>> = Running::none();

#[allow(clippy::unused_async, reason = "other harnesses wait for their servers here")]
impl Fixture {
    async fn start(place: Place) -> Outcome<Self> {
        let start = async || AzuriteServer::start().await;
        let server = Server::find(place, "azurite", &["az"], &RUNNING, start).await?;
        let address = server.own()?.address();
        let proxy = TcpProxy::with_conversation(address, || Box::new(S3Conversation::new(operation_of)))?;
        Ok(Self { server, proxy, prefix: unique() })
    }

    fn lease(&self) -> Duration {
        self.server.lease(LEASE)
    }

    fn address(&self) -> String {
        self.url(self.proxy.address(), self.lease())
    }

    fn lasting_address(&self, address: SocketAddr) -> String {
        self.url(address, LASTING)
    }

    fn url(&self, address: SocketAddr, lease: Duration) -> String {
        let (url, wait) = (AzuriteServer::url_at(address, &self.prefix), PATIENCE.as_secs());
        format!("{url}&lease={}s&poll=50ms&connect_timeout={wait}s", lease.as_secs())
    }

    async fn restart(&self) -> Outcome {
        Err(Failure::new("it would have forgotten the last writes"))
    }

    async fn take_away(&self, _: &LockName, _: Removal) -> Outcome {
        Err(Failure::new("no object is changed here"))
    }

    async fn leftovers(&self) -> Outcome<Vec<String>> {
        Ok(Vec::new())
    }
}

async fn connect(address: &str, builder: ClientBuilder) -> Result<LockClient, LockError> {
    distlock::connect_with(address, builder).await
}

proxied_harness! {
    Container,
    left_out: left_out("azurite"),
    start: Fixture::start,
    requests: Outcome::Ok,

    fn differs_in() -> Option<&'static [&'static str]> {
        Some(&["cancellation", "exclusion", "release", "sharing", "silence"])
    }

    fn after_a_restart(&self) -> AfterRestart {
        AfterRestart::Locks
    }

    fn patience(&self) -> Duration {
        PATIENCE
    }

    fn routes(&self) -> Routes {
        Routes::Several
    }

    fn rounds(&self, many: u32) -> u32 {
        many / 8
    }

    async fn sever(&self) -> Outcome {
        self.0.proxy.sever();
        Ok(())
    }
}
