//! Starts a server for experiments, until Ctrl-C: `cargo xtask servers redis --tls`.
//!
//! It listens only on the loopback address, keeps its data in a temporary folder, and leaves nothing behind.

use std::process::ExitCode;

#[cfg(unix)]
mod run {
    use std::fmt::Write as _;
    use std::path::Path;
    use std::process::ExitCode;

    use test_servers::{
        Certificates, EtcdServer, MySqlFlavour, MySqlServer, Outcome, PostgresServer, RedisServer,
        ServerOptions, ZooKeeperEnsemble, ZooKeeperServer,
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

    /// Which server to start, how, and where.
    type Order = (Kind, ServerOptions, Option<u16>);

    #[derive(PartialEq)]
    enum Kind {
        Etcd,
        Redis,
        ZooKeeper,
        ZooKeeperEnsemble,
        MySql(MySqlFlavour),
        Postgres,
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
        let mut kind = match arguments.next() {
            Some("etcd") => Kind::Etcd,
            Some("redis") => Kind::Redis,
            Some("zookeeper") => Kind::ZooKeeper,
            Some("mysql") => Kind::MySql(MySqlFlavour::MySql57),
            Some("mariadb") => Kind::MySql(MySqlFlavour::MariaDb),
            Some("postgres") => Kind::Postgres,
            Some(other) => return Err(format!("there is no server {other:?} here")),
            None => return Err("which server?".to_owned()),
        };
        // Where the user may create tables, for the tokens that are kept in one.
        let mut options = match kind {
            Kind::MySql(flavour) => ServerOptions::new().flavour(flavour).database("locks").user(
                "app",
                "secret",
                &["ALL ON locks.*", "PROCESS ON *.*"],
            ),
            Kind::Postgres => ServerOptions::new().user("app", "secret", &["CREATE ON SCHEMA public"]),
            _ => ServerOptions::new(),
        };
        let mut port = None;
        while let Some(argument) = arguments.next() {
            match argument {
                "--tls" => options = options.tls_with_client_certificates(),
                "--port" => {
                    let number = arguments.next().and_then(|port| port.parse().ok());
                    port = Some(number.ok_or("--port wants a number between 1 and 65535")?);
                }
                "--ensemble" if kind == Kind::ZooKeeper => kind = Kind::ZooKeeperEnsemble,
                other => return Err(format!("{other:?} is not understood")),
            }
        }
        Ok((kind, options, port))
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
        async fn start((kind, options, port): Order) -> Outcome<Self> {
            let of_member = |member: u16| match port {
                Some(port) => options.clone().port(port.saturating_add(member)),
                None => options.clone(),
            };
            let first = of_member(0);
            Ok(match kind {
                Kind::Etcd => Self::Etcd(EtcdServer::start_with(first).await?),
                Kind::Redis => Self::Redis(RedisServer::start_with(first).await?),
                Kind::ZooKeeper => Self::ZooKeeper(ZooKeeperServer::start_with(first).await?),
                Kind::ZooKeeperEnsemble => {
                    let members = [first, of_member(1), of_member(2)];
                    Self::ZooKeeperEnsemble(ZooKeeperEnsemble::start_each(members).await?)
                }
                Kind::MySql(flavour) => Self::MySql(flavour, MySqlServer::start_with(first).await?),
                Kind::Postgres => Self::Postgres(PostgresServer::start_with(first).await?),
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
        let path = |path: &Path| path.display().to_string();
        let Certificates { authority, client, .. } = server.certificates();
        let (authority, certificate, key) = (path(authority), path(&client.certificate), path(&client.key));
        let encryption = if url.starts_with("rediss:") {
            format!(" --tls --cacert {authority} --cert {certificate} --key {key}")
        } else {
            String::new()
        };
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
            server.unix_socket().with_file_name("").display(),
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
