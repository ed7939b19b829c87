//! Connections through the crate `redis`, driven by the caller's runtime or by another thread.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{AsyncConnectionConfig, ConnectionInfo, IntoConnectionInfo};

use crate::contender::Driving;
use crate::driving::Driven;
use crate::failure::{Context, Outcome};

/// Long, so that a machine that hangs for a moment does not end a measurement.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// Parses the URL, and turns Nagle's algorithm off.
pub(super) fn information(url: &str) -> Outcome<ConnectionInfo> {
    let information = url.into_connection_info().context("the URL of the server")?;
    Ok(information.set_tcp_settings(TcpSettings::default().set_nodelay(true)))
}

/// A connection that ends when this is dropped.
pub(super) type Connection = Driven<MultiplexedConnection>;

pub(super) async fn open(url: &str, driving: Driving) -> Outcome<Connection> {
    Driven::open(driving, connect(url.to_owned())).await
}

async fn connect(url: String) -> Outcome<MultiplexedConnection> {
    let client = redis::Client::open(information(&url)?).context("the URL of the server")?;
    let settings = AsyncConnectionConfig::new().set_response_timeout(Some(ANSWER_WITHIN));
    let connecting = client.get_multiplexed_async_connection_with_config(&settings);
    connecting.await.context("connecting to the server")
}
