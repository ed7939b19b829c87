//! The statistics of PostgreSQL about its own work: `pg_stat_statements`, and the processes of the server.

use std::collections::BTreeMap;
use std::fs;

use async_trait::async_trait;
use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::connection::{self, Connection};
use crate::contender::{Connecting, Driving, Target};
use crate::failure::{Context, Outcome};
use crate::process;
use crate::subject::{Command, Counters, Sender, ServerMonitor};

/// By the word with which a statement begins, without those of the monitor itself.
const STATEMENTS: &str = "SELECT lower(substring(regexp_replace(query,'/\\*.*?\\*/','','g') FROM '[a-zA-Z]+')),\
                          sum(calls)::text,(sum(total_exec_time)*1000)::bigint::text \
                          FROM pg_stat_statements JOIN pg_database ON oid=dbid \
                          WHERE datname=current_database() AND query NOT LIKE '%pg_stat_%' GROUP BY 1";

const CONNECTIONS: &str = "SELECT count(*)::text FROM pg_stat_activity WHERE backend_type='client backend'";

pub(super) fn connect(target: Target) -> Connecting<Box<dyn ServerMonitor>> {
    Box::pin(async move {
        let connection = connection::open(&target, Driving::OtherThread).await?;
        let has = "SELECT 1 FROM pg_extension WHERE extname='pg_stat_statements'";
        let counts = !connection.connection.rows(has.to_owned()).await?.is_empty();
        Ok(Box::new(Server { connection, counts, process: target.server_process }) as Box<dyn ServerMonitor>)
    })
}

struct Server {
    connection: Connection,
    /// Whether it counts statements, for which it needs an extension.
    counts: bool,
    process: Option<u32>,
}

#[async_trait]
impl ServerMonitor for Server {
    async fn describe(&mut self) -> Outcome<String> {
        let rows = self.connection.connection.rows("SHOW server_version".to_owned()).await?;
        let version = rows.first().and_then(|row| text(row, 0)).context("it does not say its version")?;
        Ok(format!("PostgreSQL {}", version.split(' ').next().unwrap_or(&version)))
    }

    async fn counters(&mut self) -> Outcome<Counters> {
        let statements = &self.connection.connection;
        let commands = if self.counts {
            statements.rows(STATEMENTS.to_owned()).await?.iter().filter_map(command).collect()
        } else {
            BTreeMap::new()
        };
        let rows = statements.rows(CONNECTIONS.to_owned()).await?;
        let connected: u64 = rows.first().and_then(|row| text(row, 0)?.parse().ok()).unwrap_or_default();
        let processes = self.process.map(processes).unwrap_or_default();
        let seconds = processes.iter().filter_map(|process| process::processor_seconds_of(*process));
        let bytes = processes.iter().filter_map(|process| process::resident_bytes_of(*process));
        Ok(Counters {
            commands,
            // The connection of this monitor is counted too.
            connections: connected.saturating_sub(1),
            processor_seconds: seconds.sum(),
            coarse_processor_seconds: None,
            resident_bytes: (!processes.is_empty()).then(|| bytes.sum()),
        })
    }
}

/// The first process of the server, and those that it has started: one for each connection, and some more.
fn processes(first: u32) -> Vec<u32> {
    let children = fs::read_to_string(format!("/proc/{first}/task/{first}/children")).unwrap_or_default();
    children.split_whitespace().filter_map(|word| word.parse().ok()).chain([first]).collect()
}

fn text(row: &PgRow, column: usize) -> Option<String> {
    row.try_get_unchecked(column).ok()
}

fn command(row: &PgRow) -> Option<(String, Command)> {
    let (calls, microseconds) = (text(row, 1)?.parse().ok()?, text(row, 2)?.parse().ok()?);
    Some((text(row, 0)?, Command { calls, microseconds, sender: Sender::Client }))
}
