//! The crate `distributed-lock` 0.2 with its Redis backend, which uses the crate `fred`.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use distlock::status::Mode;
use distributed_lock_core::traits::{
    DistributedLock as _, DistributedReaderWriterLock as _, DistributedSemaphore as _, LockHandle,
    LockProvider as _, ReaderWriterLockProvider as _, SemaphoreProvider as _,
};
use distributed_lock_redis::{
    RedisDistributedLock, RedisDistributedReaderWriterLock, RedisDistributedSemaphore, RedisLockProvider,
};
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

    fn share(&self, name: &str, mode: Mode) -> Outcome<Option<Box<dyn Lock>>> {
        Ok(Some(Box::new(match mode {
            Mode::Shared => Shared::Read(self.provider.create_reader_writer_lock(name)),
            Mode::Permits { take: NonZeroU32::MIN, of } => {
                Shared::Permit(self.provider.create_semaphore(name, of.get()))
            }
            Mode::Exclusive => Shared::Write(self.provider.create_reader_writer_lock(name)),
            _ => return Ok(None),
        })))
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
                return Ok(boxed(handle));
            }
            tokio::time::sleep(pause::random(LONGEST_PAUSE)).await;
        }
    }
}

/// The sides of its read-write lock, and a permit.
enum Shared {
    Read(RedisDistributedReaderWriterLock),
    Write(RedisDistributedReaderWriterLock),
    Permit(RedisDistributedSemaphore),
}

#[async_trait]
impl Lock for Shared {
    async fn acquire(&self) -> Outcome<Box<dyn Held>> {
        loop {
            let held = match self {
                Self::Read(lock) => lock.try_acquire_read().await.context("distributed-lock")?.map(boxed),
                Self::Write(lock) => lock.try_acquire_write().await.context("distributed-lock")?.map(boxed),
                Self::Permit(semaphore) => {
                    semaphore.try_acquire().await.context("distributed-lock")?.map(boxed)
                }
            };
            if let Some(held) = held {
                return Ok(held);
            }
            tokio::time::sleep(pause::random(LONGEST_PAUSE)).await;
        }
    }
}

fn boxed<H: LockHandle + 'static>(handle: H) -> Box<dyn Held> {
    Box::new(Handle(handle))
}

struct Handle<H>(H);

#[async_trait]
impl<H: LockHandle> Held for Handle<H> {
    async fn release(self: Box<Self>) -> Outcome<()> {
        self.0.release().await.context("distributed-lock")
    }
}
