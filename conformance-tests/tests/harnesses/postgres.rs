//! The harnesses of the PostgreSQL backend: one real server for each test program, or the one of `DISTLOCK_TEST_POSTGRES`, and a proxy in front of it for each case.
#![allow(dead_code, reason = "each program uses only one of them")]

#[macro_use]
#[path = "proxied.rs"]
mod proxied;

use std::net::SocketAddr;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use conformance_tests::{Ability, Failure, Harness, Losing, Outcome, Removal, Routes, ServerChange, Silence};
use lock_core::{ClientBuilder, EngineChoice, LockClient, LockError, LockName, LossReason, Operation};
use proxied::{Place, Running, Server, unique};
use test_servers::{
    Data, Direction, PostgresConversation, PostgresServer, PostgresSession, ServerOptions, TcpProxy, left_out,
};
use tokio::sync::Mutex;

/// Long enough for a busy machine to renew in time, short enough to wait for its end.
const LEASE: Duration = Duration::from_secs(12);

/// Outlasts every case.
const LASTING: Duration = Duration::from_secs(600);

/// What the harness lacks at any server.
const fn lacks(ability: Ability) -> Option<&'static str> {
    match ability {
        Ability::SilentWaiters => Some("a session that waits for a lock is never idle"),
        _ => None,
    }
}

/// No busy server takes this long for an answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Locks need no permission; the user may create the table of slots.
pub(crate) struct Postgres(Fixture);

/// Tokens come from a table.
pub(crate) struct PostgresTable(Fixture);

/// A database, whose locks are no other case's, a proxy and a prefix for names that no other case uses.
struct Fixture {
    server: Server<PostgresServer>,
    proxy: TcpProxy,
    /// Empty at a given server, whose URL names one.
    database: String,
    prefix: String,
    fencing: &'static str,
    /// The session that has stolen locks, which are held as long as it exists.
    thief: Mutex<Option<PostgresSession>>,
}

async fn connect(address: &str, builder: ClientBuilder) -> Result<LockClient, LockError> {
    distlock::connect_with(address, builder).await
}

static RUNNING: Mutex<Running<PostgresServer>> = Running::none();

async fn server(place: Place) -> Outcome<Server<PostgresServer>> {
    let options = ServerOptions::new()
        .user("plain", "secret", &[])
        .user("locks", "secret", &[])
        .setting("max_connections", "1000");
    let start = async || PostgresServer::start_with(options).await;
    Server::find(place, "postgres", &["postgres", "postgresql"], &RUNNING, start).await
}

/// Databases that no case uses, with the addresses of their servers: to create one costs more than most cases.
static FREE: std::sync::Mutex<Vec<(SocketAddr, String)>> = std::sync::Mutex::new(Vec::new());

fn free() -> MutexGuard<'static, Vec<(SocketAddr, String)>> {
    FREE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn free_at(address: SocketAddr) -> Option<String> {
    let mut free = free();
    let place = free.iter().position(|(of, _)| *of == address)?;
    Some(free.remove(place).1)
}

/// Returns a database in which nothing is locked.
async fn database(server: &PostgresServer) -> Outcome<String> {
    while let Some(name) = free_at(server.address()) {
        if leftovers(server, &name).await.is_ok_and(|left| left.is_empty()) {
            return Ok(name);
        }
    }
    let name = unique();
    server.query(&format!("CREATE DATABASE {name} OWNER locks")).await?;
    server.session_in(&name).await?.query("GRANT CREATE ON SCHEMA public TO plain").await?;
    Ok(name)
}

/// The locks that are held or waited for.
async fn leftovers(server: &PostgresServer, database: &str) -> Outcome<Vec<String>> {
    let locks = "SELECT concat_ws(' ','advisory lock',classid,objid,'granted',granted,'of',pid) \
                 FROM pg_locks JOIN pg_database ON pg_database.oid=database \
                 WHERE datname=current_database() AND locktype='advisory'";
    let rows = server.session_in(database).await?.query(locks).await?;
    Ok(rows.into_iter().flatten().flatten().collect())
}

impl Drop for Fixture {
    fn drop(&mut self) {
        if let Server::Own(server) = &self.server {
            free().push((server.address(), std::mem::take(&mut self.database)));
        }
    }
}

impl Fixture {
    async fn start(place: Place, fencing: &'static str) -> Outcome<Self> {
        let server = server(place).await?;
        let (address, database) = match &server {
            Server::Own(server) => (server.address(), database(server).await?),
            Server::Given(server) => (server.address(), String::new()),
        };
        // A break is the statement that ends the session, not those that look for it.
        let operation_of = |statement: &str| {
            distlock::postgres::operation_of(statement).filter(|operation| {
                *operation != Operation::Break || statement.contains("pg_terminate_backend")
            })
        };
        let proxy =
            TcpProxy::with_conversation(address, move || Box::new(PostgresConversation::new(operation_of)))?;
        Ok(Self { server, proxy, database, prefix: unique(), fencing, thief: Mutex::default() })
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
        let (prefix, fencing) = (&self.prefix, self.fencing);
        let user = if fencing == "table" { "locks" } else { "plain" };
        let url = match &self.server {
            Server::Own(_) => format!("postgres://{user}:secret@{address}/{}?", self.database),
            Server::Given(server) => server.url_at(address, ""),
        };
        let patience = PATIENCE.as_secs();
        let lease = lease.as_secs();
        format!("{url}prefix={prefix}&lease={lease}s&fencing={fencing}&connect_timeout={patience}s")
    }

    async fn value(&self, statement: &str) -> Outcome<Option<String>> {
        let rows = self.server.own()?.session_in(&self.database).await?.query(statement).await?;
        Ok(rows.into_iter().flatten().flatten().next())
    }

    /// Returns the process of the session that holds the lock.
    async fn holder(&self, key: i64) -> Outcome<Option<String>> {
        let key = key.cast_unsigned();
        let (high, low) = (key >> 32, key & 0xffff_ffff);
        self.value(&format!(
            "SELECT pid FROM pg_locks JOIN pg_database ON oid=database WHERE datname=current_database() \
             AND locktype='advisory' AND granted AND classid={high}::oid AND objid={low}::oid AND objsubid=1"
        ))
        .await
    }

    async fn restart(&self) -> Outcome {
        self.server.own()?.restart(Data::Kept).await
    }

    async fn take_away(&self, name: &LockName, removal: Removal) -> Outcome {
        let key = distlock::postgres::key(&format!("{}:{}", self.prefix, name.as_str()));
        let free = || Failure::new(format!("{name:?} is free"));
        let holder = self.holder(key).await?.ok_or_else(free)?;
        // It may be the thief.
        drop(self.thief.lock().await.take());
        self.server.own()?.query(&format!("SELECT pg_terminate_backend({holder})")).await?;
        while self.holder(key).await?.as_ref() == Some(&holder) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        if removal == Removal::Theft {
            let mut thief = self.server.own()?.session_in(&self.database).await?;
            let rows = thief.query(&format!("SELECT pg_try_advisory_lock({key})")).await?;
            if rows != [[Some("t".to_owned())]] {
                return Err(Failure::new(format!("{name:?} was not free for the thief")));
            }
            *self.thief.lock().await = Some(thief);
        }
        Ok(())
    }

    async fn leftovers(&self) -> Outcome<Vec<String>> {
        leftovers(self.server.own()?, &self.database).await
    }
}

/// What depends on the source of tokens, and on the table.
const TOKENS: &[&str] = &["tokens", "inspection", "breaking", "remembering", "once", "election", "options"];

/// They differ in the source of tokens.
macro_rules! harness {
    ($harness:ident, $fencing:expr, $differs:expr) => {
        proxied_harness! {
            $harness,
            left_out: left_out("postgres"),
            start: |place| Fixture::start(place, $fencing),
            requests: Outcome::Ok,

            fn routes(&self) -> Routes {
                Routes::Several
            }

            fn differs_in() -> Option<&'static [&'static str]> {
                $differs
            }

            fn engine(&self) -> EngineChoice {
                if Self::differs_in().is_some() { EngineChoice::Caller } else { EngineChoice::Own }
            }

            /// The client only sees that the session has ended, not why.
            fn reason_of_a_break(&self) -> Option<LossReason> {
                None
            }

            /// Connections are kept, as when a network fails: a lock would end with its connection.
            async fn sever(&self) -> Outcome {
                self.0.proxy.blackhole(Direction::ToServer);
                self.0.proxy.blackhole(Direction::ToClient);
                Ok(())
            }
        }
    };
}

harness!(Postgres, "clock", None);
harness!(PostgresTable, "table", Some(TOKENS));
