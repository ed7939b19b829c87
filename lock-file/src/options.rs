//! The options of a client, and how to connect with them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use lock_core::{ClientBuilder, LockClient, LockError, Reach};
use lock_kit::{BackendOptions, Driver, LockUrl, UrlOptions, invalid};

use crate::backend::FileBackend;
use crate::default_folder::default_folder;

/// Where the locks are, and how patient a client is.
///
/// ```no_run
/// use lock_core::ClientBuilder;
/// use lock_file::FileOptions;
///
/// # async fn run() -> Result<(), lock_core::LockError> {
/// let locks = FileOptions::in_folder("/run/lock/my-service").client(ClientBuilder::new())?;
/// let guard = locks.mutex("orders/42")?.acquire().await?;
/// guard.release().await
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileOptions {
    /// The folder of the locks, an absolute path. A client creates it if it does not exist. Processes that exclude each other
    /// must use the same folder and run as the same user.
    pub folder: PathBuf,
    /// How often a waiter checks the files if the system cannot report changes: on systems other than Linux, and while all
    /// of the user's inotify instances are in use. 100 ms by default, at least 1 ms.
    pub poll_interval: Duration,
    /// How long a call that does not wait for the lock (try, inspect, break) waits for another process that is about to decide
    /// about some lock of the folder. 500 ms by default; usually it takes microseconds.
    pub gate_patience: Duration,
}

impl Default for FileOptions {
    /// The locks in no folder, which is refused.
    fn default() -> Self {
        Self::in_folder("")
    }
}

impl FileOptions {
    /// Uses the locks in this [folder](FileOptions::folder).
    pub fn in_folder(folder: impl AsRef<Path>) -> Self {
        Self {
            folder: folder.as_ref().to_owned(),
            poll_interval: Duration::from_millis(100),
            gate_patience: Duration::from_millis(500),
        }
    }

    /// Uses the locks in the user's [default folder](default_folder).
    ///
    /// # Errors
    /// The errors of [`default_folder`].
    pub fn in_default_folder() -> Result<Self, LockError> {
        default_folder().map(Self::in_folder)
    }

    /// Opens the folder, and creates it if it does not exist.
    ///
    /// # Errors
    /// [`ErrorKind::Denied`](lock_core::ErrorKind::Denied) when the folder, or something in it, is a symbolic link, belongs to another user, can be used by
    /// others, is on a network file system or cannot be written to; [`ErrorKind::InvalidOption`](lock_core::ErrorKind::InvalidOption) for a path that is not
    /// absolute and an option beyond its limits; [`ErrorKind::Server`](lock_core::ErrorKind::Server) when a system call fails, for example on a full disk; the errors
    /// of [`ClientBuilder::build`].
    pub fn client(&self, builder: ClientBuilder) -> Result<LockClient, LockError> {
        self.check()?;
        let builder = builder.server(format!("file:{}", self.folder.display()));
        builder.build(|context| FileBackend::open(self, context))
    }
}

/// Connects to the folder of a `file:` URL: `file:/absolute/path`, or `file:` for the [default folder](default_folder).
/// `docs/backends/file.md` has the options.
///
/// # Errors
/// Those of [`lock_kit::connect`].
///
/// # Cancel safety
/// It does not wait.
pub async fn connect(url: &LockUrl, builder: ClientBuilder) -> Result<LockClient, LockError> {
    lock_kit::connect::<FileOptions>(url, builder).await
}

impl BackendOptions for FileOptions {
    fn of_url(url: &LockUrl) -> Result<Self, LockError> {
        if !matches!(url.hosts(), "" | "localhost") {
            return Err(
                invalid(format!("a file URL has no host, and this one has {:?}", url.hosts())).remedy(REMEDY)
            );
        }
        match url.path() {
            "" => Self::in_default_folder(),
            path => Ok(Self::in_folder(path)),
        }
    }

    fn visit(&mut self, options: &mut UrlOptions) -> Result<(), LockError> {
        let limits = Duration::from_millis(1)..=Duration::MAX;
        options.duration("poll_interval", &mut self.poll_interval, limits)?;
        options.duration("gate_patience", &mut self.gate_patience, Duration::ZERO..=Duration::MAX)?;
        if !self.folder.is_absolute() {
            let folder = self.folder.display();
            return Err(invalid(format!("the folder {folder} is not an absolute path")).remedy(REMEDY));
        }
        Ok(())
    }

    /// The system keeps a lock for as long as its holder lives.
    fn lease(&self) -> Option<Duration> {
        None
    }

    async fn connect(self, builder: ClientBuilder) -> Result<LockClient, LockError> {
        self.client(builder)
    }
}

const REMEDY: &str = "write file: for the default folder, or file:/absolute/path";

/// The backend's driver: its schemes, its options, and how to connect.
pub static DRIVER: Driver = Driver::of::<FileOptions>("file", &["file"])
    .summary("locks between the processes of one machine, in a folder")
    .reach(Reach::Machine)
    .examples(&["file:/srv/locks"]);
