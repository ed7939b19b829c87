//! `PgAdvisoryLock` of the crate `sqlx` 0.9, on one connection.

use std::sync::Arc;

use async_trait::async_trait;
use sqlx::ConnectOptions as _;
use sqlx::postgres::{PgAdvisoryLock, PgConnection};
use tokio::sync::{Mutex, OwnedMutexGuard};

use super::connection;
use crate::contender::{Client, Connecting, Held, Lock, Target};
use crate::failure::{Context, Failure, Outcome};

pub(super) fn connect(target: Target) -> Connecting<Box<dyn Client>> {
    Box::pin(async move {
        let connection = connection::options(&target)?.connect().await.context("connecting to the server")?;
        Ok(Box::new(Connected(Arc::new(Mutex::new(connection)))) as Box<dyn Client>)
    })
}

struct Connected(Arc<Mutex<PgConnection>>);

#[async_trait]
impl Client for Connected {
    fn lock(&self, name: &str) -> Outcome<Box<dyn Lock>> {
        let lock = PgAdvisoryLock::new(name);
        Ok(Box::new(Named { connection: Arc::clone(&self.0), lock }))
    }
}

struct Named {
    connection: Arc<Mutex<PgConnection>>,
    lock: PgAdvisoryLock,
}

#[async_trait]
impl Lock for Named {
    async fn acquire(&self) -> Outcome<Box<dyn Held>> {
        let mut connection = Arc::clone(&self.connection).lock_owned().await;
        // The guard of the crate borrows the connection, so that it cannot be kept beside it; it releases as this does.
        self.lock.acquire(&mut *connection).await.context("sqlx")?.leak();
        Ok(Box::new(Taken { connection, lock: self.lock.clone() }))
    }
}

struct Taken {
    connection: OwnedMutexGuard<PgConnection>,
    lock: PgAdvisoryLock,
}

#[async_trait]
impl Held for Taken {
    async fn release(mut self: Box<Self>) -> Outcome<()> {
        let (_, released) = self.lock.force_release(&mut *self.connection).await.context("sqlx")?;
        if released { Ok(()) } else { Err(Failure::new("the lock had been lost")) }
    }
}
