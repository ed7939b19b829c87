//! The lock of the crate `zookeeper-client` itself, with Curator's names.

use async_trait::async_trait;
use zookeeper_client::{LockOptions, LockPrefix, OwnedLockClient};

use super::connection::{self, ACLS, Connection, ZooKeeperUrl};
use crate::contender::{Client, Connecting, Driving, Held, Lock, Target};
use crate::failure::{Context, Outcome};

pub(super) fn connect(target: Target) -> Connecting<Box<dyn Client>> {
    Box::pin(async move {
        let connection = connection::open(&target, Driving::Caller).await?;
        Ok(Box::new(Session { connection, target }) as Box<dyn Client>)
    })
}

struct Session {
    connection: Connection,
    target: Target,
}

#[async_trait]
impl Client for Session {
    fn lock(&self, name: &str) -> Outcome<Box<dyn Lock>> {
        let directory = ZooKeeperUrl::of(&self.target)?.of_lock(name);
        Ok(Box::new(Directory { client: self.connection.connection.clone(), directory }))
    }
}

struct Directory {
    client: zookeeper_client::Client,
    directory: String,
}

#[async_trait]
impl Lock for Directory {
    async fn acquire(&self) -> Outcome<Box<dyn Held>> {
        let prefix = LockPrefix::new_curator(&self.directory, "lock-").context("LockClient")?;
        let options = LockOptions::new(ACLS).with_ancestor_options(connection::directory());
        let options = options.context("LockClient")?;
        let lock = self.client.lock(prefix, b"", options).await.context("LockClient")?;
        Ok(Box::new(Locked(lock.into_owned())))
    }
}

struct Locked(OwnedLockClient);

#[async_trait]
impl Held for Locked {
    async fn release(self: Box<Self>) -> Outcome<()> {
        // There is no other way: a separate task deletes the node, and does not report when that is done.
        drop(self.0);
        Ok(())
    }
}
