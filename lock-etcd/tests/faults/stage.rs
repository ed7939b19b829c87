//! A server for a case, its clients, and queries of what both do.

use std::net::SocketAddr;

use conformance_tests::faults::frozen;
pub use conformance_tests::faults::{PATIENCE, ROOM, Waiter, drop_after, soon, until, with_options};
use conformance_tests::{Failure, Outcome};
use lock_core::{ClientBuilder, LockClient, LockError, ManualClock};
use lock_kit::LockUrl;
use test_servers::{EtcdServer, ServerOptions};

use crate::case::ensure;

/// A lease that outlasts every case, so that nothing happens because it ends.
pub const LONG: &str = "lease=5m";

/// What the keys of the locks begin with.
pub const PREFIX: &str = "locks";

/// A client of the servers that `url` names.
pub async fn connect(url: &str) -> Result<LockClient, LockError> {
    lock_etcd::connect(&LockUrl::parse(url)?, ClientBuilder::new()).await
}

/// The same, also if a busy machine keeps the servers from answering for a while.
pub async fn reach(url: &str) -> Outcome<LockClient> {
    let builder = ClientBuilder::new().connect_timeout(PATIENCE);
    Ok(lock_etcd::connect(&LockUrl::parse(url)?, builder).await?)
}

/// The same with a clock that stands still: no answer is too late, and no keep-alive due, before the case advances it. Its lease has to
/// last at the servers for as long as the case takes.
pub async fn reach_frozen(url: &str) -> Outcome<(LockClient, ManualClock)> {
    let (builder, time) = frozen();
    Ok((lock_etcd::connect(&LockUrl::parse(url)?, builder).await?, time))
}

/// Waits until so many wait for the lock `ROOM`.
pub async fn waiting(client: &LockClient, count: usize) -> Outcome {
    // A busy server may not answer in time.
    let waits = || async { Ok(client.status(ROOM).await.is_ok_and(|status| status.waiters.len() == count)) };
    until(&format!("{count} wait"), waits).await
}

/// The lease that the name of a key says: that of `etcdctl` ends with it.
pub fn lease_of(key: &str) -> &str {
    let name = key.rsplit('/').next().unwrap_or_default();
    name.split('-').next().unwrap_or_default()
}

/// How long a server says that the lease of a key lasts; it says whole seconds, and leaves the rest out.
pub async fn seconds_left(server: &EtcdServer, key: &str) -> Outcome<u64> {
    let told = server.command(&["lease", "timetolive", lease_of(key)]).await?;
    let left = told.split_once("remaining(").and_then(|(_, rest)| rest.split_once('s')?.0.parse().ok());
    left.ok_or_else(|| Failure::new(told))
}

/// The server of one case.
pub struct Stage {
    pub server: EtcdServer,
}

impl Stage {
    pub async fn new() -> Outcome<Self> {
        Self::with(ServerOptions::new()).await
    }

    pub async fn with(options: ServerOptions) -> Outcome<Self> {
        Ok(Self { server: EtcdServer::start_with(options).await? })
    }

    /// A client with these options, connected directly to the server.
    pub async fn client(&self, options: &str) -> Outcome<LockClient> {
        reach(&with_options(&self.server.url(PREFIX), options)).await
    }

    /// A client with these options that connects to `address`, usually a proxy.
    pub async fn client_at(&self, address: SocketAddr, options: &str) -> Outcome<LockClient> {
        reach(&with_options(&self.server.url_at(&[address], PREFIX), options)).await
    }

    /// The keys of the lock `ROOM`, in the order of their creation.
    pub async fn line(&self) -> Outcome<Vec<String>> {
        self.server.keys(&format!("{PREFIX}/{ROOM}/")).await
    }

    /// Waits until the lock `ROOM` has so many keys.
    pub async fn in_line(&self, count: usize) -> Outcome {
        until(&format!("{count} in the line"), || async { Ok(self.line().await?.len() == count) }).await
    }

    /// The number of the lease of the first in the line.
    pub async fn lease_of_holder(&self) -> Outcome<String> {
        let line = self.line().await?;
        let lease = line.first().map(|key| lease_of(key));
        lease.map(str::to_owned).ok_or_else(|| Failure::new("the lock is free"))
    }

    /// Whether a key has the lease that its name says.
    pub async fn has_lease(&self, key: &str) -> Outcome<bool> {
        let told = self.server.command(&["lease", "timetolive", "--keys", lease_of(key)]).await?;
        Ok(told.contains(key))
    }

    /// Checks that the lock can be had, and that nothing is left then.
    pub async fn is_free(&self, client: &LockClient, when: &str) -> Outcome {
        let guard = soon(format!("{when}: the lock"), client.mutex(ROOM)?.acquire()).await??;
        guard.release().await?;
        let line = self.line().await?;
        ensure!(line.is_empty(), "{when}: {line:?} is left");
        Ok(())
    }
}
