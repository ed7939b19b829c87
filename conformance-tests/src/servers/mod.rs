//! Real servers on this machine, and ways to disturb them: for the tests of backends, and for trying a backend.
//!
//! Each server listens on a free port of the loopback address, keeps its data in a temporary folder, and ends with its
//! handle. Starting it waits until it answers. It does not outlive the program that started it, however that program
//! ends.
//!
//! * [`RedisServer`]: a `redis-server`, with users, TLS, persistence and settings on request.
//! * [`ZooKeeperServer`]: a single ZooKeeper, run with plain `java`, and the means to inspect its nodes and to close
//!   the sessions of other clients.
//! * [`ZooKeeperEnsemble`]: three of those, with a network between them that can be partitioned.
//! * [`MySqlServer`]: a MariaDB or a MySQL, with users, TLS and settings on request.
//! * [`TcpProxy`]: sits between a client and a server, and cuts, refuses, swallows, delays and slices the traffic. With
//!   a [`Conversation`] it distinguishes requests from replies, so that it can lose or hold back the next request of
//!   one kind, or the reply to it.
//!
//! If a program is not installed, the error says what to install. [`left_out`] returns what the user wants left out.

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

/// What happens to a server's data when it is restarted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Data {
    /// The data that it has written to the disk survives: with ZooKeeper all data, with Redis what
    /// [`RedisOptions::append_only`] makes it write.
    Kept,
    /// Nothing survives.
    Lost,
}

/// The variable that lists, separated by commas, what to leave out: `DISTLOCK_SKIP=mysql,redis`.
pub const SKIP_VARIABLE: &str = "DISTLOCK_SKIP";

/// Returns why tests of `server` are to be left out, if the user wants that.
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
