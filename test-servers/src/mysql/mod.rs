//! A MySQL or MariaDB server for one test.

mod conversation;
mod options;
mod program;
#[cfg(test)]
mod tests;
mod wire;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use lock_core::Operation;
use tempfile::TempDir;

use crate::Outcome;
use crate::options::Encryption;
use crate::ports::on_free_ports;
use crate::process::process_methods;
use crate::{Certificates, ServerProcess, TcpProxy, free_port, url};
use program::Program;

pub use conversation::{MySqlConversation, OperationOf};
pub use options::{MySqlFlavour, MySqlOptions};
pub use wire::{MySqlSession, Row};

const ANSWERS_WITHIN: Duration = Duration::from_secs(60);

/// How long a killed connection may take to end.
const ENDED_WITHIN: Duration = Duration::from_secs(60);

/// How long it has to end before it is killed again.
const PAUSE: Duration = Duration::from_millis(20);

/// A server on a port of its own, with its files in a temporary folder. Dropping this ends it.
#[derive(Debug)]
pub struct MySqlServer {
    options: MySqlOptions,
    program: Program,
    port: u16,
    certificates: Certificates,
    /// Declared before the folder, so that it is dropped first.
    process: ServerProcess,
    folder: TempDir,
}

impl MySqlServer {
    /// Starts a server with a user without any privileges, and waits until it answers.
    ///
    /// # Errors
    /// When it does not start: the end of its log, or what to install.
    ///
    /// # Cancel safety
    /// Dropping the future ends the server.
    pub async fn start(flavour: MySqlFlavour) -> Outcome<Self> {
        Self::start_with(MySqlOptions::new(flavour)).await
    }

    /// Starts a server with these options, and waits until it answers.
    ///
    /// # Errors
    /// When it does not start: the end of its log, or what to install.
    ///
    /// # Cancel safety
    /// Dropping the future ends the server.
    pub async fn start_with(options: MySqlOptions) -> Outcome<Self> {
        let flavour = options.flavour;
        // A missing program may have to be downloaded and prepared, which blocks.
        let program = tokio::task::spawn_blocking(move || Program::find(flavour)).await??;
        on_free_ports(options.port, || Self::start_once(&options, &program)).await
    }

    async fn start_once(options: &MySqlOptions, program: &Program) -> Outcome<Self> {
        let port = options.port.map_or_else(free_port, Ok)?;
        let folder = tempfile::Builder::new().prefix("distlock-mysql-").tempdir()?;
        let certificates = Certificates::make_in(folder.path())?;
        let (filled, data) = (program.clone(), folder.path().join("data"));
        tokio::task::spawn_blocking(move || filled.fill(&data)).await??;
        let command = command(program, options, &certificates, folder.path(), port);
        let process = ServerProcess::start(program.name(), command, folder.path(), program.missing())?;
        let server =
            Self { options: options.clone(), program: program.clone(), port, certificates, process, folder };
        server.ready().await?;
        let mut admin = MySqlSession::connect(&server.unix_socket()).await?;
        // The port is open to every user of the machine, so root, which has no password, may connect only through the
        // socket.
        for host in
            admin.query("SELECT host FROM mysql.user WHERE user = 'root' AND host <> 'localhost'").await?
        {
            let host = host.into_iter().flatten().next().unwrap_or_default();
            admin.query(&format!("DROP USER 'root'@'{host}'")).await?;
        }
        for statement in options.statements() {
            admin.query(&statement).await?;
        }
        Ok(server)
    }

    /// Waits until it answers.
    async fn ready(&self) -> Outcome {
        let check = || async {
            let mut admin = MySqlSession::connect(&self.unix_socket()).await?;
            admin.query("SELECT 1").await.map(drop)
        };
        self.process.ready(check).await
    }

    /// Returns the address on which it listens for TCP.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    /// Returns the Unix socket on which it also listens.
    pub fn unix_socket(&self) -> PathBuf {
        self.folder.path().join("s.sock")
    }

    /// Returns the files of its authority.
    pub fn certificates(&self) -> &Certificates {
        &self.certificates
    }

    /// Returns the URL of the server, including everything that a client needs to log in.
    pub fn url(&self) -> String {
        self.url_at(self.address())
    }

    /// Returns the same URL for a client that goes through a proxy at `address`.
    pub fn url_at(&self, address: SocketAddr) -> String {
        let options = match self.options.encryption {
            Encryption::None => vec![("tls", "off".to_owned())],
            encryption => encryption.url_options("extra_ca", &self.certificates),
        };
        let url = format!("mysql://{}{address}/{}", self.login(), self.database());
        url::with_options(url, options)
    }

    /// Returns the URL for a client on this machine that does not use TCP.
    pub fn unix_url(&self) -> String {
        let database = self.database();
        format!("mysql://{}localhost/{database}?socket={}", self.login(), self.unix_socket().display())
    }

    /// Returns the part of a URL before the host.
    fn login(&self) -> String {
        let user = self.options.login();
        url::login(&user.name, &user.password)
    }

    fn database(&self) -> &str {
        self.options.databases.first().map_or("", String::as_str)
    }

    /// Starts a proxy in front of it that finds the operation of a statement with `operation_of`.
    ///
    /// # Errors
    /// When it cannot listen.
    pub fn proxy(
        &self,
        operation_of: impl Fn(&str) -> Option<Operation> + Send + Sync + 'static,
    ) -> Outcome<TcpProxy> {
        let operation_of: Arc<OperationOf> = Arc::new(operation_of);
        TcpProxy::with_conversation(self.address(), move || {
            Box::new(MySqlConversation::new(Arc::clone(&operation_of)))
        })
    }

    /// Runs a statement on the server as a user with all privileges, bypassing all proxies.
    ///
    /// # Errors
    /// When there is no answer, or the server refuses.
    ///
    /// # Cancel safety
    /// If the future is dropped, it is not known whether the statement is run.
    pub async fn query(&self, statement: &str) -> Outcome<Vec<Row>> {
        let socket = self.unix_socket();
        let asked = async { MySqlSession::connect(&socket).await?.query(statement).await };
        let explain = |what: String| self.process.failure(&what);
        match tokio::time::timeout(ANSWERS_WITHIN, asked).await {
            Ok(Ok(rows)) => Ok(rows),
            Ok(Err(failure)) => Err(explain(format!("did not carry out {statement:?} ({failure})"))),
            Err(_) => Err(explain(format!("did not answer {statement:?} within {ANSWERS_WITHIN:?}"))),
        }
    }

    /// Opens a connection of its own, as a user with all privileges.
    ///
    /// # Errors
    /// When the server does not answer.
    ///
    /// # Cancel safety
    /// Dropping the future closes it.
    pub async fn session(&self) -> Outcome<MySqlSession> {
        MySqlSession::connect(&self.unix_socket()).await
    }

    /// Returns the single value that `statement` selects, as [`MySqlServer::query`] does; `None` for NULL and for no
    /// row.
    ///
    /// # Errors
    /// Same as [`MySqlServer::query`].
    ///
    /// # Cancel safety
    /// Same as [`MySqlServer::query`].
    pub async fn value(&self, statement: &str) -> Outcome<Option<String>> {
        Ok(self.query(statement).await?.into_iter().next().and_then(|row| row.into_iter().next()).flatten())
    }

    /// Ends a connection, as an administrator would.
    ///
    /// It repeats the `KILL` until the connection is gone: MySQL 5.7 may miss one that comes between two statements.
    ///
    /// # Errors
    /// A failure when the connection is still there after a minute.
    ///
    /// # Cancel safety
    /// If the future is dropped, it may or may not have ended the connection.
    pub async fn end_connection(&self, id: &str) -> Outcome {
        let alive = format!("SELECT ID FROM information_schema.PROCESSLIST WHERE ID={id}");
        let ended = async {
            while self.value(&alive).await?.is_some() {
                // It may end by itself before the statement arrives.
                let _ = self.query(&format!("KILL {id}")).await;
                tokio::time::sleep(PAUSE).await;
            }
            Ok(())
        };
        tokio::time::timeout(ENDED_WITHIN, ended)
            .await
            .unwrap_or_else(|_| Err(self.process.failure(&format!("did not end the connection {id}"))))
    }

    /// Kills it, starts it again on the same port, and waits until it answers. Its tables survive; its named locks do
    /// not.
    ///
    /// # Errors
    /// When it does not start: the end of its log.
    ///
    /// # Cancel safety
    /// Dropping the future leaves a server that is about to answer, or none.
    pub async fn restart(&self) -> Outcome {
        let (options, folder) = (&self.options, self.folder.path());
        self.process.restart(command(&self.program, options, &self.certificates, folder, self.port))?;
        self.ready().await
    }
}

process_methods!(MySqlServer);

fn command(
    program: &Program,
    options: &MySqlOptions,
    certificates: &Certificates,
    folder: &Path,
    port: u16,
) -> Command {
    let mut command = program.command(&folder.join("data"));
    let path = |name: &str| folder.join(name).display().to_string();
    command
        .arg(format!("--port={port}"))
        .arg(format!("--tmpdir={}", folder.display()))
        .arg("--bind-address=127.0.0.1")
        .arg(format!("--socket={}", path("s.sock")))
        .arg(format!("--pid-file={}", path("s.pid")))
        .arg(format!("--ssl-ca={}", certificates.authority.display()))
        .arg(format!("--ssl-cert={}", certificates.server.certificate.display()))
        .arg(format!("--ssl-key={}", certificates.server.key.display()))
        .args(options.arguments())
        .envs(options.time_zone.iter().map(|zone| ("TZ", zone)));
    command
}
