//! The minimum of statements for such a lock: `GET_LOCK` and `RELEASE_LOCK`, on one connection.

use std::sync::Arc;

use async_trait::async_trait;

use super::connection::{self, Connection, Statements};
use crate::contender::{Client, Driving, Echo, Held, Lock, Ping, Target};
use crate::failure::{Failure, Outcome};

/// In seconds; longer than any wait here.
const LONGEST_WAIT: u32 = 24 * 60 * 60;

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
}

/// The statements for one lock.
#[derive(Clone)]
struct Texts {
    acquire: Arc<str>,
    release: Arc<str>,
}

impl Texts {
    fn of(name: &str) -> Self {
        Self {
            acquire: format!("SELECT GET_LOCK('{name}',{LONGEST_WAIT})").into(),
            release: format!("SELECT RELEASE_LOCK('{name}')").into(),
        }
    }
}

fn acquired(answer: Option<u64>) -> Outcome<()> {
    match answer {
        Some(number) if number > 0 => Ok(()),
        _ => Err(Failure::new("the lock was not granted")),
    }
}

fn released(answer: Option<u64>) -> Outcome<()> {
    if answer == Some(1) { Ok(()) } else { Err(Failure::new("the lock had been lost")) }
}

struct Named {
    statements: Statements,
    texts: Texts,
}

#[async_trait]
impl Lock for Named {
    async fn acquire(&self) -> Outcome<Box<dyn Held>> {
        acquired(self.statements.number((*self.texts.acquire).to_owned()).await?)?;
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
        released(self.statements.number((*self.release).to_owned()).await?)
    }
}
