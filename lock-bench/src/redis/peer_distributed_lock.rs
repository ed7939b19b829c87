//! The crate `distributed-lock` 0.2 with its Redis backend, which uses the crate `fred`.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use distributed_lock_core::traits::{DistributedLock as _, LockHandle as _, LockProvider as _};
use distributed_lock_redis::{RedisDistributedLock, RedisLockHandle, RedisLockProvider};
use fred::clients::RedisClient;
use fred::interfaces::ClientLike as _;
use fred::types::{ConnectionConfig, RedisConfig, TcpConfig};

use crate::contender::{Client, Connecting, Held, Lock, Target};
use crate::failure::{Context, Outcome};
use crate::pause;

/// Its `acquire` returns immediately when the lock is held, whatever timeout it gets, so the waiting is done here.
const LONGEST_PAUSE: Duration = Duration::from_millis(10);
pub(super) const WAITING: &str =
    "does not wait; asked again after a random pause of up to 10 ms, as the raw commands";

pub(super) fn connect(target: Target) -> Connecting<Box<dyn Client>> {
    Box::pin(async move {
        let settings = RedisConfig::from_url(&target.url).context("distributed-lock")?;
        let tcp = TcpConfig { nodelay: Some(true), ..TcpConfig::default() };
        let connection = ConnectionConfig { tcp, ..ConnectionConfig::default() };
        let client = RedisClient::new(settings, None, Some(connection), None);
        drop(client.connect());
        client.wait_for_connect().await.context("distributed-lock")?;
        let provider = RedisLockProvider::builder()
            .client(client.clone())
            .expiry(target.lease)
            .extension_cadence(target.renewal_interval())
            .min_validity(target.lease.mul_f64(0.9));
        let provider = provider.build().await.context("distributed-lock")?;
        Ok(Box::new(Provider { provider, client }) as Box<dyn Client>)
    })
}

struct Provider {
    provider: RedisLockProvider,
    client: RedisClient,
}

#[async_trait]
impl Client for Provider {
    fn lock(&self, name: &str) -> Outcome<Box<dyn Lock>> {
        Ok(Box::new(Named(Arc::new(self.provider.create_lock(name)))))
    }

    async fn close(self: Box<Self>) {
        // The measurement is over.
        let _ = self.client.quit().await;
    }
}

struct Named(Arc<RedisDistributedLock>);

#[async_trait]
impl Lock for Named {
    async fn acquire(&self) -> Outcome<Box<dyn Held>> {
        loop {
            if let Some(handle) = self.0.try_acquire().await.context("distributed-lock")? {
                return Ok(Box::new(Handle(handle)));
            }
            tokio::time::sleep(pause::random(LONGEST_PAUSE)).await;
        }
    }
}

struct Handle(RedisLockHandle);

#[async_trait]
impl Held for Handle {
    async fn release(self: Box<Self>) -> Outcome<()> {
        self.0.release().await.context("distributed-lock")
    }
}
