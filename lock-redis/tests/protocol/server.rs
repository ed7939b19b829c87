//! A real `redis-server` on a free loopback port, with its data in a folder of its own.
use std::fs::File;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use redis::{Connection, ConnectionLike as _};
use tempfile::TempDir;

use crate::failure::Failure;

/// How long anything may take that has to happen sooner or later.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Ends with its handle.
pub(crate) struct Server {
    child: Child,
    port: u16,
    folder: TempDir,
    options: Vec<String>,
}

impl Server {
    /// Starts one that keeps nothing on disk, with further options of its command line.
    pub(crate) fn start(options: &[&str]) -> Result<Self, Failure> {
        let folder = TempDir::new()?;
        let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
        // A port that is free now may be taken before the server has it.
        let mut tries = 20;
        loop {
            let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
            let mut server = Self { child: spawn(&folder, port, &options)?, port, folder, options };
            match server.wait_until_it_answers() {
                Ok(()) => return Ok(server),
                Err(failure) if tries == 0 => return Err(failure),
                Err(_) => tries -= 1,
            }
            server.end();
            (folder, _) = server.into_folder()?;
            return_options(&mut tries);
        }
    }
}
