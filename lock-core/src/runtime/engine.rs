//! The engine: the thread that a client's work runs on.
//!
//! By default each client has one operating-system thread with a current-thread runtime. Its connections, renewals,
//! timers and the clean-up run there, so that user code that blocks its own runtime does not lose locks. With
//! [`EngineChoice::Caller`] the same tasks run on the caller's runtime instead.

use std::fmt;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Waker};
use std::thread;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::oneshot;
use tokio::task::{AbortHandle, JoinHandle};

use crate::runtime::sync::Mutex;
use crate::types::error::{ErrorKind, LockError, Operation};

/// Where a client's background work runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum EngineChoice {
    /// On a thread of its own: user code that blocks its runtime does not lose locks.
    #[default]
    Own,
    /// On the runtime that the client is created in, which saves one hop between threads. A blocked runtime renews no
    /// lease, but the deadline thread still notifies the holder in time.
    Caller,
}

pub(crate) struct Engine {
    handle: Handle,
    backend_tasks: Arc<BackendTasks>,
    /// Dropped with the engine, which ends its thread.
    _running: Option<oneshot::Sender<()>>,
}

impl Engine {
    pub(crate) fn start(choice: EngineChoice) -> Result<Self, LockError> {
        match choice {
            EngineChoice::Own => Self::own(),
            EngineChoice::Caller => {
                Handle::try_current().map(|handle| Self::on(handle, None)).map_err(|_| {
                    LockError::new(ErrorKind::InvalidOption, Operation::Connect)
                        .because("the engine is to be the caller's runtime, and there is none")
                        .remedy("make the client inside a tokio runtime, or leave the engine option out")
                })
            }
        }
    }

    fn own() -> Result<Self, LockError> {
        let failed = |error: std::io::Error| {
            LockError::new(ErrorKind::Internal, Operation::Connect)
                .because(format!("no thread for the client: {error}"))
                .remedy("check the limits on threads and open files")
                .caused_by(error)
        };
        let (runtimes, runtime) = mpsc::channel::<Runtime>();
        let (running, ended) = oneshot::channel();
        // The thread is created before the runtime: without a thread to move to, the runtime could not be dropped here,
        // where another one may be running.
        thread::Builder::new()
            .name("distlock-engine".to_owned())
            .spawn(move || {
                if let Ok(runtime) = runtime.recv() {
                    let _ = runtime.block_on(ended);
                }
            })
            .map_err(failed)?;
        let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let handle = runtime.handle().clone();
        // This cannot fail: the thread waits for nothing else.
        let _ = runtimes.send(runtime);
        Ok(Self::on(handle, Some(running)))
    }

    fn on(handle: Handle, running: Option<oneshot::Sender<()>>) -> Self {
        let backend_tasks = Arc::new(BackendTasks { handle: handle.clone(), tasks: Mutex::default() });
        Self { handle, backend_tasks, _running: running }
    }

    /// Runs `future` to its end. If it completes at its first poll, that happens on the calling thread, before this
    /// returns; otherwise the rest runs in the background.
    pub(crate) fn run(&self, future: impl Future<Output = ()> + Send + 'static) {
        let mut future = Box::pin(future);
        if Handle::try_current().is_err_and(|error| error.is_thread_local_destroyed()) {
            // The thread is ending, and drops a guard in one of its thread-local variables: nothing can be polled here.
            drop(self.spawn(future));
            return;
        }
        let entered = self.handle.enter();
        let polled = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        drop(entered);
        if polled.is_pending() {
            // The engine polls it again, with a real waker.
            self.spawn(future);
        }
    }

    /// Runs `future` in the background.
    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        #[cfg(test)]
        super::counts::spawn();
        self.handle.spawn(future)
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    pub(crate) fn backend_tasks(&self) -> &Arc<BackendTasks> {
        &self.backend_tasks
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        for task in self.backend_tasks.tasks.lock().drain(..) {
            task.abort();
        }
    }
}

/// The tasks that a backend has spawned. They end with the client, even on a runtime that continues.
pub(crate) struct BackendTasks {
    handle: Handle,
    tasks: Mutex<Vec<AbortHandle>>,
}

impl BackendTasks {
    pub(crate) fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        let task = self.handle.spawn(future).abort_handle();
        let mut tasks = self.tasks.lock();
        if tasks.len() == tasks.capacity() {
            tasks.retain(|task| !task.is_finished());
        }
        tasks.push(task);
    }
}

/// Aborts a task when the future that waits for it is dropped.
#[derive(Debug)]
pub(crate) struct AbortOnDrop<T>(pub(crate) JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Turns a panic into an error: a bug in a backend fails one call, not the task that made it.
pub(crate) async fn contained<T>(
    operation: Operation,
    future: impl Future<Output = Result<T, LockError>>,
) -> Result<T, LockError> {
    let mut future = pin!(future);
    poll_fn(|context| {
        catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))).unwrap_or_else(|_| {
            Poll::Ready(Err(LockError::new(ErrorKind::Internal, operation)
                .because("the backend panicked")
                .remedy("report this as a defect of the backend")))
        })
    })
    .await
}

impl fmt::Debug for Engine {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Engine")
    }
}
