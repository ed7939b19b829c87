//! A fork in the way to a server: connections that exist go on where they went, new ones go elsewhere.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

use crate::failure::Outcome;

/// Passes each connection on to whatever the target was when it came. Ends with its handle.
#[derive(Debug)]
pub struct Switch {
    address: SocketAddr,
    target: Arc<Mutex<SocketAddr>>,
    task: AbortHandle,
}

impl Switch {
    /// A fork that leads to `target`.
    ///
    /// # Errors
    /// There is no free port.
    ///
    /// # Cancel safety
    /// May be dropped at any time; there is no fork then.
    pub async fn to(target: SocketAddr) -> Outcome<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let target = Arc::new(Mutex::new(target));
        let task = tokio::spawn(serve(listener, Arc::clone(&target))).abort_handle();
        Ok(Self { address, target, task })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where connections go from now on.
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
        // What ends one side of it ends the other.
        let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
    }
}
