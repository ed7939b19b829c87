//! Apache Curator for interoperability tests: a small Java program that locks with its `InterProcessMutex`,
//! `InterProcessReadWriteLock` and `InterProcessSemaphoreV2`, and leads with its `LeaderSelector`.
//!
//! The source of the program is beside this file. It is compiled against the classes of Debian's package
//! `libcurator-recipes-java`, and runs in a process of its own, which can be killed and stopped.

#[cfg(test)]
mod tests;

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use crate::folders::{kept, run};
use crate::server::{Kind, Place};
use crate::{Failure, Outcome, Server, ServerOptions};

const SOURCE: &str = include_str!("CuratorPeer.java");

/// The libraries of Debian's packages.
const LIBRARIES: [&str; 8] = [
    "/usr/share/java/curator-recipes.jar",
    "/usr/share/java/curator-framework.jar",
    "/usr/share/java/curator-client.jar",
    "/usr/share/java/zookeeper.jar",
    "/usr/share/java/zookeeper-jute.jar",
    "/usr/share/java/slf4j-api.jar",
    "/usr/share/java/slf4j-simple.jar",
    "/usr/share/java/guava.jar",
];

/// Longer than any test.
const FOR_EVER: Duration = Duration::from_hours(24);

/// What a Curator has of its own: the classes of its program.
#[derive(Debug)]
pub struct Curator(String);

/// A Java process with one Curator client, which is its only setting; it listens when that is connected. Dropping this ends the process; its session ends with it or after
/// its timeout.
pub type CuratorPeer = Server<Curator>;

impl Kind for Curator {
    const NAME: &str = "curator";
    const MISSING: &str = "Apache Curator is not installed: install it with a JDK (on Debian and Ubuntu: apt-get install \
                           libcurator-recipes-java libslf4j-java default-jdk-headless), or leave the tests that need it out with \
                           DISTLOCK_SKIP=curator";

    fn find(_options: &mut ServerOptions) -> Outcome<Self> {
        compiled().map(Self)
    }

    fn command(&self, place: &Place) -> Outcome<Command> {
        let mut command = Command::new("java");
        command.args(["-cp", &self.0, "-Xshare:auto"]);
        // Otherwise each end of a session is logged with a stack trace.
        command.arg("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn");
        command.arg("-Dorg.slf4j.simpleLogger.log.org.apache.zookeeper.ClientCnxn=error");
        let client = place.options.settings.iter().flat_map(|(servers, timeout)| [servers, timeout]);
        command.arg("CuratorPeer").args(client).arg(place.port.to_string());
        Ok(command)
    }
}

/// Returns the class path of the program, which is compiled once.
fn compiled() -> Outcome<String> {
    if let Some(missing) = LIBRARIES.iter().find(|library| !Path::new(library).exists()) {
        return Err(Failure::new(format!("{missing} is missing. {}", Curator::MISSING)));
    }
    let libraries = LIBRARIES.join(":");
    let mut hasher = DefaultHasher::new();
    SOURCE.hash(&mut hasher);
    let classes = kept(&format!("curator-{:016x}", hasher.finish()), |made| {
        fs::create_dir(made)?;
        let source = made.join("CuratorPeer.java");
        fs::write(&source, SOURCE)?;
        let mut compiler = Command::new("javac");
        // For the oldest Java that the source is for, whichever compiles it.
        compiler.args(["--release", "11", "-cp", &libraries, "-encoding", "UTF-8"]);
        run(compiler.arg(source), Curator::MISSING)
    })?;
    Ok(format!("{libraries}:{}", classes.display()))
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

/// A lock that the Java process holds, and the connection that releases it.
#[derive(Debug)]
pub struct CuratorHold(BufReader<TcpStream>);

impl CuratorPeer {
    /// Starts a process that is connected to `servers`, separated by commas, with this session timeout.
    ///
    /// # Errors
    /// When it cannot be compiled or does not get a connection. If something is not installed, the error says what to
    /// install.
    ///
    /// # Cancel safety
    /// Dropping the future ends the process.
    pub async fn connected_to(servers: &str, session_timeout: Duration) -> Outcome<Self> {
        let timeout = session_timeout.as_millis().to_string();
        Self::start_with(ServerOptions::new().setting(servers, &timeout)).await
    }

    /// Waits for a lock of this kind on `path`.
    ///
    /// # Errors
    /// What Curator throws; or the process has ended.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the Java process waiting, and then holding, until it ends.
    pub async fn acquire(&self, lock: CuratorLock, path: &str) -> Outcome<CuratorHold> {
        let hold = self.acquire_within(lock, path, FOR_EVER).await?;
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
        self.begin(&format!("{}\t{path}\t{}", lock.word(), timeout.as_millis())).await
    }

    /// Campaigns with a `LeaderSelector` until it leads; [`CuratorPeer::release`] ends the leadership a moment after its answer.
    ///
    /// # Errors
    /// What Curator throws; or the process has ended.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the Java process campaigning, and then leading, until it ends.
    pub async fn lead(&self, path: &str) -> Outcome<CuratorHold> {
        let hold = self.begin(&format!("lead\t{path}")).await?;
        hold.ok_or_else(|| Failure::new("Curator does not lead"))
    }

    /// Releases the lock. A hold that is dropped lasts as long as the process.
    ///
    /// # Errors
    /// What Curator throws; or the process has ended.
    ///
    /// # Cancel safety
    /// If the future is dropped, it is not known when the lock is released.
    pub async fn release(&self, mut hold: CuratorHold) -> Outcome {
        self.ask(&mut hold.0, "release").await.map(drop)
    }

    async fn begin(&self, line: &str) -> Outcome<Option<CuratorHold>> {
        let mut connection = BufReader::new(TcpStream::connect(self.address()).await?);
        Ok(self.ask(&mut connection, line).await?.then_some(CuratorHold(connection)))
    }

    /// Sends a line, and returns what the answer says.
    async fn ask(&self, connection: &mut BufReader<TcpStream>, line: &str) -> Outcome<bool> {
        let mut answer = String::new();
        let asked = async {
            connection.write_all(format!("{line}\n").as_bytes()).await?;
            connection.read_line(&mut answer).await
        };
        if !asked.await.is_ok_and(|length| length > 0) {
            return Err(self.process.failure("has ended"));
        }
        match answer.trim_end().strip_prefix("failed\t") {
            Some(reason) => Err(Failure::new(format!("Curator, {line:?}: {reason}"))),
            None => Ok(answer.trim_end() == "true"),
        }
    }
}
