//! A server of each backend, with two ways to it: through a proxy that is disturbed, and past it.

use std::path::PathBuf;
use std::time::Duration;

use conformance_tests::{Failure, Outcome};
use tempfile::TempDir;
use test_servers::{
    Data, EtcdServer, MySqlFlavour, MySqlServer, PostgresServer, RedisServer, S3Faults, S3Server,
    ServerOptions, TcpProxy, ZooKeeperServer, left_out,
};

/// Short, so that harm lasts longer than it. A busy machine only causes more losses.
pub(crate) const LEASE: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// No lock between the processes: each has one of its own.
    None,
    /// An object store that checks a condition and writes in two steps.
    TwoSteps,
    File,
    Redis,
    ZooKeeper,
    Etcd,
    MariaDb,
    MySql57,
    Postgres,
    ObjectStore,
}

/// Some writes to the object store are late, for longer than a lease, and some are carried out and not answered.
const FAULTS: S3Faults = S3Faults {
    latency: Duration::from_millis(6),
    late: 15,
    late_by: Duration::from_secs(8),
    cut: 15,
    apart: Duration::ZERO,
    conflicts: 0,
    failed: 0,
};

impl Kind {
    pub(crate) const SOAKED: [Self; 8] = [
        Self::File,
        Self::Redis,
        Self::ZooKeeper,
        Self::Etcd,
        Self::MariaDb,
        Self::MySql57,
        Self::Postgres,
        Self::ObjectStore,
    ];

    pub(crate) fn is_left_out(self) -> bool {
        let reason = match self {
            Self::None | Self::TwoSteps | Self::File | Self::ObjectStore => None,
            Self::Etcd => left_out("etcd"),
            Self::Redis => left_out("redis"),
            Self::ZooKeeper => left_out("zookeeper"),
            Self::MariaDb => MySqlFlavour::MariaDb.left_out(),
            Self::MySql57 => MySqlFlavour::MySql57.left_out(),
            Self::Postgres => left_out("postgres"),
        };
        reason.inspect(|reason| println!("{self:?}: {reason}")).is_some()
    }

    /// Returns how many processes contend: more where each of them writes the same object.
    pub(crate) fn contenders(self) -> usize {
        if self == Self::ObjectStore { 8 } else { 4 }
    }

    /// Returns whether a lock ends with the connection of its holder, so that another client may have it before the
    /// holder has learned that the connection has ended.
    pub(crate) fn ends_with_connections(self) -> bool {
        matches!(self, Self::MariaDb | Self::MySql57 | Self::Postgres)
    }
}

pub(crate) enum Server {
    None,
    File(TempDir),
    Redis(RedisServer),
    ZooKeeper(ZooKeeperServer),
    Etcd(EtcdServer),
    MySql(MySqlServer),
    Postgres(PostgresServer),
    ObjectStore(S3Server),
}

/// Does the same with each kind of server.
macro_rules! with_server {
    ($self:ident, $server:ident => $what:expr) => {
        match $self {
            Server::None | Server::File(_) => Err(Failure::new("there is no server")),
            Server::Redis($server) => $what,
            Server::ZooKeeper($server) => $what,
            Server::Etcd($server) => $what,
            Server::MySql($server) => $what,
            Server::Postgres($server) => $what,
            Server::ObjectStore($server) => $what,
        }
    };
}

impl Server {
    pub(crate) async fn start(kind: Kind) -> Outcome<Self> {
        let mysql = async |flavour| {
            let options = ServerOptions::new().flavour(flavour).user("plain", "secret", &[]);
            Outcome::Ok(Self::MySql(MySqlServer::start_with(options).await?))
        };
        let store = |faults| {
            let server = S3Server::start()?;
            server.set_faults(faults);
            Ok(Self::ObjectStore(server))
        };
        match kind {
            Kind::None => Ok(Self::None),
            Kind::File => Ok(Self::File(tempfile::tempdir()?)),
            Kind::Redis => Ok(Self::Redis(
                RedisServer::start_with(ServerOptions::new().setting("appendonly", "yes")).await?,
            )),
            Kind::ZooKeeper => Ok(Self::ZooKeeper(ZooKeeperServer::start().await?)),
            Kind::Etcd => Ok(Self::Etcd(EtcdServer::start().await?)),
            Kind::MariaDb => mysql(MySqlFlavour::MariaDb).await,
            Kind::MySql57 => mysql(MySqlFlavour::MySql57).await,
            Kind::Postgres => {
                let options = ServerOptions::new().user("plain", "secret", &[]);
                Ok(Self::Postgres(PostgresServer::start_with(options).await?))
            }
            Kind::ObjectStore => store(FAULTS),
            Kind::TwoSteps => store(S3Faults { apart: Duration::from_millis(20), ..S3Faults::default() }),
        }
    }

    /// Starts a proxy in front of it; `None` if there is no server.
    pub(crate) fn proxy(&self) -> Outcome<Option<TcpProxy>> {
        match self {
            Self::None | Self::File(_) => Ok(None),
            server => with_server!(server, server => TcpProxy::start(server.address())).map(Some),
        }
    }

    /// Returns the URL of a contender, through the proxy if there is one.
    pub(crate) fn url(&self, proxy: Option<&TcpProxy>) -> Outcome<String> {
        let lease = format!("{}s", LEASE.as_secs());
        let with_lease = |url: String| {
            let sign = if url.contains('?') { '&' } else { '?' };
            format!("{url}{sign}lease={lease}")
        };
        let through = match (self, proxy) {
            (Self::None, _) => return Ok("memory:".to_owned()),
            (Self::File(folder), _) => return Ok(format!("file:{}", folder.path().join("locks").display())),
            (server, None) => with_server!(server, server => Ok(server.address()))?,
            (_, Some(proxy)) => proxy.address(),
        };
        Ok(match self {
            Self::None | Self::File(_) => String::new(),
            Self::Redis(server) => with_lease(server.url_at(through)),
            Self::ZooKeeper(server) => server.url_of(&[through], "/locks", &[("session_timeout", &lease)]),
            Self::Etcd(server) => with_lease(server.url_at(&[through], "locks")),
            Self::MySql(server) => with_lease(server.url_at(through)),
            Self::Postgres(server) => with_lease(server.url_at(through)),
            Self::ObjectStore(_) => with_lease(S3Server::url_at(through, "locks") + "&poll=50ms"),
        })
    }

    pub(crate) fn kill(&self) -> Outcome {
        with_server!(self, server => server.kill())
    }

    pub(crate) fn stop(&self) -> Outcome {
        with_server!(self, server => server.stop())
    }

    pub(crate) fn resume(&self) -> Outcome {
        with_server!(self, server => server.resume())
    }

    pub(crate) async fn restart(&self) -> Outcome {
        match self {
            Self::None | Self::File(_) => Ok(()),
            Self::Redis(server) => server.restart(Data::Kept).await,
            Self::ZooKeeper(server) => server.restart(Data::Kept).await,
            Self::Etcd(server) => server.restart(Data::Kept).await,
            Self::MySql(server) => server.restart(Data::Kept).await,
            Self::Postgres(server) => server.restart(Data::Kept).await,
            Self::ObjectStore(server) => server.resume(),
        }
    }

    pub(crate) fn log(&self) -> Option<PathBuf> {
        match self {
            Self::None | Self::File(_) | Self::ObjectStore(_) => None,
            Self::Redis(server) => Some(server.log()),
            Self::ZooKeeper(server) => Some(server.log()),
            Self::Etcd(server) => Some(server.log()),
            Self::MySql(server) => Some(server.log()),
            Self::Postgres(server) => Some(server.log()),
        }
    }
}
