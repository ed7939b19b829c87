//! A `redis-server` of our own: on a free port of the loopback, in a temporary folder, without persistence.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::failure::{Context, Failure, Outcome};
use crate::subject::Server;

const READY_WITHIN: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Somebody else may take the free port between looking for it and listening on it.
const ATTEMPTS: usize = 5;

/// Starts one and waits until it accepts connections.
pub(super) fn start() -> Outcome<Box<dyn Server>> {
    let mut failure = Failure::new("no attempt was made");
    for _ in 0..ATTEMPTS {
        match RedisServer::start() {
            Ok(server) => return Ok(Box::new(server)),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

struct RedisServer {
    child: Child,
    port: u16,
    _folder: TempDir,
}

impl RedisServer {
    fn start() -> Outcome<Self> {
        let folder = tempfile::tempdir().context("a temporary folder")?;
        let port = free_port()?;
        let child = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--daemonize", "no"])
            .args(["--save", "", "--appendonly", "no", "--dir"])
            .arg(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .context("redis-server does not start (on Debian and Ubuntu: apt-get install redis-server; or give --url)")?;
        let mut server = Self { child, port, _folder: folder };
        server.wait_until_ready()?;
        Ok(server)
    }

    fn wait_until_ready(&mut self) -> Outcome<()> {
        let give_up = Instant::now() + READY_WITHIN;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port));
        while TcpStream::connect_timeout(&address, READY_WITHIN).is_err() {
            if let Some(status) = self.child.try_wait().context("redis-server")? {
                return Err(Failure::new(format!("redis-server has ended at once: {status}")));
            }
            if Instant::now() > give_up {
                return Err(Failure::new("redis-server does not listen"));
            }
            thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }
}

fn free_port() -> Outcome<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("a free port")?;
    Ok(listener.local_addr().context("a free port")?.port())
}

impl Server for RedisServer {
    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        // It may have ended by itself, as on Ctrl-C, which reaches it too.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
