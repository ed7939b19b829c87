//! The statistics of ZooKeeper and of the system about the server's work.

use async_trait::async_trait;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::connection::ZooKeeperUrl;
use crate::contender::{Connecting, Target};
use crate::failure::{Context, Outcome};
use crate::process;
use crate::subject::{Counters, ServerMonitor};

pub(super) fn connect(target: Target) -> Connecting<Box<dyn ServerMonitor>> {
    Box::pin(async move {
        // Any of the servers will do.
        let server = ZooKeeperUrl::of(&target)?.servers.split(',').next().unwrap_or_default().to_owned();
        Ok(Box::new(Server { address: server, process: target.server_process }) as Box<dyn ServerMonitor>)
    })
}

struct Server {
    address: String,
    process: Option<u32>,
}

impl Server {
    async fn word(&self, word: &str) -> Outcome<String> {
        let mut stream = TcpStream::connect(&self.address).await.context("the server")?;
        stream.write_all(word.as_bytes()).await.context(word)?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await.context(word)?;
        Ok(text)
    }
}

#[async_trait]
impl ServerMonitor for Server {
    async fn describe(&mut self) -> Outcome<String> {
        let text = self.word("srvr").await?;
        let version = field(&text, "Zookeeper version").unwrap_or("of an unknown version");
        let version = version.split(['-', ',']).next().unwrap_or(version);
        // Only the fixture of the tests is configured not to wait for the disk.
        let disk = if self.process.is_some() { ", does not wait for the disk" } else { "" };
        Ok(format!("ZooKeeper {version}{disk}"))
    }

    async fn counters(&mut self) -> Outcome<Counters> {
        let text = self.word("srvr").await?;
        let connections = field(&text, "Connections").and_then(|text| text.parse::<u64>().ok());
        Ok(Counters {
            // The connection of this monitor is counted too.
            connections: connections.unwrap_or(0).saturating_sub(1),
            processor_seconds: self.process.and_then(process::processor_seconds_of).unwrap_or(0.0),
            coarse_processor_seconds: self.process.and_then(process::coarse_processor_seconds_of),
            resident_bytes: self.process.and_then(process::resident_bytes_of),
            ..Counters::default()
        })
    }
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_found_by_its_whole_name() {
        let text = "Zookeeper version: 3.8.0-abc, built on 2022\nConnections: 12\nOutstanding: 0\n";
        assert_eq!(field(text, "Connections"), Some("12"));
        assert_eq!(field(text, "Conn"), None);
    }
}
