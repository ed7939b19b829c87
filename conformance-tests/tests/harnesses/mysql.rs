//! The harnesses of the MySQL backend: one real server for each test program, or the one of `DISTLOCK_TEST_MYSQL` or
//! `DISTLOCK_TEST_MARIADB`, and a proxy in front of it for each case.
#![allow(dead_code, reason = "each program uses only one of the four")]

#[macro_use]
#[path = "proxied.rs"]
mod proxied;

use std::net::SocketAddr;
use std::time::Duration;

use async_trait::async_trait;
use conformance_tests::{Ability, Failure, Harness, Losing, Outcome, Removal, Routes, ServerChange, Silence};
use lock_core::{ClientBuilder, EngineChoice, LockClient, LockError, LockName, LossReason, Operation};
use proxied::{Place, Running, Server, unique};
use test_servers::{
    Data, Direction, MySqlConversation, MySqlFlavour, MySqlServer, MySqlSession, ServerOptions, TcpProxy,
};
use tokio::sync::Mutex;

/// Long enough for a machine that stands still for seconds to renew in time, short enough to wait for its end.
const LEASE: Duration = Duration::from_secs(12);

/// Outlasts every case.
const LASTING: Duration = Duration::from_secs(600);

/// A waiter is a connection, and each grant with a table a transaction: a busy machine takes long.
const PATIENCE: Duration = Duration::from_secs(60);

/// What the harness lacks at any server.
const fn lacks(_: Ability) -> Option<&'static str> {
    None
}

/// A server whose users need no permissions.
pub(crate) struct MariaDb(Fixture);

/// A server with a table of holders.
pub(crate) struct MariaDbTable(Fixture);

/// Like [`MariaDb`].
pub(crate) struct MySql57(Fixture);

/// Like [`MariaDbTable`].
pub(crate) struct MySql57Table(Fixture);

/// A prefix for names and a proxy that no other case uses.
struct Fixture {
    server: Server<MySqlServer>,
    proxy: TcpProxy,
    prefix: String,
    flavour: MySqlFlavour,
    fencing: &'static str,
    /// The session that has stolen locks, which are held as long as it exists.
    thief: Mutex<Option<MySqlSession>>,
}

async fn connect(address: &str, builder: ClientBuilder) -> Result<LockClient, LockError> {
    distlock::connect_with(address, builder).await
}

static RUNNING: Mutex<Running<MySqlServer>> = Running::none();

async fn server(place: Place, flavour: MySqlFlavour) -> Outcome<Server<MySqlServer>> {
    // Makes every lock visible, which only the harness needs.
    let (name, value, variable) = match flavour {
        MySqlFlavour::MariaDb => ("plugin-load-add", "metadata_lock_info", "mariadb"),
        MySqlFlavour::MySql57 => ("performance-schema-instrument", "wait/lock/metadata/sql/mdl=ON", "mysql"),
    };
    let options = ServerOptions::new()
        .flavour(flavour)
        .database("locks")
        .user("plain", "secret", &[])
        .user("locks", "secret", &["CREATE, SELECT, INSERT, UPDATE, DELETE ON locks.*"])
        .setting(name, value)
        .setting("max_connections", "2000");
    let start = async || MySqlServer::start_with(options).await;
    Server::find(place, variable, &["mysql", "mariadb"], &RUNNING, start).await
}

impl Fixture {
    async fn start(place: Place, flavour: MySqlFlavour, fencing: &'static str) -> Outcome<Self> {
        let server = server(place, flavour).await?;
        let address = match &server {
            Server::Own(server) => server.address(),
            Server::Given(server) => server.address(),
        };
        // A break is the statement that ends the connection, not those that look for it.
        let operation_of = |statement: &str| {
            distlock::mysql::operation_of(statement)
                .filter(|operation| *operation != Operation::Break || statement.contains("KILL"))
        };
        let proxy =
            TcpProxy::with_conversation(address, move || Box::new(MySqlConversation::new(operation_of)))?;
        let prefix = unique();
        Ok(Self { server, proxy, prefix, flavour, fencing, thief: Mutex::default() })
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
        let (user, database) = if self.fencing == "table" { ("locks", "locks") } else { ("plain", "") };
        let url = match &self.server {
            Server::Own(_) => format!("mysql://{user}:secret@{address}/{database}?"),
            Server::Given(server) => server.url_at(address, ""),
        };
        let (lease, patience, prefix) = (lease.as_secs(), PATIENCE.as_secs(), &self.prefix);
        format!("{url}lease={lease}s&prefix={prefix}&fencing={}&connect_timeout={patience}s", self.fencing)
    }

    /// Returns the name on the server. The names that the suite takes away are not changed by the mapping.
    fn physical(&self, name: &LockName) -> String {
        format!("{}:{}", self.prefix, name.as_str())
    }

    async fn holder(&self, physical: &str) -> Outcome<Option<String>> {
        self.server.own()?.value(&format!("SELECT IS_USED_LOCK('{physical}')")).await
    }

    /// Ends a connection, if possible without `KILL`. If a MySQL 5.7 gets a `KILL` at the very moment at which it returns to
    /// reading, it may keep the connection, and its locks, until the lease is over.
    async fn end(&self, connection: &str) -> Outcome {
        let peer = format!("SELECT HOST FROM information_schema.PROCESSLIST WHERE ID={connection}");
        let peer = self.server.own()?.value(&peer).await?.unwrap_or_default();
        let port = peer.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        if !port.is_some_and(|port| self.proxy.cut_from(port)) {
            // A thief, or a connection that has ended meanwhile.
            drop(self.thief.lock().await.take());
        }
        Ok(())
    }

    async fn restart(&self) -> Outcome {
        self.server.own()?.restart(Data::Kept).await
    }

    async fn take_away(&self, name: &LockName, removal: Removal) -> Outcome {
        let physical = self.physical(name);
        let free = || Failure::new(format!("{name:?} is free"));
        let holder = self.holder(&physical).await?.ok_or_else(free)?;
        self.end(&holder).await?;
        while self.holder(&physical).await?.as_ref() == Some(&holder) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        if removal == Removal::Theft {
            let mut thief = self.server.own()?.session().await?;
            let rows = thief.query(&format!("SELECT GET_LOCK('{physical}', 0)")).await?;
            if rows != [[Some("1".to_owned())]] {
                return Err(Failure::new(format!("{name:?} was not free for the thief")));
            }
            *self.thief.lock().await = Some(thief);
        }
        Ok(())
    }

    /// The locks that are held or waited for.
    async fn leftovers(&self) -> Outcome<Vec<String>> {
        let (prefix, start) = (&self.prefix, self.prefix.len() + 1);
        let locks = match self.flavour {
            MySqlFlavour::MariaDb => format!(
                "SELECT TABLE_SCHEMA FROM information_schema.METADATA_LOCK_INFO \
                 WHERE LOCK_TYPE='User lock' AND LEFT(TABLE_SCHEMA,{start})='{prefix}:'"
            ),
            MySqlFlavour::MySql57 => format!(
                "SELECT OBJECT_NAME FROM performance_schema.metadata_locks \
                 WHERE OBJECT_TYPE='USER LEVEL LOCK' AND LEFT(OBJECT_NAME,{start})='{prefix}:'"
            ),
        };
        let waiters = format!(
            "SELECT INFO FROM information_schema.PROCESSLIST \
             WHERE STATE='User lock' AND LOCATE(CONCAT(CHAR(39),'{prefix}:'),INFO)>0"
        );
        let mut left: Vec<_> =
            self.server.own()?.query(&locks).await?.into_iter().flatten().flatten().collect();
        let waiting = self.server.own()?.query(&waiters).await?.into_iter().flatten().flatten();
        left.extend(waiting.map(|statement| format!("a waiter: {statement}")));
        Ok(left)
    }
}

/// What depends on the source of tokens, and on the table.
const TOKENS: &[&str] = &["tokens", "inspection", "breaking", "remembering", "once", "election", "options"];

/// They differ in the server and in the source of tokens.
macro_rules! harness {
    ($harness:ident, $flavour:expr, $fencing:expr, $differs:expr) => {
        proxied_harness! {
            $harness,
            left_out: $flavour.left_out(),
            start: |place| Fixture::start(place, $flavour, $fencing),
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

            /// The client only sees that the connection is gone, not why.
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

harness!(MariaDb, MySqlFlavour::MariaDb, "uuid", None);
harness!(MariaDbTable, MySqlFlavour::MariaDb, "table", Some(TOKENS));
harness!(MySql57, MySqlFlavour::MySql57, "uuid", Some(TOKENS));
harness!(MySql57Table, MySqlFlavour::MySql57, "table", Some(TOKENS));
