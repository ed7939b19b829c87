//! The network between the members of an ensemble, which can be partitioned without special rights on the machine.
//!
//! Proxies in the configured addresses are not enough: members tell each other their real addresses, and connect to
//! those. But Java can be configured to make all its outgoing connections through a SOCKS proxy. So each member has an
//! [`exit`] of its own, which sends the member's connections through the [`TcpProxy`] between that member and the
//! target.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::service::Service;
use crate::{Outcome, TcpProxy};

/// The ports on which a member listens for the others: of the quorum and of elections.
type PeerPorts = [u16; 2];

/// The proxies between the members.
#[derive(Debug)]
pub(super) struct Network {
    exits: Vec<Service>,
    /// By the member that connects and the one that it connects to.
    pub(super) between: HashMap<(usize, usize), Vec<TcpProxy>>,
}

impl Network {
    pub(super) fn start(members: &[PeerPorts]) -> Outcome<Self> {
        let mut between = HashMap::new();
        let mut exits = Vec::new();
        for from in 0..members.len() {
            let mut routes = HashMap::new();
            for (to, ports) in members.iter().enumerate().filter(|(to, _)| *to != from) {
                let mut proxies = Vec::new();
                for port in *ports {
                    let proxy = TcpProxy::start(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?;
                    routes.insert(port, proxy.address());
                    proxies.push(proxy);
                }
                between.insert((from, to), proxies);
            }
            exits.push(exit(routes)?);
        }
        Ok(Self { exits, between })
    }

    /// Returns the Java properties that send a member's connections through its exit.
    pub(super) fn properties(&self, member: usize) -> Vec<String> {
        let address = self.exits[member].address;
        vec![
            format!("-DsocksProxyHost={}", address.ip()),
            format!("-DsocksProxyPort={}", address.port()),
            // Otherwise connections to the same machine would bypass the proxy.
            "-DsocksNonProxyHosts=".to_owned(),
        ]
    }

    /// The proxies between the two, whichever of them connects.
    pub(super) fn of_both(&self, one: usize, other: usize) -> impl Iterator<Item = &TcpProxy> {
        [(one, other), (other, one)].into_iter().filter_map(|pair| self.between.get(&pair)).flatten()
    }
}

type Routes = HashMap<u16, SocketAddr>;

/// Starts a SOCKS proxy that knows a few ports, and redirects connections to them.
fn exit(routes: Routes) -> Outcome<Service> {
    let routes = Arc::new(routes);
    // If it fails, both sides see the end of the connection.
    Service::start("socks-proxy", watch::channel(true).1, move |client| pass(client, Arc::clone(&routes)))
}

/// The version of SOCKS, which is also in every answer.
const VERSION: u8 = 5;
const NO_LOGIN: u8 = 0;
const GRANTED: u8 = 0;
const REFUSED: u8 = 5;
const BY_ADDRESS: u8 = 1;

async fn pass(mut client: TcpStream, routes: Arc<Routes>) -> io::Result<()> {
    let port = port_asked_for(&mut client).await?;
    let server = match routes.get(&port) {
        Some(address) => TcpStream::connect(address).await,
        None => Err(io::ErrorKind::ConnectionRefused.into()),
    };
    let result = if server.is_ok() { GRANTED } else { REFUSED };
    client.write_all(&[VERSION, result, 0, BY_ADDRESS, 0, 0, 0, 0, 0, 0]).await?;
    let mut server = server?;
    server.set_nodelay(true)?;
    tokio::io::copy_bidirectional(&mut client, &mut server).await.map(drop)
}

async fn port_asked_for(client: &mut TcpStream) -> io::Result<u16> {
    let [_, ways] = array(client).await?;
    client.read_exact(&mut vec![0; usize::from(ways)]).await?;
    client.write_all(&[VERSION, NO_LOGIN]).await?;
    // A member knows the others by their addresses.
    let [_, _, _, BY_ADDRESS, _, _, _, _, high, low] = array(client).await? else {
        return Err(io::ErrorKind::Unsupported.into());
    };
    Ok(u16::from_be_bytes([high, low]))
}

async fn array<const N: usize>(client: &mut TcpStream) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    client.read_exact(&mut bytes).await?;
    Ok(bytes)
}
