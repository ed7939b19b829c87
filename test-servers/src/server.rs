//! What all servers have in common, beside their process.

use std::fmt;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Deref;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;
use tokio::net::TcpStream;

use crate::ports::on_free_ports;
use crate::{Certificates, Data, During, Outcome, ServerOptions, ServerProcess, free_port, url};

/// A server on ports of its own, with its files in a temporary folder. Dropping this ends it.
#[derive(Debug)]
pub struct Server<K: Kind> {
    pub(crate) kind: K,
    /// Declared before the folder, so that it is dropped first.
    pub(crate) process: ServerProcess,
    pub(crate) place: Place,
}

/// Where a server is, and what it was started with.
#[derive(Debug)]
pub struct Place {
    pub(crate) options: ServerOptions,
    pub(crate) port: u16,
    pub(crate) certificates: Certificates,
    pub(crate) folder: TempDir,
}

impl Place {
    /// Returns the path of a file in its folder.
    pub(crate) fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }
}

/// What a kind of server has of its own.
#[allow(async_fn_in_trait, reason = "its implementations are in this crate")]
pub trait Kind: fmt::Debug + Send + Sized + 'static {
    /// Its name in messages.
    const NAME: &str;

    /// What to install when its program is missing.
    const MISSING: &str;

    /// The folder of what it has stored, in the one of the server.
    const DATA: &str = "data";

    /// Whether it has to end in order.
    const QUITS: bool = false;

    /// Finds what a server needs, and adds to its options. May block.
    ///
    /// # Errors
    /// What is missing.
    fn find(options: &mut ServerOptions) -> Outcome<Self>;

    /// Writes the files of a server, and returns the command that starts it. May block.
    ///
    /// # Errors
    /// When a file cannot be written.
    fn command(&self, place: &Place) -> Outcome<Command>;

    /// Succeeds when the server answers: if nothing else is said, when it accepts a connection.
    ///
    /// # Errors
    /// Why it does not.
    ///
    /// # Cancel safety
    /// Nothing changes at the server.
    async fn check(server: &Server<Self>) -> Outcome {
        Ok(TcpStream::connect(server.address()).await.map(drop)?)
    }

    /// Makes what the options ask for, when the server answers for the first time.
    ///
    /// # Errors
    /// When the server refuses.
    ///
    /// # Cancel safety
    /// If the future is dropped, it is not known what has been made.
    async fn prepare(_server: &Server<Self>) -> Outcome {
        Ok(())
    }
}

impl<K: Kind> Server<K> {
    /// Starts a server with the default options, and waits until it answers.
    ///
    /// # Errors
    /// When it does not start: the end of its log, or what to install.
    ///
    /// # Cancel safety
    /// Dropping the future ends the server.
    pub async fn start() -> Outcome<Self> {
        Self::start_with(ServerOptions::new()).await
    }

    /// Starts a server with these options, and waits until it answers.
    ///
    /// # Errors
    /// When it does not start: the end of its log, or what to install.
    ///
    /// # Cancel safety
    /// Dropping the future ends the server.
    pub async fn start_with(options: ServerOptions) -> Outcome<Self> {
        let start = || async {
            let mut options = options.clone();
            // The first call may have to download a program or to prepare its data, which takes seconds.
            let launch = move || {
                let kind = K::find(&mut options)?;
                Self::launch(options, kind)
            };
            let server = tokio::task::spawn_blocking(launch).await??;
            server.ready().await?;
            K::prepare(&server).await?;
            Ok(server)
        };
        on_free_ports(options.port, start).await
    }

    /// Starts a server without waiting for it.
    pub(crate) fn launch(options: ServerOptions, kind: K) -> Outcome<Self> {
        let port = options.port.map_or_else(free_port, Ok)?;
        let folder = tempfile::Builder::new().prefix(&format!("distlock-{}-", K::NAME)).tempdir()?;
        let certificates = Certificates::shared_in(folder.path())?;
        let place = Place { options, port, certificates, folder };
        let command = kind.command(&place)?;
        let process = ServerProcess::start(K::NAME, command, place.folder.path(), K::MISSING)?;
        Ok(Self { kind, process, place })
    }

    /// Waits until it answers.
    ///
    /// # Errors
    /// When it ends first, or takes too long: the end of its log.
    ///
    /// # Cancel safety
    /// Dropping the future only stops the waiting.
    pub async fn ready(&self) -> Outcome {
        self.process.ready(|| K::check(self)).await
    }

    /// Kills it, starts it again on the same port, and waits until it answers.
    ///
    /// # Errors
    /// When it does not start: the end of its log.
    ///
    /// # Cancel safety
    /// Dropping the future leaves a server that is about to answer, or none.
    pub async fn restart(&self, data: Data) -> Outcome {
        self.kill()?;
        let stored = self.place.folder.path().join(K::DATA);
        if data == Data::Lost && stored.exists() {
            fs::remove_dir_all(&stored).during(stored.display())?;
        }
        self.process.restart()?;
        self.ready().await
    }

    /// Returns the address on which it listens for clients.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.place.port))
    }

    /// Returns the files of its authority.
    pub fn certificates(&self) -> &Certificates {
        &self.place.certificates
    }

    /// Returns a URL for a client that logs in as its first user; `place` is what comes after the login.
    pub(crate) fn url_to<'a>(
        &self,
        scheme: &str,
        place: &str,
        options: impl IntoIterator<Item = (&'a str, String)>,
    ) -> String {
        let login = self.place.options.users.first();
        let login = login.map_or_else(String::new, |user| url::login(&user.name, &user.password));
        url::with_options(format!("{scheme}://{login}{place}"), options)
    }

    /// Returns the options of a URL for a client that has its files; `ca` is the one that names the authority.
    pub(crate) fn files(&self, ca: &'static str) -> Vec<(&'static str, String)> {
        let path = |path: &Path| path.display().to_string();
        let Certificates { authority, client, .. } = &self.place.certificates;
        let all = [(ca, path(authority)), ("cert", path(&client.certificate)), ("key", path(&client.key))];
        all.into_iter().take(self.place.options.encryption as usize).collect()
    }
}

impl<K: Kind> Deref for Server<K> {
    type Target = ServerProcess;

    fn deref(&self) -> &ServerProcess {
        &self.process
    }
}

impl<K: Kind> Drop for Server<K> {
    fn drop(&mut self) {
        if K::QUITS {
            // A destructor cannot report an error.
            let _ = self.process.quit();
        }
    }
}
