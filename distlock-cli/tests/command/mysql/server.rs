//! The locks of one test at a server, with blocking calls.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, Weak};

use nix::unistd::Pid;
use serde_json::Value;
use test_servers::{Certificates, MySqlFlavour, MySqlServer, MySqlSession, ServerOptions, TcpProxy};
use tokio::runtime::{Builder, Runtime};

use crate::at_a_server::{self, place, shared};
use crate::support::{Sandbox, is_all};

const DATABASE: &str = "locks";

/// Where tokens come from, which also decides what is known of a holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tokens {
    /// From the server, which knows the holder's connection.
    Minted,
    /// From a table, in which the holder identifies itself.
    Written,
}

static MARIADB: Mutex<Weak<MySqlServer>> = Mutex::new(Weak::new());
static MYSQL57: Mutex<Weak<MySqlServer>> = Mutex::new(Weak::new());

pub(super) struct Server {
    mysql: Arc<MySqlServer>,
    way: TcpProxy,
    place: String,
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

    /// A part of a server that other tests use as well, with a user who may create tables; `None` if the user left its
    /// tests out.
    fn start(flavour: MySqlFlavour, tokens: Tokens) -> Option<Self> {
        let running = match flavour {
            MySqlFlavour::MariaDb => &MARIADB,
            MySqlFlavour::MySql57 => &MYSQL57,
        };
        Self::of(flavour, tokens, |start| shared(running, || start(options(flavour))))
    }

    /// The same, with a server of this test alone.
    pub(super) fn alone(flavour: MySqlFlavour) -> Option<Self> {
        Self::start_with(flavour, Tokens::Minted, options(flavour))
    }

    /// A server of this test alone.
    pub(super) fn start_with(flavour: MySqlFlavour, tokens: Tokens, options: ServerOptions) -> Option<Self> {
        Self::of(flavour, tokens, |start| Arc::new(start(options)))
    }

    /// MySQL differs from MariaDB in what the library tests by itself: the command only meets it in the tier of all.
    fn of(
        flavour: MySqlFlavour,
        tokens: Tokens,
        server: impl FnOnce(&dyn Fn(ServerOptions) -> MySqlServer) -> Arc<MySqlServer>,
    ) -> Option<Self> {
        if flavour == MySqlFlavour::MySql57 && !is_all() {
            eprintln!("{flavour:?}: only in the tier of all");
            return None;
        }
        if let Some(reason) = flavour.left_out() {
            eprintln!("{flavour:?}: {reason}");
            return None;
        }
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let mysql = server(&|options| runtime.block_on(MySqlServer::start_with(options)).unwrap());
        let way = TcpProxy::start(mysql.address()).unwrap();
        Some(Self { mysql, way, place: place(), tokens, runtime })
    }

    /// The URL with the login of the first user, and the source of tokens.
    pub(super) fn url(&self) -> String {
        self.url_at(self.way.address())
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
        Sandbox::at(format!("{}&prefix={}{}", self.url(), self.place, options.concat()))
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
        let asked = format!("SELECT IS_USED_LOCK('{}:{lock}')", self.place);
        self.runtime.block_on(async {
            let connection = self.mysql.value(&asked).await.unwrap().unwrap();
            self.mysql.end_connection(&connection).await.unwrap();
        });
    }

    pub(super) fn session(&self) -> MySqlSession {
        self.runtime.block_on(self.mysql.session()).unwrap()
    }

    /// Starts the server anew, which has to be of this test alone.
    pub(super) fn start_anew(&self) {
        self.runtime.block_on(self.mysql.restart(test_servers::Data::Kept)).unwrap();
    }

    /// Turns the server, which has to be of this test alone, into a replica, or into a primary again.
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

    fn address(&self) -> SocketAddr {
        self.mysql.address()
    }

    fn way(&self) -> &TcpProxy {
        &self.way
    }

    fn place_at(&self, address: SocketAddr, silence: &str) -> Sandbox {
        Sandbox::at(format!("{}&lease={silence}&prefix={}", self.url_at(address), self.place))
    }

    fn elsewhere(&self) -> Sandbox {
        Sandbox::at(format!("{}&prefix={}e", self.url(), self.place))
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
}

fn options(flavour: MySqlFlavour) -> ServerOptions {
    ServerOptions::new().flavour(flavour).database(DATABASE).user("app", "right", &["ALL ON locks.*"])
}
