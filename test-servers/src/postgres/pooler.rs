//! A pgbouncer in front of a PostgreSQL server.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};

use tempfile::TempDir;
use tokio::net::TcpStream;

use super::PostgresServer;
use super::program::Program;
use crate::ports::on_free_ports;
use crate::{During, Outcome};
use crate::{ServerProcess, free_port};

const NAME: &str = "pgbouncer";

const MISSING: &str = "pgbouncer is not installed: install it (on Debian and Ubuntu: apt-get install pgbouncer), or leave \
                       its tests out with DISTLOCK_SKIP=pgbouncer";

/// Debian installs it where only administrators have it in their path.
const PATH: &str = "/usr/sbin/pgbouncer";

/// A pgbouncer on a port of its own, for the first user of a server. Dropping this ends it.
#[derive(Debug)]
pub struct PgBouncer {
    port: u16,
    /// Declared before the folder, so that it is dropped first.
    process: ServerProcess,
    _folder: TempDir,
}

impl PgBouncer {
    /// Starts a pooler, which gives a session of the server to the next client after a `session`, a `transaction` or a `statement`,
    /// with these lines in its configuration, and waits until it accepts connections.
    ///
    /// # Errors
    /// When it does not start: the end of its log, or what to install.
    ///
    /// # Cancel safety
    /// Dropping the future ends it.
    pub async fn start(server: &PostgresServer, mode: &str, lines: &str) -> Outcome<Self> {
        on_free_ports(None, || Self::start_once(server, mode, lines)).await
    }

    async fn start_once(server: &PostgresServer, mode: &str, lines: &str) -> Outcome<Self> {
        let port = free_port()?;
        let folder = tempfile::Builder::new().prefix("distlock-pgbouncer-").tempdir()?;
        let login = &server.place.options.users[0];
        let users = folder.path().join("users");
        fs::write(&users, format!("\"{}\" \"{}\"\n", login.name, login.password)).during(users.display())?;
        let configuration = folder.path().join("pgbouncer.ini");
        let address = server.address();
        let text = format!(
            "[databases]\n* = host={} port={}\n\
             [pgbouncer]\nlisten_addr={}\nlisten_port={port}\nunix_socket_dir=\nauth_type=md5\n\
             auth_file={}\npool_mode={mode}\n{lines}\n",
            address.ip(),
            address.port(),
            Ipv4Addr::LOCALHOST,
            users.display(),
        );
        fs::write(&configuration, text).during(configuration.display())?;
        let program = Program::find();
        program.give(folder.path())?;
        let mut command = program.command_at(PATH);
        command.arg(&configuration);
        let process = ServerProcess::start(NAME, command, folder.path(), MISSING)?;
        let pooler = Self { port, process, _folder: folder };
        let check = || async { Ok(TcpStream::connect(pooler.address()).await.map(drop)?) };
        pooler.process.ready(check).await?;
        Ok(pooler)
    }

    /// Returns the address on which it listens.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }
}
