//! A real server, for scenarios that talk to it without a runtime.
use std::time::Duration;

use redis::{Client, Connection};
use test_servers::{Data, RedisServer, ServerOptions};
use tokio::runtime::Runtime;

use crate::failure::Failure;

/// How long to wait for something that has to happen sooner or later.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The pause between two checks of something that sends no event.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// A server, which ends with this handle.
pub(crate) struct Server {
    redis: RedisServer,
    runtime: Runtime,
}

impl Server {
    /// Starts a server without persistence, with further settings.
    pub(crate) fn start(settings: &[(&str, &str)]) -> Result<Self, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let options =
            settings.iter().fold(ServerOptions::new(), |options, (name, value)| options.setting(name, value));
        let redis = runtime.block_on(RedisServer::start_with(options))?;
        Ok(Self { redis, runtime })
    }

    /// Kills the server, and starts it again empty at the same port.
    pub(crate) fn restart_empty(&self) -> Result<(), Failure> {
        Ok(self.runtime.block_on(self.redis.restart(Data::Lost))?)
    }

    /// Opens a connection.
    pub(crate) fn connect(&self) -> Result<Connection, Failure> {
        self.connect_as("")
    }

    /// Opens a connection as this user: `user:password@`, or nothing.
    pub(crate) fn connect_as(&self, credentials: &str) -> Result<Connection, Failure> {
        let client = Client::open(format!("redis://{credentials}{}/", self.redis.address()))?;
        let connection = client.get_connection_with_timeout(PATIENCE)?;
        connection.set_read_timeout(Some(PATIENCE))?;
        Ok(connection)
    }

    /// The port on the loopback interface.
    pub(crate) fn port(&self) -> u16 {
        self.redis.address().port()
    }
}
