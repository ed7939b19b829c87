//! Connections that are driven by the caller's runtime, or by the runtime of another thread.

use std::thread;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use crate::contender::Driving;
use crate::failure::{Context, Outcome};

/// A connection, and the thread that drives it, if that is not the caller's.
pub(crate) struct Driven<T> {
    pub(crate) connection: T,
    _thread: Option<DrivingThread>,
}

impl<T: Send + 'static> Driven<T> {
    /// Everything that `connecting` spawns runs on the driving runtime.
    pub(crate) async fn open(
        driving: Driving,
        connecting: impl Future<Output = Outcome<T>> + Send + 'static,
    ) -> Outcome<Self> {
        match driving {
            Driving::Caller => Ok(Self { connection: connecting.await?, _thread: None }),
            Driving::OtherThread => {
                let thread = DrivingThread::start()?;
                let connecting = thread.handle.spawn(connecting);
                let connection = connecting.await.context("the thread that drives the connection")??;
                Ok(Self { connection, _thread: Some(thread) })
            }
        }
    }
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
