//! A MySQL or MariaDB server for one test.

mod conversation;
mod packet;
mod program;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlSslMode};

use crate::options::{Encryption, User};
use crate::server::{Kind, Place};
use crate::sql::{OperationOf, Row, at_least_one, sql_server};
use crate::{Outcome, Server, ServerOptions, TcpProxy, left_out};

pub use conversation::MySqlConversation;
pub use program::MySql;

/// How long it has to end before it is killed again.
const PAUSE: Duration = Duration::from_millis(20);

const SOCKET: &str = "s.sock";

/// The servers that speak the protocol.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum MySqlFlavour {
    /// The installed `mariadbd`.
    #[default]
    MariaDb,
    /// `MySQL` 5.7, from an npm package.
    MySql57,
}

impl MySqlFlavour {
    /// Both.
    pub const ALL: [Self; 2] = [Self::MariaDb, Self::MySql57];

    /// Returns the word that leaves its tests out in `DISTLOCK_SKIP`.
    pub fn skip_word(self) -> &'static str {
        match self {
            Self::MariaDb => "mariadb",
            Self::MySql57 => "mysql57",
        }
    }

    /// Returns why its tests are to be left out, if the user wants that: by its own word, or by `mysql`, which applies
    /// to both.
    pub fn left_out(self) -> Option<String> {
        left_out(self.skip_word()).or_else(|| left_out("mysql"))
    }
}

/// A `MySQL` or a `MariaDB`.
pub type MySqlServer = Server<MySql>;

impl Kind for MySql {
    const NAME: &str = "mysql";
    const MISSING: &str = program::MARIADB_MISSING;

    fn find(options: &mut ServerOptions) -> Outcome<Self> {
        at_least_one(&mut options.users);
        Self::of(options.flavour)
    }

    fn command(&self, place: &Place) -> Outcome<Command> {
        let data = place.folder.path().join(Self::DATA);
        self.fill(&data)?;
        let mut command = self.program(&data);
        let files = &place.certificates;
        command
            .arg(format!("--port={}", place.port))
            .arg(format!("--tmpdir={}", place.folder.path().display()))
            .arg("--bind-address=127.0.0.1")
            .arg(format!("--socket={}", place.path(SOCKET)))
            .arg(format!("--pid-file={}", place.path("s.pid")))
            .arg(format!("--ssl-ca={}", files.authority.display()))
            .arg(format!("--ssl-cert={}", files.server.certificate.display()))
            .arg(format!("--ssl-key={}", files.server.key.display()))
            .args(place.options.arguments())
            .envs(place.options.properties.iter().cloned());
        Ok(command)
    }

    /// It is ready when the second of its start is over: clients wait for that by their own clock, which may stand still.
    async fn check(server: &Server<Self>) -> Outcome {
        let mut session = server.session().await?;
        let is_new = "SHOW GLOBAL STATUS WHERE Variable_name = 'Uptime' AND Value = '0'";
        while !session.query(is_new).await?.is_empty() {
            tokio::time::sleep(PAUSE).await;
        }
        Ok(())
    }

    async fn prepare(server: &Server<Self>) -> Outcome {
        let mut admin = server.session().await?;
        // The port is open to every user of the machine, so root, which has no password, may connect only through the
        // socket.
        for host in
            admin.query("SELECT host FROM mysql.user WHERE user = 'root' AND host <> 'localhost'").await?
        {
            let host = host.into_iter().flatten().next().unwrap_or_default();
            admin.query(&format!("DROP USER 'root'@'{host}'")).await?;
        }
        for statement in statements(&server.place.options) {
            admin.query(&statement).await?;
        }
        Ok(())
    }
}

/// Returns the statements that create the database and the users.
fn statements(options: &ServerOptions) -> Vec<String> {
    let create = |name| format!("CREATE DATABASE IF NOT EXISTS `{name}`");
    let mut statements: Vec<_> = options.database.iter().map(create).collect();
    let requires = match options.encryption {
        Encryption::None => "",
        Encryption::Tls => " REQUIRE SSL",
        Encryption::TlsWithClientCertificates => " REQUIRE X509",
    };
    for User { name, password, rights } in &options.users {
        for (host, requires) in [("127.0.0.1", requires), ("localhost", "")] {
            let account = format!("'{name}'@'{host}'");
            statements.push(format!("CREATE USER {account} IDENTIFIED BY '{password}'{requires}"));
            statements.extend(rights.iter().map(|right| format!("GRANT {right} TO {account}")));
        }
    }
    statements
}

impl MySqlServer {
    /// Returns the Unix socket on which it also listens.
    pub fn unix_socket(&self) -> PathBuf {
        self.place.folder.path().join(SOCKET)
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
        self.process.answer(&format!("the end of connection {id}"), ended).await
    }
}

sql_server!(MySqlServer, MySqlSession, MySqlConnection, MySqlConversation, "mysql");
