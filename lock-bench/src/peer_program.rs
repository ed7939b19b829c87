//! A crate that needs OpenSSL, which no other crate here may need: in a program of its own that is built for it.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::sync::{Mutex, OnceCell};

use crate::contender::Program;
use crate::failure::{Context, Failure, Outcome};
use crate::plan::{self, CyclePlan};
use crate::samples::Samples;
use crate::workload::worker::URL_VARIABLE;
use crate::workload::{Cycles, HandOffs};

const ANSWER_WITHIN: Duration = Duration::from_secs(120);

/// The program of a crate, and where it is once it is built.
pub(crate) struct Source {
    /// The folder in `peers`.
    crate_name: &'static str,
    built: OnceCell<PathBuf>,
}

impl Source {
    pub(crate) const fn new(crate_name: &'static str) -> Self {
        Self { crate_name, built: OnceCell::const_new() }
    }

    /// Starts the program, which connects to the server at `url`.
    pub(crate) async fn start(&'static self, url: String) -> Outcome<Arc<dyn Program>> {
        let name = self.crate_name;
        let mut command = tokio::process::Command::new(self.program().await?);
        // Not an argument, which other users could read: it contains a password.
        command.env(URL_VARIABLE, url);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().context(name)?;
        let input = child.stdin.take().context("the process has no input")?;
        let output = BufReader::new(child.stdout.take().context("the process has no output")?).lines();
        let process = Mutex::new(Process { input, output, _child: child });
        Ok(Arc::new(Peer { name, process }) as Arc<dyn Program>)
    }

    async fn program(&'static self) -> Outcome<PathBuf> {
        let build = || async { tokio::task::spawn_blocking(|| self.build()).await.context("a thread")? };
        self.built.get_or_try_init(build).await.cloned()
    }

    /// Builds the program with cargo beside this one, which takes minutes the first time.
    fn build(&self) -> Outcome<PathBuf> {
        let name = self.crate_name;
        let manifest = format!("{}/peers/{name}/Cargo.toml", env!("CARGO_MANIFEST_DIR"));
        let this = std::env::current_exe().context("the path of this program")?;
        let target =
            this.parent().and_then(|folder| folder.parent()).context("the folder of this program")?;
        let target = target.join("peers");
        let mut cargo = Command::new("cargo");
        cargo.args(["build", "--release", "--locked", "--quiet", "--manifest-path", &manifest]);
        // The settings for the build of this program need not fit that one.
        cargo.arg("--target-dir").arg(&target).env_remove("CARGO_TARGET_DIR").env_remove("RUSTFLAGS");
        let output = cargo.stdin(Stdio::null()).output().context("cargo, which builds it")?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let first = said.lines().find(|line| line.starts_with("error")).unwrap_or("");
            return Err(Failure::new(format!(
                "it cannot be built ({first}); it needs OpenSSL (on Debian and Ubuntu: libssl-dev and pkg-config)"
            )));
        }
        Ok(target.join("release").join(format!("peer-{name}")))
    }
}

struct Peer {
    name: &'static str,
    process: Mutex<Process>,
}

struct Process {
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    _child: Child,
}

/// The commands for the program. Times are in nanoseconds.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Order<'a> {
    Cycles { name: &'a str, warm_up: usize, most: usize, length: u64 },
    HandOffs { name: &'a str, clients: usize, warm_up: u64, length: u64, hold: u64, think: u64 },
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer<T> {
    Done(T),
    Failed(String),
}

#[derive(Debug, Deserialize)]
struct CyclesSeen {
    acquire: Vec<u64>,
    release: Vec<u64>,
    processor: u64,
}

#[derive(Debug, Deserialize)]
struct HandOffsSeen {
    times: Vec<u64>,
    grants: Vec<u64>,
    all_sections: u64,
    same_again: u64,
    longest_wait: u64,
    length: u64,
    processor: u64,
}

impl Peer {
    async fn ask<T: DeserializeOwned>(&self, order: &Order<'_>) -> Outcome<T> {
        let mut process = self.process.lock().await;
        let line = serde_json::to_string(order).context(self.name)? + "\n";
        process.input.write_all(line.as_bytes()).await.context(self.name)?;
        let line = tokio::time::timeout(ANSWER_WITHIN, process.output.next_line()).await;
        let line = line.context("it does not answer")?.context(self.name)?.context("it has ended")?;
        read(&line)
    }
}

fn read<T: DeserializeOwned>(line: &str) -> Outcome<T> {
    match serde_json::from_str(line).context("its answer")? {
        Answer::Done(seen) => Ok(seen),
        Answer::Failed(text) => Err(Failure::new(text)),
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn samples(nanoseconds: Vec<u64>) -> Samples {
    nanoseconds.into_iter().map(Duration::from_nanos).collect()
}

#[async_trait]
impl Program for Peer {
    async fn cycles(&self, name: &str, plan: &CyclePlan) -> Outcome<Cycles> {
        let CyclePlan { warm_up, most, turn, .. } = *plan;
        let order = Order::Cycles { name, warm_up, most, length: nanoseconds(turn) };
        let seen: CyclesSeen = self.ask(&order).await?;
        let cycle = seen.acquire.iter().zip(&seen.release).map(|(acquire, release)| acquire + release);
        Ok(Cycles {
            cycle: samples(cycle.collect()),
            acquire: samples(seen.acquire),
            release: samples(seen.release),
            processor: Duration::from_nanos(seen.processor),
        })
    }

    async fn hand_offs(&self, name: &str, turn: &plan::HandOffTurn) -> Outcome<HandOffs> {
        let order = Order::HandOffs {
            name,
            clients: turn.clients,
            warm_up: nanoseconds(turn.warm_up),
            length: nanoseconds(turn.length),
            hold: nanoseconds(turn.hold),
            think: nanoseconds(turn.think),
        };
        let mut seen: HandOffsSeen = self.ask(&order).await?;
        seen.grants.sort_unstable();
        Ok(HandOffs {
            times: samples(seen.times),
            sections: seen.grants.iter().sum(),
            grants: seen.grants,
            all_sections: seen.all_sections,
            same_again: seen.same_again,
            longest_wait: Duration::from_nanos(seen.longest_wait),
            length: Duration::from_nanos(seen.length),
            processor: Duration::from_nanos(seen.processor),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_program_says_is_read() {
        let seen: CyclesSeen = read(r#"{"done":{"acquire":[3,4],"release":[1,2],"processor":9}}"#).unwrap();
        assert_eq!((seen.acquire, seen.release, seen.processor), (vec![3, 4], vec![1, 2], 9));
        let failed = read::<CyclesSeen>(r#"{"failed":"no server"}"#).unwrap_err();
        assert_eq!(failed.to_string(), "no server");
        let order = Order::Cycles { name: "a", warm_up: 1, most: 2, length: 3 };
        let line = serde_json::to_string(&order).unwrap();
        assert_eq!(line, r#"{"cycles":{"name":"a","warm_up":1,"most":2,"length":3}}"#);
    }
}
