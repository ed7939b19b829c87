//! A ZooKeeper server of a test's own.

mod access;
mod conversation;
mod ensemble;
mod java;
mod jute;
mod network;
mod node;
mod options;
#[cfg(test)]
mod tests;
mod words;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tempfile::TempDir;
use tokio::net::TcpStream;

use super::url::{encoded, encoded_login};
use super::{Certificates, Data, ServerProcess, TcpProxy, free_port};
use crate::failure::{During, Failure, Outcome};
use access::Visit;
use options::{DATA, Encryption, KEY_STORE, Means, Ports, USERS};

pub use conversation::{ZooKeeperConversation, ZooKeeperRequest};
pub use ensemble::ZooKeeperEnsemble;
pub use node::{Access, NodeKind, ZooKeeperNode};
pub use options::ZooKeeperOptions;
pub use words::Role;

const NAME: &str = "zookeeper";
const CONFIGURATION: &str = "zoo.cfg";

/// Below this node are the locks, in the URLs of servers.
const ROOT: &str = "/locks";

/// How often another port is tried when somebody else has taken the one that was free.
const PORTS_TRIED: usize = 5;

const CLOSES_TRIED: usize = 20;

/// A ZooKeeper server on a port of its own, with its files in a temporary folder. Ended when this is dropped.
#[derive(Debug)]
pub struct ZooKeeperServer {
    options: ZooKeeperOptions,
    ports: Ports,
    certificates: Option<Certificates>,
    properties: Vec<String>,
    /// Before the folder, so that it ends first.
    process: Mutex<Arc<ServerProcess>>,
    folder: TempDir,
}

/// What makes a server the member of an ensemble.
#[derive(Debug, Clone, Default)]
struct Membership {
    number: Option<usize>,
    configuration: String,
    properties: Vec<String>,
    certificates: Option<Certificates>,
}

impl ZooKeeperServer {
    /// Starts one that lets everybody do anything, and waits until it answers.
    ///
    /// # Errors
    /// When it does not come up: with the end of its log, or what to install.
    ///
    /// # Cancel safety
    /// Dropping the future ends the server.
    pub async fn start() -> Outcome<Self> {
        Self::start_with(ZooKeeperOptions::new()).await
    }

    /// Starts one as the options say, and waits until it answers.
    ///
    /// # Errors
    /// When it does not come up: with the end of its log, or what to install.
    ///
    /// # Cancel safety
    /// Dropping the future ends the server.
    pub async fn start_with(options: ZooKeeperOptions) -> Outcome<Self> {
        let mut tried = 1;
        loop {
            let server = Self::launch(&options, &Membership::default())?;
            match server.ready().await {
                Ok(()) => return Ok(server),
                Err(failure) if options.port.is_none() && tried < PORTS_TRIED && is_port_taken(&failure) => {
                    tried += 1;
                }
                Err(failure) => return Err(failure),
            }
        }
    }

    /// Starts one, and does not wait for it.
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
        let process = Mutex::new(Arc::new(launch(place, &properties)?));
        Ok(Self { options: options.clone(), ports, certificates, properties, process, folder })
    }

    /// Waits until it serves clients; a member of an ensemble does that when it has found a leader.
    ///
    /// # Errors
    /// When it ends first, or takes too long: with the end of its log.
    ///
    /// # Cancel safety
    /// Dropping the future stops the waiting, and nothing else.
    pub async fn ready(&self) -> Outcome {
        let serves = || async {
            words::serves(self.plain_address()).await?;
            // The port for TLS is opened a moment later.
            TcpStream::connect(self.address()).await?;
            Ok(())
        };
        self.process().ready(serves).await
    }

    /// Where clients find it: its port for TLS, if it has one.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.ports.secure.unwrap_or(self.ports.plain)))
    }

    /// Where it speaks plain text, in any case.
    pub fn plain_address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.ports.plain))
    }

    /// The files of its authority, when it speaks TLS.
    pub fn certificates(&self) -> Option<&Certificates> {
        self.certificates.as_ref()
    }

    /// How a client finds it, and everything that it needs to be let in. The locks are below `/locks`.
    pub fn url(&self) -> String {
        self.url_of(&[self.address()], ROOT, &[])
    }

    /// The same for a client that goes through proxies or to several servers at `addresses`, finds the locks below `path`, and
    /// has these options besides: `&[("session_timeout", "4s")]`.
    pub fn url_of(&self, addresses: &[SocketAddr], path: &str, options: &[(&str, &str)]) -> String {
        let hosts: Vec<_> = addresses.iter().map(ToString::to_string).collect();
        let login = self.options.login.as_ref();
        let name = login.map_or_else(String::new, |login| {
            format!("{}:{}@", encoded_login(&login.user), encoded_login(&login.password))
        });
        let mut url = format!("zookeeper://{name}{}{path}", hosts.join(","));
        let mut separator = '?';
        let mut say = |name: &str, value: &str| {
            // Writing to a string cannot fail.
            let _ = write!(url, "{separator}{name}={}", encoded(value));
            separator = '&';
        };
        if login.is_some_and(|login| login.means == Means::Sasl) {
            say("auth", "sasl");
        }
        if let Some(files) = &self.certificates {
            let path = |path: &Path| path.display().to_string();
            say("ca", &path(&files.authority));
            if self.options.encryption == Encryption::TlsWithClientCertificates {
                say("cert", &path(&files.client.certificate));
                say("key", &path(&files.client.key));
            }
        }
        for (name, value) in options {
            say(name, value);
        }
        url
    }

    /// A proxy in front of it that knows requests and replies, unless TLS hides them.
    ///
    /// # Errors
    /// When it cannot listen.
    pub fn proxy(&self) -> Outcome<TcpProxy> {
        TcpProxy::with_conversation(self.address(), || Box::new(ZooKeeperConversation::new()))
    }

    /// What it is to its ensemble.
    ///
    /// # Errors
    /// When it does not serve clients now.
    ///
    /// # Cancel safety
    /// Dropping the future stops the asking, and nothing else.
    pub async fn role(&self) -> Outcome<Role> {
        words::role(self.plain_address()).await
    }

    /// What it says to a word of four letters: `srvr`, `cons`, `dump`, `wchp`.
    ///
    /// # Errors
    /// When there is no answer.
    ///
    /// # Cancel safety
    /// Dropping the future stops the asking, and nothing else.
    pub async fn word(&self, word: &str) -> Outcome<String> {
        words::ask(self.plain_address(), word).await
    }

    /// The sessions that watch the data of the node at `path`, or whether there is one.
    ///
    /// # Errors
    /// When there is no answer.
    ///
    /// # Cancel safety
    /// Dropping the future stops the asking, and nothing else.
    pub async fn watchers(&self, path: &str) -> Outcome<Vec<i64>> {
        Ok(words::watchers_in(&self.word("wchp").await?, path))
    }

    /// Its figures, as `mntr` tells them: `zk_packets_received`, `zk_watch_count`, `zk_ephemerals_count`.
    ///
    /// # Errors
    /// When there is no answer.
    ///
    /// # Cancel safety
    /// Dropping the future stops the asking, and nothing else.
    pub async fn figures(&self) -> Outcome<HashMap<String, String>> {
        words::figures(self.plain_address()).await
    }

    /// The names of the node's children, in the order of the numbers that the server appended to them, others last; `None` when
    /// there is no such node. Past all proxies and access lists, as everything that follows.
    ///
    /// # Errors
    /// When there is no answer, or a refusal.
    ///
    /// # Cancel safety
    /// Nothing changes at the server.
    pub async fn children(&self, path: &str) -> Outcome<Option<Vec<String>>> {
        let names = self.visit(path, async |visit| visit.children(path).await).await?;
        Ok(names.map(node::in_order))
    }

    /// A node, as the server has it; `None` when there is none.
    ///
    /// # Errors
    /// When there is no answer, or a refusal.
    ///
    /// # Cancel safety
    /// Nothing changes at the server.
    pub async fn node(&self, path: &str) -> Outcome<Option<ZooKeeperNode>> {
        self.visit(path, async |visit| visit.node(path).await).await
    }

    /// Makes a node with which anybody may do anything, and the nodes above it that are missing. Answers with its path, as some
    /// kinds get a number.
    ///
    /// # Errors
    /// When there is such a node, no answer, or a refusal.
    ///
    /// # Cancel safety
    /// Dropping the future leaves open which of the nodes are made.
    pub async fn create(&self, path: &str, data: &[u8], kind: NodeKind) -> Outcome<String> {
        self.visit(path, async |visit| visit.create(path, data, kind).await).await
    }

    /// Writes new data into a node. Answers whether there was one.
    ///
    /// # Errors
    /// When there is no answer, or a refusal.
    ///
    /// # Cancel safety
    /// Dropping the future leaves open whether it is done.
    pub async fn write(&self, path: &str, data: &[u8]) -> Outcome<bool> {
        self.visit(path, async |visit| visit.write(path, data).await).await
    }

    /// Deletes a node without children. Answers whether there was one.
    ///
    /// # Errors
    /// When there is no answer, or a refusal.
    ///
    /// # Cancel safety
    /// Dropping the future leaves open whether it is done.
    pub async fn delete(&self, path: &str) -> Outcome<bool> {
        self.visit(path, async |visit| visit.delete(path).await).await
    }

    /// Says who may do what to a node.
    ///
    /// # Errors
    /// When there is no such node, no answer, or a refusal.
    ///
    /// # Cancel safety
    /// Dropping the future leaves open whether it is done.
    pub async fn set_access(&self, path: &str, access: &Access) -> Outcome {
        self.visit(path, async |visit| visit.set_access(path, access).await).await
    }

    /// Whether there is such a session.
    ///
    /// # Errors
    /// When there is no answer.
    ///
    /// # Cancel safety
    /// Dropping the future stops the asking, and nothing else.
    pub async fn knows_session(&self, session: i64) -> Outcome<bool> {
        Ok(words::has_number(&self.word("dump").await?, session))
    }

    /// Closes a session, with all its nodes, as its client could: that one hears of it when it connects again, which it does at
    /// once, as it loses its connection. Answers whether there was such a session.
    ///
    /// # Errors
    /// When there is no answer.
    ///
    /// # Cancel safety
    /// Dropping the future leaves open whether it is done.
    pub async fn close_session(&self, session: i64) -> Outcome<bool> {
        self.close_session_at(self.plain_address(), session).await
    }

    /// A session has one connection, and the server ends the older one. So its client, which connects again at once, may take
    /// the answer away, and the next try finds nothing to close: what the last try is told does not say whether there was a
    /// session before the first one.
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
            .map_err(|failure| self.process().failure(&format!("did not close a session ({failure})")))?;
        Ok(was_there || closed)
    }

    /// Has a session whose client is away last for the longest time that the server allows, from now on. Answers whether there was
    /// still such a session.
    ///
    /// # Errors
    /// When there is no answer.
    ///
    /// # Cancel safety
    /// Dropping the future leaves open whether it is done.
    pub async fn prolong_session(&self, session: i64) -> Outcome<bool> {
        Visit::prolong_session(self.plain_address(), session).await
    }

    async fn visit<T>(&self, path: &str, what: impl AsyncFnOnce(&mut Visit) -> Outcome<T>) -> Outcome<T> {
        let outcome = Visit::pay(self.plain_address(), what).await;
        outcome.map_err(|failure| self.process().failure(&format!("did not do it at {path} ({failure})")))
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.process().pid()
    }

    /// Its log, which goes on when it is started again.
    pub fn log(&self) -> PathBuf {
        self.folder.path().join(format!("{NAME}.log"))
    }

    /// Kills it with a signal that it cannot catch. [`ZooKeeperServer::restart`] starts it again.
    ///
    /// # Errors
    /// When the system does not let us.
    pub fn kill(&self) -> Outcome {
        self.process().kill()
    }

    /// Stops it as it stands: it keeps its connections, takes new ones, and answers nobody.
    ///
    /// # Errors
    /// When it has ended.
    pub fn stop(&self) -> Outcome {
        self.process().stop()
    }

    /// Has it run on after [`ZooKeeperServer::stop`].
    ///
    /// # Errors
    /// When it has ended.
    pub fn resume(&self) -> Outcome {
        self.process().resume()
    }

    /// Kills it, starts it again on the same port, and waits until it serves clients.
    ///
    /// # Errors
    /// When it does not come up: with the end of its log.
    ///
    /// # Cancel safety
    /// Dropping the future leaves a server that is about to answer, or none.
    pub async fn restart(&self, data: Data) -> Outcome {
        self.begin_restart(data)?;
        self.ready().await
    }

    /// The same without waiting: a member of an ensemble without a majority does not serve clients.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn begin_restart(&self, data: Data) -> Outcome {
        self.kill()?;
        if data == Data::Lost {
            self.remove_data()?;
        }
        let process = Arc::new(launch(self.folder.path(), &self.properties)?);
        *self.process.lock().unwrap_or_else(PoisonError::into_inner) = process;
        Ok(())
    }

    fn remove_data(&self) -> Outcome {
        let data = self.folder.path().join(DATA).join("version-2");
        match fs::remove_dir_all(&data) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed.during(data.display()),
        }
    }

    fn process(&self) -> Arc<ServerProcess> {
        Arc::clone(&self.process.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn launch(folder: &Path, properties: &[String]) -> Outcome<ServerProcess> {
    let command = java::server(&folder.join(CONFIGURATION), properties)?;
    ServerProcess::start(NAME, command, folder, java::MISSING)
}

/// With the server's certificate and its key in one file besides, as Java wants them.
fn certificates_in(folder: &Path, membership: &Membership) -> Outcome<Certificates> {
    let files = membership.certificates.clone().map_or_else(|| Certificates::make_in(folder), Ok)?;
    let both = fs::read_to_string(&files.server.key)? + &fs::read_to_string(&files.server.certificate)?;
    fs::write(folder.join(KEY_STORE), both)?;
    Ok(files)
}

fn is_port_taken(failure: &Failure) -> bool {
    failure.to_string().contains("Address already in use")
}
