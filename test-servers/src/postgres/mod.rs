//! A PostgreSQL server for one test.

mod conversation;
mod pooler;
mod program;
#[cfg(test)]
mod tests;

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;

use sqlx::postgres::{PgConnectOptions, PgConnection, PgSslMode};

use crate::options::{Encryption, User};
use crate::server::{Kind, Place};
use crate::sql::{OperationOf, Row, at_least_one, sql_server};
use crate::{Data, During, Outcome, Server, ServerOptions, TcpProxy};

pub use conversation::PostgresConversation;
pub use pooler::{PgBouncer, Pooler};
pub use program::Postgres;

/// The user with all privileges, who may connect only through the socket.
const SUPERUSER: &str = "postgres";

/// The database of the tests. Advisory locks belong to a database.
const DATABASE: &str = "locks";

/// The data has to survive the kill of the server, but not a crash of the machine, so nothing waits for the disk.
const THRIFTY: [&str; 8] = [
    "--fsync=off",
    "--full_page_writes=off",
    "--shared_buffers=16MB",
    "--jit=off",
    "--autovacuum=off",
    "--max_wal_size=64MB",
    "--max_logical_replication_workers=0",
    "--max_parallel_workers=0",
];

/// A PostgreSQL. It has one database, `locks`.
pub type PostgresServer = Server<Postgres>;

impl Kind for Postgres {
    const NAME: &str = "postgres";
    const MISSING: &str = program::MISSING;
    /// A killed server leaves shared memory behind.
    const QUITS: bool = true;

    fn find(options: &mut ServerOptions) -> Outcome<Self> {
        at_least_one(&mut options.users);
        options.database = Some(DATABASE.to_owned());
        Ok(Self::installed())
    }

    fn command(&self, place: &Place) -> Outcome<Command> {
        let Place { options, port, certificates, folder } = place;
        fs::write(place.path("rules"), rules(options.encryption))?;
        self.fill(&folder.path().join(Self::DATA))?;
        self.give(folder.path())?;
        let mut command = self.program(Self::NAME);
        command.arg("-D").arg(folder.path().join(Self::DATA));
        command
            .arg(format!("--port={port}"))
            .arg(format!("--listen_addresses={}", Ipv4Addr::LOCALHOST))
            .arg(format!("--unix_socket_directories={}", folder.path().display()))
            .arg(format!("--hba_file={}", place.path("rules")))
            .arg("--ssl=on")
            .arg(format!("--ssl_ca_file={}", certificates.authority.display()))
            .arg(format!("--ssl_cert_file={}", certificates.server.certificate.display()))
            .arg(format!("--ssl_key_file={}", certificates.server.key.display()))
            .args(THRIFTY)
            .args(options.arguments());
        Ok(command)
    }

    async fn check(server: &Server<Self>) -> Outcome {
        server.session().await.map(drop)
    }

    async fn prepare(server: &Server<Self>) -> Outcome {
        server.query(&statements(&server.place.options).join("; ")).await.map(drop)
    }
}

/// Returns the rules about who may connect, and how.
fn rules(encryption: Encryption) -> String {
    let rule = match encryption {
        Encryption::None => "host all all 127.0.0.1/32 md5",
        Encryption::Tls => "hostssl all all 127.0.0.1/32 scram-sha-256",
        Encryption::TlsWithClientCertificates => {
            "hostssl all all 127.0.0.1/32 scram-sha-256 clientcert=verify-ca"
        }
    };
    format!("local all all trust\n{rule}\n")
}

/// Returns the statements that create the users.
fn statements(options: &ServerOptions) -> Vec<String> {
    // SCRAM takes a client that was compiled without optimisation half a second for each connection.
    let encryption = if options.speaks_tls() { "scram-sha-256" } else { "md5" };
    let mut statements = vec![format!("SET password_encryption='{encryption}'")];
    for User { name, password, rights } in &options.users {
        statements.push(format!("CREATE ROLE {name} LOGIN PASSWORD '{password}'"));
        statements.extend(rights.iter().map(|right| format!("GRANT {right} TO {name}")));
    }
    statements
}

impl PostgresServer {
    /// Returns the Unix socket on which it also listens.
    pub fn unix_socket(&self) -> PathBuf {
        self.place.folder.path().join(format!(".s.PGSQL.{}", self.place.port))
    }

    /// Opens a connection of its own to the database, as a user with all privileges.
    ///
    /// # Errors
    /// When the server does not answer.
    ///
    /// # Cancel safety
    /// Dropping the future closes it.
    pub async fn session(&self) -> Outcome<PostgresSession> {
        self.session_in(DATABASE).await
    }

    /// Opens a connection of its own to another database, as a user with all privileges.
    ///
    /// # Errors
    /// When the server does not answer, or has no such database.
    ///
    /// # Cancel safety
    /// Dropping the future closes it.
    pub async fn session_in(&self, database: &str) -> Outcome<PostgresSession> {
        let plain = PgConnectOptions::new_without_pgpass().ssl_mode(PgSslMode::Disable).username(SUPERUSER);
        let plain = plain.socket(self.place.folder.path()).port(self.place.port).database(database);
        PostgresSession::connect(plain).await
    }

    /// Restarts it as the standby of a primary that it cannot reach. [`PostgresServer::promote`] makes it a primary again.
    ///
    /// # Errors
    /// Same as [`Server::restart`].
    ///
    /// # Cancel safety
    /// Same as [`Server::restart`].
    pub async fn restart_as_standby(&self) -> Outcome {
        let signal = self.place.folder.path().join("data/standby.signal");
        fs::write(&signal, "").during(signal.display())?;
        self.kind.give(&signal)?;
        self.restart(Data::Kept).await
    }

    /// Makes a standby a primary.
    ///
    /// # Errors
    /// When it is none, or does not become one.
    ///
    /// # Cancel safety
    /// If the future is dropped, it becomes one all the same.
    pub async fn promote(&self) -> Outcome {
        self.query("SELECT pg_promote()").await.map(drop)
    }
}

sql_server!(PostgresServer, PostgresSession, PgConnection, PostgresConversation, "postgres");
