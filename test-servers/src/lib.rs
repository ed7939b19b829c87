//! Real servers on this machine, and ways to disturb them: for the tests of backends, and for trying a backend. On Unix
//! systems.
//!
//! Each server listens on a free port of the loopback address, keeps its data in a temporary folder, and ends with its
//! handle. Starting a server waits until it answers. It never outlives the program that started it.
//!
//! * [`RedisServer`]: a `redis-server`, with users, TLS, persistence and settings on request.
//! * [`RedisSentinels`]: a primary with two replicas, watched by three sentinels; [`SayingSentinel`]: one whose answers a test sets.
//! * [`RedisCluster`]: three primaries with a replica each.
//! * [`EtcdServer`]: an `etcd`, with users, TLS and settings on request, also as a cluster of three; and `etcdctl`.
//! * [`ZooKeeperServer`]: a single ZooKeeper, run with plain `java`, and the means to inspect its nodes and to close
//!   the sessions of other clients.
//! * [`ZooKeeperEnsemble`]: three of those, with a network between them that can be partitioned.
//! * [`MySqlServer`]: a MariaDB or a MySQL, with users, TLS and settings on request.
//! * [`PostgresServer`]: a PostgreSQL, with users, TLS and settings on request, also as a standby; and [`PgBouncer`] in front of one.
//! * [`S3Server`]: an object store in this process, with writes that are late or unanswered on request.
//! * [`AzuriteServer`]: an object store that speaks as Azure Blob Storage does.
//! * [`CuratorPeer`]: a program in Java that locks with Apache Curator.
//! * [`TcpProxy`]: sits between a client and a server, and cuts, refuses, swallows, delays and slices the traffic. With
//!   a [`Conversation`] it distinguishes requests from replies, so that it can lose or hold back the next request of
//!   one kind, or the reply to it. It can also lead new connections to another server.
//!
//! If a program is not installed, the error says what to install. [`left_out`] says whether the user leaves a server out.
//!
//! Every error is a [`Failure`], as the suite in `conformance-tests` reports it.
#![cfg(unix)]
#![forbid(unsafe_code)]

mod azurite;
mod certificates;
mod curator;
mod etcd;
mod folders;
mod given;
mod mysql;
mod options;
mod ports;
mod postgres;
mod process;
mod proxy;
mod redis;
mod s3;
mod server;
mod service;
mod sql;
mod url;
mod zookeeper;

pub use azurite::{Azurite, AzuriteServer};
pub use certificates::{Certificates, Pair};
pub use conformance_tests::{During, Failure, Outcome, ensure};
pub use curator::{Curator, CuratorHold, CuratorLock, CuratorPeer};
pub use etcd::{Etcd, EtcdConversation, EtcdRequest, EtcdServer};
pub use given::GivenServer;
pub use mysql::{MySql, MySqlConversation, MySqlFlavour, MySqlServer, MySqlSession};
pub use options::ServerOptions;
pub use ports::free_port;
pub use postgres::{PgBouncer, Pooler, Postgres, PostgresConversation, PostgresServer, PostgresSession};
pub use process::{Data, ServerProcess};
pub use proxy::{Conversation, Direction, Losing, Reply, Request, Subject, TcpProxy};
pub use redis::{
    Digests, Redis, RedisCluster, RedisConversation, RedisSentinels, RedisServer, SayingSentinel, Value,
    cluster_url, hash_slot, sentinel_url,
};
pub use s3::{S3Conversation, S3Faults, S3Server};
pub use server::{Kind, Place, Server};
pub use sql::{OperationOf, Row};
pub use zookeeper::{
    Access, NodeKind, ZooKeeper, ZooKeeperConversation, ZooKeeperEnsemble, ZooKeeperNode, ZooKeeperRequest,
    ZooKeeperServer,
};

/// The example harness of the documentation, compiled.
#[cfg(doctest)]
#[doc = include_str!("../../docs/backends/writing-one.md")]
pub struct WritingOne;

/// Returns why tests of `server` are to be left out, if the user wants that. `DISTLOCK_SKIP=mysql,redis` lists what to leave out.
pub fn left_out(server: &str) -> Option<String> {
    let skip = std::env::var("DISTLOCK_SKIP").unwrap_or_default();
    is_named(server, &skip).then(|| format!("left out by DISTLOCK_SKIP={skip}"))
}

fn is_named(server: &str, skip: &str) -> bool {
    skip.split(',').any(|word| word.trim() == server)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_its_own_word_leaves_a_server_out() {
        assert!(is_named("redis", "mysql, redis"));
        assert!(!is_named("redis", "rediss,mysql"));
        assert!(!is_named("redis", ""));
    }
}
