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
use crate::{Outcome, ServerOptions, TcpProxy};

/// The ports on which a member listens for the others: of the quorum and of elections.
type PeerPorts = [u16; 2];

/// The proxies between the members.
#[derive(Debug)]
pub(super) struct Network {
    exits: Vec<Service>,
    /// By the member that connects and the one that it connects to.
    pub(super) between: Vec<([usize; 2], TcpProxy)>,
}

impl Network {
    pub(super) fn start(members: &[PeerPorts]) -> Outcome<Self> {
        let (mut exits, mut between) = (Vec::new(), Vec::new());
        for from in 0..members.len() {
            let mut routes = HashMap::new();
            for (to, ports) in members.iter().enumerate().filter(|(to, _)| *to != from) {
                for port in *ports {
                    let proxy = TcpProxy::start(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?;
                    routes.insert(port, proxy.address());
                    between.push(([from, to], proxy));
                }
            }
            exits.push(exit(routes)?);
        }
        Ok(Self { exits, between })
    }

    /// Adds the properties of Java that send a member's connections through its exit.
    pub(super) fn through_exit(&self, member: usize, options: ServerOptions) -> ServerOptions {
        let address = self.exits[member].address;
        options
            .property("socksProxyHost", &address.ip().to_string())
            .property("socksProxyPort", &address.port().to_string())
            // Otherwise connections to the same machine would bypass the proxy.
            .property("socksNonProxyHosts", "")
    }

    /// The proxies between the two, whichever of them connects.
    pub(super) fn of_both(&self, one: usize, other: usize) -> impl Iterator<Item = &TcpProxy> {
        let is_of_both = move |pair: &[usize; 2]| *pair == [one, other] || *pair == [other, one];
        self.between.iter().filter(move |(pair, _)| is_of_both(pair)).map(|(_, proxy)| proxy)
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
    let [_version, ways] = client.read_u16().await?.to_be_bytes();
    client.read_exact(&mut vec![0; usize::from(ways)]).await?;
    client.write_all(&[VERSION, NO_LOGIN]).await?;
    let mut request = [0; 8];
    client.read_exact(&mut request).await?;
    // A member knows the others by their addresses.
    if request[3] != BY_ADDRESS {
        return Err(io::ErrorKind::Unsupported.into());
    }
    client.read_u16().await
}
