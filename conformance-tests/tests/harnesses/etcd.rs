//! The harness of the etcd backend: one real server for each test program, or the one of `DISTLOCK_TEST_ETCD`, and a proxy in front of it
//! for each case.

#[macro_use]
#[path = "proxied.rs"]
mod proxied;

use std::net::SocketAddr;
use std::time::Duration;

use async_trait::async_trait;
use conformance_tests::{
    Ability, AfterRestart, Failure, Harness, Losing, Outcome, Removal, ServerChange, Silence,
};
use lock_core::{ClientBuilder, LockClient, LockError, LockName, Operation};
use proxied::{Place, Running, Server, unique};
use test_servers::{
    Data, Direction, EtcdConversation, EtcdRequest, EtcdServer, ServerOptions, TcpProxy, left_out,
};
use tokio::sync::Mutex;

/// Long enough for a busy machine to renew in time, short enough to wait for its end.
const LEASE: Duration = Duration::from_secs(12);

/// Outlasts the cases that need it.
const LASTING: Duration = Duration::from_secs(600);

/// No busy server takes this long for an answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// What the harness lacks at any server.
const fn lacks(ability: Ability) -> Option<&'static str> {
    match ability {
        Ability::CheckedGrants => Some("a grant says since when it lasts"),
        Ability::SeenDeaths => Some("the lock of a dead client is kept until its lease ends"),
        _ => None,
    }
}

/// A user who may use the prefix of the case, and nothing else.
pub(crate) struct Etcd(Fixture);

/// A part of the server and a proxy that no other case uses.
struct Fixture {
    server: Server<EtcdServer>,
    proxy: TcpProxy,
    prefix: String,
}

static RUNNING: Mutex<Running<EtcdServer>> = Running::none();

impl Fixture {
    async fn start(place: Place) -> Outcome<Self> {
        let start =
            async || EtcdServer::start_with(ServerOptions::new().user("app", "secret", &["locks/"])).await;
        let server = Server::find(place, "etcd", &["etcd"], &RUNNING, start).await?;
        let address = match &server {
            Server::Own(server) => server.address(),
            Server::Given(server) => server.address(),
        };
        let proxy = TcpProxy::with_conversation(address, || Box::new(EtcdConversation::default()))?;
        Ok(Self { server, proxy, prefix: format!("locks/{}", unique()) })
    }

    fn lease(&self) -> Duration {
        self.server.lease(LEASE)
    }

    fn address(&self) -> String {
        self.url(self.proxy.address(), self.lease())
    }

    fn lasting_address(&self, address: SocketAddr) -> String {
        format!("{}&timeout={}s", self.url(address, LASTING), PATIENCE.as_secs())
    }

    fn url(&self, address: SocketAddr, lease: Duration) -> String {
        let url = match &self.server {
            Server::Own(server) => server.url_at(&[address], &self.prefix) + "?",
            Server::Given(server) => server.url_at(address, &format!("/{}", self.prefix)),
        };
        format!("{url}lease={}s&connect_timeout={}s", lease.as_secs(), PATIENCE.as_secs())
    }

    async fn restart(&self) -> Outcome {
        self.server.own()?.restart(Data::Kept).await
    }

    /// The names that the suite takes away are not changed by the mapping.
    async fn take_away(&self, name: &LockName, removal: Removal) -> Outcome {
        let server = self.server.own()?;
        let directory = format!("{}/{}/", self.prefix, name.as_str());
        let keys = server.keys(&directory).await?;
        let free = || Failure::new(format!("{name:?} is free"));
        let holder = keys.first().ok_or_else(free)?;
        match removal {
            Removal::Deletion => {}
            Removal::Expiry => {
                let lease = holder.rsplit('/').next().and_then(|key| key.split('-').next());
                return server.command(&["lease", "revoke", lease.unwrap_or_default()]).await.map(drop);
            }
            // Next in the line, and in the place of the holder when that is deleted.
            Removal::Theft => {
                server.command(&["put", &format!("{directory}thief"), "another's"]).await?;
            }
        }
        let deleted = server.command(&["del", holder]).await?;
        if deleted.trim() == "1" { Ok(()) } else { Err(free()) }
    }

    /// All keys except the slots, and the tombstones, which go with their client's lease.
    async fn leftovers(&self) -> Outcome<Vec<String>> {
        let mut left = self.server.own()?.keys(&format!("{}/", self.prefix)).await?;
        let stays = |key: &String| key.contains("/~remembered/") || key.contains("/~undone/");
        left.retain(|key| !stays(key));
        Ok(left)
    }
}

/// Returns the request of the server that decides an operation.
fn request_of(operation: Operation) -> Outcome<EtcdRequest> {
    match operation {
        Operation::Acquire | Operation::Remember => Ok(EtcdRequest::Create),
        Operation::Cancel | Operation::Release => Ok(EtcdRequest::Delete),
        Operation::Renew => Ok(EtcdRequest::KeepAlive),
        Operation::Break | Operation::Describe | Operation::Downgrade => Ok(EtcdRequest::Change),
        _ => Err(Failure::new(format!("no request is known for {operation}"))),
    }
}

async fn connect(address: &str, builder: ClientBuilder) -> Result<LockClient, LockError> {
    distlock::connect_with(address, builder).await
}

proxied_harness! {
    Etcd,
    left_out: left_out("etcd"),
    start: Fixture::start,
    requests: request_of,

    fn after_a_restart(&self) -> AfterRestart {
        AfterRestart::Locks
    }

    async fn sever(&self) -> Outcome {
        self.0.proxy.sever();
        Ok(())
    }
}
