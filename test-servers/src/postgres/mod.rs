//! A PostgreSQL server for one test.

mod conversation;
mod options;
mod pooler;
mod program;
#[cfg(test)]
mod tests;
mod wire;

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use lock_core::Operation;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::options::Encryption;
use crate::ports::on_free_ports;
use crate::{Certificates, OperationOf, Row, ServerProcess, TcpProxy, free_port, url};
use crate::{During, Outcome};
use program::{MISSING, Program};

pub use conversation::PostgresConversation;
pub use options::PostgresOptions;
pub use pooler::{PgBouncer, PoolMode};
pub use wire::PostgresSession;

const NAME: &str = "postgres";

/// The user with all privileges, who may connect only through the socket.
const SUPERUSER: &str = "postgres";

/// The database of the tests. Advisory locks belong to a database.
const DATABASE: &str = "locks";

const ANSWERS_WITHIN: Duration = Duration::from_secs(60);

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
        server.ready().await?;
        let socket = server.unix_socket();
        PostgresSession::connect(&socket, SUPERUSER)
            .await?
            .query(&format!("CREATE DATABASE {DATABASE}"))
            .await?;
        let mut admin = server.session().await?;
        for statement in options.statements() {
            admin.query(&statement).await?;
        }
        Ok(server)
    }

    /// Waits until it answers.
    async fn ready(&self) -> Outcome {
        let check = || async {
            let mut admin = PostgresSession::connect(&self.unix_socket(), SUPERUSER).await?;
            admin.query("SELECT 1").await.map(drop)
        };
        self.process.ready(check).await
    }

    /// Returns the address on which it listens for TCP.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    /// Returns the folder of the Unix socket on which it also listens.
    pub fn socket_folder(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the Unix socket on which it also listens.
    pub fn unix_socket(&self) -> PathBuf {
        self.folder.path().join(format!(".s.PGSQL.{}", self.port))
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
        url::with_options(format!("postgres://{}{address}/{DATABASE}", self.login()), options)
    }

    /// Returns the URL for a client on this machine that does not use TCP.
    pub fn unix_url(&self) -> String {
        let socket = self.unix_socket();
        format!("postgres://{}localhost/{DATABASE}?socket={}", self.login(), socket.display())
    }

    /// Returns the part of a URL before the host.
    fn login(&self) -> String {
        let user = self.options.login();
        url::login(&user.name, &user.password)
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
            Box::new(PostgresConversation::new(Arc::clone(&operation_of)))
        })
    }

    /// Opens a connection of its own to the database, as a user with all privileges.
    ///
    /// # Errors
    /// When the server does not answer.
    ///
    /// # Cancel safety
    /// Dropping the future closes it.
    pub async fn session(&self) -> Outcome<PostgresSession> {
        PostgresSession::connect(&self.unix_socket(), DATABASE).await
    }

    /// Opens a connection of its own to another database, as a user with all privileges.
    ///
    /// # Errors
    /// When the server does not answer, or has no such database.
    ///
    /// # Cancel safety
    /// Dropping the future closes it.
    pub async fn session_in(&self, database: &str) -> Outcome<PostgresSession> {
        PostgresSession::connect(&self.unix_socket(), database).await
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

    /// Runs statements on the server as a user with all privileges, bypassing all proxies.
    ///
    /// # Errors
    /// When there is no answer, or the server refuses.
    ///
    /// # Cancel safety
    /// If the future is dropped, it is not known whether the statements are run.
    pub async fn query(&self, statement: &str) -> Outcome<Vec<Row>> {
        let asked = async { self.session().await?.query(statement).await };
        let explain = |what: String| self.process.failure(&what);
        match tokio::time::timeout(ANSWERS_WITHIN, asked).await {
            Ok(Ok(rows)) => Ok(rows),
            Ok(Err(failure)) => Err(explain(format!("did not carry out {statement:?} ({failure})"))),
            Err(_) => Err(explain(format!("did not answer {statement:?} within {ANSWERS_WITHIN:?}"))),
        }
    }

    /// Returns the single value that `statement` selects, as [`PostgresServer::query`] does; `None` for NULL and for no
    /// row.
    ///
    /// # Errors
    /// Same as [`PostgresServer::query`].
    ///
    /// # Cancel safety
    /// Same as [`PostgresServer::query`].
    pub async fn value(&self, statement: &str) -> Outcome<Option<String>> {
        Ok(self.query(statement).await?.into_iter().next().and_then(|row| row.into_iter().next()).flatten())
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
        let folder = self.folder.path();
        self.process.restart(command(&self.program, &self.options, &self.certificates, folder, self.port))?;
        self.ready().await
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
