//! A server for a case, clients of it, and what can be seen of both from outside.

use std::net::SocketAddr;

pub use conformance_tests::faults::{ROOM, Waiter, poll_times, soon, until, with_options};
use conformance_tests::servers::{MySqlFlavour, MySqlOptions, MySqlServer, TcpProxy};
use conformance_tests::{Failure, Outcome};
use lock_core::{ClientBuilder, DistributedLockExt, LockClient, LockError, LockUrl};

/// A lease that outlasts every case: what happens at all does not happen because it ends.
pub const LONG: &str = "lease=10m";

/// A lease that outlasts every case, whose holders notice at once what happened.
pub const WATCHFUL: &str = "lease=10m&validation_interval=50ms";

/// For holders that are killed: they notice soon, and a MySQL 5.7 that does not notice frees their locks with the lease.
pub const KILLABLE: &str = "lease=8s&validation_interval=200ms";

/// A client of the server that `url` names.
pub async fn connect(url: &str) -> Result<LockClient, LockError> {
    lock_mysql::connect(&LockUrl::parse(url)?, ClientBuilder::new()).await
}

/// A server.
pub struct Stage {
    pub server: MySqlServer,
}

impl Stage {
    pub async fn new(flavour: MySqlFlavour) -> Outcome<Self> {
        Self::with(MySqlOptions::new(flavour)).await
    }

    /// A server with a database in which its user may keep a table.
    pub async fn with_table(flavour: MySqlFlavour) -> Outcome<Self> {
        let grants = ["CREATE, SELECT, INSERT, UPDATE ON locks.*"];
        Self::with(MySqlOptions::new(flavour).database("locks").user("app", "secret", &grants)).await
    }

    pub async fn with(options: MySqlOptions) -> Outcome<Self> {
        // It takes more memory than all the rest.
        let options = options.setting("performance-schema", "0");
        Ok(Self { server: MySqlServer::start_with(options).await? })
    }

    pub fn proxy(&self) -> Outcome<TcpProxy> {
        self.server.proxy(lock_mysql::operation_of)
    }

    /// A client with these options, straight to the server.
    pub async fn client(&self, options: &str) -> Outcome<LockClient> {
        Ok(connect(&with_options(&self.server.url(), options)).await?)
    }

    /// A client with these options that goes through whatever listens at `address`.
    pub async fn client_at(&self, address: SocketAddr, options: &str) -> Outcome<LockClient> {
        Ok(connect(&with_options(&self.server.url_at(address), options)).await?)
    }

    /// Where the server is, as in the log.
    pub fn place(&self) -> String {
        self.server.address().to_string()
    }

    pub async fn number(&self, statement: &str) -> Outcome<u64> {
        let value = self.server.value(statement).await?;
        let number = value.as_deref().and_then(|value| value.parse().ok());
        number.ok_or_else(|| Failure::new(format!("{statement:?} was answered {value:?}")))
    }

    /// The connection that holds the lock, if any does.
    pub async fn holder_of(&self, name: &str) -> Outcome<Option<String>> {
        self.server.value(&format!("SELECT IS_USED_LOCK('distlock:{name}')")).await
    }

    /// The connection that holds the room.
    pub async fn holder(&self) -> Outcome<String> {
        self.holder_of(ROOM).await?.ok_or_else(|| Failure::new("nobody holds the room"))
    }

    /// How many wait for a lock.
    pub async fn waiting(&self) -> Outcome<u64> {
        self.number("SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE STATE='User lock'").await
    }

    /// The connections that wait for a lock.
    pub async fn waiters(&self) -> Outcome<Vec<String>> {
        let rows = self
            .server
            .query("SELECT ID FROM information_schema.PROCESSLIST WHERE STATE='User lock'")
            .await?;
        Ok(rows.into_iter().flatten().flatten().collect())
    }

    /// Waits until so many wait.
    pub async fn queued(&self, count: u64) -> Outcome {
        until(&format!("{count} wait"), || async { Ok(self.waiting().await? == count) }).await
    }

    /// How many connections clients have.
    pub async fn connections(&self) -> Outcome<u64> {
        self.number(
            "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE USER NOT IN ('root','system user')",
        )
        .await
    }

    /// Checks that the room can be had and given back.
    pub async fn works(&self, client: &LockClient) -> Outcome {
        let guard = soon("the lock", client.lock(ROOM)?.acquire()).await??;
        Ok(guard.release().await?)
    }
}
