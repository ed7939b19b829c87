//! Servers that cases use one after another: starting a server takes longer than most cases.
//!
//! A case has its server for itself. Before the next case gets the server, it checks what the earlier one has left there; a server
//! on which something still runs is ended instead.

use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use conformance_tests::Outcome;
use test_servers::{MySqlFlavour, MySqlServer, MySqlSession, ServerOptions};

use crate::stage::{GUEST, number_of};

/// Servers that no case uses, in the order in which they became free, so that leftovers have the most time to end.
static FREE: Mutex<Vec<(MySqlFlavour, Arc<MySqlServer>)>> = Mutex::new(Vec::new());

/// The highest number of servers that are kept for later cases.
const MOST_FREE: usize = 6;

/// How long the leftovers of an earlier case may take to end.
const QUIET_WITHIN: Duration = Duration::from_secs(5);

/// How long no client may connect before the server counts as quiet.
const QUIET_FOR: Duration = Duration::from_millis(30);

/// A server that no other case uses. When this is dropped, another case can get the server, if it is an interchangeable one.
pub struct Server {
    server: Arc<MySqlServer>,
    /// `None` for a server with options of its own.
    alike: Option<MySqlFlavour>,
}

impl Server {
    /// An interchangeable server.
    pub async fn shared(flavour: MySqlFlavour, options: ServerOptions) -> Outcome<Self> {
        while let Some(server) = take(flavour) {
            if becomes_quiet(&server).await.unwrap_or(false) {
                return Ok(Self { server, alike: Some(flavour) });
            }
        }
        Ok(Self { alike: Some(flavour), server: Arc::new(MySqlServer::start_with(options).await?) })
    }

    /// A server that ends with the case.
    pub async fn alone(options: ServerOptions) -> Outcome<Self> {
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

/// Undoes what cases change: tables, users and settings.
async fn set_right(session: &mut MySqlSession) -> Outcome {
    let guest = format!("DROP USER IF EXISTS {GUEST}");
    let statements = [
        "DROP DATABASE IF EXISTS locks",
        "CREATE DATABASE locks",
        &guest,
        "SET GLOBAL read_only=DEFAULT",
        "SET GLOBAL init_connect=DEFAULT",
    ];
    for statement in statements {
        session.query(statement).await?;
    }
    Ok(())
}

/// Waits until no client is connected and none connects, and sets the server right. Returns whether that succeeds in time.
async fn becomes_quiet(server: &MySqlServer) -> Outcome<bool> {
    let quiet = async {
        let mut session = server.session().await?;
        let (until, mut before) = (Instant::now() + QUIET_WITHIN, None);
        while Instant::now() < until {
            let now = (connected(&mut session).await?, connections_so_far(&mut session).await?);
            if now.0 == 0 && before == Some(now) {
                set_right(&mut session).await?;
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
        // Ending a server takes a moment.
        drop(surplus);
    }
}
