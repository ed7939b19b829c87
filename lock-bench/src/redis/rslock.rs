//! The crate `rslock` 0.10: Redlock over the crate `redis`, here with one server.

use ::rslock::{LockGuard, LockManager};
use async_trait::async_trait;

use super::connection;
use crate::contender::{Client, Connecting, Held, Lock, Target};
use crate::failure::{Context, Outcome};

pub(super) fn connect(target: Target) -> Connecting<Box<dyn Client>> {
    Box::pin(async move {
        // It connects at the first command, and takes the connection settings from the client.
        let client = redis::Client::open(connection::information(&target.url)?).context("rslock")?;
        let manager = LockManager::from_clients(vec![client]);
        Ok(Box::new(Manager { manager, target }) as Box<dyn Client>)
    })
}

struct Manager {
    manager: LockManager,
    target: Target,
}

#[async_trait]
impl Client for Manager {
    fn lock(&self, name: &str) -> Outcome<Box<dyn Lock>> {
        let (manager, target) = (self.manager.clone(), self.target.clone());
        Ok(Box::new(Resource { name: name.as_bytes().to_vec(), manager, target }))
    }
}

struct Resource {
    name: Vec<u8>,
    manager: LockManager,
    target: Target,
}

#[async_trait]
impl Lock for Resource {
    async fn acquire(&self) -> Outcome<Box<dyn Held>> {
        let guard = self.manager.acquire(&self.name, self.target.lease).await.context("rslock")?;
        Ok(Box::new(Guarded(guard)))
    }
}

struct Guarded(LockGuard);

#[async_trait]
impl Held for Guarded {
    async fn release(self: Box<Self>) -> Outcome<()> {
        // It does not return whether the lock was still held.
        self.0.release().await;
        Ok(())
    }
}
