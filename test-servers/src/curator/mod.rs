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
use std::process::{Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::process::process_methods;
use crate::{Failure, Outcome, ServerProcess};
use connection::Connection;

const MISSING: &str = "Apache Curator is not installed: install it with a JDK (on Debian and Ubuntu: apt-get install \
                       libcurator-recipes-java libslf4j-java default-jdk-headless), or leave the tests that need it out with \
                       DISTLOCK_SKIP=curator";

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

/// A lock that the Java process holds: the number of the command that acquired it.
#[derive(Debug)]
pub struct CuratorHold(u64);

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
        let classes = tokio::task::spawn_blocking(classes::compiled).await??;
        let folder = tempfile::Builder::new().prefix("distlock-curator-").tempdir()?;
        let mut command = Command::new("java");
        command.args(["-cp", &classes, "-Xshare:auto"]);
        // Otherwise each end of a session is logged with a stack trace.
        command.arg("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn");
        command.arg("-Dorg.slf4j.simpleLogger.log.org.apache.zookeeper.ClientCnxn=error");
        command.args(["CuratorPeer", servers, &session_timeout.as_millis().to_string()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let process = ServerProcess::start_piped("curator", command, folder.path(), MISSING)?;
        let connection = Connection::begin(&process).await?;
        Ok(Self { connection, process, _folder: folder })
    }

    /// Waits for a lock of this kind on `path`.
    ///
    /// # Errors
    /// What Curator throws; or the process has ended.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the Java process waiting, and then holding, until it ends.
    pub async fn acquire(&self, lock: CuratorLock, path: &str) -> Outcome<CuratorHold> {
        let hold = self.acquire_for(lock, path, "-1").await?;
        hold.ok_or_else(|| Failure::new("Curator waited for ever, and gave up"))
    }

    /// Waits for a lock of this kind on `path`, but no longer than `timeout`.
    ///
    /// # Errors
    /// What Curator throws; or the process has ended.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the Java process waiting, and then perhaps holding, until it ends.
    pub async fn acquire_within(
        &self,
        lock: CuratorLock,
        path: &str,
        timeout: Duration,
    ) -> Outcome<Option<CuratorHold>> {
        self.acquire_for(lock, path, &timeout.as_millis().to_string()).await
    }

    async fn acquire_for(&self, lock: CuratorLock, path: &str, time: &str) -> Outcome<Option<CuratorHold>> {
        let (number, answer) = self.ask(&["acquire", &lock.word(), path, time]).await?;
        Ok((answer == "true").then_some(CuratorHold(number)))
    }

    /// Campaigns with a `LeaderSelector` until it leads; [`CuratorPeer::release`] ends the leadership a moment after its answer.
    ///
    /// # Errors
    /// What Curator throws; or the process has ended.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the Java process campaigning, and then leading, until it ends.
    pub async fn lead(&self, path: &str) -> Outcome<CuratorHold> {
        Ok(CuratorHold(self.ask(&["lead", path]).await?.0))
    }

    /// Releases the lock.
    ///
    /// # Errors
    /// What Curator throws; or the process has ended.
    ///
    /// # Cancel safety
    /// If the future is dropped, it is not known when the lock is released.
    pub async fn release(&self, hold: CuratorHold) -> Outcome {
        self.ask(&["release", &hold.0.to_string()]).await.map(drop)
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
        self.ask(&["count", path, file, &rounds.to_string()]).await.map(drop)
    }

    async fn ask(&self, words: &[&str]) -> Outcome<(u64, String)> {
        let answered = self.connection.ask(words).await;
        let (number, answer) = answered.ok_or_else(|| self.process.failure("has ended"))?;
        match answer.strip_prefix("failed\t") {
            Some(reason) => Err(Failure::new(format!("Curator, {}: {reason}", words[0]))),
            None => Ok((number, answer)),
        }
    }
}

process_methods!(CuratorPeer);
