//! A thread that serves connections while its handle exists.

use std::future::Future;
use std::net::SocketAddr;
use std::thread::JoinHandle;

use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::ports::free_listener;
use crate::{During, Outcome};

/// A thread that serves a port of the loopback address. Dropping this ends it, with all its tasks.
#[derive(Debug)]
pub(crate) struct Service {
    address: SocketAddr,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Service {
    /// Starts a thread of this name that runs the future that `serve` creates from the address and its listener.
    pub(crate) fn start<F: Future<Output = ()>>(
        name: &str,
        serve: impl FnOnce(SocketAddr, TcpListener) -> F + Send + 'static,
    ) -> Outcome<Self> {
        let listener = free_listener().during(format_args!("listen for the {name}"))?;
        let address = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (end, ended) = oneshot::channel();
        let run = move || {
            runtime.block_on(async {
                let Ok(listener) = TcpListener::from_std(listener) else { return };
                tokio::select! {
                    () = serve(address, listener) => {}
                    _ = ended => {}
                }
            });
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run)?;
        Ok(Self { address, end: Some(end), thread: Some(thread) })
    }

    /// Returns the address on which it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            // It does nothing that takes time, and a destructor cannot report its panic.
            let _ = thread.join();
        }
    }
}
