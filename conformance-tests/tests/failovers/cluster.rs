//! A cluster, whose hash slots primaries share that have a replica each.

use std::net::SocketAddr;

use conformance_tests::Outcome;
use test_servers::{RedisCluster, RedisServer, ServerOptions, cluster_url, hash_slot};

use super::{Harm, LOCK, Site};

impl Site for RedisCluster {
    async fn start(options: &ServerOptions) -> Outcome<Self> {
        Self::start_with(options).await
    }

    fn witnesses(&self) -> Vec<SocketAddr> {
        self.servers()[..3].iter().map(RedisServer::address).collect()
    }

    fn url(witnesses: impl Iterator<Item = SocketAddr>) -> String {
        cluster_url(witnesses)
    }

    async fn primary(&self) -> Outcome<&RedisServer> {
        self.owner(hash_slot(LOCK)).await
    }

    async fn replace(&self, old: &RedisServer, harm: Harm) -> Outcome {
        match harm {
            Harm::Kill | Harm::Stop | Harm::Isolate => {}
            Harm::Depose => self.depose(old).await?,
            Harm::Move => self.move_slot(hash_slot(LOCK), self.another_primary(old).await?).await?,
        }
        self.owner_after(hash_slot(LOCK), old).await.map(drop)
    }

    fn beside<'a>(&'a self, primary: &'a RedisServer) -> Vec<&'a RedisServer> {
        vec![primary]
    }

    async fn settled(&self) -> Outcome {
        self.settled().await
    }
}
