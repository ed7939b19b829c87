//! Connections through the crate `redis`, driven by the caller's runtime or by another thread.

use std::thread;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{AsyncConnectionConfig, ConnectionInfo, IntoConnectionInfo};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use crate::contender::Driving;
use crate::failure::{Context, Outcome};

/// Long, because a machine that stands still for a moment is no reason to end a measurement.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// What the URL names, without Nagle's delay.
pub(super) fn information(url: &str) -> Outcome<ConnectionInfo> {
    let information = url.into_connection_info().context("the URL of the server")?;
    Ok(information.set_tcp_settings(TcpSettings::default().set_nodelay(true)))
}

/// A connection that ends with this.
pub(super) struct Connection {
    pub(super) commands: MultiplexedConnection,
    /// The thread that drives it, if it is not the caller's.
    _thread: Option<DrivingThread>,
}

impl Connection {
    pub(super) async fn open(url: &str, driving: Driving) -> Outcome<Self> {
        match driving {
            Driving::Caller => Ok(Self { commands: connect(url.to_owned()).await?, _thread: None }),
            Driving::OtherThread => {
                let thread = DrivingThread::start()?;
                let connecting = thread.handle.spawn(connect(url.to_owned()));
                let commands = connecting.await.context("the thread that drives the connection")??;
                Ok(Self { commands, _thread: Some(thread) })
            }
        }
    }
}

async fn connect(url: String) -> Outcome<MultiplexedConnection> {
    let client = redis::Client::open(information(&url)?).context("the URL of the server")?;
    let settings = AsyncConnectionConfig::new().set_response_timeout(Some(ANSWER_WITHIN));
    let connecting = client.get_multiplexed_async_connection_with_config(&settings);
    connecting.await.context("connecting to the server")
}

/// A current-thread runtime on a thread of its own.
struct DrivingThread {
    handle: Handle,
    /// Dropped with this, which ends the thread.
    _running: oneshot::Sender<()>,
}

impl DrivingThread {
    fn start() -> Outcome<Self> {
        let runtime = Builder::new_current_thread().enable_all().build().context("a runtime")?;
        let handle = runtime.handle().clone();
        let (running, ended) = oneshot::channel::<()>();
        let body = move || drop(runtime.block_on(ended));
        thread::Builder::new().name("raw-connection".to_owned()).spawn(body).context("a thread")?;
        Ok(Self { handle, _running: running })
    }
}
