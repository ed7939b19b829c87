//! The stage of a case: a database, clients of it, and observations of both from outside.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex as StdMutex, PoisonError, Weak};

pub use conformance_tests::faults::case::{cases, ensure};
pub use conformance_tests::faults::{PATIENCE, ROOM, Waiter, frozen, poll_times, soon, until, with_options};
use conformance_tests::{Failure, Outcome};
use lock_core::{ClientBuilder, LockClient, LockError, ManualClock};
use lock_kit::LockUrl;
use lock_postgres::key;
use test_servers::{PostgresServer, PostgresSession, Row, ServerOptions, TcpProxy};
use tokio::sync::Mutex;

/// A lease that outlasts every case, so that nothing happens because it ends.
pub const LONG: &str = "lease=10m";

/// A lease that outlasts every case, with frequent checks, so that holders notice at once what happened.
pub const WATCHFUL: &str = "lease=10m&validation_interval=50ms";

/// Ends with the last case that uses it.
static SERVER: Mutex<Weak<PostgresServer>> = Mutex::const_new(Weak::new());

static NUMBER: AtomicU64 = AtomicU64::new(0);

/// A client of the server that `url` names.
pub async fn connect(url: &str) -> Result<LockClient, LockError> {
    lock_postgres::connect(&LockUrl::parse(url)?, ClientBuilder::new()).await
}

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

fn options() -> ServerOptions {
    ServerOptions::new().user("locks", "secret", &[]).setting("max_connections", "300")
}

/// A database of its own, whose locks are no other's, and the server that has it.
pub struct Stage {
    /// The session of the last [query](Self::query): to connect costs more than most queries.
    idle: StdMutex<Option<PostgresSession>>,
    pub server: Arc<PostgresServer>,
    pub database: String,
}

impl Stage {
    /// A database of a server that other cases use. A case that harms the server has one [alone](Self::alone).
    pub async fn new() -> Outcome<Self> {
        let server = {
            let mut running = SERVER.lock().await;
            if let Some(server) = running.upgrade() {
                server
            } else {
                let server = Arc::new(PostgresServer::start_with(options()).await?);
                *running = Arc::downgrade(&server);
                server
            }
        };
        Self::on(server).await
    }

    /// A server of its own.
    pub async fn alone() -> Outcome<Self> {
        Self::with(options()).await
    }

    /// A server of its own with these options.
    pub async fn with(options: ServerOptions) -> Outcome<Self> {
        Self::on(Arc::new(PostgresServer::start_with(options).await?)).await
    }

    async fn on(server: Arc<PostgresServer>) -> Outcome<Self> {
        let database = format!("stage{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        server.query(&format!("CREATE DATABASE {database} OWNER locks")).await?;
        Ok(Self { idle: StdMutex::default(), server, database })
    }

    pub fn proxy(&self) -> Outcome<TcpProxy> {
        self.server.proxy(lock_postgres::operation_of)
    }

    /// The URL of the database for clients.
    pub fn url(&self) -> String {
        self.url_at(self.server.address())
    }

    /// The same through the proxy at `address`.
    pub fn url_at(&self, address: SocketAddr) -> String {
        format!("postgres://locks:secret@{address}/{}?tls=off", self.database)
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
        Ok((lock_postgres::connect(&LockUrl::parse(&url)?, builder).await?, time))
    }

    /// A connection of an administrator to the database.
    pub async fn session(&self) -> Outcome<PostgresSession> {
        self.server.session_in(&self.database).await
    }

    /// Runs statements that a new session may repeat: what harms the server ends the one before.
    pub async fn query(&self, statement: &str) -> Outcome<Vec<Row>> {
        let idle = || self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = idle().take();
        if let Some(mut session) = taken
            && let Ok(rows) = session.query(statement).await
        {
            *idle() = Some(session);
            return Ok(rows);
        }
        let mut session = self.session().await?;
        let rows = session.query(statement).await?;
        *idle() = Some(session);
        Ok(rows)
    }

    pub async fn values(&self, statement: &str) -> Outcome<Vec<String>> {
        Ok(self.query(statement).await?.into_iter().flatten().flatten().collect())
    }

    pub async fn number(&self, statement: &str) -> Outcome<u64> {
        let values = self.values(statement).await?;
        let number = values.first().and_then(|value| value.parse().ok());
        number.ok_or_else(|| Failure::new(format!("{statement:?} was answered {values:?}")))
    }

    /// The processes of the sessions that have locks of this database, or wait for them.
    async fn parties(&self, condition: &str) -> Outcome<Vec<String>> {
        let statement = format!(
            "SELECT pid FROM pg_locks JOIN pg_database ON pg_database.oid=database \
             WHERE datname=current_database() AND locktype='advisory' AND {condition} ORDER BY waitstart"
        );
        self.values(&statement).await
    }

    /// The process of the session that holds the lock, if any does.
    pub async fn holder_of(&self, name: &str) -> Outcome<Option<String>> {
        let bits = key(name).cast_unsigned();
        let (high, low) = (bits >> 32, bits & 0xffff_ffff);
        let holders = self.parties(&format!("granted AND classid={high}::oid AND objid={low}::oid")).await?;
        ensure!(holders.len() < 2, "{name} is held by {holders:?}");
        Ok(holders.into_iter().next())
    }

    /// The process of the session that holds the lock `room`.
    pub async fn holder(&self) -> Outcome<String> {
        self.holder_of(ROOM).await?.ok_or_else(|| Failure::new("the room is free"))
    }

    /// How many locks are held.
    pub async fn held(&self) -> Outcome<usize> {
        Ok(self.parties("granted").await?.len())
    }

    /// The processes of the sessions that wait for a lock, in order.
    pub async fn waiters(&self) -> Outcome<Vec<String>> {
        self.parties("NOT granted").await
    }

    /// Waits until this many sessions wait for a lock.
    pub async fn queued(&self, count: usize) -> Outcome {
        until(&format!("{count} wait"), || async { Ok(self.waiters().await?.len() == count) }).await
    }

    /// How many connections clients have.
    pub async fn connections(&self) -> Outcome<u64> {
        self.number(
            "SELECT count(*) FROM pg_stat_activity WHERE usename='locks' AND datname=current_database()",
        )
        .await
    }

    /// Ends a session, as an administrator would.
    pub async fn terminate(&self, process: &str) -> Outcome {
        self.query(&format!("SELECT pg_terminate_backend({process}, 10000)")).await.map(drop)
    }

    /// Cancels the statement of a session.
    pub async fn cancel(&self, process: &str) -> Outcome {
        self.query(&format!("SELECT pg_cancel_backend({process})")).await.map(drop)
    }

    /// Cancels the wait of the one session that waits. One that was cancelled before may be between two waits.
    pub async fn cancel_waiter(&self) -> Outcome {
        until("one waiter", || async {
            match &self.waiters().await?[..] {
                [waiter] => self.cancel(waiter).await.map(|()| true),
                _ => Ok(false),
            }
        })
        .await
    }

    /// Checks that the client can acquire and release the lock `room`.
    pub async fn works(&self, client: &LockClient) -> Outcome {
        let guard = soon("the lock", client.mutex(ROOM)?.acquire()).await??;
        Ok(guard.release().await?)
    }

    /// Checks that a client has left neither a waiter nor a lock.
    pub async fn nothing_is_left(&self, client: &LockClient, when: &str) -> Outcome {
        soon("the undoing", client.idle()).await?;
        until(&format!("{when}: no waiter is left"), || async { Ok(self.waiters().await?.is_empty()) })
            .await?;
        ensure!(self.holder_of(ROOM).await?.is_none(), "{when}: the lock is held");
        Ok(())
    }
}
