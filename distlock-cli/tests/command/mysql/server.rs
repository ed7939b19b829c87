//! A server of one test, with blocking calls.

use std::net::SocketAddr;

use nix::unistd::Pid;
use serde_json::Value;
use test_servers::{Certificates, MySqlFlavour, MySqlOptions, MySqlServer, TcpProxy};
use tokio::runtime::{Builder, Runtime};

use crate::at_a_server;
use crate::support::Sandbox;

const DATABASE: &str = "locks";

/// Where tokens come from, which also decides what is known of a holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tokens {
    /// From the server, which knows the holder's connection.
    Minted,
    /// From a table, in which the holder identifies itself.
    Written,
}

/// A server, which ends with the test.
pub(super) struct Server {
    mysql: MySqlServer,
    tokens: Tokens,
    runtime: Runtime,
}

impl Server {
    pub(super) fn mariadb() -> Option<Self> {
        Self::start(MySqlFlavour::MariaDb, Tokens::Minted)
    }

    pub(super) fn mariadb_with_table() -> Option<Self> {
        Self::start(MySqlFlavour::MariaDb, Tokens::Written)
    }

    pub(super) fn mysql57() -> Option<Self> {
        Self::start(MySqlFlavour::MySql57, Tokens::Minted)
    }

    pub(super) fn mysql57_with_table() -> Option<Self> {
        Self::start(MySqlFlavour::MySql57, Tokens::Written)
    }

    /// Starts a server with a user who may create tables; `None` if the user left its tests out.
    fn start(flavour: MySqlFlavour, tokens: Tokens) -> Option<Self> {
        let options = MySqlOptions::new(flavour).database(DATABASE);
        Self::start_with(flavour, tokens, options.user("app", "right", &["ALL ON locks.*"]))
    }

    pub(super) fn start_with(flavour: MySqlFlavour, tokens: Tokens, options: MySqlOptions) -> Option<Self> {
        if let Some(reason) = flavour.left_out() {
            eprintln!("{flavour:?}: {reason}");
            return None;
        }
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let mysql = runtime.block_on(MySqlServer::start_with(options)).unwrap();
        Some(Self { mysql, tokens, runtime })
    }

    /// The URL with the login of the first user, and the source of tokens.
    pub(super) fn url(&self) -> String {
        self.url_at(self.mysql.address())
    }

    fn url_at(&self, address: SocketAddr) -> String {
        let url = self.mysql.url_at(address);
        match self.tokens {
            Tokens::Minted => url,
            Tokens::Written => format!("{url}&fencing=table"),
        }
    }

    pub(super) fn place_with(&self, options: &[(&str, &str)]) -> Sandbox {
        let options = options.iter().map(|(name, value)| format!("&{name}={value}")).collect::<Vec<_>>();
        Sandbox::at(self.url() + &options.concat())
    }

    pub(super) fn certificates(&self) -> &Certificates {
        self.mysql.certificates()
    }

    pub(super) fn tokens(&self) -> Tokens {
        self.tokens
    }

    pub(super) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Ends the connection that has the lock, as an administrator would.
    pub(super) fn kill_holder_of(&self, lock: &str) {
        let asked = format!("SELECT IS_USED_LOCK('distlock:{lock}')");
        self.runtime.block_on(async {
            let connection = self.mysql.value(&asked).await.unwrap().unwrap();
            self.mysql.end_connection(&connection).await.unwrap();
        });
    }

    /// Turns the server into a replica, or into a primary again.
    pub(super) fn execute(&self, statement: &str) {
        self.runtime.block_on(self.mysql.query(statement)).unwrap();
    }
}

impl at_a_server::Server for Server {
    const NAME: &'static str = "mysql";
    const BRIEF: &'static str = "12s";
    const AWAY: &'static str = "check that the server runs and can be reached";
    const SILENT: &'static str = "did not answer";
    const LOOPS: [usize; 2] = [4, 8];

    fn sandbox(&self, silence: &str) -> Sandbox {
        self.place_with(&[("lease", silence)])
    }

    fn place_behind(&self, proxy: &TcpProxy, silence: &str) -> Sandbox {
        Sandbox::at(format!("{}&lease={silence}", self.url_at(proxy.address())))
    }

    fn proxy(&self) -> TcpProxy {
        TcpProxy::start(self.mysql.address()).unwrap()
    }

    fn elsewhere(&self) -> Sandbox {
        self.place_with(&[("prefix", "elsewhere")])
    }

    fn people_read(&self, holder: Pid) -> String {
        match self.tokens {
            Tokens::Minted => "a client on 127.0.0.1".to_owned(),
            Tokens::Written => format!("pid {holder} on "),
        }
    }

    fn assert_is(&self, told: &Value, holder: Pid) {
        let host = match self.tokens {
            Tokens::Minted => {
                assert!(
                    told["id"].as_str().unwrap().starts_with("connection ") && told["pid"].is_null(),
                    "{told}"
                );
                "127.0.0.1:".to_owned()
            }
            Tokens::Written => {
                assert_eq!(told["pid"], holder.as_raw(), "{told}");
                std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap().trim().to_owned()
            }
        };
        assert!(told["host"].as_str().unwrap().starts_with(&host), "{told}");
    }

    fn stop(&self) {
        self.mysql.stop().unwrap();
    }

    fn resume(&self) {
        self.mysql.resume().unwrap();
    }

    fn kill(&self) {
        self.mysql.kill().unwrap();
    }

    fn restart(&self) {
        self.runtime.block_on(self.mysql.restart()).unwrap();
    }
}
