//! An etcd server for one test.

mod conversation;
mod options;
mod program;
#[cfg(test)]
mod tests;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::options::Encryption;
use crate::ports::{on_free_ports, random_word};
use crate::process::process_methods;
use crate::{Certificates, Data, Failure, Outcome, ServerProcess, TcpProxy, free_port, url};

pub use conversation::{EtcdConversation, EtcdRequest};
pub use options::EtcdOptions;

/// How many members a cluster has.
const MEMBERS: usize = 3;

/// An `etcd` on a port of its own, with its data in a temporary folder. Dropping this ends it.
#[derive(Debug)]
pub struct EtcdServer {
    options: EtcdOptions,
    programs: PathBuf,
    ports: Ports,
    certificates: Option<Certificates>,
    /// Of the user `root`, if there are users.
    own_password: String,
    /// Declared before the folder, so that it is dropped first.
    process: ServerProcess,
    folder: TempDir,
}

/// Where a member listens for clients and for other members.
#[derive(Debug, Clone, Copy)]
struct Ports {
    clients: u16,
    peers: u16,
}

impl Ports {
    fn free(chosen: Option<u16>) -> Outcome<Self> {
        Ok(Self { clients: chosen.map_or_else(free_port, Ok)?, peers: free_port()? })
    }
}

impl EtcdServer {
    /// Starts a server that allows every client everything, and waits until it answers.
    ///
    /// # Errors
    /// When it does not start: the end of its log, or what to install.
    ///
    /// # Cancel safety
    /// Dropping the future ends the server.
    pub async fn start() -> Outcome<Self> {
        Self::start_with(EtcdOptions::new()).await
    }

    /// Starts a server with these options, and waits until it answers.
    ///
    /// # Errors
    /// When it does not start: the end of its log, or what to install.
    ///
    /// # Cancel safety
    /// Dropping the future ends the server.
    pub async fn start_with(options: EtcdOptions) -> Outcome<Self> {
        let start = || async {
            let ports = Ports::free(options.port)?;
            let server = Self::start_member(&options, ports, &[ports])?;
            server.ready().await?;
            server.add_users().await?;
            Ok(server)
        };
        on_free_ports(options.port, start).await
    }

    /// Starts the servers of a cluster of three on loopback ports, and waits until they answer.
    ///
    /// # Errors
    /// When one does not start: the end of its log, or what to install.
    ///
    /// # Cancel safety
    /// Dropping the future ends the servers.
    pub async fn start_cluster() -> Outcome<Vec<Self>> {
        let start = || async {
            let ports: Vec<_> = (0..MEMBERS).map(|_| Ports::free(None)).collect::<Outcome<_>>()?;
            let options = EtcdOptions::new();
            let members: Vec<_> =
                ports.iter().map(|own| Self::start_member(&options, *own, &ports)).collect::<Outcome<_>>()?;
            for member in &members {
                member.ready().await?;
            }
            Ok(members)
        };
        on_free_ports(None, start).await
    }

    /// Returns which of the members of a cluster is its leader.
    ///
    /// # Errors
    /// When none is, or one does not answer.
    ///
    /// # Cancel safety
    /// The future may be dropped at any time.
    pub async fn leader(members: &[Self]) -> Outcome<usize> {
        for (number, member) in members.iter().enumerate() {
            let status = member.command(&["endpoint", "status", "-w", "fields"]).await?;
            let field = |name: &str| {
                let beginning = format!("\"{name}\" : ");
                status.lines().find_map(|line| line.strip_prefix(&beginning)).map(str::to_owned)
            };
            if field("MemberID").is_some() && field("MemberID") == field("Leader") {
                return Ok(number);
            }
        }
        Err(Failure::new("no member is the leader"))
    }

    fn start_member(options: &EtcdOptions, ports: Ports, all: &[Ports]) -> Outcome<Self> {
        let programs = if options.is_oldest { program::oldest()? } else { program::folder()? };
        let folder = tempfile::Builder::new().prefix("distlock-etcd-").tempdir()?;
        let place = folder.path();
        let certificates = match options.encryption {
            Encryption::None => None,
            _ => Some(Certificates::make_in(place)?),
        };
        let mut command = command(options, &programs, place, ports, all);
        if let Some(files) = &certificates {
            command.arg("--cert-file").arg(&files.server.certificate);
            command.arg("--key-file").arg(&files.server.key);
            if options.encryption == Encryption::TlsWithClientCertificates {
                command.arg("--client-cert-auth").arg("--trusted-ca-file").arg(&files.authority);
            }
        }
        let process = ServerProcess::start("etcd", command, place, program::MISSING)?;
        let (options, own_password) = (options.clone(), random_word());
        Ok(Self { options, programs, ports, certificates, own_password, process, folder })
    }

    /// Waits until it answers.
    async fn ready(&self) -> Outcome {
        let check = || async {
            if self.certificates.is_some() {
                return self.run(&["endpoint", "status"]).await.map(drop);
            }
            let mut stream = TcpStream::connect(self.address()).await?;
            stream.write_all(b"GET /health HTTP/1.0\r\n\r\n").await?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await?;
            if answer.contains(r#""health":"true""#) { Ok(()) } else { Err(Failure::new(answer)) }
        };
        self.process.ready(check).await
    }

    async fn add_users(&self) -> Outcome {
        if self.options.users.is_empty() {
            return Ok(());
        }
        self.run(&["user", "add", &format!("root:{}", self.own_password)]).await?;
        self.run(&["user", "grant-role", "root", "root"]).await?;
        for user in &self.options.users {
            let name = &user.name;
            self.run(&["user", "add", &format!("{name}:{}", user.password)]).await?;
            self.run(&["role", "add", name]).await?;
            self.run(&["role", "grant-permission", "--prefix=true", name, "readwrite", &user.prefix]).await?;
            self.run(&["user", "grant-role", name, name]).await?;
        }
        self.run(&["auth", "enable"]).await.map(drop)
    }

    /// Returns the address on which it listens for clients.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.ports.clients))
    }

    /// Returns the files of its authority, if it speaks TLS.
    pub fn certificates(&self) -> Option<&Certificates> {
        self.certificates.as_ref()
    }

    /// Returns the URL of the locks below a prefix, including everything that a client needs to log in.
    pub fn url(&self, prefix: &str) -> String {
        self.url_at(&[self.address()], prefix)
    }

    /// Returns the same URL for a client that goes through proxies at these addresses.
    pub fn url_at(&self, addresses: &[SocketAddr], prefix: &str) -> String {
        let login = self.options.users.first();
        let login = login.map_or_else(String::new, |user| url::login(&user.name, &user.password));
        let scheme = if self.certificates.is_some() { "etcds" } else { "etcd" };
        let addresses: Vec<_> = addresses.iter().map(ToString::to_string).collect();
        let options =
            self.certificates.iter().flat_map(|files| self.options.encryption.url_options("ca", files));
        url::with_options(format!("{scheme}://{login}{}/{prefix}", addresses.join(",")), options)
    }

    /// Starts a proxy in front of it that knows what its requests are for.
    ///
    /// # Errors
    /// When it cannot listen.
    pub fn proxy(&self) -> Outcome<TcpProxy> {
        TcpProxy::with_conversation(self.address(), || Box::new(EtcdConversation::new()))
    }

    /// Returns the command that runs `etcdctl` with these words, bypassing all proxies, as a user with all permissions.
    pub fn etcdctl(&self, words: &[&str]) -> Command {
        let mut command = Self::etcdctl_in(&self.programs);
        let scheme = if self.certificates.is_some() { "https" } else { "http" };
        command.arg(format!("--endpoints={scheme}://{}", self.address()));
        if let Some(files) = &self.certificates {
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
        Ok(Self::etcdctl_in(&program::folder()?))
    }

    fn etcdctl_in(programs: &Path) -> Command {
        let mut command = Command::new(programs.join("etcdctl"));
        command.env("ETCDCTL_API", "3").stdin(Stdio::null());
        command
    }

    /// Runs `etcdctl` with these words and returns what it prints.
    ///
    /// # Errors
    /// When it fails: what it says.
    ///
    /// # Cancel safety
    /// If the future is dropped, it is not known whether the command is run.
    pub async fn command(&self, words: &[&str]) -> Outcome<String> {
        if self.options.users.is_empty() {
            return self.run(words).await;
        }
        let login = format!("--user=root:{}", self.own_password);
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

    /// Returns the keys that begin with this.
    ///
    /// # Errors
    /// Those of [`EtcdServer::command`].
    ///
    /// # Cancel safety
    /// The future may be dropped at any time.
    pub async fn keys(&self, prefix: &str) -> Outcome<Vec<String>> {
        let printed = self.command(&["get", "--prefix", "--keys-only", "--sort-by=CREATE", prefix]).await?;
        Ok(printed.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect())
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
        data.remove_unless_kept(&self.folder.path().join("data"))?;
        self.process.restart()?;
        self.ready().await
    }
}

process_methods!(EtcdServer);

fn command(options: &EtcdOptions, programs: &Path, folder: &Path, own: Ports, all: &[Ports]) -> Command {
    let scheme = if options.encryption == Encryption::None { "http" } else { "https" };
    let clients = format!("{scheme}://127.0.0.1:{}", own.clients);
    let peer_url = |ports: &Ports| format!("http://127.0.0.1:{}", ports.peers);
    let name = |ports: &Ports| format!("at{}", ports.peers);
    let cluster: Vec<_> = all.iter().map(|ports| format!("{}={}", name(ports), peer_url(ports))).collect();
    let mut command = Command::new(programs.join("etcd"));
    command.args(["--name", &name(&own), "--log-level", "warn"]);
    command.arg("--data-dir").arg(folder.join("data"));
    command.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
    let peers = peer_url(&own);
    command.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
    command.args(["--initial-cluster", &cluster.join(",")]);
    // The data has to survive the kill of the server, but not a crash of the machine, so nothing waits for the disk.
    if !options.is_oldest {
        command.arg("--unsafe-no-fsync");
    }
    // A login that costs the usual tenth of a second of the processor would be most of a test.
    command.args(["--bcrypt-cost", "4"]);
    for (name, value) in &options.settings {
        command.arg(format!("--{name}={value}"));
    }
    command
}
