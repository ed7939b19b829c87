//! A Redis server for one test.

mod cluster;
mod conversation;
mod resp;
mod sentinel;
#[cfg(test)]
mod tests;

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use lock_core::Operation;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::options::{Encryption, User};
use crate::ports::random_word;
use crate::server::{Kind, Place};
use crate::{Failure, Outcome, Server, ServerOptions, TcpProxy, free_port, url};

pub use cluster::{RedisCluster, cluster_url, hash_slot};
pub use conversation::{Digests, RedisConversation};
pub use resp::Value;
pub use sentinel::{RedisSentinels, SayingSentinel, sentinel_url};

/// The user of the fixture itself.
const OWN_USER: &str = "fixture";

const SOCKET: &str = "redis.sock";

/// Settings that only such servers have.
const SENTINEL: &str = "sentinel";
const IN_CLUSTER: &str = "cluster-enabled";
const BUS: &str = "cluster-port";

/// With this setting, whatever its value, a server connects to others from an address of its own.
const SOURCE: &str = "bind-source-addr";

/// What a Redis has of its own.
#[derive(Debug)]
pub struct Redis {
    own_password: String,
}

/// A `redis-server`. By default it allows every client everything, and keeps no data when it ends.
pub type RedisServer = Server<Redis>;

impl Kind for Redis {
    const NAME: &str = "redis-server";
    const MISSING: &str = "redis-server is not installed: install Redis 6.2 or newer (on Debian and Ubuntu: apt-get install \
                       redis-server), or leave its tests out with DISTLOCK_SKIP=redis";
    const DATA: &str = "appendonlydir";

    fn find(options: &mut ServerOptions) -> Outcome<Self> {
        if options.has_setting(IN_CLUSTER) {
            options.settings.push((BUS.to_owned(), free_port()?.to_string()));
        }
        Ok(Self { own_password: random_word() })
    }

    fn command(&self, place: &Place) -> Outcome<Command> {
        fs::write(place.path("users.acl"), self.access_list(&place.options.users))?;
        fs::write(place.path("redis.conf"), configuration(place))?;
        let mut command = Command::new(Self::NAME);
        command.arg(place.path("redis.conf"));
        command.args(place.options.has_setting(SENTINEL).then_some("--sentinel"));
        Ok(command)
    }

    /// It does not answer while it still loads its data.
    async fn check(server: &Server<Self>) -> Outcome {
        let answer = server.ask(&["PING"]).await?;
        crate::ensure!(answer.as_text() == Some("PONG"), "PING was answered {answer:?}");
        Ok(())
    }
}

impl Redis {
    /// Returns the users, in the format of an ACL file. The user without a name is the default one.
    fn access_list(&self, users: &[User]) -> String {
        let own = format!("user {OWN_USER} on >{} ~* &* +@all\n", self.own_password);
        let default = match users {
            [] => "user default on nopass ~* &* +@all\n",
            _ if users.iter().any(|user| user.name.is_empty()) => "",
            _ => "user default off\n",
        };
        let lines = users.iter().map(|User { name, password, rights }| {
            let name = if name.is_empty() { "default" } else { name };
            format!("user {name} on >{password} {}\n", rights.join(" "))
        });
        [own, default.to_owned()].into_iter().chain(lines).collect()
    }
}

/// Returns the server's configuration, with all its files in its folder. It writes to the disk before it answers, if it writes at all.
fn configuration(place: &Place) -> String {
    let Place { options, port, certificates, .. } = place;
    let listens = if options.speaks_tls() {
        let needs = options.encryption == Encryption::TlsWithClientCertificates;
        format!(
            "port 0\ntls-port {port}\ntls-auth-clients {}\ntls-replication yes\ntls-cluster yes\n\
             tls-cert-file {}\ntls-key-file {}\ntls-ca-cert-file {}\n\
             tls-client-cert-file {}\ntls-client-key-file {}\n",
            if needs { "yes" } else { "no" },
            certificates.server.certificate.display(),
            certificates.server.key.display(),
            certificates.authority.display(),
            certificates.client.certificate.display(),
            certificates.client.key.display(),
        )
    } else {
        format!("port {port}\n")
    };
    let always = "bind 127.0.0.1\ndaemonize no\nsave \"\"\nappendfsync always\n";
    let (folder, socket, users) = (place.path(""), place.path(SOCKET), place.path("users.acl"));
    let files = format!("dir {folder}\nunixsocket {socket}\naclfile {users}\n");
    // The last one counts.
    let source = options.has_setting(SOURCE).then(|| format!("{SOURCE} {}\n", source(*port)));
    [always, &files, &listens, &options.lines(' '), &source.unwrap_or_default()].concat()
}

fn source(port: u16) -> Ipv4Addr {
    let [high, low] = port.to_be_bytes();
    Ipv4Addr::new(10, 66, high, low)
}

impl RedisServer {
    /// Returns the Unix socket on which it also listens, in plain text.
    pub fn unix_socket(&self) -> PathBuf {
        self.place.folder.path().join(SOCKET)
    }

    /// Returns the address, one of its own in 10.66.0.0/16, from which it connects to other servers with the setting
    /// `bind-source-addr`.
    pub fn source(&self) -> Ipv4Addr {
        source(self.place.port)
    }

    /// Returns the URL of the server, including everything that a client needs to log in.
    pub fn url(&self) -> String {
        self.url_at(self.address())
    }

    /// Returns the same URL for a client that goes through a proxy at `address`.
    pub fn url_at(&self, address: SocketAddr) -> String {
        let scheme = if self.place.options.speaks_tls() { "rediss" } else { "redis" };
        self.url_to(scheme, &format!("{address}/0"), self.files("ca"))
    }

    /// Returns the URL for a client on this machine that does not use TCP.
    pub fn unix_url(&self) -> String {
        self.url_to("unix", &self.place.path(SOCKET), [("db", "0".to_owned())])
    }

    /// Returns such a URL with TLS, if the server speaks that.
    fn secured(&self, url: &str) -> String {
        let scheme = if self.place.options.speaks_tls() { "rediss+" } else { "redis+" };
        url::with_options(url.replacen("redis+", scheme, 1), self.files("ca"))
    }

    /// Starts a proxy in front of it that finds the operation of a script with `digests`.
    ///
    /// # Errors
    /// When it cannot listen.
    pub fn proxy(&self, digests: impl IntoIterator<Item = (String, Operation)>) -> Outcome<TcpProxy> {
        let digests: Arc<Digests> = Arc::new(digests.into_iter().collect());
        TcpProxy::with_conversation(self.address(), move || {
            Box::new(RedisConversation::new(Arc::clone(&digests)))
        })
    }

    /// Runs a command on the server as a user with all permissions, bypassing all proxies.
    ///
    /// # Errors
    /// When there is no answer, or the server refuses.
    ///
    /// # Cancel safety
    /// If the future is dropped, it is not known whether the command is run.
    pub async fn command(&self, words: &[&str]) -> Outcome<Value> {
        let what = words.first().copied().unwrap_or_default();
        match self.process.answer(what, self.ask(words)).await? {
            Value::Error(text) => Err(Failure::new(format!("{what} was refused: {text}"))),
            value => Ok(value),
        }
    }

    /// Makes it look as if clients behind sentinels, or of its cluster, had used the locks with this prefix for long: they do not wait before they take
    /// a lock. `longest` is a little more than the longest lease and two renewal intervals.
    ///
    /// # Errors
    /// Those of [`RedisServer::command`].
    ///
    /// # Cancel safety
    /// If the future is dropped, it is not known whether it looks so.
    pub async fn note_primary(&self, prefix: &str, longest: Duration) -> Outcome {
        let (key, epoch, slots) = self.place_of_note(prefix).await;
        let note = format!("{}/{epoch} {}{slots}", self.reign().await?, longest.as_millis());
        self.command(&["SET", &key, &note]).await?;
        Ok(())
    }

    /// Makes it look as if such clients had used the locks with this prefix for long, until something happened to the server.
    ///
    /// # Errors
    /// Those of [`RedisServer::command`].
    ///
    /// # Cancel safety
    /// If the future is dropped, it is not known whether it looks so.
    pub async fn note_another_primary(&self, prefix: &str, longest: Duration) -> Outcome {
        let (key, ..) = self.place_of_note(prefix).await;
        self.command(&["SET", &key, &format!("before {}", longest.as_millis())]).await?;
        Ok(())
    }

    /// Its run and its replication, which tell its time as a primary from others.
    async fn reign(&self) -> Outcome<String> {
        let info = self.text(&["INFO"]).await?;
        let of = |name| info.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        Ok(format!("{}/{}", of("run_id:"), of("master_replid:")))
    }

    /// Runs a command that is answered with a text.
    async fn text(&self, words: &[&str]) -> Outcome<String> {
        Ok(self.command(words).await?.as_text().unwrap_or_default().to_owned())
    }

    /// Sends one request, on a connection of its own.
    async fn ask(&self, words: &[&str]) -> Outcome<Value> {
        let mut stream = UnixStream::connect(self.unix_socket()).await?;
        let mut request = resp::request(&["AUTH", OWN_USER, &self.kind.own_password]);
        request.extend(resp::request(words));
        stream.write_all(&request).await?;
        let mut bytes = Vec::new();
        match next(&mut stream, &mut bytes).await? {
            Value::Text(_) => next(&mut stream, &mut bytes).await,
            refusal => Ok(refusal),
        }
    }
}

async fn next(stream: &mut (impl AsyncRead + Unpin), bytes: &mut Vec<u8>) -> Outcome<Value> {
    loop {
        if let Some((value, length)) = resp::parse(bytes)? {
            bytes.drain(..length);
            return Ok(value);
        }
        if stream.read_buf(bytes).await? == 0 {
            return Err(Failure::new("the connection ended before the answer"));
        }
    }
}
