//! Apache Curator for interoperability tests: a small Java program that locks with its `InterProcessMutex`,
//! `InterProcessReadWriteLock` and `InterProcessSemaphoreV2`, and leads with its `LeaderSelector`.
//!
//! The source of the program is beside this file. It is compiled against the classes of Debian's package
//! `libcurator-recipes-java`, and runs in a process of its own, which can be killed and stopped.

mod classes;
mod connection;

#[cfg(test)]
mod tests;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use tempfile::TempDir;
use tokio::net::TcpListener;

use crate::ServerProcess;
use crate::ports::random_word;
use crate::process::process_methods;
use crate::{During, Failure, Outcome};
use classes::Classes;
use connection::Connection;

const MISSING: &str = "Apache Curator is not installed: install it with a JDK (on Debian and Ubuntu: apt-get install \
                       libcurator-recipes-java libslf4j-java default-jdk-headless), or leave the tests that need it out with \
                       DISTLOCK_SKIP=curator";

/// The variable that contains the word that the program sends first. Other users cannot read it.
const WORD_VARIABLE: &str = "CURATOR_PEER_WORD";

/// A Java process with one Curator client. Dropping this ends the process; its session ends with it or after its
/// timeout.
#[derive(Debug)]
pub struct CuratorPeer {
    connection: Connection,
    /// Declared before the folder, so that it is dropped first.
    process: ServerProcess,
    _folder: TempDir,
}

/// One of Curator's locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CuratorLock {
    /// An `InterProcessMutex`.
    Mutex,
    /// The read side of an `InterProcessReadWriteLock`.
    Reader,
    /// Its write side.
    Writer,
    /// A permit of an `InterProcessSemaphoreV2` that has so many.
    PermitOf(u32),
}

impl CuratorLock {
    /// The program's word for it.
    fn word(self) -> String {
        match self {
            Self::Mutex => "mutex".to_owned(),
            Self::Reader => "read".to_owned(),
            Self::Writer => "write".to_owned(),
            Self::PermitOf(of) => of.to_string(),
        }
    }
}

/// A lock that the Java process holds.
#[derive(Debug)]
pub struct CuratorHold {
    handle: String,
}

#[derive(Deserialize)]
struct Acquired {
    handle: String,
}

impl CuratorPeer {
    /// Starts a process that is connected to `servers`, separated by commas, with this session timeout.
    ///
    /// # Errors
    /// When it cannot be compiled or does not get a connection. If something is not installed, the error says what to
    /// install.
    ///
    /// # Cancel safety
    /// Dropping the future ends the process.
    pub async fn start(servers: &str, session_timeout: Duration) -> Outcome<Self> {
        let classes = Classes::compiled().await?;
        let folder = tempfile::Builder::new().prefix("distlock-curator-").tempdir()?;
        classes.write_into(folder.path())?;
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let port = listener.local_addr()?.port();
        let word = random_word();
        let mut command = java(folder.path());
        command.env(WORD_VARIABLE, &word).arg("CuratorPeer");
        command.args([&port.to_string(), servers, &session_timeout.as_millis().to_string()]);
        let process = ServerProcess::start("curator", command, folder.path(), MISSING)?;
        let connection = Connection::begin(&listener, &word, &process).await?;
        Ok(Self { connection, process, _folder: folder })
    }

    /// Waits for the lock whose contenders are the children of `path`.
    ///
    /// # Errors
    /// What Curator throws; or the process has ended.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the Java process waiting, and then holding, until it ends.
    pub async fn acquire(&self, path: &str) -> Outcome<CuratorHold> {
        self.acquire_one(CuratorLock::Mutex, path).await
    }

    /// Waits for a lock of this kind on `path`.
    ///
    /// # Errors
    /// What Curator throws; or the process has ended.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the Java process waiting, and then holding, until it ends.
    pub async fn acquire_one(&self, lock: CuratorLock, path: &str) -> Outcome<CuratorHold> {
        self.acquire_for(lock, path, "-1")
            .await?
            .ok_or_else(|| Failure::new("Curator waited for ever, and gave up"))
    }

    /// Waits for a lock of this kind on `path`, but no longer than `timeout`.
    ///
    /// # Errors
    /// What Curator throws; or the process has ended.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the Java process waiting, and then perhaps holding, until it ends.
    pub async fn acquire_one_within(
        &self,
        lock: CuratorLock,
        path: &str,
        timeout: Duration,
    ) -> Outcome<Option<CuratorHold>> {
        self.acquire_for(lock, path, &timeout.as_millis().to_string()).await
    }

    /// Waits for the lock whose contenders are the children of `path`, but no longer than `timeout`.
    ///
    /// # Errors
    /// What Curator throws; or the process has ended.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the Java process waiting, and then perhaps holding, until it ends.
    pub async fn acquire_within(&self, path: &str, timeout: Duration) -> Outcome<Option<CuratorHold>> {
        self.acquire_one_within(CuratorLock::Mutex, path, timeout).await
    }

    /// Campaigns with a `LeaderSelector` until it leads; [`CuratorPeer::release`] ends the leadership a moment after its answer.
    ///
    /// # Errors
    /// What Curator throws; or the process has ended.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the Java process campaigning, and then leading, until it ends.
    pub async fn lead(&self, path: &str) -> Outcome<CuratorHold> {
        let Acquired { handle } = self.ask(&["lead", path]).await?;
        Ok(CuratorHold { handle })
    }

    async fn acquire_for(
        &self,
        lock: CuratorLock,
        path: &str,
        milliseconds: &str,
    ) -> Outcome<Option<CuratorHold>> {
        let acquired: Option<Acquired> = self.ask(&["acquire", path, milliseconds, &lock.word()]).await?;
        Ok(acquired.map(|Acquired { handle }| CuratorHold { handle }))
    }

    /// Releases the lock.
    ///
    /// # Errors
    /// What Curator throws; or the process has ended.
    ///
    /// # Cancel safety
    /// If the future is dropped, it is not known when the lock is released.
    pub async fn release(&self, hold: CuratorHold) -> Outcome {
        self.ask::<Value>(&["release", &hold.handle]).await.map(drop)
    }

    /// Returns the names of the children of `path`, in no particular order.
    ///
    /// # Errors
    /// What Curator throws; or the process has ended.
    ///
    /// # Cancel safety
    /// Nothing is changed.
    pub async fn children(&self, path: &str) -> Outcome<Vec<String>> {
        self.ask(&["children", path]).await
    }

    /// Increments the decimal number in `file` this many times, each time under the lock and without any other
    /// protection.
    ///
    /// # Errors
    /// What Curator throws; a file without a number; or the process has ended.
    ///
    /// # Cancel safety
    /// Dropping the future does not stop the counting.
    pub async fn count(&self, path: &str, file: &Path, rounds: u32) -> Outcome {
        let file = file.to_str().ok_or_else(|| Failure::new(format!("{} is not UTF-8", file.display())))?;
        self.ask::<Value>(&["count", path, file, &rounds.to_string()]).await.map(drop)
    }

    async fn ask<T: serde::de::DeserializeOwned>(&self, words: &[&str]) -> Outcome<T> {
        let verb = words.first().copied().unwrap_or_default();
        match self.connection.ask(words).await {
            Ok(answer) => serde_json::from_value(answer).map_err(|error| {
                Failure::new(format!("Curator, {verb}: an answer of another kind: {error}"))
            }),
            Err(None) => Err(self.process.failure("has ended")),
            Err(Some(text)) => Err(Failure::new(text)).during(format_args!("Curator, {verb}")),
        }
    }
}

process_methods!(CuratorPeer);

/// Returns the command `java`, with its classes in `folder`.
fn java(folder: &Path) -> Command {
    let mut command = Command::new("java");
    command.arg("-cp").arg(format!("{}:{}", classes::path(), folder.display()));
    // Otherwise each end of a session is logged with a stack trace.
    command.args(["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Xshare:auto"]);
    command.arg("-Dorg.slf4j.simpleLogger.log.org.apache.zookeeper.ClientCnxn=error");
    command
}
