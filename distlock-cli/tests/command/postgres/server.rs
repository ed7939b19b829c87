//! The locks of one test at a server, with blocking calls.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, Weak};

use nix::unistd::Pid;
use serde_json::Value;
use test_servers::{
    Certificates, PgBouncer, PostgresServer, PostgresSession, ServerOptions, TcpProxy, left_out,
};
use tokio::runtime::{Builder, Runtime};

use crate::at_a_server::{self, place, shared};
use crate::support::Sandbox;

static WITHOUT_RIGHTS: Mutex<Weak<PostgresServer>> = Mutex::new(Weak::new());
static WITH_TABLES: Mutex<Weak<PostgresServer>> = Mutex::new(Weak::new());

pub(super) struct Server {
    postgres: Arc<PostgresServer>,
    way: TcpProxy,
    place: String,
    /// What all URLs end with.
    options: &'static str,
    runtime: Runtime,
}

impl Server {
    /// A part of a server that other tests use as well, with a user without privileges; `None` if the user left its tests
    /// out.
    pub(super) fn start() -> Option<Self> {
        Self::of(|start| shared(&WITHOUT_RIGHTS, || start(without_rights())))
    }

    /// The same with a user who may create tables; clients keep records in one.
    pub(super) fn with_table() -> Option<Self> {
        let options = || ServerOptions::new().user("app", "right", &["CREATE ON SCHEMA public"]);
        let server = Self::of(|start| shared(&WITH_TABLES, || start(options())))?;
        Some(Self { options: "&fencing=table", ..server })
    }

    /// A server of this test alone, with a user without privileges.
    pub(super) fn alone() -> Option<Self> {
        Self::start_with(without_rights())
    }

    /// A server of this test alone.
    pub(super) fn start_with(options: ServerOptions) -> Option<Self> {
        Self::of(|start| Arc::new(start(options)))
    }

    fn of(
        server: impl FnOnce(&dyn Fn(ServerOptions) -> PostgresServer) -> Arc<PostgresServer>,
    ) -> Option<Self> {
        if let Some(reason) = left_out("postgres") {
            eprintln!("postgres: {reason}");
            return None;
        }
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let postgres = server(&|options| runtime.block_on(PostgresServer::start_with(options)).unwrap());
        let way = TcpProxy::start(postgres.address()).unwrap();
        Some(Self { postgres, way, place: place(), options: "", runtime })
    }

    /// The URL with the login of the first user.
    pub(super) fn url(&self) -> String {
        self.postgres.url_at(self.way.address()) + self.options
    }

    pub(super) fn place_with(&self, options: &[(&str, &str)]) -> Sandbox {
        let options = options.iter().map(|(name, value)| format!("&{name}={value}")).collect::<Vec<_>>();
        Sandbox::at(format!("{}&prefix={}{}", self.url(), self.place, options.concat()))
    }

    pub(super) fn certificates(&self) -> &Certificates {
        self.postgres.certificates()
    }

    pub(super) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Ends the sessions that have locks, as an administrator would. Like what follows, it is for a server of this test
    /// alone.
    pub(super) fn terminate_holders(&self) {
        self.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_locks WHERE locktype='advisory' AND granted",
        );
    }

    pub(super) fn session(&self) -> PostgresSession {
        self.runtime.block_on(self.postgres.session()).unwrap()
    }

    pub(super) fn execute(&self, statement: &str) {
        self.runtime.block_on(self.postgres.query(statement)).unwrap();
    }

    pub(super) fn restart_as_standby(&self) {
        self.runtime.block_on(self.postgres.restart_as_standby()).unwrap();
    }

    /// A pooler in front of the server that gives its sessions to several clients.
    pub(super) fn pooler(&self) -> PgBouncer {
        self.runtime.block_on(self.postgres.pooler("transaction", &[])).unwrap()
    }

    pub(super) fn start_anew(&self) {
        self.runtime.block_on(self.postgres.restart(test_servers::Data::Kept)).unwrap();
    }

    pub(super) fn promote(&self) {
        self.runtime.block_on(self.postgres.promote()).unwrap();
    }
}

impl at_a_server::Server for Server {
    const NAME: &'static str = "postgres";
    const BRIEF: &'static str = "12s";
    const AWAY: &'static str = "check that the server runs and can be reached";
    const SILENT: &'static str = "did not answer";
    const LOOPS: [usize; 2] = [4, 8];

    fn address(&self) -> SocketAddr {
        self.postgres.address()
    }

    fn way(&self) -> &TcpProxy {
        &self.way
    }

    fn place_at(&self, address: SocketAddr, silence: &str) -> Sandbox {
        let url = self.postgres.url_at(address);
        Sandbox::at(format!("{url}{}&lease={silence}&prefix={}", self.options, self.place))
    }

    fn elsewhere(&self) -> Sandbox {
        Sandbox::at(format!("{}&prefix={}-elsewhere", self.url(), self.place))
    }

    /// The server knows the session, and the session's name says whose it is.
    fn assert_is(&self, told: &Value, holder: Pid) {
        assert!(told["id"].as_str().unwrap().starts_with("session "), "{told}");
        assert_eq!(told["pid"], holder.as_raw(), "{told}");
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        assert_eq!(told["host"], host.trim(), "{told}");
    }
}

fn without_rights() -> ServerOptions {
    ServerOptions::new().user("app", "right", &[])
}
