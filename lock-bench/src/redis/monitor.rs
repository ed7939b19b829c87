//! The statistics of Redis about its own work.

use std::collections::BTreeMap;

use async_trait::async_trait;

use super::connection::{self, Connection};
use crate::contender::{Connecting, Driving, Target};
use crate::failure::{Context, Outcome};
use crate::process;
use crate::subject::{Command, Counters, Sender, ServerMonitor};

pub(super) fn connect(target: Target) -> Connecting<Box<dyn ServerMonitor>> {
    Box::pin(async move {
        let connection = connection::open(&target.url, Driving::OtherThread).await?;
        Ok(Box::new(Server { connection, process: target.server_process }) as Box<dyn ServerMonitor>)
    })
}

struct Server {
    connection: Connection,
    process: Option<u32>,
}

impl Server {
    async fn information(&mut self, section: &str) -> Outcome<String> {
        let mut info = redis::cmd("INFO");
        info.arg(section).query_async(&mut self.connection.connection).await.context("INFO")
    }
}

#[async_trait]
impl ServerMonitor for Server {
    async fn describe(&mut self) -> Outcome<String> {
        let text = self.information("server").await?;
        Ok(format!("Redis {}", field(&text, "redis_version").unwrap_or("of an unknown version")))
    }

    async fn counters(&mut self) -> Outcome<Counters> {
        let (clients, processor) = (self.information("clients").await?, self.information("cpu").await?);
        let commands = self.information("commandstats").await?;
        let seconds = |name| field(&processor, name).and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
        Ok(Counters {
            commands: command_statistics(&commands),
            connections: field(&clients, "connected_clients").and_then(|text| text.parse().ok()).unwrap_or(0),
            processor_seconds: seconds("used_cpu_sys") + seconds("used_cpu_user"),
            coarse_processor_seconds: None,
            resident_bytes: self.process.and_then(process::resident_bytes_of),
        })
    }
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
}

/// Parses lines such as `cmdstat_client|list:calls=3,usec=12,usec_per_call=4.00,…`, without INFO, which the monitor
/// itself sends.
fn command_statistics(text: &str) -> BTreeMap<String, Command> {
    let statistic = |line: &str| {
        let (name, numbers) = line.strip_prefix("cmdstat_")?.split_once(':')?;
        let number = |key: &str| {
            let values = numbers.split(',').filter_map(|part| part.split_once('='));
            values.filter(|(found, _)| *found == key).find_map(|(_, value)| value.parse().ok())
        };
        let command =
            Command { calls: number("calls")?, microseconds: number("usec")?, sender: sender(name) };
        (name != "info").then(|| (name.to_owned(), command))
    };
    text.lines().filter_map(statistic).collect()
}

/// Redis counts the commands of scripts and of clients together. No script of a lock calls these.
fn sender(command: &str) -> Sender {
    const CLIENTS: [&str; 14] = [
        "acl",
        "auth",
        "client",
        "config",
        "eval",
        "evalsha",
        "fcall",
        "hello",
        "ping",
        "script",
        "select",
        "ssubscribe",
        "subscribe",
        "unsubscribe",
    ];
    let family = command.split('|').next().unwrap_or(command);
    if CLIENTS.contains(&family) { Sender::Client } else { Sender::Anyone }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_statistics_are_read_line_by_line() {
        let text = "# Commandstats\r\ncmdstat_evalsha:calls=7,usec=70,usec_per_call=10.00\r\n\
                    cmdstat_client|setinfo:calls=2,usec=3,usec_per_call=1.50\r\ncmdstat_get:calls=7,usec=7\r\n\
                    cmdstat_info:calls=9,usec=900\r\n";
        let read = command_statistics(text);
        let expected = |calls, microseconds, sender| Command { calls, microseconds, sender };
        assert_eq!(read.len(), 3, "{read:?}");
        assert_eq!(read["evalsha"], expected(7, 70, Sender::Client));
        assert_eq!(read["client|setinfo"], expected(2, 3, Sender::Client));
        assert_eq!(read["get"], expected(7, 7, Sender::Anyone));
    }

    #[test]
    fn a_field_is_found_by_its_whole_name() {
        let text = "redis_version_old:6\r\nredis_version:7.0.15\r\n";
        assert_eq!(field(text, "redis_version"), Some("7.0.15"));
        assert_eq!(field(text, "redis"), None);
    }
}
