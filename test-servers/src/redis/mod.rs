//! A Redis server for one test.

mod conversation;
mod options;
mod resp;
mod sentinel;
#[cfg(test)]
mod tests;

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use lock_core::Operation;
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::options::Encryption;
use crate::ports::{on_free_ports, random_word};
use crate::process::process_methods;
use crate::{Certificates, Data, ServerProcess, TcpProxy, free_port, url};
use crate::{Failure, Outcome};
use options::OWN_USER;

pub use conversation::{Digests, RedisConversation};
pub use options::RedisOptions;
pub use resp::Value;
pub use sentinel::{RedisSentinel, RedisSentinels, SayingSentinel, sentinel_url};

const PROGRAM: &str = "redis-server";

const MISSING: &str = "redis-server is not installed: install Redis 6.2 or newer (on Debian and Ubuntu: apt-get install \
                       redis-server), or leave its tests out with DISTLOCK_SKIP=redis";

const ANSWERS_WITHIN: Duration = Duration::from_mins(1);

/// A `redis-server` on a port of its own, with its files in a temporary folder. Dropping this ends it.
#[derive(Debug)]
pub struct RedisServer {
    options: RedisOptions,
    port: u16,
    certificates: Option<Certificates>,
    own_password: String,
    /// Declared before the folder, so that it is dropped first.
    process: ServerProcess,
    folder: TempDir,
}

impl RedisServer {
    /// Starts a server that allows every client everything, and waits until it answers.
    ///
    /// # Errors
    /// When it does not start: the end of its log, or what to install.
    ///
    /// # Cancel safety
    /// Dropping the future ends the server.
    pub async fn start() -> Outcome<Self> {
        Self::start_with(RedisOptions::new()).await
    }

    /// Starts a server with these options, and waits until it answers.
    ///
    /// # Errors
    /// When it does not start: the end of its log, or what to install.
    ///
    /// # Cancel safety
    /// Dropping the future ends the server.
    pub async fn start_with(options: RedisOptions) -> Outcome<Self> {
        on_free_ports(options.port, || Self::start_once(&options)).await
    }

    async fn start_once(options: &RedisOptions) -> Outcome<Self> {
        let port = options.port.map_or_else(free_port, Ok)?;
        let folder = tempfile::Builder::new().prefix("distlock-redis-").tempdir()?;
        let place = folder.path();
        let certificates = match options.encryption {
            Encryption::None => None,
            _ => Some(Certificates::make_in(place)?),
        };
        let own_password = random_word();
        fs::write(place.join("users.acl"), options.access_list(&own_password))?;
        fs::write(place.join("redis.conf"), options.configuration(place, port, certificates.as_ref()))?;
        let process = ServerProcess::start(PROGRAM, command(place), place, MISSING)?;
        let server = Self { options: options.clone(), port, certificates, own_password, process, folder };
        server.ready().await?;
        Ok(server)
    }

    /// Waits until it answers, which it does not do while it still loads its data.
    async fn ready(&self) -> Outcome {
        let check = || async {
            match ask(&self.unix_socket(), &self.own_password, &["PING"]).await? {
                Value::Text(text) if text == "PONG" => Ok(()),
                other => Err(Failure::new(format!("PING was answered {other:?}"))),
            }
        };
        self.process.ready(check).await
    }

    /// Returns the address on which it listens for TCP.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    /// Returns the Unix socket on which it also listens, in plain text.
    pub fn unix_socket(&self) -> PathBuf {
        self.folder.path().join("redis.sock")
    }

    /// Returns the files of its authority, if it speaks TLS.
    pub fn certificates(&self) -> Option<&Certificates> {
        self.certificates.as_ref()
    }

    /// Returns the URL of the server, including everything that a client needs to log in.
    pub fn url(&self) -> String {
        self.url_at(self.address())
    }

    /// Returns the same URL for a client that goes through a proxy at `address`.
    pub fn url_at(&self, address: SocketAddr) -> String {
        let login = self.login();
        let scheme = if self.certificates.is_some() { "rediss" } else { "redis" };
        let options =
            self.certificates.iter().flat_map(|files| self.options.encryption.url_options("ca", files));
        url::with_options(format!("{scheme}://{login}{address}/0"), options)
    }

    /// Returns the URL for a client on this machine that does not use TCP.
    pub fn unix_url(&self) -> String {
        format!("unix://{}{}?db=0", self.login(), self.unix_socket().display())
    }

    /// Returns the part of a URL before the host.
    fn login(&self) -> String {
        self.options.login.as_ref().map_or_else(String::new, |login| {
            url::login(login.user.as_deref().unwrap_or_default(), &login.password)
        })
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
        let socket = self.unix_socket();
        let answer = ask(&socket, &self.own_password, words);
        let answer = tokio::time::timeout(ANSWERS_WITHIN, answer).await;
        let what = words.first().copied().unwrap_or_default();
        match answer {
            Ok(Ok(Value::Error(text))) => Err(Failure::new(format!("{what} was refused: {text}"))),
            Ok(Ok(value)) => Ok(value),
            Ok(Err(failure)) => Err(self.process.failure(&format!("did not answer {what} ({failure})"))),
            Err(_) => Err(self.process.failure(&format!("did not answer {what} within {ANSWERS_WITHIN:?}"))),
        }
    }

    /// Makes it look as if clients behind sentinels had used the locks with this prefix for long: they do not wait before they take
    /// a lock. `longest` is a little more than the longest lease and two renewal intervals.
    ///
    /// # Errors
    /// Those of [`RedisServer::command`].
    ///
    /// # Cancel safety
    /// If the future is dropped, it is not known whether it looks so.
    pub async fn note_primary(&self, prefix: &str, longest: Duration) -> Outcome {
        let info = self.command(&["INFO"]).await?;
        let of = |name: &str| {
            let mut lines = info.as_text().unwrap_or_default().lines();
            lines.find_map(|line| line.strip_prefix(name)).unwrap_or_default().to_owned()
        };
        let (run, replication) = (of("run_id:"), of("master_replid:"));
        let note = format!("{run}/{replication} {} 0", longest.as_millis());
        self.command(&["SET", &format!("{prefix}:primary"), &note]).await?;
        Ok(())
    }

    /// Kills it, starts it again on the same port, and waits until it answers.
    ///
    /// # Errors
    /// When it does not start: the end of its log.
    ///
    /// # Cancel safety
    /// Dropping the future leaves a server that is about to answer, or none.
    pub async fn restart(&self, data: Data) -> Outcome {
        self.kill()?;
        data.remove_unless_kept(&self.folder.path().join("appendonlydir"))?;
        self.process.restart()?;
        self.ready().await
    }
}

process_methods!(RedisServer);

fn command(folder: &Path) -> Command {
    let mut command = Command::new(PROGRAM);
    command.arg(folder.join("redis.conf"));
    command
}

/// Sends one request, on a connection of its own.
async fn ask(socket: &Path, password: &str, words: &[&str]) -> Outcome<Value> {
    let mut stream = UnixStream::connect(socket).await?;
    let mut request = resp::request(&["AUTH", OWN_USER, password]);
    request.extend(resp::request(words));
    stream.write_all(&request).await?;
    let mut bytes = Vec::new();
    match next(&mut stream, &mut bytes).await? {
        Value::Text(_) => next(&mut stream, &mut bytes).await,
        refusal => Ok(refusal),
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
