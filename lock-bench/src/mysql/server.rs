//! Starts the servers of a run: those of the tests, on free ports of the loopback address.

use test_servers::{MySqlFlavour, MySqlOptions, MySqlServer};

use crate::failure::{Context, Failure, Outcome};
use crate::runtimes::RuntimeKind;
use crate::subject::Server;

/// Enough for a thousand waiters that each have a second connection for requests that do not wait.
const MAX_CONNECTIONS: &str = "4000";

pub(super) fn mariadb() -> Outcome<Box<dyn Server>> {
    start(MySqlFlavour::MariaDb)
}

pub(super) fn mysql57() -> Outcome<Box<dyn Server>> {
    start(MySqlFlavour::MySql57)
}

/// There is no server to start if the user has given a URL.
pub(super) fn none() -> Outcome<Box<dyn Server>> {
    Err(Failure::new("a server of this kind is named with --url"))
}

/// Starts a server and waits until it answers.
fn start(flavour: MySqlFlavour) -> Outcome<Box<dyn Server>> {
    let options = MySqlOptions::new(flavour).setting("max_connections", MAX_CONNECTIONS);
    let starting = async {
        let server = MySqlServer::start_with(options).await;
        server.context("no server of its own (--url names another)")
    };
    Ok(Box::new(RuntimeKind::CurrentThread.run(starting)?))
}

impl Server for MySqlServer {
    fn url(&self) -> String {
        self.url()
    }

    fn process(&self) -> u32 {
        self.pid()
    }
}
