//! A real `redis-server` on a free loopback port, with its data in a folder of its own.
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use redis::{Client, Connection};
use tempfile::TempDir;

use crate::failure::{Failure, failure};

/// How long anything may take that has to happen sooner or later.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Between two looks at something that has no event.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// A port that was free a moment ago may be taken before the server has it.
const TRIES: usize = 20;

/// Ends with its handle.
pub(crate) struct Server {
    child: Child,
    port: u16,
    folder: TempDir,
}

impl Server {
    /// Starts one that keeps nothing on disk, with further options as on its command line.
    pub(crate) fn start(options: &[&str]) -> Result<Self, Failure> {
        let mut last = failure("never tried");
        for _ in 0..TRIES {
            let folder = TempDir::new()?;
            let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
            let mut server = Self { child: spawn(&folder, port, options)?, port, folder };
            match server.wait_until_it_answers() {
                Ok(()) => return Ok(server),
                Err(failure) => last = failure,
            }
        }
        Err(last)
    }

    /// Ends it at once, and starts it again at the same port with nothing in it.
    pub(crate) fn restart_empty(&mut self, options: &[&str]) -> Result<(), Failure> {
        self.end();
        self.child = spawn(&self.folder, self.port, options)?;
        self.wait_until_it_answers()
    }

    /// A new connection to it.
    pub(crate) fn connect(&self) -> Result<Connection, Failure> {
        self.connect_as("", 0)
    }

    /// A new connection as that user (`user:password@`, or nothing) to that database.
    pub(crate) fn connect_as(&self, credentials: &str, database: usize) -> Result<Connection, Failure> {
        let client = Client::open(format!("redis://{credentials}127.0.0.1:{}/{database}", self.port))?;
        let connection = client.get_connection_with_timeout(PATIENCE)?;
        connection.set_read_timeout(Some(PATIENCE))?;
        Ok(connection)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    fn wait_until_it_answers(&mut self) -> Result<(), Failure> {
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            if let Some(status) = self.child.try_wait()? {
                return Err(failure(format!("redis-server ended at once: {status}")));
            }
            if self.is_the_one_that_answers() {
                return Ok(());
            }
            thread::sleep(LOOK_AGAIN);
        }
        Err(failure("redis-server does not answer"))
    }

    fn is_the_one_that_answers(&self) -> bool {
        let Ok(mut connection) = self.connect() else { return false };
        let Ok(about) = redis::cmd("INFO").arg("server").query::<String>(&mut connection) else {
            return false;
        };
        about.lines().any(|line| line == format!("process_id:{}", self.child.id()))
    }

    fn end(&mut self) {
        // Both fail only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

fn spawn(folder: &TempDir, port: u16, options: &[&str]) -> Result<Child, Failure> {
    Command::new("redis-server")
        .args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", "", "--appendonly", "no"])
        .arg("--dir")
        .arg(folder.path())
        .args(options)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .map_err(|error| {
            failure(format!(
                "redis-server does not start: {error}; install redis-server, or set DISTLOCK_SKIP=redis"
            ))
        })
}
