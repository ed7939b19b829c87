//! The minimum of statements for such a lock: `pg_advisory_lock` and `pg_advisory_unlock`, on one connection.

use std::sync::Arc;

use async_trait::async_trait;
use distlock::status::Mode;
use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::connection::{self, Connection, Statements};
use crate::contender::{Client, Driving, Echo, Held, Lock, Ping, Target};
use crate::failure::{Context, Failure, Outcome};

/// A task of that runtime owns the connection.
pub(super) async fn connect(target: Target, driving: Driving) -> Outcome<Box<dyn Client>> {
    Ok(Box::new(Raw(connection::open(&target, driving).await?)))
}

pub(super) async fn ping(target: Target, driving: Driving) -> Outcome<Box<dyn Client>> {
    Ok(Echo::of(connection::open(&target, driving).await?))
}

#[async_trait]
impl Ping for Connection {
    async fn ping(&self) -> Outcome<()> {
        self.connection.ping().await
    }
}

struct Raw(Connection);

#[async_trait]
impl Client for Raw {
    fn lock(&self, name: &str) -> Outcome<Box<dyn Lock>> {
        let statements = self.0.connection.clone();
        Ok(Box::new(Named { statements, texts: Texts::of(name) }))
    }

    fn share(&self, name: &str, mode: Mode) -> Outcome<Option<Box<dyn Lock>>> {
        let texts = match mode {
            Mode::Exclusive => Texts::of(name),
            Mode::Shared => Texts::to_share(name),
            _ => return Ok(None),
        };
        Ok(Some(Box::new(Named { statements: self.0.connection.clone(), texts })))
    }
}

/// The statements for one lock.
#[derive(Clone)]
struct Texts {
    acquire: Arc<str>,
    release: Arc<str>,
}

impl Texts {
    fn of(name: &str) -> Self {
        let key = distlock::postgres::key(name);
        let acquire = format!("SELECT pg_advisory_lock({key})");
        Self { acquire: acquire.into(), release: format!("SELECT pg_advisory_unlock({key})").into() }
    }

    fn to_share(name: &str) -> Self {
        let key = distlock::postgres::key(name);
        let acquire = format!("SELECT pg_advisory_lock_shared({key})");
        Self { acquire: acquire.into(), release: format!("SELECT pg_advisory_unlock_shared({key})").into() }
    }
}

/// The server answers when it has granted the lock.
fn acquired(rows: &[PgRow]) -> Outcome<()> {
    rows.first().map(drop).context("the lock was not granted")
}

fn released(rows: &[PgRow]) -> Outcome<()> {
    let row = rows.first().context("an answer without a row")?;
    let is_released: bool = row.try_get_unchecked(0).context("an answer that is no truth value")?;
    if is_released { Ok(()) } else { Err(Failure::new("the lock had been lost")) }
}

struct Named {
    statements: Statements,
    texts: Texts,
}

#[async_trait]
impl Lock for Named {
    async fn acquire(&self) -> Outcome<Box<dyn Held>> {
        acquired(&self.statements.rows((*self.texts.acquire).to_owned()).await?)?;
        Ok(Box::new(Taken { statements: self.statements.clone(), release: Arc::clone(&self.texts.release) }))
    }
}

struct Taken {
    statements: Statements,
    release: Arc<str>,
}

#[async_trait]
impl Held for Taken {
    async fn release(self: Box<Self>) -> Outcome<()> {
        released(&self.statements.rows((*self.release).to_owned()).await?)
    }
}
