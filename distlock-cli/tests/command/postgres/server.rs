//! A server of one test, with blocking calls.

use nix::unistd::Pid;
use serde_json::Value;
use test_servers::{Certificates, PostgresOptions, PostgresServer, TcpProxy, left_out};
use tokio::runtime::{Builder, Runtime};

use crate::at_a_server;
use crate::support::Sandbox;

/// A server, which ends with the test.
pub(super) struct Server {
    postgres: PostgresServer,
    /// What all URLs end with.
    options: &'static str,
    runtime: Runtime,
}

impl Server {
    /// Starts a server with a user without privileges; `None` if the user left its tests out.
    pub(super) fn start() -> Option<Self> {
        Self::start_with(PostgresOptions::new().user("app", "right", &[]))
    }

    /// Starts a server with a user who may create tables, and has clients keep records in one.
    pub(super) fn with_table() -> Option<Self> {
        let options = PostgresOptions::new().user("app", "right", &["CREATE ON SCHEMA public"]);
        Some(Self { options: "&fencing=table", ..Self::start_with(options)? })
    }

    pub(super) fn start_with(options: PostgresOptions) -> Option<Self> {
        if let Some(reason) = left_out("postgres") {
            eprintln!("postgres: {reason}");
            return None;
        }
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let postgres = runtime.block_on(PostgresServer::start_with(options)).unwrap();
        Some(Self { postgres, options: "", runtime })
    }

    /// The URL with the login of the first user.
    pub(super) fn url(&self) -> String {
        self.postgres.url() + self.options
    }

    pub(super) fn place_with(&self, options: &[(&str, &str)]) -> Sandbox {
        let options = options.iter().map(|(name, value)| format!("&{name}={value}")).collect::<Vec<_>>();
        Sandbox::at(self.url() + &options.concat())
    }

    pub(super) fn certificates(&self) -> &Certificates {
        self.postgres.certificates()
    }

    pub(super) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Ends the sessions that have locks, as an administrator would.
    pub(super) fn terminate_holders(&self) {
        self.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_locks WHERE locktype='advisory' AND granted",
        );
    }

    pub(super) fn execute(&self, statement: &str) {
        self.runtime.block_on(self.postgres.query(statement)).unwrap();
    }

    pub(super) fn restart_as_standby(&self) {
        self.runtime.block_on(self.postgres.restart_as_standby()).unwrap();
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

    fn sandbox(&self, silence: &str) -> Sandbox {
        self.place_with(&[("lease", silence)])
    }

    fn place_behind(&self, proxy: &TcpProxy, silence: &str) -> Sandbox {
        Sandbox::at(format!("{}{}&lease={silence}", self.postgres.url_at(proxy.address()), self.options))
    }

    fn proxy(&self) -> TcpProxy {
        TcpProxy::start(self.postgres.address()).unwrap()
    }

    fn elsewhere(&self) -> Sandbox {
        self.place_with(&[("prefix", "elsewhere")])
    }

    /// The server knows the session, and the session's name says whose it is.
    fn assert_is(&self, told: &Value, holder: Pid) {
        assert!(told["id"].as_str().unwrap().starts_with("session "), "{told}");
        assert_eq!(told["pid"], holder.as_raw(), "{told}");
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        assert_eq!(told["host"], host.trim(), "{told}");
    }

    fn stop(&self) {
        self.postgres.stop().unwrap();
    }

    fn resume(&self) {
        self.postgres.resume().unwrap();
    }

    fn kill(&self) {
        self.postgres.kill().unwrap();
    }

    fn restart(&self) {
        self.runtime.block_on(self.postgres.restart()).unwrap();
    }
}
