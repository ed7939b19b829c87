//! What ZooKeeper and the system say about its work.

use std::fs;

use async_trait::async_trait;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::connection::Place;
use super::server;
use crate::contender::{Connecting, Target};
use crate::failure::{Context, Outcome};
use crate::subject::{Counters, Survey};

pub(super) fn connect(target: Target) -> Connecting<Box<dyn Survey>> {
    Box::pin(async move {
        // The first is as good as any.
        let server = Place::of(&target)?.servers.split(',').next().unwrap_or_default().to_owned();
        Ok(Box::new(Server(server)) as Box<dyn Survey>)
    })
}

struct Server(String);

impl Server {
    async fn word(&self, word: &str) -> Outcome<String> {
        let mut stream = TcpStream::connect(&self.0).await.context("the server")?;
        stream.write_all(word.as_bytes()).await.context(word)?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await.context(word)?;
        Ok(text)
    }
}

#[async_trait]
impl Survey for Server {
    async fn describe(&mut self) -> Outcome<String> {
        let text = self.word("srvr").await?;
        let version = field(&text, "Zookeeper version").unwrap_or("of an unknown version");
        let version = version.split(['-', ',']).next().unwrap_or(version);
        // It is the fixture of the tests that is not told to.
        let disk = if server::own_process().is_some() { ", does not wait for the disk" } else { "" };
        Ok(format!("ZooKeeper {version}{disk}"))
    }

    async fn counters(&mut self) -> Outcome<Counters> {
        let text = self.word("srvr").await?;
        let connections = field(&text, "Connections").and_then(|text| text.parse::<u64>().ok());
        Ok(Counters {
            // The one that asks is counted too.
            connections: connections.unwrap_or(0).saturating_sub(1),
            processor_seconds: server::own_process().and_then(processor_seconds).unwrap_or(0.0),
            ..Counters::default()
        })
    }
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

/// Of all threads that the process has now; `None` where the system does not say.
fn processor_seconds(process: u32) -> Option<f64> {
    let mut nanoseconds = 0;
    for thread in fs::read_dir(format!("/proc/{process}/task")).ok()? {
        // One that has just ended has no more to say.
        let Ok(text) = fs::read_to_string(thread.ok()?.path().join("schedstat")) else { continue };
        nanoseconds += text.split(' ').next()?.parse::<u64>().ok()?;
    }
    Some(std::time::Duration::from_nanos(nanoseconds).as_secs_f64())
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

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_has_needed_some_time() {
        let before = processor_seconds(std::process::id()).unwrap();
        let mut sum = 0_u64;
        while processor_seconds(std::process::id()).unwrap() < before + 0.005 {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(sum > 0);
    }
}
