//! Servers that one case has after another: to start one takes longer than most cases.
//!
//! A case has its server for itself. What it leaves there is looked for before the next case has it; a server on which something
//! goes on is ended instead.

use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use conformance_tests::Outcome;
use conformance_tests::servers::{MySqlFlavour, MySqlOptions, MySqlServer, MySqlSession};

use crate::stage::{TABLE, number_of};

/// Servers that no case has, in the order in which they became free: whatever still goes on there has most time to end.
static FREE: Mutex<Vec<(MySqlFlavour, Arc<MySqlServer>)>> = Mutex::new(Vec::new());

/// So many are kept for those who come.
const MOST_FREE: usize = 6;

/// How long what an earlier case has left may take to end.
const QUIET_WITHIN: Duration = Duration::from_secs(5);

/// How long nobody may connect before nothing goes on.
const QUIET_FOR: Duration = Duration::from_millis(30);

/// A server that no other case has. It is kept for another when this is dropped, if it is one of those that are alike.
pub struct Server {
    server: Arc<MySqlServer>,
    /// `None` when it is like no other.
    alike: Option<MySqlFlavour>,
}

impl Server {
    /// One of those that are alike.
    pub async fn shared(flavour: MySqlFlavour, options: MySqlOptions) -> Outcome<Self> {
        while let Some(server) = take(flavour) {
            if becomes_quiet(&server).await.unwrap_or(false) {
                return Ok(Self { server, alike: Some(flavour) });
            }
        }
        Ok(Self { alike: Some(flavour), server: Arc::new(MySqlServer::start_with(options).await?) })
    }

    /// One that ends with the case.
    pub async fn alone(options: MySqlOptions) -> Outcome<Self> {
        Ok(Self { server: Arc::new(MySqlServer::start_with(options).await?), alike: None })
    }
}

fn free() -> MutexGuard<'static, Vec<(MySqlFlavour, Arc<MySqlServer>)>> {
    FREE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn take(flavour: MySqlFlavour) -> Option<Arc<MySqlServer>> {
    let mut free = free();
    let place = free.iter().position(|(of, _)| *of == flavour)?;
    Some(free.remove(place).1)
}

/// Waits until no client is connected and none comes, and removes what is kept in tables. Answers whether that is so in time.
async fn becomes_quiet(server: &MySqlServer) -> Outcome<bool> {
    let quiet = async {
        let mut session = server.session().await?;
        let (until, mut before) = (Instant::now() + QUIET_WITHIN, None);
        while Instant::now() < until {
            let now = (connected(&mut session).await?, connections_so_far(&mut session).await?);
            if now.0 == 0 && before == Some(now) {
                session.query(&format!("DROP TABLE IF EXISTS {TABLE}")).await?;
                return Ok(true);
            }
            before = Some(now);
            tokio::time::sleep(QUIET_FOR).await;
        }
        Ok(false)
    };
    tokio::time::timeout(2 * QUIET_WITHIN, quiet).await.unwrap_or(Ok(false))
}

async fn connected(session: &mut MySqlSession) -> Outcome<u64> {
    let others = "SELECT COUNT(*) FROM information_schema.PROCESSLIST \
                  WHERE USER <> 'system user' AND ID <> CONNECTION_ID()";
    number_of(others, session.query(others).await?)
}

async fn connections_so_far(session: &mut MySqlSession) -> Outcome<u64> {
    let status = "SHOW GLOBAL STATUS LIKE 'Connections'";
    let rows = session.query(status).await?;
    number_of(status, rows.into_iter().map(|row| row.into_iter().skip(1).collect()).collect())
}

impl Deref for Server {
    type Target = MySqlServer;

    fn deref(&self) -> &MySqlServer {
        &self.server
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let Some(flavour) = self.alike else { return };
        let surplus = {
            let mut free = free();
            free.push((flavour, Arc::clone(&self.server)));
            (free.len() > MOST_FREE).then(|| free.remove(0))
        };
        // It takes a moment to end a server.
        drop(surplus);
    }
}
