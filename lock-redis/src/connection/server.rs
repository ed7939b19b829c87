//! Checks a server before a client uses it for locks.

use std::time::Duration;

use lock_core::{ErrorKind, LockError, Operation};
use lock_kit::is_nearly_full;

/// The oldest server that has everything that the scripts use (`SET … PXAT`, `CLIENT KILL … ID` under an access control list).
const OLDEST: (u32, u32) = (6, 2);

/// What a server reports about itself in `INFO`.
#[derive(Debug)]
pub(crate) struct Facts(pub(crate) String);

impl Facts {
    /// What it says of this; empty if nothing.
    pub(crate) fn value(&self, key: &str) -> &str {
        let mut lines = self.0.lines();
        lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).unwrap_or_default().trim()
    }

    /// The id of its replication, which is another one after each promotion; `None` if it is no primary, or does not say so.
    pub(crate) fn replication(&self) -> Option<&str> {
        Some(self.value("master_replid")).filter(|id| self.value("role") == "master" && !id.is_empty())
    }

    /// How many replicas are in sync.
    pub(crate) fn replicas(&self) -> u64 {
        self.0.matches(",state=online,").count() as u64
    }

    /// The minimum time that the server has run: it counts whole seconds, and the first one may have been short.
    pub(crate) fn least_uptime(&self) -> Duration {
        let seconds = self.value("uptime_in_seconds").parse::<u64>().unwrap_or(0);
        Duration::from_secs(seconds.saturating_sub(1))
    }

    /// Refuses a server that cannot keep the promises of a lock.
    pub(crate) fn check(&self, as_cluster_node: bool) -> Result<(), LockError> {
        let unsupported =
            |cause: String| LockError::new(ErrorKind::Unsupported, Operation::Connect).because(cause);
        let version = self.value("redis_version");
        let mut parts = version.split('.').map(str::parse);
        if let (Some(Ok(major)), Some(Ok(minor))) = (parts.next(), parts.next())
            && (major, minor) < OLDEST
        {
            let (major, minor) = OLDEST;
            let cause = format!("the server is Redis {version}, and distlock needs {major}.{minor}");
            return Err(unsupported(cause).remedy("update the server"));
        }
        if (self.value("cluster_enabled") == "1") != as_cluster_node {
            let is = if as_cluster_node { "no node" } else { "a node" };
            return Err(unsupported(format!("the server is {is} of a Redis Cluster"))
                .remedy("use redis+cluster:// with a cluster, and only with one"));
        }
        if self.value("role") == "slave" {
            return Err(LockError::new(ErrorKind::Unreachable, Operation::Connect)
                .because("the server is a replica, which takes no locks")
                .remedy("connect to the primary")
                .retryable());
        }
        Ok(())
    }

    /// Problems of the server that do not prevent its use, and what to do about them. `outlasts_restarts`: the client takes no lock
    /// from a server that may just have forgotten it. `follows_primaries`: nor from one that was just promoted.
    pub(crate) fn warnings(
        &self,
        outlasts_restarts: bool,
        follows_primaries: bool,
    ) -> impl Iterator<Item = String> + use<> {
        // No limit is zero.
        let has_limit = self.value("maxmemory").parse().is_ok_and(|bytes: u64| bytes > 0);
        let eviction = self.value("maxmemory_policy");
        let evicts = (has_limit && eviction != "noeviction").then(|| {
            format!(
                "the server evicts keys when its memory is full (maxmemory-policy {eviction}), and a lock that is evicted is lost: \
                 set maxmemory-policy to noeviction, or keep locks on a server of their own"
            )
        });
        let forgets = (self.value("aof_enabled") == "0" && !outlasts_restarts).then(|| {
            "the server has no append-only file (appendonly no), so after a restart it grants locks again that are held: \
             set appendonly to yes and appendfsync to always, or restart_delay in the URL to the longest lease in use"
                .to_owned()
        });
        let replicas = self.value("connected_slaves");
        let is_replaced = (!follows_primaries && !matches!(replicas, "" | "0")).then(|| {
            format!(
                "the server has replicas (connected_slaves {replicas}), and one that is promoted grants locks again that are held: \
                 use redis+sentinel:// or redis+cluster://, or, before you promote one, end this server and wait for the longest lease"
            )
        });
        let number = |key| self.value(key).parse::<u64>().ok();
        let most = number("maxclients");
        let is_full =
            most.filter(|most| number("connected_clients").is_some_and(|used| is_nearly_full(used, *most)));
        let is_full = is_full.map(|most| {
            format!(
                "more than four fifths of the {most} connections that the server accepts are in use, and when all are, no client can \
                 connect: raise maxclients, or find out who has them with CLIENT LIST"
            )
        });
        evicts.into_iter().chain(forgets).chain(is_replaced).chain(is_full)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(version: &str, role: &str, cluster: u8, limit: u64, policy: &str) -> Facts {
        Facts(format!(
            "# Persistence\r\naof_enabled:1\r\n\
             # Server\r\nredis_version:{version}\r\nrun_id:abc\r\nuptime_in_seconds:12\r\n# Memory\r\nmaxmemory:{limit}\r\n\
             maxmemory_human:0B\r\nmaxmemory_policy:{policy}\r\nrole:{role}\r\ncluster_enabled:{cluster}\r\n"
        ))
    }

    #[test]
    fn a_good_server_passes() {
        let facts = info("7.0.15", "master", 0, 0, "noeviction");
        facts.check(false).unwrap();
        assert_eq!(facts.value("run_id"), "abc");
        assert_eq!(facts.least_uptime(), Duration::from_secs(11));
        assert_eq!(facts.warnings(false, false).next(), None);
        // Without a memory limit the server evicts nothing.
        assert_eq!(info("7.0.15", "master", 0, 0, "allkeys-lru").warnings(false, false).next(), None);
        info("6.2.0", "master", 0, 0, "noeviction").check(false).unwrap();
        info("7.0.15", "master", 1, 0, "noeviction").check(true).unwrap();
        assert!(info("7.0.15", "master", 0, 0, "noeviction").check(true).is_err());
    }

    #[test]
    fn a_server_that_cannot_keep_the_promise_is_refused() {
        for (facts, part) in [
            (info("6.0.16", "master", 0, 0, "noeviction"), "6.2"),
            (info("5.0.1", "master", 0, 0, "noeviction"), "5.0.1"),
            (info("7.0.15", "slave", 0, 0, "noeviction"), "primary"),
            (info("7.0.15", "master", 1, 0, "noeviction"), "Cluster"),
        ] {
            let text = facts.check(false).unwrap_err().to_string();
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn a_server_that_evicts_is_warned_of() {
        let warning =
            info("7.0.15", "master", 0, 1000, "volatile-lru").warnings(false, false).next().unwrap();
        assert!(warning.contains("volatile-lru") && warning.contains("noeviction"), "{warning}");
    }
}
