//! A primary with replicas that sentinels watch.

use std::net::SocketAddr;

use conformance_tests::Outcome;
use test_servers::{RedisSentinels, RedisServer, ServerOptions, sentinel_url};

use super::{Harm, Site};

impl Site for RedisSentinels {
    async fn start(options: &ServerOptions) -> Outcome<Self> {
        Self::start_with(options, None).await
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

    /// A sentinel that goes on to name it, and to which the cut-off clients hold.
    fn beside<'a>(&'a self, primary: &'a RedisServer) -> Vec<&'a RedisServer> {
        vec![primary, &self.sentinels()[2]]
    }

    async fn settled(&self) -> Outcome {
        self.settled().await
    }
}
