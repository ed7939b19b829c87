//! The harness of the ZooKeeper backend: one real server for each test program, or the one of
//! `DISTLOCK_TEST_ZOOKEEPER`, and a proxy in front of it for each
//! case.
#![allow(dead_code, reason = "each program uses one of the two")]

#[macro_use]
#[path = "proxied.rs"]
mod proxied;

use std::net::SocketAddr;
use std::time::Duration;

use async_trait::async_trait;
use conformance_tests::{
    Ability, AfterRestart, Failure, Harness, Losing, Outcome, Removal, ServerChange, Silence,
};
use lock_core::{ClientBuilder, EngineChoice, LockClient, LockError, LockName, Operation};
use proxied::{Place, Running, Server, unique};
use test_servers::{
    Data, Direction, NodeKind, ServerOptions, TcpProxy, ZooKeeperConversation, ZooKeeperRequest,
    ZooKeeperServer, left_out,
};
use tokio::sync::Mutex;

/// Short enough to wait for its end, and long enough for a busy machine: the client gives the server an eighth of it
/// for an answer. When several test programs started their servers at once, half a second was too little.
const LEASE: Duration = Duration::from_secs(12);

/// Outlasts the cases that need it, and ends before the patience with what a case has left behind.
const LASTING: Duration = Duration::from_secs(40);

/// On a busy machine, a step that is normally immediate may take as long as a session and more.
const PATIENCE: Duration = Duration::from_secs(60);

/// What the harness lacks at any server.
const fn lacks(ability: Ability) -> Option<&'static str> {
    match ability {
        Ability::CheckedGrants => Some("a grant says since when it lasts"),
        Ability::SeenDeaths => Some("the lock of a dead client is kept until its lease ends"),
        _ => None,
    }
}

/// Removes the directories of locks while the cases run, not only after most of them have ended.
const CONTAINERS_CHECKED_EVERY: Duration = Duration::from_secs(1);

/// Every client may do everything.
pub(crate) struct Open(Fixture);

/// Each node belongs to the client that created it.
pub(crate) struct Closed(Fixture);

/// A part of the server and a proxy that no other case uses.
struct Fixture {
    server: Server<ZooKeeperServer>,
    proxy: TcpProxy,
    root: String,
    options: &'static [(&'static str, &'static str)],
}

/// The directories of a semaphore, below that of the lock of its name.
const SEMAPHORE: [&str; 2] = ["locks", "leases"];

static RUNNING: Mutex<Running<ZooKeeperServer>> = Running::none();

async fn server(place: Place) -> Outcome<Server<ZooKeeperServer>> {
    let options = ServerOptions::new()
        .user("locks", "secret", &["digest"])
        .property("znode.container.checkIntervalMs", &CONTAINERS_CHECKED_EVERY.as_millis().to_string());
    let start = async || ZooKeeperServer::start_with(options).await;
    Server::find(place, "zookeeper", &["zookeeper"], &RUNNING, start).await
}

impl Fixture {
    async fn start(place: Place, options: &'static [(&'static str, &'static str)]) -> Outcome<Self> {
        let server = server(place).await?;
        let address = match &server {
            Server::Own(server) => server.address(),
            Server::Given(server) => server.address(),
        };
        let proxy = TcpProxy::with_conversation(address, || Box::new(ZooKeeperConversation::default()))?;
        let root = format!("/locks/{}", unique());
        Ok(Self { server, proxy, root, options })
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

    fn url(&self, address: SocketAddr, session: Duration) -> String {
        let (session, patience) = (format!("{}s", session.as_secs()), format!("{}s", PATIENCE.as_secs()));
        let own = [("session_timeout", session.as_str()), ("connect_timeout", patience.as_str())];
        let options = [&own, self.options].concat();
        match &self.server {
            Server::Own(server) => server.url_of(&[address], &self.root, &options),
            Server::Given(server) => {
                let options: Vec<_> = options.iter().map(|(name, value)| format!("{name}={value}")).collect();
                server.url_at(address, &self.root) + &options.join("&")
            }
        }
    }

    /// Returns the directory of a lock. The names that the suite takes away are not changed by the mapping.
    fn directory(&self, name: &LockName) -> String {
        format!("{}/{}", self.root, name.as_str())
    }

    async fn restart(&self) -> Outcome {
        self.server.own()?.restart(Data::Kept).await
    }

    async fn take_away(&self, name: &LockName, removal: Removal) -> Outcome {
        let directory = self.directory(name);
        let children = self.server.own()?.children(&directory).await?.unwrap_or_default();
        let holder = children.first().ok_or_else(|| Failure::new(format!("{name:?} is free")))?;
        // All nodes of one attempt have the same mark: `_c_`, a UUID and a hyphen.
        let mark = holder.get(..40).unwrap_or(holder);
        let nodes: Vec<_> = children.iter().filter(|name| name.starts_with(mark)).collect();
        match removal {
            Removal::Deletion => {}
            Removal::Expiry => return self.expire(&format!("{directory}/{holder}")).await,
            // Next in the queue, and in the place of the holder when that is deleted.
            Removal::Theft => {
                let thief = format!("{directory}/_c_{:032x}-lock-", 1);
                self.server.own()?.create(&thief, b"", NodeKind::Numbered).await?;
            }
        }
        for (fixture, node) in nodes.into_iter().enumerate() {
            let was_there = self.server.own()?.delete(&format!("{directory}/{node}")).await?;
            // Its client may see that the first one is gone, and remove the others itself.
            if fixture == 0 && !was_there {
                return Err(Failure::new(format!("{name:?} is free by now")));
            }
        }
        Ok(())
    }

    async fn expire(&self, holder: &str) -> Outcome {
        let node = self.server.own()?.node(holder).await?;
        let session = node.and_then(|node| node.session);
        let session =
            session.ok_or_else(|| Failure::new(format!("{holder} is gone, or belongs to no session")))?;
        if self.server.own()?.close_session(session).await? {
            Ok(())
        } else {
            Err(Failure::new(format!("the session of {holder} is gone")))
        }
    }

    /// All nodes in the directories of locks; the server removes the directories themselves.
    async fn leftovers(&self) -> Outcome<Vec<String>> {
        let mut left = Vec::new();
        let mut directories = self.server.own()?.children(&self.root).await?.unwrap_or_default();
        directories.retain(|directory| directory != "~remembered");
        for directory in directories {
            let directory = format!("{}/{directory}", self.root);
            let mut children = self.children(&directory).await?;
            children.retain(|child| !SEMAPHORE.contains(&child.rsplit('/').next().unwrap_or_default()));
            for inside in SEMAPHORE {
                children.extend(self.children(&format!("{directory}/{inside}")).await?);
            }
            left.extend(children);
        }
        Ok(left)
    }

    /// The paths of the children of a node.
    async fn children(&self, path: &str) -> Outcome<Vec<String>> {
        let children = self.server.own()?.children(path).await?.unwrap_or_default();
        Ok(children.into_iter().map(|child| format!("{path}/{child}")).collect())
    }
}

/// Returns the request of the server that decides an operation.
fn request_of(operation: Operation) -> Outcome<ZooKeeperRequest> {
    match operation {
        Operation::Acquire | Operation::Remember => Ok(ZooKeeperRequest::Create),
        Operation::Cancel | Operation::Release => Ok(ZooKeeperRequest::Delete),
        Operation::Renew => Ok(ZooKeeperRequest::Check),
        Operation::Break | Operation::Downgrade => Ok(ZooKeeperRequest::Change),
        _ => Err(Failure::new(format!("no request is known for {operation}"))),
    }
}

async fn connect(address: &str, builder: ClientBuilder) -> Result<LockClient, LockError> {
    distlock::connect_with(address, builder).await
}

/// What the owner of the nodes can keep others from.
const NODES: &[&str] = &["tokens", "inspection", "breaking", "remembering", "once", "election", "options"];

/// The two harnesses differ in the owner of the nodes.
macro_rules! harness {
    ($harness:ident, $options:expr, $differs:expr) => {
        proxied_harness! {
            $harness,
            left_out: left_out("zookeeper"),
            start: |place| Fixture::start(place, $options),
            requests: request_of,

            fn differs_in() -> Option<&'static [&'static str]> {
                $differs
            }

            fn engine(&self) -> EngineChoice {
                if Self::differs_in().is_some() { EngineChoice::Caller } else { EngineChoice::Own }
            }

            fn after_a_restart(&self) -> AfterRestart {
                AfterRestart::Locks
            }

            async fn sever(&self) -> Outcome {
                self.0.proxy.sever();
                Ok(())
            }
        }
    };
}

harness!(Open, &[], None);
harness!(Closed, &[("acl", "creator")], Some(NODES));
