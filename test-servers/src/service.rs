//! A thread that serves connections while its handle exists.

use std::net::SocketAddr;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};

use crate::ports::free_listener;
use crate::{During, Outcome};

/// A thread that serves a port of the loopback address. Dropping this ends it, with all its tasks.
#[derive(Debug)]
pub(crate) struct Service {
    /// Where it listens.
    pub(crate) address: SocketAddr,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Service {
    /// Starts a thread of this name that runs the future that `serve` creates from a connection, for each that it accepts while it is
    /// open. Without a sender, it stays as it is.
    pub(crate) fn start<F: Future<Output: Send> + Send + 'static>(
        name: &str,
        is_open: watch::Receiver<bool>,
        serve: impl Fn(TcpStream) -> F + Send + 'static,
    ) -> Outcome<Self> {
        let listener = free_listener().during(format_args!("listen for the {name}"))?;
        let address = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (end, ended) = oneshot::channel();
        let run = move || {
            runtime.block_on(async {
                tokio::select! {
                    () = accept(address, TcpListener::from_std(listener).ok(), is_open, serve) => {}
                    _ = ended => {}
                }
            });
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run)?;
        Ok(Self { address, end: Some(end), thread: Some(thread) })
    }
}

/// Accepts connections while it is open; stops listening while it is not.
async fn accept<F: Future<Output: Send> + Send + 'static>(
    address: SocketAddr,
    mut listener: Option<TcpListener>,
    mut is_open: watch::Receiver<bool>,
    serve: impl Fn(TcpStream) -> F,
) {
    loop {
        let Some(listening) = &listener else {
            if is_open.wait_for(|is_open| *is_open).await.is_err() {
                return;
            }
            listener = TcpListener::bind(address).await.ok();
            if listener.is_none() {
                // Another program is listening on the port at the moment.
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            continue;
        };
        tokio::select! {
            biased;
            Ok(_) = is_open.wait_for(|is_open| !is_open) => listener = None,
            accepted = listening.accept() => {
                if let Ok((client, _)) = accepted {
                    // If it fails, the connection ends at once.
                    let _ = client.set_nodelay(true);
                    tokio::spawn(serve(client));
                }
            }
        }
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
