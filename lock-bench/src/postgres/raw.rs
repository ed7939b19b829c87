//! The minimum of statements for such a lock: `pg_advisory_lock` and `pg_advisory_unlock`, on one connection.

use std::sync::Arc;

use async_trait::async_trait;
use distlock::status::Mode;
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{ConnectOptions as _, Connection as _, Row as _};
use tokio::sync::Mutex;

use super::connection::{self, Connection, Statements};
use crate::contender::{Client, Connecting, Driving, Echo, Held, Lock, Ping, Target};
use crate::failure::{Context, Failure, Outcome};

pub(super) const WAITING: &str = "at the server, on a connection of its own";

pub(super) const ECHOES: &[Echo] = &[
    Echo {
        id: "ping-caller",
        driving: Driving::Caller,
        connect: |target| Box::pin(ping(target, Driving::Caller)),
    },
    Echo {
        id: "ping-thread",
        driving: Driving::OtherThread,
        connect: |target| Box::pin(ping(target, Driving::OtherThread)),
    },
];

async fn ping(target: Target, driving: Driving) -> Outcome<Box<dyn Ping>> {
    Ok(Box::new(connection::open(&target, driving).await?))
}

#[async_trait]
impl Ping for Connection {
    async fn ping(&mut self) -> Outcome<()> {
        self.connection.ping().await
    }
}

/// Whether the statement that acquires also creates a number, as a fencing token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Minted {
    Nothing,
    Number,
}

/// A task of the caller's runtime owns the connection.
pub(super) fn caller(target: Target) -> Connecting<Box<dyn Client>> {
    Box::pin(connect(target, Driving::Caller, Minted::Nothing))
}

/// A task on the current-thread runtime of another thread owns the connection.
pub(super) fn other_thread(target: Target) -> Connecting<Box<dyn Client>> {
    Box::pin(connect(target, Driving::OtherThread, Minted::Nothing))
}

pub(super) fn caller_minting(target: Target) -> Connecting<Box<dyn Client>> {
    Box::pin(connect(target, Driving::Caller, Minted::Number))
}

pub(super) fn other_thread_minting(target: Target) -> Connecting<Box<dyn Client>> {
    Box::pin(connect(target, Driving::OtherThread, Minted::Number))
}

async fn connect(target: Target, driving: Driving, minted: Minted) -> Outcome<Box<dyn Client>> {
    Ok(Box::new(Raw { connection: connection::open(&target, driving).await?, minted }))
}

struct Raw {
    connection: Connection,
    minted: Minted,
}

#[async_trait]
impl Client for Raw {
    fn lock(&self, name: &str) -> Outcome<Box<dyn Lock>> {
        let statements = self.connection.connection.clone();
        Ok(Box::new(Named { statements, texts: Texts::of(name, self.minted) }))
    }

    /// Only without numbers: one such contender is enough to compare with.
    fn share(&self, name: &str, mode: Mode) -> Outcome<Option<Box<dyn Lock>>> {
        let texts = match (mode, self.minted) {
            (Mode::Exclusive, Minted::Nothing) => Texts::of(name, Minted::Nothing),
            (Mode::Shared, Minted::Nothing) => Texts::to_share(name),
            _ => return Ok(None),
        };
        Ok(Some(Box::new(Named { statements: self.connection.connection.clone(), texts })))
    }

    async fn close(self: Box<Self>) {}
}

/// The statements for one lock.
#[derive(Clone)]
struct Texts {
    acquire: Arc<str>,
    release: Arc<str>,
}

impl Texts {
    fn of(name: &str, minted: Minted) -> Self {
        let key = distlock::postgres::key(name);
        let acquire = match minted {
            Minted::Nothing => format!("SELECT pg_advisory_lock({key})"),
            Minted::Number => format!(
                "SELECT CASE WHEN pg_advisory_lock({key}) IS NULL THEN 0 \
                 ELSE (extract(epoch FROM clock_timestamp())*1000000)::bigint END"
            ),
        };
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

/// The caller itself uses the connection: no other task can use it at the same time.
pub(super) fn direct(target: Target) -> Connecting<Box<dyn Client>> {
    Box::pin(async move {
        let connection = connection::options(&target)?.connect().await.context("connecting to the server")?;
        Ok(Box::new(Direct(Arc::new(Mutex::new(connection)))) as Box<dyn Client>)
    })
}

struct Direct(Arc<Mutex<PgConnection>>);

#[async_trait]
impl Client for Direct {
    fn lock(&self, name: &str) -> Outcome<Box<dyn Lock>> {
        let connection = Arc::clone(&self.0);
        Ok(Box::new(DirectlyNamed { connection, texts: Texts::of(name, Minted::Nothing) }))
    }

    async fn close(self: Box<Self>) {
        let Some(connection) = Arc::into_inner(self.0) else { return };
        // The measurement is over.
        let _ = connection.into_inner().close().await;
    }
}

struct DirectlyNamed {
    connection: Arc<Mutex<PgConnection>>,
    texts: Texts,
}

#[async_trait]
impl Lock for DirectlyNamed {
    async fn acquire(&self) -> Outcome<Box<dyn Held>> {
        let text = (*self.texts.acquire).to_owned();
        acquired(&connection::rows(&mut *self.connection.lock().await, text).await?)?;
        let (connection, release) = (Arc::clone(&self.connection), Arc::clone(&self.texts.release));
        Ok(Box::new(DirectlyTaken { connection, release }))
    }
}

struct DirectlyTaken {
    connection: Arc<Mutex<PgConnection>>,
    release: Arc<str>,
}

#[async_trait]
impl Held for DirectlyTaken {
    async fn release(self: Box<Self>) -> Outcome<()> {
        let text = (*self.release).to_owned();
        released(&connection::rows(&mut *self.connection.lock().await, text).await?)
    }
}
