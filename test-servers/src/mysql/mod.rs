//! A MySQL or MariaDB server for one test.

mod conversation;
mod options;
mod packet;
mod program;
#[cfg(test)]
mod tests;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use lock_core::Operation;
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlSslMode};
use tempfile::TempDir;

use crate::options::Encryption;
use crate::ports::on_free_ports;
use crate::process::process_methods;
use crate::sql::{OperationOf, Row, sql_server};
use crate::{Certificates, Outcome, ServerProcess, TcpProxy, free_port, url};
use program::Program;

pub use conversation::MySqlConversation;
pub use options::{MySqlFlavour, MySqlOptions};

/// How long a killed connection may take to end.
const ENDED_WITHIN: Duration = Duration::from_mins(1);

/// How long it has to end before it is killed again.
const PAUSE: Duration = Duration::from_millis(20);

/// A server on a port of its own, with its files in a temporary folder. Dropping this ends it.
#[derive(Debug)]
pub struct MySqlServer {
    options: MySqlOptions,
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
        let server = Self { options: options.clone(), port, certificates, process, folder };
        let mut admin = server.ready().await?;
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

    /// Waits until it answers, and the second of its start is over: clients wait for that by their own clock, which may stand still.
    async fn ready(&self) -> Outcome<MySqlSession> {
        let mut session = self.process.ready(|| self.session()).await?;
        let is_new = "SHOW GLOBAL STATUS WHERE Variable_name = 'Uptime' AND Value = '0'";
        while !session.query(is_new).await?.is_empty() {
            tokio::time::sleep(PAUSE).await;
        }
        Ok(session)
    }

    /// Returns the Unix socket on which it also listens.
    pub fn unix_socket(&self) -> PathBuf {
        self.folder.path().join("s.sock")
    }

    fn database(&self) -> &str {
        self.options.databases.first().map_or("", String::as_str)
    }

    /// Opens a connection of its own, as a user with all privileges.
    ///
    /// # Errors
    /// When the server does not answer.
    ///
    /// # Cancel safety
    /// Dropping the future closes it.
    pub async fn session(&self) -> Outcome<MySqlSession> {
        // The settings of the session are those of the server. Root has no password.
        let plain = MySqlConnectOptions::new().pipes_as_concat(false).no_engine_substitution(false);
        let plain = plain.timezone(None).set_names(false).ssl_mode(MySqlSslMode::Disabled);
        MySqlSession::connect(plain.socket(self.unix_socket()).username("root")).await
    }

    /// Ends a connection, as an administrator would.
    ///
    /// It repeats the `KILL` until the connection is gone. MySQL 5.7 may shut the socket of a connection that is about to read from
    /// it: that one lives on, with its locks, until its `wait_timeout`, and another `KILL` does nothing.
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
        self.process.restart()?;
        self.ready().await.map(drop)
    }
}

sql_server!(MySqlServer, MySqlSession, MySqlConnection, MySqlConversation, "mysql");
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
