//! Starts the server of a run: the one of the tests, on a free port of the loopback address.

use test_servers::{PostgresOptions, PostgresServer};

use crate::failure::{Context, Outcome};
use crate::runtimes::RuntimeKind;
use crate::subject::Server;

/// Enough for a client of each waiter with a second connection for requests that do not wait.
const MAX_CONNECTIONS: &str = "500";

/// Enough for ten thousand holds.
const LOCKS_FOR_A_CONNECTION: &str = "64";

/// Starts a server that counts statements, and waits until it answers.
pub(super) fn start() -> Outcome<Box<dyn Server>> {
    let options = PostgresOptions::new()
        .user("locks", "secret", &["pg_read_all_stats"])
        .setting("max_connections", MAX_CONNECTIONS)
        .setting("max_locks_per_transaction", LOCKS_FOR_A_CONNECTION)
        .setting("shared_preload_libraries", "pg_stat_statements");
    let starting = async {
        let server = PostgresServer::start_with(options).await;
        let server = server.context("no server of its own (--url names another)")?;
        let counts = server.query("CREATE EXTENSION pg_stat_statements").await;
        counts.context("the server cannot count statements")?;
        Outcome::Ok(server)
    };
    Ok(Box::new(RuntimeKind::CurrentThread.run(starting)?))
}

impl Server for PostgresServer {
    fn url(&self) -> String {
        self.url()
    }

    fn process(&self) -> u32 {
        self.pid()
    }
}
