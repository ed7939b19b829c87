//! The statistics of MySQL and MariaDB about their own work.

use std::collections::BTreeMap;

use async_trait::async_trait;
use sqlx::Row as _;
use sqlx::mysql::MySqlRow;

use super::connection::{self, Connection};
use crate::contender::{Connecting, Driving, Target};
use crate::failure::{Context, Outcome};
use crate::process;
use crate::subject::{Command, Counters, Sender, ServerMonitor};

const STATUS: &str =
    "SHOW GLOBAL STATUS WHERE Variable_name LIKE 'Com\\_%' OR Variable_name = 'Threads_connected'";

pub(super) fn connect(target: Target) -> Connecting<Box<dyn ServerMonitor>> {
    Box::pin(async move {
        let connection = connection::open(&target, Driving::OtherThread).await?;
        Ok(Box::new(Server { connection, process: target.server_process }) as Box<dyn ServerMonitor>)
    })
}

struct Server {
    connection: Connection,
    process: Option<u32>,
}

#[async_trait]
impl ServerMonitor for Server {
    async fn describe(&mut self) -> Outcome<String> {
        let rows = self.connection.connection.rows("SELECT VERSION()".to_owned()).await?;
        let version = rows.first().and_then(|row| text(row, 0)).context("it does not say its version")?;
        let name = if version.contains("MariaDB") { "MariaDB" } else { "MySQL" };
        Ok(format!("{name} {}", version.split('-').next().unwrap_or(&version)))
    }

    async fn counters(&mut self) -> Outcome<Counters> {
        let rows = self.connection.connection.rows(STATUS.to_owned()).await?;
        let status: Vec<_> =
            rows.iter().filter_map(|row| Some((text(row, 0)?, text(row, 1)?.parse().ok()?))).collect();
        let connected = status.iter().find(|(name, _)| name == "Threads_connected");
        Ok(Counters {
            commands: statements(&status),
            // The connection of this monitor is counted too.
            connections: connected.map_or(0, |(_, count)| *count).saturating_sub(1),
            processor_seconds: self.process.and_then(process::processor_seconds_of).unwrap_or(0.0),
            coarse_processor_seconds: self.process.and_then(process::coarse_processor_seconds_of),
            resident_bytes: self.process.and_then(process::resident_bytes_of),
        })
    }
}

fn text(row: &MySqlRow, column: usize) -> Option<String> {
    let bytes: Vec<u8> = row.try_get_unchecked(column).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns the number of statements of each kind, without those of the monitor itself.
fn statements(status: &[(String, u64)]) -> BTreeMap<String, Command> {
    let statement = |(name, count): &(String, u64)| {
        let kind = name.strip_prefix("Com_")?;
        let command = Command { calls: *count, microseconds: 0, sender: Sender::Client };
        is_counted(kind).then(|| (kind.to_owned(), command))
    };
    status.iter().filter_map(statement).collect()
}

/// The statements inside prepared statements are counted like text statements. Only the monitor asks for the status.
fn is_counted(kind: &str) -> bool {
    kind != "show_status" && !kind.starts_with("stmt_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_are_counted_once_and_not_those_of_the_monitor() {
        let status =
            [("Com_select", 7), ("Com_stmt_execute", 5), ("Com_show_status", 3), ("Threads_connected", 9)];
        let read = statements(&status.map(|(name, count)| (name.to_owned(), count)));
        assert_eq!(read.len(), 1, "{read:?}");
        assert_eq!(read["select"], Command { calls: 7, microseconds: 0, sender: Sender::Client });
    }
}
