//! Real servers on this machine, and ways to do them harm: for the tests of backends, and for whoever wants to try one.
//!
//! Each server listens on a free port of the loopback address, keeps its data in a temporary folder, is waited for until it
//! answers, and ends with its handle. It does not outlive the program that started it, however that ends.
//!
//! * [`RedisServer`]: a `redis-server`, with users, TLS, persistence and settings on request.
//! * [`ZooKeeperServer`]: a single ZooKeeper, with plain `java`, and what it takes to look at its nodes and to close the
//!   sessions of others.
//! * [`ZooKeeperEnsemble`]: three of those, with a network between them that can be parted.
//! * [`MySqlServer`]: a MariaDB or a MySQL, with users, TLS and settings on request.
//! * [`TcpProxy`]: stands between a client and a server, and cuts, refuses, swallows, delays and slices what passes. With
//!   a [`Conversation`] it knows requests from replies, so that it can lose or keep back the next request of one kind, or the
//!   reply to it.
//!
//! A program that is not installed is an error that says what to install. [`left_out`] tells what the user wants left out.

mod certificates;
mod curator;
mod mysql;
mod ports;
mod process;
mod proxy;
mod redis;
mod url;
mod zookeeper;

pub use certificates::{Certificates, Pair};
pub use curator::{
    CuratorCycleTurn, CuratorCycles, CuratorHandOffTurn, CuratorHandOffs, CuratorHold, CuratorPeer,
};
pub use mysql::{MySqlConversation, MySqlFlavour, MySqlOptions, MySqlServer, MySqlSession, OperationOf, Row};
pub use ports::free_port;
pub use process::ServerProcess;
pub use proxy::{Conversation, Direction, Execution, Losing, Reply, Request, Subject, TcpProxy};
pub use redis::{Digests, RedisConversation, RedisOptions, RedisServer, Value};
pub use zookeeper::{
    Access, NodeKind, Role, ZooKeeperConversation, ZooKeeperEnsemble, ZooKeeperNode, ZooKeeperOptions,
    ZooKeeperRequest, ZooKeeperServer,
};

/// What becomes of a server's data when it is started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Data {
    /// What it has written to the disk: with ZooKeeper everything, with Redis what [`RedisOptions::append_only`] has it write.
    Kept,
    /// Nothing is left.
    Lost,
}

/// The variable that names, between commas, what is to be left out: `DISTLOCK_SKIP=mysql,redis`.
pub const SKIP_VARIABLE: &str = "DISTLOCK_SKIP";

/// Why tests of `server` are to be left out, if that is what the user wants.
pub fn left_out(server: &str) -> Option<String> {
    let skip = std::env::var(SKIP_VARIABLE).unwrap_or_default();
    is_named(server, &skip).then(|| format!("left out by {SKIP_VARIABLE}={skip}"))
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
