//! An etcd server for one test.

mod conversation;
mod program;
#[cfg(test)]
mod tests;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::options::{Encryption, User};
use crate::ports::{on_free_ports, random_word};
use crate::process::LOOK_EVERY;
use crate::server::{Kind, Place};
use crate::{Direction, Failure, Outcome, Server, ServerOptions, TcpProxy, free_port};

pub use conversation::{EtcdConversation, EtcdRequest};

/// How many members a cluster has.
const MEMBERS: usize = 3;

/// What an etcd has of its own.
#[derive(Debug)]
pub struct Etcd {
    programs: PathBuf,
    /// Where it listens for other members.
    peers: u16,
    /// Where the others reach it, and where they reach each member.
    reached_at: u16,
    all: Vec<u16>,
    /// What is between, in a cluster.
    between: Option<TcpProxy>,
    /// Of the user `root`, if there are users.
    own_password: String,
}

/// An `etcd`. By default it allows every client everything.
pub type EtcdServer = Server<Etcd>;

impl Etcd {
    fn alone(options: &ServerOptions) -> Outcome<Self> {
        let programs = if options.is_oldest { program::oldest()? } else { program::folder()? };
        let (peers, own_password) = (free_port()?, random_word());
        Ok(Self { programs, peers, reached_at: peers, all: vec![peers], between: None, own_password })
    }
}

impl Kind for Etcd {
    const NAME: &str = "etcd";
    const MISSING: &str = program::MISSING;

    fn find(options: &mut ServerOptions) -> Outcome<Self> {
        Self::alone(options)
    }

    fn command(&self, place: &Place) -> Outcome<Command> {
        let options = &place.options;
        let clients = format!("{}://127.0.0.1:{}", scheme(options), place.port);
        let url_of = |peers: u16| format!("http://127.0.0.1:{peers}");
        let (listens, own) = (url_of(self.peers), url_of(self.reached_at));
        let cluster: Vec<_> = self.all.iter().map(|peers| format!("at{peers}={}", url_of(*peers))).collect();
        let mut command = Command::new(self.programs.join("etcd"));
        command.args(["--name", &format!("at{}", self.reached_at), "--log-level", "warn"]);
        command.args(["--data-dir", &place.path(Self::DATA)]);
        command.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
        command.args(["--listen-peer-urls", &listens, "--initial-advertise-peer-urls", &own]);
        command.args(["--initial-cluster", &cluster.join(",")]);
        // The data has to survive the kill of the server, but not a crash of the machine, so nothing waits for the disk.
        if !options.is_oldest {
            command.arg("--unsafe-no-fsync");
        }
        // A login that costs the usual tenth of a second of the processor would be most of a test.
        command.args(["--bcrypt-cost", "4"]);
        if options.speaks_tls() {
            command.arg("--cert-file").arg(&place.certificates.server.certificate);
            command.arg("--key-file").arg(&place.certificates.server.key);
        }
        if options.encryption == Encryption::TlsWithClientCertificates {
            command.arg("--client-cert-auth").arg("--trusted-ca-file").arg(&place.certificates.authority);
        }
        command.args(options.arguments());
        Ok(command)
    }

    async fn check(server: &Server<Self>) -> Outcome {
        if server.place.options.speaks_tls() {
            return server.run(&["endpoint", "status"]).await.map(drop);
        }
        let answer = server.http("GET /health HTTP/1.0\r\n\r\n").await?;
        if answer.contains(r#""health":"true""#) { Ok(()) } else { Err(Failure::new(answer)) }
    }

    async fn prepare(server: &Server<Self>) -> Outcome {
        let users = &server.place.options.users;
        if users.is_empty() {
            return Ok(());
        }
        server.run(&["user", "add", &format!("root:{}", server.kind.own_password)]).await?;
        server.run(&["user", "grant-role", "root", "root"]).await?;
        for User { name, password, rights } in users {
            server.run(&["user", "add", &format!("{name}:{password}")]).await?;
            server.run(&["role", "add", name]).await?;
            for prefix in rights {
                let grant = ["role", "grant-permission", "--prefix=true", name, "readwrite", prefix];
                server.run(&grant).await?;
            }
            server.run(&["user", "grant-role", name, name]).await?;
        }
        server.run(&["auth", "enable"]).await.map(drop)
    }
}

fn etcdctl_in(programs: &Path) -> Command {
    let mut command = Command::new(programs.join("etcdctl"));
    // By default it gives up after seconds, which a busy machine may take.
    command.env("ETCDCTL_API", "3").env("ETCDCTL_COMMAND_TIMEOUT", "60s").env("ETCDCTL_DIAL_TIMEOUT", "60s");
    command.stdin(Stdio::null());
    command
}

fn scheme(options: &ServerOptions) -> &'static str {
    if options.speaks_tls() { "https" } else { "http" }
}

impl EtcdServer {
    /// Starts the servers of a cluster of three on loopback ports, and waits until they answer.
    ///
    /// # Errors
    /// When one does not start: the end of its log, or what to install.
    ///
    /// # Cancel safety
    /// Dropping the future ends the servers.
    pub async fn start_cluster() -> Outcome<Vec<Self>> {
        let start = || async {
            let options = ServerOptions::new();
            let mut kinds = (0..MEMBERS).map(|_| Etcd::alone(&options)).collect::<Outcome<Vec<_>>>()?;
            for kind in &mut kinds {
                let between = TcpProxy::start((Ipv4Addr::LOCALHOST, kind.peers).into())?;
                kind.reached_at = between.address().port();
                kind.between = Some(between);
            }
            let all: Vec<_> = kinds.iter().map(|kind| kind.reached_at).collect();
            for kind in &mut kinds {
                kind.all.clone_from(&all);
            }
            let launch = |kind| Self::launch(options.clone(), kind);
            let members = kinds.into_iter().map(launch).collect::<Outcome<Vec<_>>>()?;
            for member in &members {
                member.ready().await?;
            }
            Ok(members)
        };
        on_free_ports(None, start).await
    }

    /// Returns which of these members of a cluster is its leader.
    ///
    /// # Errors
    /// When none is, or one does not answer.
    ///
    /// # Cancel safety
    /// The future may be dropped at any time.
    pub async fn leader(members: impl IntoIterator<Item = &Self>) -> Outcome<usize> {
        for (number, member) in members.into_iter().enumerate() {
            let status = member.post("maintenance/status", &json!({}), "").await?;
            if status["leader"] == status["header"]["member_id"] {
                return Ok(number);
            }
        }
        Err(Failure::new("no member is the leader"))
    }

    /// Cuts a member of a cluster that is stopped off from these two others, which stay in contact and have a leader then: when it goes
    /// on, it does not hear of that. Returns which of the two is the leader.
    ///
    /// # Cancel safety
    /// If the future is dropped, they may all be cut off from each other for a moment.
    pub async fn isolate(&self, others: [&Self; 2]) -> usize {
        self.kind.between.iter().for_each(TcpProxy::sever);
        let between = || others.iter().filter_map(|other| other.kind.between.as_ref());
        between().for_each(TcpProxy::cut);
        loop {
            // Once the two have found each other again: from then on they cannot.
            if between().all(|proxy| proxy.connections() > 1)
                && let Ok(leader) = Self::leader(others).await
            {
                between().for_each(TcpProxy::refuse);
                return leader;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Cuts one way of a member's contact with the others of its cluster: they hear nothing of it on the connections that they have opened,
    /// and it hears them.
    pub fn mute(&self) {
        self.kind.between.iter().for_each(|proxy| proxy.blackhole(Direction::ToClient));
    }

    /// Ends [`EtcdServer::mute`].
    pub fn unmute(&self) {
        self.kind.between.iter().for_each(TcpProxy::heal);
    }

    /// Returns the URL of the locks below a prefix, including everything that a client needs to log in.
    pub fn url(&self, prefix: &str) -> String {
        self.url_at(&[self.address()], prefix)
    }

    /// Returns the same URL for a client that goes through proxies at these addresses.
    pub fn url_at(&self, addresses: &[SocketAddr], prefix: &str) -> String {
        let scheme = if self.place.options.speaks_tls() { "etcds" } else { "etcd" };
        let addresses: Vec<_> = addresses.iter().map(ToString::to_string).collect();
        self.url_to(scheme, &format!("{}/{prefix}", addresses.join(",")), self.files("ca"))
    }

    /// Starts a proxy in front of it that knows what its requests are for.
    ///
    /// # Errors
    /// When it cannot listen.
    pub fn proxy(&self) -> Outcome<TcpProxy> {
        TcpProxy::with_conversation(self.address(), || Box::new(EtcdConversation::default()))
    }

    /// Returns the command that runs `etcdctl` with these words, bypassing all proxies, as a user with all permissions.
    pub fn etcdctl(&self, words: &[&str]) -> Command {
        let mut command = etcdctl_in(&self.kind.programs);
        command.arg(format!("--endpoints={}://{}", scheme(&self.place.options), self.address()));
        if self.place.options.speaks_tls() {
            let files = &self.place.certificates;
            command.arg("--cacert").arg(&files.authority);
            command.arg("--cert").arg(&files.client.certificate).arg("--key").arg(&files.client.key);
        }
        command.args(words);
        command
    }

    /// Returns the command `etcdctl` that belongs to the servers of tests, for any server.
    ///
    /// # Errors
    /// When there is none: what to install.
    pub fn etcdctl_of_tests() -> Outcome<Command> {
        Ok(etcdctl_in(&program::folder()?))
    }

    /// Runs `etcdctl` with these words and returns what it prints.
    ///
    /// # Errors
    /// When it fails: what it says.
    ///
    /// # Cancel safety
    /// If the future is dropped, it is not known whether the command is run.
    pub async fn command(&self, words: &[&str]) -> Outcome<String> {
        if self.place.options.users.is_empty() {
            return self.run(words).await;
        }
        let login = format!("--user=root:{}", self.kind.own_password);
        self.run(&[&[login.as_str()], words].concat()).await
    }

    async fn run(&self, words: &[&str]) -> Outcome<String> {
        let output = tokio::process::Command::from(self.etcdctl(words)).kill_on_drop(true).output().await?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let what = words.iter().find(|word| !word.starts_with('-')).copied().unwrap_or_default();
        Err(Failure::new(format!("etcdctl {what}: {}", said.lines().last().unwrap_or_default())))
    }

    /// Returns the keys that begin with this, the oldest first, if it speaks plain text. It asks by itself, because many tests ask
    /// again and again, and to start `etcdctl` for that costs more than the rest of them.
    ///
    /// # Errors
    /// When there is no answer, or the server refuses.
    ///
    /// # Cancel safety
    /// Nothing changes at the server.
    pub async fn keys(&self, prefix: &str) -> Outcome<Vec<String>> {
        let login = json!({ "name": "root", "password": self.kind.own_password });
        let token = match self.place.options.users[..] {
            [] => json!(""),
            _ => self.post("auth/authenticate", &login, "").await?["token"].take(),
        };
        let mut end = prefix.as_bytes().to_vec();
        end.last_mut().into_iter().for_each(|last| *last += 1);
        let [key, range_end] = [prefix.as_bytes(), &end].map(|bytes| BASE64_STANDARD.encode(bytes));
        let question =
            json!({ "key": key, "range_end": range_end, "keys_only": true, "sort_target": "CREATE" });
        let answer = self.post("kv/range", &question, token.as_str().unwrap_or_default()).await?;
        let keys = answer["kvs"].as_array().into_iter().flatten().filter_map(|found| found["key"].as_str());
        let keys = keys.filter_map(|key| BASE64_STANDARD.decode(key).ok());
        Ok(keys.map(|key| String::from_utf8_lossy(&key).into_owned()).collect())
    }

    /// Takes a lock by the service `v3lock`, with a lease of five minutes, and returns its key in base64.
    ///
    /// # Errors
    /// When it does not answer, or refuses it.
    ///
    /// # Cancel safety
    /// If the future is dropped, it is not known whether it gets the lock.
    pub async fn lock(&self, name: &str) -> Outcome<String> {
        let lease = self.post("lease/grant", &json!({ "TTL": 300 }), "").await?;
        let question = json!({ "name": BASE64_STANDARD.encode(name), "lease": lease["ID"] });
        let answer = self.post("lock/lock", &question, "").await?;
        answer["key"].as_str().map(str::to_owned).ok_or_else(|| Failure::new(answer.to_string()))
    }

    /// Gives back what [`EtcdServer::lock`] has taken.
    ///
    /// # Errors
    /// When it does not answer.
    ///
    /// # Cancel safety
    /// If the future is dropped, it is not known whether the lock is free.
    pub async fn unlock(&self, key: &str) -> Outcome {
        self.post("lock/unlock", &json!({ "key": key }), "").await.map(drop)
    }

    async fn post(&self, path: &str, question: &Value, token: &str) -> Outcome<Value> {
        let body = question.to_string();
        // A server of 3.4 takes an empty token for a wrong one.
        let login = if token.is_empty() { String::new() } else { format!("Authorization: {token}\r\n") };
        let head = format!("POST /v3/{path} HTTP/1.0\r\n{login}Content-Length: {}\r\n\r\n", body.len());
        let answer = self.http(&(head + &body)).await?;
        match answer.split_once("\r\n\r\n").map(|(_head, body)| serde_json::from_str::<Value>(body)) {
            Some(Ok(answer)) if answer["error"].is_null() => Ok(answer),
            _ => Err(self.process.failure(&format!("did not carry out {path} ({answer})"))),
        }
    }

    async fn http(&self, request: &str) -> Outcome<String> {
        let mut stream = TcpStream::connect(self.address()).await?;
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    }
}
