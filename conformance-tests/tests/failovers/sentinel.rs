//! A primary with replicas that sentinels watch.

use std::net::SocketAddr;

use conformance_tests::Outcome;
use test_servers::{RedisSentinels, RedisServer, sentinel_url};

use super::{Harm, Site};

impl Site for RedisSentinels {
    async fn start() -> Outcome<Self> {
        Self::start(None).await
    }

    fn witnesses(&self) -> Vec<SocketAddr> {
        self.sentinels().iter().map(RedisServer::address).collect()
    }

    fn url(witnesses: impl Iterator<Item = SocketAddr>) -> String {
        sentinel_url(witnesses)
    }

    async fn primary(&self) -> Outcome<&RedisServer> {
        self.primary().await
    }

    async fn replace(&self, old: &RedisServer, harm: Harm) -> Outcome {
        if let Harm::Depose = harm {
            self.depose().await?;
        }
        self.primary_after(old.address()).await.map(drop)
    }

    async fn settled(&self) -> Outcome {
        self.settled().await
    }
}
