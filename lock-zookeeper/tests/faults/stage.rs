//! The stage of a case: a server, clients of it, and observations of both from outside.
//!
//! Most cases share one server: each has its own folder there, and its own proxy for faults of connections.

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub use conformance_tests::faults::{ROOM, Waiter, as_time_passes, frozen, soon, until, with_options};
use conformance_tests::{Failure, Outcome};
use lock_core::{
    ClientBuilder, ErrorKind, FencingToken, LockClient, LockError, LockGuard, LossReason, ManualClock,
};
use lock_kit::LockUrl;
use test_servers::{Losing, ServerOptions, TcpProxy, ZooKeeperNode, ZooKeeperRequest, ZooKeeperServer};
use tokio::sync::OnceCell;

use crate::case::ensure;

/// A session that outlasts every case, so that nothing happens because the session ends.
pub const LONG: &str = "session_timeout=60s";

/// A session in which unanswered requests do not take long, but which leaves a busy machine time to answer the others.
pub const IMPATIENT: &str = "session_timeout=12s";

/// The reasons of a loss by the end of a session. A client that has connected again may learn of the end of its nodes before it
/// learns of that of its session.
pub const BY_THE_END_OF_A_SESSION: [LossReason; 2] = [LossReason::SessionClosed, LossReason::Deleted];

/// An exclusive attempt has a node for those who know mutexes, and one for those who know read-write locks.
pub const NODES_OF_A_HOLD: usize = 2;

/// A server that cases share, started when the first case asks for it.
type Shared = Arc<OnceCell<Arc<ZooKeeperServer>>>;

/// The servers that cases share: cases with the same options get the same server.
static SHARED: Mutex<Vec<(ServerOptions, Shared)>> = Mutex::new(Vec::new());

/// Held by the case whose clients log in.
static LOGINS: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

static FOLDERS: AtomicUsize = AtomicUsize::new(0);

/// A client of the servers that `url` names.
pub async fn connect(url: &str) -> Result<LockClient, LockError> {
    lock_zookeeper::connect(&LockUrl::parse(url)?, ClientBuilder::new()).await
}

/// How often to try to connect if the first connection is not the subject of a case: a busy server may not answer in time.
const CONNECTS_TRIED: usize = 5;

/// The same, repeated while the server cannot be reached: for clients that a case needs before it observes anything.
pub async fn connect_patiently(url: &str) -> Result<LockClient, LockError> {
    connect_as(url, &ClientBuilder::new()).await
}

async fn connect_as(url: &str, builder: &ClientBuilder) -> Result<LockClient, LockError> {
    let url = LockUrl::parse(url)?;
    for _ in 1..CONNECTS_TRIED {
        match lock_zookeeper::connect(&url, builder.clone()).await {
            Err(error) if error.kind() == ErrorKind::Unreachable => {}
            answered => return answered,
        }
    }
    lock_zookeeper::connect(&url, builder.clone()).await
}

/// After this time the client watches the nodes of a hold. Its next heartbeat in a [`LONG`] session is far away.
pub const NO_LONGER_NEW: Duration = Duration::from_secs(1);

/// Releases the lock, and waits until the client has done so, even if the answer takes longer than its caller is kept waiting.
pub async fn release_patiently(client: &LockClient, guard: LockGuard) -> Outcome {
    match soon("the release", guard.release()).await? {
        Err(error) if error.kind() == ErrorKind::Unconfirmed => soon("the rest", client.idle()).await,
        released => Ok(released?),
    }
}

/// The error of an answer that has to be an error.
pub fn refusal<T>(answer: Result<T, LockError>) -> Outcome<LockError> {
    answer.err().ok_or_else(|| Failure::new("it was not refused"))
}

/// The ways to lose a message, for a request and for its answer.
pub const LOSSES: [Loss; 6] = [
    Loss(Lost::Request, Losing::Cut),
    Loss(Lost::Request, Losing::ResetHalfway),
    Loss(Lost::Request, Losing::Silence),
    Loss(Lost::Answer, Losing::Cut),
    Loss(Lost::Answer, Losing::ResetHalfway),
    Loss(Lost::Answer, Losing::Silence),
];

/// Which message of a request is lost, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Loss(pub Lost, pub Losing);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lost {
    /// The server never receives the request.
    Request,
    /// The server has carried out the request.
    Answer,
}

impl Loss {
    /// Makes the next request of this kind lost in this way.
    pub fn of_next(self, proxy: &TcpProxy, request: ZooKeeperRequest) {
        match self {
            Self(Lost::Request, losing) => proxy.lose_request(request, losing),
            Self(Lost::Answer, losing) => proxy.lose_reply(request, losing),
        }
    }
}

/// Ends the servers that cases share.
pub fn end_shared() {
    let shared = std::mem::take(&mut *shared());
    drop(shared);
}

fn shared() -> MutexGuard<'static, Vec<(ServerOptions, Shared)>> {
    SHARED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The shared server with these options.
async fn shared_with(options: ServerOptions) -> Outcome<Arc<ZooKeeperServer>> {
    let server = {
        let mut shared = shared();
        if let Some((_, server)) = shared.iter().find(|(of_server, _)| *of_server == options) {
            Arc::clone(server)
        } else {
            let server = Shared::default();
            shared.push((options.clone(), Arc::clone(&server)));
            server
        }
    };
    let start = || async move { Ok(Arc::new(ZooKeeperServer::start_with(options).await?)) };
    server.get_or_try_init(start).await.cloned()
}

fn new_root() -> String {
    format!("/faults-{}", FOLDERS.fetch_add(1, Ordering::Relaxed))
}

/// A folder for locks at a server.
pub struct Stage {
    pub server: Arc<ZooKeeperServer>,
    pub root: String,
    _turn: Option<tokio::sync::MutexGuard<'static, ()>>,
}

impl Stage {
    /// A folder of its own at the shared server.
    pub async fn new() -> Outcome<Self> {
        // Empty directories stay, so that the requests that cases count do not depend on when the server last removed them.
        let options = ServerOptions::new().property("znode.container.checkIntervalMs", "3600000");
        Self::sharing(options.setting("enforceQuota", "true")).await
    }

    /// A folder of its own at the shared server with these options.
    pub async fn sharing(options: ServerOptions) -> Outcome<Self> {
        Ok(Self { server: shared_with(options).await?, root: new_root(), _turn: None })
    }

    /// A server that such cases share, in turns: an older one that checks two logins at the same moment may mix
    /// them up and refuse a password that is right (ZOOKEEPER-4839).
    pub async fn sharing_logins(options: ServerOptions) -> Outcome<Self> {
        let turn = LOGINS.lock().await;
        Ok(Self { server: shared_with(options).await?, root: new_root(), _turn: Some(turn) })
    }

    /// A server of its own.
    pub async fn with(options: ServerOptions) -> Outcome<Self> {
        let server = Arc::new(ZooKeeperServer::start_with(options).await?);
        Ok(Self { server, root: "/locks".to_owned(), _turn: None })
    }

    pub fn proxy(&self) -> Outcome<TcpProxy> {
        self.server.proxy()
    }

    /// The URL of the folder for clients with these options.
    pub fn url(&self, options: &str) -> String {
        self.url_at(self.server.address(), options)
    }

    /// The same through the proxy at `address`.
    pub fn url_at(&self, address: SocketAddr, options: &str) -> String {
        with_options(&self.server.url_of(&[address], &self.root, &[]), options)
    }

    /// The URL for a user with a password.
    pub fn url_as(&self, login: &str, options: &str) -> String {
        with_options(&format!("zookeeper://{login}@{}{}", self.server.address(), self.root), options)
    }

    /// A client with these options, directly at the server.
    pub async fn client(&self, options: &str) -> Outcome<LockClient> {
        Ok(connect_patiently(&self.url(options)).await?)
    }

    /// A client with these options, through the proxy at `address`.
    pub async fn client_at(&self, address: SocketAddr, options: &str) -> Outcome<LockClient> {
        Ok(connect_patiently(&self.url_at(address, options)).await?)
    }

    /// A client through the proxy at `address` whose clock stands still until the case advances it: no heartbeat of it is
    /// due before.
    pub async fn frozen_at(&self, address: SocketAddr, options: &str) -> Outcome<(LockClient, ManualClock)> {
        let (builder, time) = frozen();
        Ok((connect_as(&self.url_at(address, options), &builder).await?, time))
    }

    /// The same, directly at the server.
    pub async fn frozen(&self, options: &str) -> Outcome<(LockClient, ManualClock)> {
        self.frozen_at(self.server.address(), options).await
    }

    /// The directory of a lock.
    pub fn directory(&self, name: &str) -> String {
        format!("{}/{name}", self.root)
    }

    /// One node of the holder of and of each waiter for the lock `room`, in the order of the queue. Readers are left out.
    pub async fn nodes(&self) -> Outcome<Vec<String>> {
        let children = self.server.children(&self.directory(ROOM)).await?.unwrap_or_default();
        Ok(children.into_iter().filter(|name| name.contains("lock-")).collect())
    }

    /// The path of the node at this position in the queue of the lock `room`: the holder's is the first.
    pub async fn path(&self, position: usize) -> Outcome<String> {
        let nodes = self.nodes().await?;
        let name = nodes.get(position).ok_or_else(|| Failure::new(format!("too few nodes: {nodes:?}")))?;
        Ok(format!("{}/{name}", self.directory(ROOM)))
    }

    /// Deletes all nodes of the attempt at this position in the queue of the lock `room`.
    pub async fn delete_all_of(&self, position: usize) -> Outcome {
        /// `_c_`, a UUID and a hyphen.
        const MARK: usize = 40;
        let first = self.path(position).await?;
        let directory = self.directory(ROOM);
        let mark = first.get(directory.len() + 1..directory.len() + 1 + MARK).unwrap_or(&first);
        for name in self.server.children(&directory).await?.unwrap_or_default() {
            if name.starts_with(mark) {
                self.server.delete(&format!("{directory}/{name}")).await?;
            }
        }
        Ok(())
    }

    pub async fn node(&self, position: usize) -> Outcome<ZooKeeperNode> {
        let path = self.path(position).await?;
        self.server.node(&path).await?.ok_or_else(|| Failure::new(format!("{path} is gone")))
    }

    /// The session of the node at this position.
    pub async fn session(&self, position: usize) -> Outcome<i64> {
        self.node(position).await?.session.ok_or_else(|| Failure::new("the node belongs to no session"))
    }

    /// Waits until the lock `room` has this many nodes: one of the holder, and one of each waiter.
    pub async fn nodes_are(&self, count: usize) -> Outcome {
        until(&format!("{count} nodes"), || async { Ok(self.nodes().await?.len() == count) }).await
    }

    /// Makes the client acquire the lock `room`, and waits until it is in the queue, which then has `count` nodes.
    pub async fn in_line(&self, client: &LockClient, count: usize) -> Outcome<Waiter> {
        let waiter = Waiter::of(client)?;
        self.nodes_are(count).await?;
        Ok(waiter)
    }

    /// Waits until one of the nodes at these paths is watched in this session.
    pub async fn is_watched(&self, paths: &[String], session: i64) -> Outcome {
        until(&format!("one of {paths:?} is watched"), || async {
            for path in paths {
                if self.server.watchers(path).await?.contains(&session) {
                    return Ok(true);
                }
            }
            Ok(false)
        })
        .await
    }

    /// Waits until the waiter at this position watches one of its predecessors. If the one it had watched has gone, this means that
    /// it has found another one.
    pub async fn waits(&self, position: usize) -> Outcome {
        let mut before = Vec::new();
        for earlier in 0..position {
            before.push(self.path(earlier).await?);
        }
        self.is_watched(&before, self.session(position).await?).await
    }

    /// Waits until this path is gone.
    pub async fn is_gone(&self, path: &str) -> Outcome {
        until(&format!("{path} is gone"), || async { Ok(self.server.node(path).await?.is_none()) }).await
    }

    /// Checks that the holder of the lock `room` has exactly one node, which is the first and matches the token.
    pub async fn is_held_by(&self, guard: &LockGuard, when: impl fmt::Display) -> Outcome {
        let first = self.node(0).await?;
        let token = guard.token().map(FencingToken::get);
        ensure!(
            token == u64::try_from(first.created).ok(),
            "{when}: {token:?} holds, and first is {first:?}"
        );
        ensure!(guard.hold().is_valid(), "{when}: the hold has ended");
        Ok(())
    }

    /// Waits until nothing is left of the lock `room`. The session may remove its leftovers only after the caller has an answer.
    pub async fn nothing_is_left(&self, when: impl fmt::Display) -> Outcome {
        until(&format!("{when}: nothing is left"), || async { Ok(self.nodes().await?.is_empty()) }).await
    }

    /// Checks that nothing is left of the lock `room` now.
    pub async fn nothing_is_left_now(&self, when: impl fmt::Display) -> Outcome {
        let nodes = self.nodes().await?;
        ensure!(nodes.is_empty(), "{when}: {nodes:?} is left");
        Ok(())
    }

    /// Checks that the client can acquire and release the lock `room` now.
    pub async fn works(&self, client: &LockClient) -> Outcome {
        let guard = soon("the lock", client.mutex(ROOM)?.acquire()).await??;
        self.is_held_and_ends(guard).await
    }

    /// The same for a client whose time has to pass before it trusts its session: only then, because a release has to be
    /// answered within a time that would pass quickly.
    pub async fn works_as_time_passes(&self, client: &LockClient, time: &ManualClock) -> Outcome {
        let guard = as_time_passes(time, "the lock", client.mutex(ROOM)?.acquire()).await??;
        self.is_held_and_ends(guard).await
    }

    async fn is_held_and_ends(&self, guard: LockGuard) -> Outcome {
        self.is_held_by(&guard, "while it is held").await?;
        Ok(guard.release().await?)
    }

    /// Whether the server knows this session.
    pub async fn knows_session(&self, session: i64) -> Outcome<bool> {
        self.server.knows_session(session).await
    }
}
