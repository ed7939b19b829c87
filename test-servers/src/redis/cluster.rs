//! Clusters: one node that has all hash slots, and three primaries with a replica each.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::{BUS, IN_CLUSTER, RedisServer};
use crate::{Failure, Outcome, ServerOptions};

/// The last hash slot.
const LAST: u16 = 16_383;

/// How long a node is silent before the others count it as down, and a replica takes its place.
const DOWN_AFTER: &str = "1500";

const PRIMARIES: usize = 3;

/// The first and the last hash slot of each.
const SHARES: [[&str; 2]; PRIMARIES] = [["0", "5461"], ["5462", "10923"], ["10924", "16383"]];

/// What a node says of itself.
#[derive(Debug, PartialEq)]
struct Said {
    id: String,
    is_primary: bool,
    epoch: String,
    slots: Vec<RangeInclusive<u16>>,
}

/// Three primaries that share the hash slots, and after them three replicas, one of each. Dropping this ends all of them.
#[derive(Debug)]
pub struct RedisCluster {
    servers: Vec<RedisServer>,
}

impl RedisCluster {
    /// Starts all of them, and waits until they agree.
    ///
    /// # Errors
    /// When a process does not start: the end of its log, or what to install.
    ///
    /// # Cancel safety
    /// Dropping the future ends them.
    pub async fn start() -> Outcome<Self> {
        Self::start_with(&ServerOptions::new()).await
    }

    /// The same, with these options.
    ///
    /// # Errors
    /// Those of `start`.
    ///
    /// # Cancel safety
    /// Dropping the future ends them.
    pub async fn start_with(options: &ServerOptions) -> Outcome<Self> {
        Self::start_nodes(options, PRIMARIES * 2).await
    }

    /// Starts the primaries alone.
    ///
    /// # Errors
    /// Those of `start`.
    ///
    /// # Cancel safety
    /// Dropping the future ends them.
    pub async fn start_primaries(options: &ServerOptions) -> Outcome<Self> {
        let cluster = Self::start_nodes(options, PRIMARIES).await?;
        // None can take over, and a node that is counted as down is one that a busy machine keeps waiting.
        for server in cluster.servers() {
            server.command(&["CONFIG", "SET", "cluster-node-timeout", "60000"]).await?;
        }
        Ok(cluster)
    }

    /// The first of them are the primaries.
    async fn start_nodes(options: &ServerOptions, count: usize) -> Outcome<Self> {
        let mut servers = Vec::new();
        for number in 1..=count {
            let server = RedisServer::start_as_node(options).await?;
            server.command(&["CLUSTER", "SET-CONFIG-EPOCH", &number.to_string()]).await?;
            servers.push(server);
        }
        for server in &servers[1..] {
            let port = server.address().port().to_string();
            let bus = server.bus().unwrap_or_default();
            servers[0].command(&["CLUSTER", "MEET", "127.0.0.1", &port, bus]).await?;
        }
        for (server, [from, to]) in servers.iter().zip(SHARES) {
            server.command(&["CLUSTER", "ADDSLOTSRANGE", from, to]).await?;
        }
        for (primary, replica) in servers.iter().zip(&servers[PRIMARIES..]) {
            let id = primary.itself().await?.id;
            let knows_it = || async { replica.command(&["CLUSTER", "REPLICATE", &id]).await.map(drop) };
            replica.process.ready(knows_it).await?;
        }
        let this = Self { servers };
        this.settled().await?;
        Ok(this)
    }

    /// Returns the URL for a client that asks the three nodes that were primaries at first.
    pub fn url(&self) -> String {
        let url = cluster_url(self.servers[..PRIMARIES].iter().map(RedisServer::address));
        self.servers[0].secured(&url)
    }

    /// Returns the nodes; the first three were the first primaries, and the others their replicas, in the same order.
    pub fn servers(&self) -> &[RedisServer] {
        &self.servers
    }

    /// Waits until each node that answers has found that all is well, they name the same owners, and replicas follow their primaries.
    ///
    /// # Errors
    /// When that takes too long: the end of a node's log.
    ///
    /// # Cancel safety
    /// Dropping the future only stops the waiting.
    pub async fn settled(&self) -> Outcome {
        let agree = || async {
            let mut views = Vec::new();
            for server in &self.servers {
                let Ok(state) = server.text(&["CLUSTER", "INFO"]).await else { continue };
                crate::ensure!(state.contains("cluster_state:ok"), "{state}");
                let replication = server.text(&["INFO", "replication"]).await?;
                crate::ensure!(!replication.contains("link_status:down"), "a replica is late");
                let nodes = server.text(&["CLUSTER", "NODES"]).await?;
                let mut owners: Vec<_> = nodes.lines().filter_map(said).collect();
                owners.retain(|node| !node.slots.is_empty());
                owners.sort_by(|one, other| one.id.cmp(&other.id));
                views.push(owners);
            }
            crate::ensure!(
                views.windows(2).all(|pair| pair[0] == pair[1]),
                "the nodes do not agree: {views:?}"
            );
            Ok(())
        };
        self.servers[0].process.ready(agree).await
    }

    /// Returns the node that says it is the primary with this hash slot, once exactly one does so.
    ///
    /// # Errors
    /// When that takes too long.
    ///
    /// # Cancel safety
    /// Dropping the future only stops the waiting.
    pub async fn owner(&self, slot: u16) -> Outcome<&RedisServer> {
        self.owner_of(slot, None).await
    }

    /// Returns the only node that says so beside this one, which is not asked: it may be stopped.
    ///
    /// # Errors
    /// When that takes too long.
    ///
    /// # Cancel safety
    /// Dropping the future only stops the waiting.
    pub async fn owner_after(&self, slot: u16, old: &RedisServer) -> Outcome<&RedisServer> {
        self.owner_of(slot, Some(old.address())).await
    }

    async fn owner_of(&self, slot: u16, without: Option<SocketAddr>) -> Outcome<&RedisServer> {
        let find = || async {
            let mut owners = Vec::new();
            for server in self.servers.iter().filter(|server| Some(server.address()) != without) {
                let Ok(itself) = server.itself().await else { continue };
                if itself.is_primary && itself.slots.iter().any(|range| range.contains(&slot)) {
                    owners.push(server);
                }
            }
            match owners.as_slice() {
                [owner] => Ok(*owner),
                owners => Err(Failure::new(format!("{} nodes have the hash slot {slot}", owners.len()))),
            }
        };
        self.servers[0].process.ready(find).await
    }

    /// Returns a primary that is not this one.
    ///
    /// # Errors
    /// When there is none.
    ///
    /// # Cancel safety
    /// Dropping the future only stops the search.
    pub async fn another_primary(&self, than: &RedisServer) -> Outcome<&RedisServer> {
        for server in &self.servers {
            let is_other = server.address() != than.address();
            if is_other && server.itself().await.is_ok_and(|itself| itself.is_primary) {
                return Ok(server);
            }
        }
        Err(Failure::new("there is no other primary"))
    }

    /// Makes the replica of this primary the primary, although nothing is wrong with this one, which goes on until it hears of that.
    ///
    /// # Errors
    /// When the replica refuses.
    ///
    /// # Cancel safety
    /// If the future is dropped, it is not known whether the replica takes over.
    pub async fn depose(&self, primary: &RedisServer) -> Outcome {
        // The two that were a pair at first always are: replicas do not move.
        let position = self.servers.iter().position(|server| server.address() == primary.address());
        let replica = &self.servers[(position.unwrap_or_default() + PRIMARIES) % self.servers.len()];
        // On a busy machine it may have taken over by itself.
        if replica.itself().await?.is_primary {
            return Ok(());
        }
        replica.command(&["CLUSTER", "FAILOVER", "TAKEOVER"]).await.map(drop)
    }

    /// As [`RedisServer::note_primary`], at each primary.
    ///
    /// # Errors
    /// Those of [`RedisServer::command`].
    ///
    /// # Cancel safety
    /// If the future is dropped, it is not known which of them look so.
    pub async fn note_primaries(&self, prefix: &str, longest: Duration) -> Outcome {
        for server in &self.servers {
            if server.itself().await?.is_primary {
                server.note_primary(prefix, longest).await?;
            }
        }
        Ok(())
    }

    /// Moves a hash slot with its keys, as the tool of Redis does: key by key, and the new owner is the first to learn of it.
    ///
    /// # Errors
    /// When a node refuses.
    ///
    /// # Cancel safety
    /// If the future is dropped, a part of the keys may have been moved.
    pub async fn move_slot(&self, slot: u16, to: &RedisServer) -> Outcome {
        let from = self.owner(slot).await?;
        let (source, target) = (from.itself().await?.id, to.itself().await?.id);
        let (slot, port) = (slot.to_string(), to.address().port().to_string());
        to.command(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source]).await?;
        from.command(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target]).await?;
        loop {
            let keys = from.command(&["CLUSTER", "GETKEYSINSLOT", &slot, "1"]).await?;
            let Some(key) = keys.texts().first().copied() else { break };
            from.command(&["MIGRATE", "127.0.0.1", &port, key, "0", "10000"]).await?;
        }
        to.command(&["CLUSTER", "SETSLOT", &slot, "NODE", &target]).await?;
        from.command(&["CLUSTER", "SETSLOT", &slot, "NODE", &target]).await?;
        for server in &self.servers {
            // Replicas refuse.
            let _ = server.command(&["CLUSTER", "SETSLOT", &slot, "NODE", &target]).await;
        }
        Ok(())
    }
}

/// Returns the URL for a client that asks these nodes for the others.
pub fn cluster_url(nodes: impl IntoIterator<Item = SocketAddr>) -> String {
    let all: Vec<_> = nodes.into_iter().map(|address| address.to_string()).collect();
    format!("redis+cluster://{}", all.join(","))
}

/// What the line of a node in the answer of one says.
fn said(line: &str) -> Option<Said> {
    let words: Vec<_> = line.split_whitespace().collect();
    let [id, _, flags, _, _, _, epoch, _, slots @ ..] = words.as_slice() else { return None };
    let range = |word: &&str| {
        let (first, last) = word.split_once('-').unwrap_or((word, word));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    let slots = slots.iter().filter_map(range).collect();
    Some(Said {
        id: (*id).to_owned(),
        is_primary: flags.contains("master"),
        epoch: (*epoch).to_owned(),
        slots,
    })
}

/// What a node says of these primaries: a lone one has all hash slots in this epoch, others their shares in their own.
pub(super) fn said_of(primaries: &[SocketAddr], epoch: u64) -> String {
    let line = |address, epoch, [from, to]: [&str; 2]| {
        format!("saying {address}@0 master - 0 0 {epoch} connected {from}-{to}\n")
    };
    match primaries {
        [one] => line(one, epoch, ["0", &LAST.to_string()]),
        all => (1..).zip(all.iter().zip(SHARES)).map(|(own, (each, share))| line(each, own, share)).collect(),
    }
}

/// The hash slot that a cluster gives to a tag: CRC-16/XMODEM.
pub fn hash_slot(tag: &str) -> u16 {
    let shift = |crc: u16| if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
    tag.bytes().fold(0, |crc, byte| (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| shift(crc))) & LAST
}

impl RedisServer {
    /// Starts a node of a cluster without hash slots.
    ///
    /// # Errors
    /// Those of `start_with`.
    ///
    /// # Cancel safety
    /// Dropping the future ends it.
    pub async fn start_as_node(options: &ServerOptions) -> Outcome<Self> {
        let node = options
            .clone()
            .setting(IN_CLUSTER, "yes")
            .setting("cluster-node-timeout", DOWN_AFTER)
            .setting("cluster-replica-validity-factor", "0")
            .setting("cluster-allow-replica-migration", "no")
            .setting("cluster-announce-ip", "127.0.0.1")
            .setting("repl-diskless-sync-delay", "0");
        Self::start_with(node).await
    }

    /// Gives a node all hash slots, and waits until it serves them.
    ///
    /// # Errors
    /// When it does not: the end of its log.
    ///
    /// # Cancel safety
    /// If the future is dropped, it is not known whether the node has them.
    pub async fn take_all_slots(&self) -> Outcome {
        self.command(&["CLUSTER", "ADDSLOTSRANGE", "0", &LAST.to_string()]).await?;
        self.serves_slots().await
    }

    /// Waits until a node serves its hash slots: after a start, that takes two seconds.
    ///
    /// # Errors
    /// When it does not: the end of its log.
    ///
    /// # Cancel safety
    /// Dropping the future only stops the waiting.
    pub async fn serves_slots(&self) -> Outcome {
        let is_well = || async {
            let state = self.text(&["CLUSTER", "INFO"]).await?;
            crate::ensure!(state.contains("cluster_state:ok"), "{state}");
            Ok(())
        };
        self.process.ready(is_well).await
    }

    /// The key of the note for a prefix, the epoch in which it is the primary, and the hash slots as the note has them.
    pub(super) async fn place_of_note(&self, prefix: &str) -> (String, String, String) {
        // A server that is no node refuses.
        let Ok(Said { epoch, slots, .. }) = self.itself().await else {
            return (format!("{prefix}:primary"), "0".to_owned(), " 0-0:0".to_owned());
        };
        let last = slots.last().map_or(0, |range| *range.end());
        let tag = (0..1_u32 << 24).map(|number| number.to_string()).find(|tag| hash_slot(tag) == last);
        let ranges = slots.iter().map(|range| format!(" {}-{}:0", range.start(), range.end()));
        (format!("{prefix}:primary:{{{}}}", tag.unwrap_or_default()), epoch, ranges.collect())
    }

    /// Returns the port that a node has for the other nodes.
    pub fn bus(&self) -> Option<&str> {
        self.place.options.settings.iter().find(|(name, _)| name == BUS).map(|(_, port)| port.as_str())
    }

    async fn itself(&self) -> Outcome<Said> {
        let nodes = self.text(&["CLUSTER", "NODES"]).await?;
        let line = nodes.lines().find(|line| line.contains("myself")).unwrap_or_default();
        said(line).ok_or_else(|| Failure::new(format!("a node says {line:?} of itself")))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::super::Value;
    use super::*;

    #[tokio::test]
    async fn a_replica_takes_over_and_a_slot_moves_with_its_keys() {
        if let Some(reason) = crate::left_out("redis") {
            eprintln!("redis: {reason}");
            return;
        }
        let cluster = RedisCluster::start().await.unwrap();
        let slot = hash_slot("k");
        let old = cluster.owner(slot).await.unwrap();
        old.command(&["SET", "k", "v"]).await.unwrap();
        let other = cluster.owner((slot + 8000) % LAST).await.unwrap();
        assert_ne!(other.address(), old.address());
        cluster.move_slot(slot, other).await.unwrap();
        assert_eq!(cluster.owner(slot).await.unwrap().address(), other.address());
        assert_eq!(other.command(&["GET", "k"]).await, Ok(Value::Text("v".to_owned())));
        cluster.move_slot(slot, old).await.unwrap();
        cluster.settled().await.unwrap();
        old.kill().unwrap();
        let new = cluster.owner(slot).await.unwrap();
        assert_eq!(new.command(&["GET", "k"]).await, Ok(Value::Text("v".to_owned())));
    }
}
