//! Proxies between a client and its server that take the conversation apart, as a proxy does that spreads connections.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use conformance_tests::{Failure, Outcome};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::OwnedReadHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// The first byte of a statement, after the four bytes of the header.
const QUERY: u8 = 3;
const HEADER: usize = 4;

/// Decides where a statement goes, to the client's first connection or the second, and with which text.
pub type Route = dyn Fn(&str) -> (Way, String) + Send + Sync;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    First,
    Second,
}

/// A proxy with two connections to the server for each connection of a client. The client's user must have no password: its
/// scrambled form would be valid for only one of the two.
///
/// Dropping it ends it, with all connections.
pub struct Middleman {
    address: SocketAddr,
    serving: JoinHandle<()>,
}

impl Middleman {
    pub async fn start(
        server: SocketAddr,
        route: impl Fn(&str) -> (Way, String) + Send + Sync + 'static,
    ) -> Outcome<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let route: Arc<Route> = Arc::new(route);
        let serving = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let route = Arc::clone(&route);
                connections.spawn(async move {
                    // Whatever ends it, both sides see their connections end.
                    let _ = pass_on(client, server, &*route).await;
                });
            }
        });
        Ok(Self { address, serving })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL for a client without a password.
    pub fn url(&self, options: &str) -> String {
        url_without_password(self.address, options)
    }
}

/// A proxy with one connection to the server, which it uses for all clients; they send their statements in turn. The clients' user
/// must have no password.
///
/// Dropping it ends it, with all connections.
pub struct Carrier {
    address: SocketAddr,
    serving: JoinHandle<()>,
}

impl Carrier {
    pub async fn start(server: SocketAddr) -> Outcome<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let serving = tokio::spawn(async move {
            // Whatever ends it, all clients see their connections end.
            let _ = carry(&listener, server).await;
        });
        Ok(Self { address, serving })
    }

    /// The URL for a client without a password.
    pub fn url(&self, options: &str) -> String {
        url_without_password(self.address, options)
    }
}

impl Drop for Carrier {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn carry(listener: &TcpListener, server: SocketAddr) -> Outcome {
    let mut server = TcpStream::connect(server).await?;
    let greeting = packet(&mut server).await?;
    let mut welcome = None;
    let (asked, mut asking) = mpsc::unbounded_channel();
    let (mut clients, mut speaks) = (Vec::new(), 0);
    let mut bytes = [0; 4096];
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (mut client, _) = accepted?;
                client.set_nodelay(true)?;
                client.write_all(&greeting).await?;
                let login = packet(&mut client).await?;
                if welcome.is_none() {
                    server.write_all(&login).await?;
                    welcome = Some(packet(&mut server).await?);
                }
                client.write_all(welcome.as_deref().unwrap_or_default()).await?;
                let (reader, writer) = client.into_split();
                tokio::spawn(listen(reader, clients.len(), asked.clone()));
                clients.push(writer);
            }
            Some((client, packet)) = asking.recv() => {
                speaks = client;
                server.write_all(&packet).await?;
            }
            read = server.read(&mut bytes) => {
                let (read, client) = (read?, clients.get_mut(speaks));
                let client = client.ok_or_else(|| Failure::new("the server answers, and was not asked"))?;
                if read == 0 {
                    return Ok(());
                }
                // A client that has gone misses the rest.
                let _ = client.write_all(&bytes[..read]).await;
            }
        }
    }
}

/// Passes on the client's statements with its number, until the client sends anything else.
async fn listen(mut client: OwnedReadHalf, number: usize, asked: mpsc::UnboundedSender<(usize, Vec<u8>)>) {
    while let Ok(packet) = packet(&mut client).await {
        if packet.get(HEADER) != Some(&QUERY) || asked.send((number, packet)).is_err() {
            return;
        }
    }
}

/// The URL of a server, or of a proxy before one.
pub fn url_without_password(address: SocketAddr, options: &str) -> String {
    format!("mysql://plain@{address}/?tls=off&{options}")
}

impl Drop for Middleman {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn pass_on(mut client: TcpStream, server: SocketAddr, route: &Route) -> Outcome {
    let (mut first, mut second) = (TcpStream::connect(server).await?, TcpStream::connect(server).await?);
    client.set_nodelay(true)?;
    log_in(&mut client, &mut first, &mut second).await?;
    let mut requests = Vec::new();
    let (mut one, mut other) = ([0; 4096], [0; 4096]);
    loop {
        tokio::select! {
            read = client.read_buf(&mut requests) => {
                if read? == 0 {
                    return Ok(());
                }
                while let Some(packet) = take_packet(&mut requests) {
                    let (way, packet) = routed(packet, route);
                    let server = if way == Way::First { &mut first } else { &mut second };
                    server.write_all(&packet).await?;
                }
            }
            read = first.read(&mut one) => pass(read?, &one, &mut client).await?,
            read = second.read(&mut other) => pass(read?, &other, &mut client).await?,
        }
    }
}

async fn pass(count: usize, bytes: &[u8], client: &mut TcpStream) -> Outcome {
    if count == 0 {
        return Err(Failure::new("the server has ended the connection"));
    }
    Ok(client.write_all(&bytes[..count]).await?)
}

/// The client logs in to both at once, and sees only the first.
async fn log_in(client: &mut TcpStream, first: &mut TcpStream, second: &mut TcpStream) -> Outcome {
    packet(second).await?;
    client.write_all(&packet(first).await?).await?;
    let login = packet(client).await?;
    first.write_all(&login).await?;
    second.write_all(&login).await?;
    packet(second).await?;
    Ok(client.write_all(&packet(first).await?).await?)
}

async fn packet(from: &mut (impl AsyncRead + Unpin)) -> Outcome<Vec<u8>> {
    let mut bytes = vec![0; HEADER];
    from.read_exact(&mut bytes).await?;
    let length = length(&bytes);
    bytes.resize(length, 0);
    from.read_exact(&mut bytes[HEADER..]).await?;
    Ok(bytes)
}

/// The length of a packet, including its header.
fn length(header: &[u8]) -> usize {
    HEADER + usize::from(header[0]) + (usize::from(header[1]) << 8) + (usize::from(header[2]) << 16)
}

fn take_packet(bytes: &mut Vec<u8>) -> Option<Vec<u8>> {
    let is_whole = bytes.len() >= HEADER && bytes.len() >= length(bytes);
    is_whole.then(|| bytes.drain(..length(bytes)).collect())
}

fn routed(packet: Vec<u8>, route: &Route) -> (Way, Vec<u8>) {
    if packet.get(HEADER) != Some(&QUERY) {
        return (Way::First, packet);
    }
    let (way, text) = route(&String::from_utf8_lossy(&packet[HEADER + 1..]));
    let length = u32::try_from(text.len() + 1).unwrap_or_default().to_le_bytes();
    (way, [&length[..3], &packet[3..=HEADER], text.as_bytes()].concat())
}
