//! A switch between a client and several servers: existing connections stay with their server, new ones go to another.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

use crate::failure::Outcome;

/// Forwards each connection to the target that was set when it arrived. Ends with its handle.
#[derive(Debug)]
pub struct Switch {
    address: SocketAddr,
    target: Arc<Mutex<SocketAddr>>,
    task: AbortHandle,
}

impl Switch {
    /// Creates a switch that leads to `target`.
    ///
    /// # Errors
    /// When there is no free port.
    ///
    /// # Cancel safety
    /// The future may be dropped at any time; there is no switch then.
    pub async fn to(target: SocketAddr) -> Outcome<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let target = Arc::new(Mutex::new(target));
        let task = tokio::spawn(serve(listener, Arc::clone(&target))).abort_handle();
        Ok(Self { address, target, task })
    }

    /// Returns the address on which it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets where new connections go from now on.
    pub fn turn_to(&self, target: SocketAddr) {
        *self.target.lock().unwrap_or_else(PoisonError::into_inner) = target;
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(listener: TcpListener, target: Arc<Mutex<SocketAddr>>) {
    while let Ok((client, _)) = listener.accept().await {
        let target = *target.lock().unwrap_or_else(PoisonError::into_inner);
        tokio::spawn(pass_on(client, target));
    }
}

async fn pass_on(mut client: TcpStream, target: SocketAddr) {
    let Ok(mut server) = TcpStream::connect(target).await else { return };
    if client.set_nodelay(true).and_then(|()| server.set_nodelay(true)).is_ok() {
        // When one side ends, the other ends too.
        let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
    }
}
