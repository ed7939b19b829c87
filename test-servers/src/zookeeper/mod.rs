//! A ZooKeeper server for one test.

mod access;
mod conversation;
mod ensemble;
mod four_letter_words;
mod java;
mod jute;
mod network;
mod node;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;

use tokio::net::TcpStream;

use crate::options::{Encryption, User};
use crate::server::{Kind, Place};
use crate::{Failure, Outcome, Server, ServerOptions, TcpProxy, free_port};
use access::{
    ANY_VERSION, DELETE, GET_CHILDREN, GET_DATA, NO_NODE, SET_ACCESS, SET_DATA, SUPER_DIGEST, Visit,
};
use four_letter_words::ANSWERS_WITHIN;
use jute::{Reader, Writer};

pub use conversation::{ZooKeeperConversation, ZooKeeperRequest};
pub use ensemble::ZooKeeperEnsemble;
pub use node::{Access, NodeKind, ZooKeeperNode};

const CONFIGURATION: &str = "zoo.cfg";
const KEY_STORE: &str = "server-with-key.pem";
const USERS: &str = "users.jaas";

/// The right of a user who logs in with SASL DIGEST-MD5.
const SASL: &str = "sasl";

/// The node above the locks, in the URLs of servers.
const ROOT: &str = "/locks";

const CLOSES_TRIED: usize = 20;

/// What a ZooKeeper has of its own.
#[derive(Debug)]
pub struct ZooKeeper {
    /// For plain text, where it speaks TLS.
    second_port: u16,
    /// Of a member of an ensemble.
    number: Option<usize>,
}

/// A ZooKeeper server. By default it allows every client everything. Sessions last between one second and one minute, as their
/// clients request. An acknowledged change has been passed to the operating system, but is not necessarily on the disk.
pub type ZooKeeperServer = Server<ZooKeeper>;

impl Kind for ZooKeeper {
    const NAME: &str = "zookeeper";
    const MISSING: &str = java::MISSING;
    const DATA: &str = "data/version-2";

    fn find(_options: &mut ServerOptions) -> Outcome<Self> {
        Self::new(None)
    }

    fn command(&self, place: &Place) -> Outcome<Command> {
        fs::create_dir(place.path("data"))?;
        if let Some(number) = self.number {
            fs::write(place.path("data/myid"), number.to_string())?;
        }
        fs::write(place.path(CONFIGURATION), self.configuration(place))?;
        fs::write(place.path(USERS), users(&place.options))?;
        // Java needs one file with both the server's certificate and its key.
        let server = &place.certificates.server;
        let both = fs::read_to_string(&server.key)? + &fs::read_to_string(&server.certificate)?;
        fs::write(place.path(KEY_STORE), both)?;
        java::server(&place.path(CONFIGURATION), &properties(place))
    }

    /// A member of an ensemble serves clients when it has found a leader.
    async fn check(server: &Server<Self>) -> Outcome {
        four_letter_words::serves(server.plain_address()).await?;
        // The TLS port is opened a moment later.
        TcpStream::connect(server.address()).await?;
        Ok(())
    }
}

impl ZooKeeper {
    fn new(number: Option<usize>) -> Outcome<Self> {
        Ok(Self { second_port: free_port()?, number })
    }

    fn plain_port(&self, place: &Place) -> u16 {
        if place.options.speaks_tls() { self.second_port } else { place.port }
    }

    /// Returns the server's configuration, with all its files in its folder. Sessions end at a multiple of the tick.
    fn configuration(&self, place: &Place) -> String {
        let Place { options, port, certificates, .. } = place;
        let (data, plain_port) = (place.path("data"), self.plain_port(place));
        let own = format!("dataDir={data}\nclientPort={plain_port}\n");
        let tls = if options.speaks_tls() {
            let wants = options.encryption == Encryption::TlsWithClientCertificates;
            format!(
                "{WITH_TLS}secureClientPort={port}\nssl.keyStore.location={}\nssl.trustStore.location={}\n\
                 ssl.clientAuth={}\n",
                place.path(KEY_STORE),
                certificates.authority.display(),
                if wants { "need" } else { "none" },
            )
        } else {
            String::new()
        };
        let sasl = if uses_sasl(options) { WITH_SASL } else { "" };
        [ALWAYS, &own, &tls, sasl, &options.lines('=')].concat()
    }
}

const WITH_SASL: &str = "authProvider.sasl=org.apache.zookeeper.server.auth.SASLAuthenticationProvider\n";

const ALWAYS: &str = "\
clientPortAddress=127.0.0.1
maxClientCnxns=0
tickTime=500
minSessionTimeout=1000
maxSessionTimeout=60000
initLimit=20
syncLimit=4
admin.enableServer=false
4lw.commands.whitelist=*
";

/// The certificate of a client contains no host name.
const WITH_TLS: &str = "\
serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory
secureClientPortAddress=127.0.0.1
ssl.keyStore.type=PEM
ssl.trustStore.type=PEM
ssl.hostnameVerification=false
";

fn uses_sasl(options: &ServerOptions) -> bool {
    options.users.iter().any(|user| user.rights == [SASL])
}

/// Returns the users, in Java's format.
fn users(options: &ServerOptions) -> String {
    let users =
        options.users.iter().map(|User { name, password, .. }| format!("\n    user_{name}=\"{password}\""));
    let module = "org.apache.zookeeper.server.auth.DigestLoginModule";
    format!("Server {{\n    {module} required{};\n}};\n", users.collect::<String>())
}

/// Returns the properties for the Java command line: `-Dname=value`.
fn properties(place: &Place) -> Vec<String> {
    let mut all = vec![
        "-Dzookeeper.forceSync=no".to_owned(),
        format!("-Dzookeeper.DigestAuthenticationProvider.superDigest={SUPER_DIGEST}"),
        // In kilobytes: the initial size of the transaction log.
        "-Dzookeeper.preAllocSize=1024".to_owned(),
    ];
    if uses_sasl(&place.options) {
        all.push(format!("-Djava.security.auth.login.config={}", place.path(USERS)));
    }
    all.extend(place.options.properties.iter().map(|(name, value)| format!("-D{name}={value}")));
    all
}

impl ZooKeeperServer {
    /// Returns its address for plain text, which it always has.
    pub fn plain_address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.kind.plain_port(&self.place)))
    }

    /// Returns the URL of the server, including everything that a client needs to log in. The locks are below `/locks`.
    pub fn url(&self) -> String {
        self.url_of(&[self.address()], ROOT, &[])
    }

    /// Returns the same URL for a client that goes through proxies or to several servers at `addresses`, finds the
    /// locks below `path`, and also has these options: `&[("session_timeout", "4s")]`.
    pub fn url_of(&self, addresses: &[SocketAddr], path: &str, options: &[(&str, &str)]) -> String {
        let hosts: Vec<_> = addresses.iter().map(ToString::to_string).collect();
        let sasl = uses_sasl(&self.place.options).then(|| ("auth", SASL.to_owned()));
        let others = options.iter().map(|(name, value)| (*name, (*value).to_owned()));
        let options = sasl.into_iter().chain(self.files("ca")).chain(others);
        self.url_to("zookeeper", &format!("{}{path}", hosts.join(",")), options)
    }

    /// Starts a proxy in front of it that recognises requests and replies, unless TLS hides them.
    ///
    /// # Errors
    /// When it cannot listen.
    pub fn proxy(&self) -> Outcome<TcpProxy> {
        TcpProxy::with_conversation(self.address(), || Box::new(ZooKeeperConversation::default()))
    }

    /// Returns its role: `standalone` without an ensemble, `leader`, or `follower`.
    ///
    /// # Errors
    /// When it does not serve clients now.
    ///
    /// # Cancel safety
    /// Dropping the future only stops the request.
    pub async fn role(&self) -> Outcome<String> {
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
        four_letter_words::ask(self.plain_address(), word, ANSWERS_WITHIN).await
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
        let answer = self.ask(GET_CHILDREN, path, Writer::default().bool(false), NO_NODE).await?;
        let names = answer.map(|answer| Reader(&answer).texts()).transpose()?;
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
        let answer = self.ask(GET_DATA, path, Writer::default().bool(false), NO_NODE).await?;
        Ok(answer.map(|answer| ZooKeeperNode::read(&answer)).transpose()?)
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
        let create = async |visit: &mut Visit| {
            for (end, _) in path.match_indices('/').skip(1) {
                visit.create_one(&path[..end], b"", NodeKind::Lasting).await?;
            }
            let created = visit.create_one(path, data, kind).await?;
            created.ok_or_else(|| Failure::new(format!("there is a node {path} already")))
        };
        self.visit(path, create).await
    }

    /// Writes new data into a node. Returns whether there was one.
    ///
    /// # Errors
    /// When there is no answer, or the server refuses.
    ///
    /// # Cancel safety
    /// If the future is dropped, it is not known whether this is done.
    pub async fn write(&self, path: &str, data: &[u8]) -> Outcome<bool> {
        let request = Writer::default().bytes(data).int(ANY_VERSION);
        Ok(self.ask(SET_DATA, path, request, NO_NODE).await?.is_some())
    }

    /// Deletes a node without children. Returns whether there was one.
    ///
    /// # Errors
    /// When there is no answer, or the server refuses.
    ///
    /// # Cancel safety
    /// If the future is dropped, it is not known whether this is done.
    pub async fn delete(&self, path: &str) -> Outcome<bool> {
        let request = Writer::default().int(ANY_VERSION);
        Ok(self.ask(DELETE, path, request, NO_NODE).await?.is_some())
    }

    /// Sets the access list of a node.
    ///
    /// # Errors
    /// When there is no such node, no answer, or the server refuses.
    ///
    /// # Cancel safety
    /// If the future is dropped, it is not known whether this is done.
    pub async fn set_access(&self, path: &str, access: &Access) -> Outcome {
        let request = access.write(Writer::default()).int(ANY_VERSION);
        self.ask(SET_ACCESS, path, request, 0).await.map(drop)
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
        let closing = async {
            for _ in 1..CLOSES_TRIED {
                if let Ok(existed) = Visit::close_session(address, session).await {
                    return Ok(existed);
                }
            }
            Visit::close_session(address, session).await
        };
        Ok(self.process.answer("the end of a session", closing).await? || was_there)
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
        let prolonging = Visit::prolong_session(self.plain_address(), session);
        self.process.answer("a sign of life", prolonging).await
    }

    async fn ask(&self, what: i32, path: &str, rest: Writer, expected: i32) -> Outcome<Option<Vec<u8>>> {
        self.visit(path, async |visit| visit.ask(what, path, rest, expected).await).await
    }

    async fn visit<T>(&self, path: &str, what: impl AsyncFnOnce(&mut Visit) -> Outcome<T>) -> Outcome<T> {
        self.process.answer(path, Visit::pay(self.plain_address(), what)).await
    }
}
