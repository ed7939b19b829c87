//! The thread that a client's work runs on.
//!
//! By default each client has one operating-system thread with a current-thread runtime. Its connections, renewals,
//! timers and the janitor live there, so that user code that blocks its own runtime loses no lock. With
//! [`EngineChoice::Caller`] the same tasks run on the caller's runtime instead.

use std::fmt;
use std::future::Future;
use std::task::{Context, Waker};
use std::thread;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::error::{ErrorKind, LockError, Operation};

/// Where a client's background work runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum EngineChoice {
    /// On a thread of its own: user code that blocks its runtime loses no lock.
    #[default]
    Own,
    /// On the runtime that the client is made in: one hop between threads less. A runtime that is blocked renews nothing;
    /// the deadline thread still tells the holder in time.
    Caller,
}

pub(crate) struct Engine {
    handle: Handle,
    /// Dropped with the engine, which ends its thread.
    _running: Option<oneshot::Sender<()>>,
}

impl Engine {
    pub(crate) fn start(choice: EngineChoice) -> Result<Self, LockError> {
        match choice {
            EngineChoice::Own => Self::own(),
            EngineChoice::Caller => Handle::try_current()
                .map(|handle| Self {
                    handle,
                    _running: None,
                })
                .map_err(|_| {
                    LockError::new(ErrorKind::InvalidOption, Operation::Connect)
                        .because("the engine is to be the caller's runtime, and there is none")
                        .remedy("make the client inside a tokio runtime, or leave the engine option out")
                }),
        }
    }

    fn own() -> Result<Self, LockError> {
        let failed = |error: std::io::Error| {
            LockError::new(ErrorKind::Internal, Operation::Connect)
                .because(format!("no thread for the client: {error}"))
                .remedy("check the limits on threads and open files")
                .caused_by(error)
        };
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(failed)?;
        let handle = runtime.handle().clone();
        let (running, ended) = oneshot::channel();
        thread::Builder::new()
            .name("distlock-engine".to_owned())
            .spawn(move || {
                let _ = runtime.block_on(ended);
            })
            .map_err(failed)?;
        Ok(Self {
            handle,
            _running: Some(running),
        })
    }

    /// Runs `future` to its end. What completes at its first poll does so on the calling thread, before this returns;
    /// the rest goes on in the background.
    pub(crate) fn run(&self, future: impl Future<Output = ()> + Send + 'static) {
        let mut future = Box::pin(future);
        let entered = self.handle.enter();
        let polled = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        drop(entered);
        if polled.is_pending() {
            // Polled again there, with a waker that counts.
            self.spawn(future);
        }
    }

    /// Runs `future` in the background.
    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.handle.spawn(future)
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Engine")
    }
}
