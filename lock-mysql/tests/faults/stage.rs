//! The stage of a case: a server, clients of it, and observations of both from outside.

use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

pub use conformance_tests::faults::{
    INTERVALS, ROOM, Waiter, as_time_passes, frozen, outlast, poll_times, soon, until, with_options,
};
use conformance_tests::{Failure, Outcome};
use lock_core::{ClientBuilder, LockClient, LockError, ManualClock};
use lock_kit::LockUrl;
use test_servers::{MySqlFlavour, MySqlSession, Row, ServerOptions, TcpProxy};

use crate::servers::Server;

/// A lease that outlasts every case, so that nothing happens because it ends, and time for a busy machine to answer.
pub const LONG: &str = "lease=10m&timeout=15s";

/// The same for a client whose time jumps: a request may take as long as it may in any lease, three quarters of an interval.
pub const FROZEN: &str = "lease=10m&timeout=9m";

/// After so long by the client's clock a hold or a wait with such a lease is checked.
pub const INTERVAL: Duration = Duration::from_secs(151);

/// A lease that outlasts every case, with frequent checks, so that holders notice at once what happened.
pub const WATCHFUL: &str = "lease=10m&validation_interval=50ms";

/// For holders that are killed: they notice soon, and if a MySQL 5.7 does not notice, it frees their locks with the lease.
pub const KILLABLE: &str = "lease=20s&validation_interval=200ms";

/// For sessions that are killed while they work: a MySQL 5.7 that does not notice ends them with the lease.
pub const ENDED_SOON: &str = "lease=30s";

/// Switches `performance_schema` off, which takes more memory than all the rest.
fn thrifty(options: ServerOptions) -> ServerOptions {
    options.setting("performance-schema", "0")
}

/// The number in the answer to a statement.
pub fn number_of(statement: &str, rows: Vec<Row>) -> Outcome<u64> {
    let value = rows.into_iter().flatten().flatten().next();
    let number = value.as_deref().and_then(|value| value.parse().ok());
    number.ok_or_else(|| Failure::new(format!("{statement:?} was answered {value:?}")))
}

/// A client of the server that `url` names.
pub async fn connect(url: &str) -> Result<LockClient, LockError> {
    lock_mysql::connect(&LockUrl::parse(url)?, ClientBuilder::new()).await
}

/// Whom a case may change.
pub const GUEST: &str = "'guest'@'127.0.0.1'";

/// Like [`connect`], repeated while a busy machine keeps the server from answering in time.
pub async fn reach(url: &str) -> Outcome<LockClient> {
    let connecting = async {
        loop {
            match connect(url).await {
                Err(error) if error.is_retryable() => {}
                answer => return answer,
            }
        }
    };
    Ok(soon("a connection", connecting).await??)
}

/// A server, and the login of its clients.
pub struct Stage {
    /// The session of the last [query](Self::query): to connect costs more than most queries.
    idle: Mutex<Option<MySqlSession>>,
    pub server: Server,
    /// User and database of the clients; `None` for those in the server's own URL.
    login: Option<(String, &'static str)>,
}

impl Stage {
    /// A server that earlier cases may have used, with a user without privileges. A case that changes what [`Server`] does not set
    /// right again has one [alone](Self::alone).
    pub async fn new(flavour: MySqlFlavour) -> Outcome<Self> {
        Self::shared(flavour, "locks:secret", "").await
    }

    /// Like [`Self::new`], with a user who may keep a table in a database.
    pub async fn with_table(flavour: MySqlFlavour) -> Outcome<Self> {
        Self::shared(flavour, "app:secret", "locks").await
    }

    /// Like [`Self::new`], with the user `guest`, who has this password and these rights, and whom the case may change.
    pub async fn as_guest(
        flavour: MySqlFlavour,
        password: &str,
        database: &'static str,
        rights: &[&str],
    ) -> Outcome<Self> {
        let stage = Self::shared(flavour, &format!("guest:{password}"), database).await?;
        stage.server.query(&format!("CREATE USER {GUEST} IDENTIFIED BY '{password}'")).await?;
        for right in rights {
            stage.server.query(&format!("GRANT {right} TO {GUEST}")).await?;
        }
        Ok(stage)
    }

    /// Like [`Self::new`]. There are also a user `plain` without a password, and `maker`, who may do everything with the database.
    async fn shared(flavour: MySqlFlavour, login: &str, database: &'static str) -> Outcome<Self> {
        let options = ServerOptions::new()
            .flavour(flavour)
            .database("locks")
            .user("locks", "secret", &[])
            .user("app", "secret", &["CREATE, SELECT, INSERT, UPDATE ON locks.*"])
            .user("maker", "secret", &["ALL ON locks.*"])
            .user("plain", "", &[]);
        let server = Server::shared(flavour, thrifty(options)).await?;
        Ok(Self { idle: Mutex::default(), server, login: Some((login.to_owned(), database)) })
    }

    /// A server of its own, with a user without privileges.
    pub async fn alone(flavour: MySqlFlavour) -> Outcome<Self> {
        Self::with(ServerOptions::new().flavour(flavour)).await
    }

    /// A server of its own with these options.
    pub async fn with(options: ServerOptions) -> Outcome<Self> {
        Ok(Self { idle: Mutex::default(), server: Server::alone(thrifty(options)).await?, login: None })
    }

    pub fn proxy(&self) -> Outcome<TcpProxy> {
        self.server.proxy(lock_mysql::operation_of)
    }

    /// The URL of the server for clients.
    pub fn url(&self) -> String {
        self.url_at(self.server.address())
    }

    /// The same through the proxy at `address`.
    pub fn url_at(&self, address: SocketAddr) -> String {
        match &self.login {
            Some((login, database)) => format!("mysql://{login}@{address}/{database}?tls=off"),
            None => self.server.url_at(address),
        }
    }

    /// A client with these options, directly at the server.
    pub async fn client(&self, options: &str) -> Outcome<LockClient> {
        reach(&with_options(&self.url(), options)).await
    }

    /// A client with these options, through the proxy at `address`.
    pub async fn client_at(&self, address: SocketAddr, options: &str) -> Outcome<LockClient> {
        reach(&with_options(&self.url_at(address), options)).await
    }

    /// A client with these options, through the proxy at `address`, whose clock stands still until the case advances it.
    pub async fn frozen_at(&self, address: SocketAddr, options: &str) -> Outcome<(LockClient, ManualClock)> {
        let (builder, time) = frozen();
        let url = with_options(&self.url_at(address), options);
        Ok((lock_mysql::connect(&LockUrl::parse(&url)?, builder).await?, time))
    }

    /// The server's address, as in the log.
    pub fn place(&self) -> String {
        self.server.address().to_string()
    }

    /// Runs a statement that a new session may repeat. Where a case has the server alone, it may count connections, so that none
    /// is kept.
    async fn query(&self, statement: &str) -> Outcome<Vec<Row>> {
        if self.login.is_none() {
            return self.server.query(statement).await;
        }
        let idle = || self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = idle().take();
        if let Some(mut session) = taken
            && let Ok(rows) = session.query(statement).await
        {
            *idle() = Some(session);
            return Ok(rows);
        }
        let mut session = self.server.session().await?;
        let rows = session.query(statement).await?;
        *idle() = Some(session);
        Ok(rows)
    }

    pub async fn number(&self, statement: &str) -> Outcome<u64> {
        number_of(statement, self.query(statement).await?)
    }

    /// The connection that holds the lock, if any does.
    pub async fn holder_of(&self, name: &str) -> Outcome<Option<String>> {
        let rows = self.query(&format!("SELECT IS_USED_LOCK('distlock:{name}')")).await?;
        Ok(rows.into_iter().flatten().next().flatten())
    }

    /// The connection that holds the lock `room`.
    pub async fn holder(&self) -> Outcome<String> {
        self.holder_of(ROOM).await?.ok_or_else(|| Failure::new("the room is free"))
    }

    /// How many connections wait for a lock.
    pub async fn waiting(&self) -> Outcome<u64> {
        self.number("SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE STATE='User lock'").await
    }

    /// The connections that wait for a lock.
    pub async fn waiters(&self) -> Outcome<Vec<String>> {
        let rows =
            self.query("SELECT ID FROM information_schema.PROCESSLIST WHERE STATE='User lock'").await?;
        Ok(rows.into_iter().flatten().flatten().collect())
    }

    /// Waits until this many connections wait for a lock.
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

    /// Checks that the client can acquire and release the lock `room`.
    pub async fn works(&self, client: &LockClient) -> Outcome {
        let guard = soon("the lock", client.mutex(ROOM)?.acquire()).await??;
        Ok(guard.release().await?)
    }
}
