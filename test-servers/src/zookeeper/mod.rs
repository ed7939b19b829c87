//! A ZooKeeper server for one test.

mod access;
mod conversation;
mod ensemble;
mod four_letter_words;
mod java;
mod jute;
mod network;
mod node;
mod options;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use tempfile::TempDir;
use tokio::net::TcpStream;

use crate::Outcome;
use crate::options::Encryption;
use crate::ports::on_free_ports;
use crate::process::process_methods;
use crate::{Certificates, Data, ServerProcess, TcpProxy, free_port, url};
use access::Visit;
use options::{DATA, KEY_STORE, Means, Ports, USERS};

pub use conversation::{ZooKeeperConversation, ZooKeeperRequest};
pub use ensemble::ZooKeeperEnsemble;
pub use four_letter_words::Role;
pub use node::{Access, NodeKind, ZooKeeperNode};
pub use options::ZooKeeperOptions;

const NAME: &str = "zookeeper";
const CONFIGURATION: &str = "zoo.cfg";

/// The node above the locks, in the URLs of servers.
const ROOT: &str = "/locks";

const CLOSES_TRIED: usize = 20;

/// A ZooKeeper server on a port of its own, with its files in a temporary folder. Dropping this ends it.
#[derive(Debug)]
pub struct ZooKeeperServer {
    options: ZooKeeperOptions,
    ports: Ports,
    certificates: Option<Certificates>,
    /// Declared before the folder, so that it is dropped first.
    process: ServerProcess,
    folder: TempDir,
}

/// What makes a server a member of an ensemble.
#[derive(Debug, Clone, Default)]
struct Membership {
    number: Option<usize>,
    configuration: String,
    properties: Vec<String>,
    certificates: Option<Certificates>,
}

impl ZooKeeperServer {
    /// Starts a server that allows every client everything, and waits until it answers.
    ///
    /// # Errors
    /// When it does not start: the end of its log, or what to install.
    ///
    /// # Cancel safety
    /// Dropping the future ends the server.
    pub async fn start() -> Outcome<Self> {
        Self::start_with(ZooKeeperOptions::new()).await
    }

    /// Starts a server with these options, and waits until it answers.
    ///
    /// # Errors
    /// When it does not start: the end of its log, or what to install.
    ///
    /// # Cancel safety
    /// Dropping the future ends the server.
    pub async fn start_with(options: ZooKeeperOptions) -> Outcome<Self> {
        let start = || async {
            let server = Self::launch(&options, &Membership::default())?;
            server.ready().await?;
            Ok(server)
        };
        on_free_ports(options.port, start).await
    }

    /// Starts a server without waiting for it.
    fn launch(options: &ZooKeeperOptions, membership: &Membership) -> Outcome<Self> {
        let folder = tempfile::Builder::new().prefix("distlock-zookeeper-").tempdir()?;
        let place = folder.path();
        let (certificates, ports) = if options.encryption == Encryption::None {
            (None, Ports { plain: options.port.map_or_else(free_port, Ok)?, secure: None })
        } else {
            let secure = options.port.map_or_else(free_port, Ok)?;
            (Some(certificates_in(place, membership)?), Ports { plain: free_port()?, secure: Some(secure) })
        };
        let configuration = options.configuration(place, ports, certificates.as_ref());
        fs::create_dir(place.join(DATA))?;
        fs::write(place.join(CONFIGURATION), configuration + &membership.configuration)?;
        if let Some(number) = membership.number {
            fs::write(place.join(DATA).join("myid"), number.to_string())?;
        }
        if let Some(users) = options.users() {
            fs::write(place.join(USERS), users)?;
        }
        let properties = [options.properties(place), membership.properties.clone()].concat();
        let process = ServerProcess::start(
            NAME,
            java::server(&place.join(CONFIGURATION), &properties)?,
            place,
            java::MISSING,
        )?;
        Ok(Self { options: options.clone(), ports, certificates, process, folder })
    }

    /// Waits until it serves clients; a member of an ensemble does that when it has found a leader.
    ///
    /// # Errors
    /// When it ends first, or takes too long: the end of its log.
    ///
    /// # Cancel safety
    /// Dropping the future only stops the waiting.
    pub async fn ready(&self) -> Outcome {
        let serves = || async {
            four_letter_words::serves(self.plain_address()).await?;
            // The TLS port is opened a moment later.
            TcpStream::connect(self.address()).await?;
            Ok(())
        };
        self.process.ready(serves).await
    }

    /// Returns its address for clients: the TLS port, if it has one.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.ports.secure.unwrap_or(self.ports.plain)))
    }

    /// Returns its address for plain text, which it always has.
    pub fn plain_address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.ports.plain))
    }

    /// Returns the files of its authority, if it speaks TLS.
    pub fn certificates(&self) -> Option<&Certificates> {
        self.certificates.as_ref()
    }

    /// Returns the URL of the server, including everything that a client needs to log in. The locks are below `/locks`.
    pub fn url(&self) -> String {
        self.url_of(&[self.address()], ROOT, &[])
    }

    /// Returns the same URL for a client that goes through proxies or to several servers at `addresses`, finds the
    /// locks below `path`, and also has these options: `&[("session_timeout", "4s")]`.
    pub fn url_of(&self, addresses: &[SocketAddr], path: &str, options: &[(&str, &str)]) -> String {
        let hosts: Vec<_> = addresses.iter().map(ToString::to_string).collect();
        let login = self.options.login.as_ref();
        let name = login.map_or_else(String::new, |login| url::login(&login.user, &login.password));
        let sasl = login.filter(|login| login.means == Means::Sasl).map(|_| ("auth", "sasl".to_owned()));
        let files =
            self.certificates.iter().flat_map(|files| self.options.encryption.url_options("ca", files));
        let others = options.iter().map(|(name, value)| (*name, (*value).to_owned()));
        let url = format!("zookeeper://{name}{}{path}", hosts.join(","));
        url::with_options(url, sasl.into_iter().chain(files).chain(others))
    }

    /// Starts a proxy in front of it that recognises requests and replies, unless TLS hides them.
    ///
    /// # Errors
    /// When it cannot listen.
    pub fn proxy(&self) -> Outcome<TcpProxy> {
        TcpProxy::with_conversation(self.address(), || Box::new(ZooKeeperConversation::new()))
    }

    /// Returns its role in the ensemble.
    ///
    /// # Errors
    /// When it does not serve clients now.
    ///
    /// # Cancel safety
    /// Dropping the future only stops the request.
    pub async fn role(&self) -> Outcome<Role> {
        four_letter_words::role_in(&self.word("srvr").await?)
    }

    /// Returns its answer to a four-letter word: `srvr`, `cons`, `dump`, `wchp`.
    ///
    /// # Errors
    /// When there is no answer.
    ///
    /// # Cancel safety
    /// Dropping the future only stops the request.
    pub async fn word(&self, word: &str) -> Outcome<String> {
        four_letter_words::ask(self.plain_address(), word).await
    }

    /// Returns the sessions that watch the data or the existence of the node at `path`.
    ///
    /// # Errors
    /// When there is no answer.
    ///
    /// # Cancel safety
    /// Dropping the future only stops the request.
    pub async fn watchers(&self, path: &str) -> Outcome<Vec<i64>> {
        Ok(four_letter_words::watchers_in(&self.word("wchp").await?, path))
    }

    /// Returns its metrics from `mntr`: `zk_packets_received`, `zk_watch_count`, `zk_ephemerals_count`.
    ///
    /// # Errors
    /// When there is no answer.
    ///
    /// # Cancel safety
    /// Dropping the future only stops the request.
    pub async fn figures(&self) -> Outcome<HashMap<String, String>> {
        Ok(four_letter_words::figures_in(&self.word("mntr").await?))
    }

    /// Returns the names of the node's children, in the order of the numbers that the server appended to them, others
    /// last; `None` when there is no such node. Like all methods that follow, it bypasses all proxies and access lists.
    ///
    /// # Errors
    /// When there is no answer, or the server refuses.
    ///
    /// # Cancel safety
    /// Nothing changes at the server.
    pub async fn children(&self, path: &str) -> Outcome<Option<Vec<String>>> {
        let names = self.visit(path, async |visit| visit.children(path).await).await?;
        Ok(names.map(node::in_order))
    }

    /// Returns a node, as the server stores it; `None` when there is none.
    ///
    /// # Errors
    /// When there is no answer, or the server refuses.
    ///
    /// # Cancel safety
    /// Nothing changes at the server.
    pub async fn node(&self, path: &str) -> Outcome<Option<ZooKeeperNode>> {
        self.visit(path, async |visit| visit.node(path).await).await
    }

    /// Creates a node with which every client may do everything, and the missing nodes above it. Returns its path,
    /// because some kinds get a number.
    ///
    /// # Errors
    /// When the node exists, there is no answer, or the server refuses.
    ///
    /// # Cancel safety
    /// If the future is dropped, it is not known which of the nodes are created.
    pub async fn create(&self, path: &str, data: &[u8], kind: NodeKind) -> Outcome<String> {
        self.visit(path, async |visit| visit.create(path, data, kind).await).await
    }

    /// Writes new data into a node. Returns whether there was one.
    ///
    /// # Errors
    /// When there is no answer, or the server refuses.
    ///
    /// # Cancel safety
    /// If the future is dropped, it is not known whether this is done.
    pub async fn write(&self, path: &str, data: &[u8]) -> Outcome<bool> {
        self.visit(path, async |visit| visit.write(path, data).await).await
    }

    /// Deletes a node without children. Returns whether there was one.
    ///
    /// # Errors
    /// When there is no answer, or the server refuses.
    ///
    /// # Cancel safety
    /// If the future is dropped, it is not known whether this is done.
    pub async fn delete(&self, path: &str) -> Outcome<bool> {
        self.visit(path, async |visit| visit.delete(path).await).await
    }

    /// Sets the access list of a node.
    ///
    /// # Errors
    /// When there is no such node, no answer, or the server refuses.
    ///
    /// # Cancel safety
    /// If the future is dropped, it is not known whether this is done.
    pub async fn set_access(&self, path: &str, access: &Access) -> Outcome {
        self.visit(path, async |visit| visit.set_access(path, access).await).await
    }

    /// Returns whether the session exists.
    ///
    /// # Errors
    /// When there is no answer.
    ///
    /// # Cancel safety
    /// Dropping the future only stops the request.
    pub async fn knows_session(&self, session: i64) -> Outcome<bool> {
        Ok(four_letter_words::has_number(&self.word("dump").await?, session))
    }

    /// Closes a session, with all its nodes, as its client could. The client loses its connection, connects again
    /// immediately, and then learns that its session is closed. Returns whether the session existed.
    ///
    /// # Errors
    /// When there is no answer.
    ///
    /// # Cancel safety
    /// If the future is dropped, it is not known whether this is done.
    pub async fn close_session(&self, session: i64) -> Outcome<bool> {
        self.close_session_at(self.plain_address(), session).await
    }

    /// A session has one connection, and the server ends the older one. So its client, which connects again
    /// immediately, may cut off the answer, and the next try finds nothing to close. The answer to the last try then
    /// does not say whether the session existed before the first one.
    async fn close_session_at(&self, address: SocketAddr, session: i64) -> Outcome<bool> {
        let was_there = self.knows_session(session).await?;
        let mut closed = Visit::close_session(address, session).await;
        for _ in 1..CLOSES_TRIED {
            if closed.is_ok() {
                break;
            }
            closed = Visit::close_session(address, session).await;
        }
        let closed = closed
            .map_err(|failure| self.process.failure(&format!("did not close a session ({failure})")))?;
        Ok(was_there || closed)
    }

    /// Extends a session whose client is away by the longest time that the server allows, from now on. Returns whether
    /// the session still existed.
    ///
    /// # Errors
    /// When there is no answer.
    ///
    /// # Cancel safety
    /// If the future is dropped, it is not known whether this is done.
    pub async fn prolong_session(&self, session: i64) -> Outcome<bool> {
        Visit::prolong_session(self.plain_address(), session).await
    }

    async fn visit<T>(&self, path: &str, what: impl AsyncFnOnce(&mut Visit) -> Outcome<T>) -> Outcome<T> {
        let outcome = Visit::pay(self.plain_address(), what).await;
        outcome.map_err(|failure| self.process.failure(&format!("did not do it at {path} ({failure})")))
    }

    /// Kills it, starts it again on the same port, and waits until it serves clients.
    ///
    /// # Errors
    /// When it does not start: the end of its log.
    ///
    /// # Cancel safety
    /// Dropping the future leaves a server that is about to answer, or none.
    pub async fn restart(&self, data: Data) -> Outcome {
        self.begin_restart(data)?;
        self.ready().await
    }

    /// Like `restart`, without waiting: a member of an ensemble without a majority does not serve clients.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn begin_restart(&self, data: Data) -> Outcome {
        self.kill()?;
        let folder = self.folder.path();
        data.remove_unless_kept(&folder.join(DATA).join("version-2"))?;
        self.process.restart()
    }
}

process_methods!(ZooKeeperServer);

/// Creates the certificates, and also one file with both the server's certificate and its key, as Java needs it.
fn certificates_in(folder: &Path, membership: &Membership) -> Outcome<Certificates> {
    let files = membership.certificates.clone().map_or_else(|| Certificates::make_in(folder), Ok)?;
    let both = fs::read_to_string(&files.server.key)? + &fs::read_to_string(&files.server.certificate)?;
    fs::write(folder.join(KEY_STORE), both)?;
    Ok(files)
}
