//! A PostgreSQL server for one test.

mod conversation;
mod message;
mod options;
mod pooler;
mod program;
#[cfg(test)]
mod tests;

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use lock_core::Operation;
use rustix::process::{Pid, Signal, kill_process};
use sqlx::postgres::{PgConnectOptions, PgConnection, PgSslMode};
use tempfile::TempDir;

use crate::options::Encryption;
use crate::ports::on_free_ports;
use crate::sql::{OperationOf, Row, sql_server};
use crate::{Certificates, During, Outcome, ServerProcess, TcpProxy, free_port, url};
use program::{MISSING, Program};

pub use conversation::PostgresConversation;
pub use options::PostgresOptions;
pub use pooler::{PgBouncer, PoolMode};

const NAME: &str = "postgres";

/// The user with all privileges, who may connect only through the socket.
const SUPERUSER: &str = "postgres";

/// The database of the tests. Advisory locks belong to a database.
const DATABASE: &str = "locks";

/// How long its processes may take to end after the first of them was killed.
const ENDED_WITHIN: Duration = Duration::from_secs(30);

const PAUSE: Duration = Duration::from_millis(5);

/// The data has to survive the kill of the server, but not a crash of the machine, so nothing waits for the disk.
const THRIFTY: [&str; 6] = [
    "fsync=off",
    "full_page_writes=off",
    "shared_buffers=16MB",
    "jit=off",
    "autovacuum=off",
    "max_wal_size=64MB",
];

/// A server on a port of its own, with its files in a temporary folder. Dropping this ends it.
#[derive(Debug)]
pub struct PostgresServer {
    options: PostgresOptions,
    program: Program,
    port: u16,
    certificates: Certificates,
    /// Declared before the folder, so that it is dropped first.
    process: ServerProcess,
    folder: TempDir,
}

impl PostgresServer {
    /// Starts a server with a user without any privileges, and waits until it answers.
    ///
    /// # Errors
    /// When it does not start: the end of its log, or what to install.
    ///
    /// # Cancel safety
    /// Dropping the future ends the server.
    pub async fn start() -> Outcome<Self> {
        Self::start_with(PostgresOptions::new()).await
    }

    /// Starts a server with these options, and waits until it answers.
    ///
    /// # Errors
    /// When it does not start: the end of its log, or what to install.
    ///
    /// # Cancel safety
    /// Dropping the future ends the server.
    pub async fn start_with(options: PostgresOptions) -> Outcome<Self> {
        let program = Program::find();
        on_free_ports(options.port, || Self::start_once(&options, &program)).await
    }

    async fn start_once(options: &PostgresOptions, program: &Program) -> Outcome<Self> {
        let port = options.port.map_or_else(free_port, Ok)?;
        let folder = tempfile::Builder::new().prefix("distlock-postgres-").tempdir()?;
        let certificates = Certificates::make_in(folder.path())?;
        fs::write(folder.path().join("rules"), options.rules()).during("write the rules of access")?;
        let (filled, place) = (program.clone(), folder.path().to_owned());
        let fill = move || {
            filled.fill(&place.join("data"))?;
            filled.give(&place)
        };
        // The first call prepares the data, which takes seconds.
        tokio::task::spawn_blocking(fill).await??;
        let command = command(program, options, &certificates, folder.path(), port);
        let process = ServerProcess::start(NAME, command, folder.path(), MISSING)?;
        let server =
            Self { options: options.clone(), program: program.clone(), port, certificates, process, folder };
        server.ready().await?.query(&format!("CREATE DATABASE {DATABASE}")).await?;
        let mut admin = server.session().await?;
        for statement in options.statements() {
            admin.query(&statement).await?;
        }
        Ok(server)
    }

    /// Waits until it answers.
    async fn ready(&self) -> Outcome<PostgresSession> {
        self.process.ready(|| self.session_in(SUPERUSER)).await
    }

    /// Returns the folder of the Unix socket on which it also listens.
    pub fn socket_folder(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the Unix socket on which it also listens.
    pub fn unix_socket(&self) -> PathBuf {
        self.folder.path().join(format!(".s.PGSQL.{}", self.port))
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
        let plain = plain.socket(self.socket_folder()).port(self.port).database(database);
        PostgresSession::connect(plain).await
    }

    /// Creates an empty database that belongs to this user.
    ///
    /// # Errors
    /// When there is no answer, or the server refuses.
    ///
    /// # Cancel safety
    /// If the future is dropped, it is not known whether the database exists.
    pub async fn create_database(&self, name: &str, owner: &str) -> Outcome {
        self.query(&format!("CREATE DATABASE {name} OWNER {owner}")).await.map(drop)
    }

    #[allow(clippy::unused_self, reason = "for the methods that another server has, too")]
    fn database(&self) -> &str {
        DATABASE
    }

    /// Kills it, starts it again on the same port, and waits until it answers. Its tables survive; its advisory locks
    /// do not.
    ///
    /// # Errors
    /// When it does not start: the end of its log.
    ///
    /// # Cancel safety
    /// Dropping the future leaves a server that is about to answer, or none.
    pub async fn restart(&self) -> Outcome {
        self.kill()?;
        self.process.restart()?;
        self.ready().await.map(drop)
    }

    /// Restarts it as the standby of a primary that it cannot reach. [`PostgresServer::promote`] makes it a primary again.
    ///
    /// # Errors
    /// Same as [`PostgresServer::restart`].
    ///
    /// # Cancel safety
    /// Same as [`PostgresServer::restart`].
    pub async fn restart_as_standby(&self) -> Outcome {
        let signal = self.folder.path().join("data/standby.signal");
        fs::write(&signal, "").during(signal.display())?;
        self.program.give(&signal)?;
        self.restart().await
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

    /// Returns its process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Returns its log file, to which it appends after a restart.
    pub fn log(&self) -> PathBuf {
        self.process.log()
    }

    /// Kills it with a signal that it cannot catch, and waits until all of its processes are gone.
    ///
    /// # Errors
    /// When the system does not permit it.
    pub fn kill(&self) -> Outcome {
        let others = self.others();
        self.process.kill()?;
        let deadline = std::time::Instant::now() + ENDED_WITHIN;
        // They notice by themselves, unless they are suspended.
        signal_all(&others, Signal::CONT);
        while others.iter().any(|process| is_running(*process)) && std::time::Instant::now() < deadline {
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Suspends all of its processes: it keeps its connections, the system accepts new ones for it, and it answers none
    /// of them.
    ///
    /// # Errors
    /// When it has ended.
    pub fn stop(&self) -> Outcome {
        self.process.stop()?;
        signal_all(&self.others(), Signal::STOP);
        Ok(())
    }

    /// Resumes it after `stop`.
    ///
    /// # Errors
    /// When it has ended.
    pub fn resume(&self) -> Outcome {
        signal_all(&self.others(), Signal::CONT);
        self.process.resume()
    }

    /// Returns the processes that the first of its processes has started: one for each connection, and some more.
    fn others(&self) -> Vec<Pid> {
        let pid = self.pid();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        children.split_whitespace().filter_map(|word| Pid::from_raw(word.parse().ok()?)).collect()
    }
}

sql_server!(PostgresServer, PostgresSession, PgConnection, PostgresConversation, "postgres");

impl Drop for PostgresServer {
    fn drop(&mut self) {
        // In order, because a killed server leaves shared memory behind. A destructor cannot report an error.
        let _ = self.resume();
        let _ = self.process.quit();
    }
}

fn signal_all(processes: &[Pid], signal: Signal) {
    for process in processes {
        // It may have ended meanwhile.
        let _ = kill_process(*process, signal);
    }
}

fn is_running(process: Pid) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero())).unwrap_or_default();
    // The process that adopts orphans may leave a zombie for a while.
    status.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

fn command(
    program: &Program,
    options: &PostgresOptions,
    certificates: &Certificates,
    folder: &Path,
    port: u16,
) -> Command {
    let mut command = program.command(NAME);
    command.arg("-D").arg(folder.join("data"));
    let mut set = |name: &str, value: String| {
        command.arg("-c").arg(format!("{name}={value}"));
    };
    set("port", port.to_string());
    set("listen_addresses", Ipv4Addr::LOCALHOST.to_string());
    set("unix_socket_directories", folder.display().to_string());
    set("hba_file", folder.join("rules").display().to_string());
    set("ssl", "on".to_owned());
    set("ssl_ca_file", certificates.authority.display().to_string());
    set("ssl_cert_file", certificates.server.certificate.display().to_string());
    set("ssl_key_file", certificates.server.key.display().to_string());
    command.args(THRIFTY.iter().flat_map(|setting| ["-c", setting])).args(options.arguments());
    command
}
