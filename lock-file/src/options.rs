//! The options of a client, and how to connect with them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use lock_core::{ClientBuilder, ErrorKind, LockClient, LockError, Operation};
use lock_kit::LockUrl;

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
    pub(crate) folder: PathBuf,
    pub(crate) poll_interval: Duration,
    pub(crate) gate_patience: Duration,
}

impl FileOptions {
    /// Uses the locks in this folder, an absolute path. A client creates it if it does not exist.
    ///
    /// Processes that exclude each other must use the same folder and run as the same user.
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

    /// How often a waiter checks the files if the system cannot report changes: on systems other than Linux, and while all
    /// of the user's inotify instances are in use. 100 ms by default.
    #[must_use]
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.poll_interval = interval;
        self
    }

    /// How long a call that does not wait for the lock (try, inspect, break) waits for another process that is about to decide
    /// about some lock of the folder. 500 ms by default; usually it takes microseconds.
    #[must_use]
    pub fn gate_patience(mut self, patience: Duration) -> Self {
        self.gate_patience = patience;
        self
    }

    pub(crate) fn check(&self) -> Result<(), LockError> {
        let invalid =
            |cause: String| LockError::new(ErrorKind::InvalidOption, Operation::Connect).because(cause);
        if !self.folder.is_absolute() {
            let folder = self.folder.display();
            return Err(invalid(format!("the folder {folder} is not an absolute path"))
                .remedy("write for example file:/home/me/locks"));
        }
        if self.poll_interval.is_zero() {
            return Err(
                invalid("poll_interval is zero".to_owned()).remedy("write for example poll_interval=100ms")
            );
        }
        Ok(())
    }

    /// Opens the folder, and creates it if it does not exist.
    ///
    /// # Errors
    /// [`ErrorKind::Denied`] when the folder, or something in it, is a symbolic link, belongs to another user, can be used by
    /// others, is on a network file system or cannot be written to; [`ErrorKind::InvalidOption`] for a path that is not
    /// absolute or a `poll_interval` of zero; [`ErrorKind::Server`] when a system call fails, for example on a full disk; the errors
    /// of [`ClientBuilder::build`].
    pub fn client(&self, builder: ClientBuilder) -> Result<LockClient, LockError> {
        let builder = builder.server(format!("file:{}", self.folder.display()));
        builder.build(|context| FileBackend::open(self, context))
    }
}

/// Connects to the folder of a `file:` URL: `file:/absolute/path`, or `file:` for the [default folder](default_folder), with
/// `?poll_interval=DURATION`, `?gate_patience=DURATION` and the common options.
///
/// # Errors
/// [`ErrorKind::InvalidOption`], which names the option; and the errors of [`FileOptions::client`].
pub fn connect(url: &LockUrl, builder: ClientBuilder) -> Result<LockClient, LockError> {
    let mut options = url.options();
    let builder = options.configure(builder)?;
    let poll_interval = options.take_duration("poll_interval")?;
    let gate_patience = options.take_duration("gate_patience")?;
    options.finish()?;
    let mut file = options_of_path(url)?;
    file.poll_interval = poll_interval.unwrap_or(file.poll_interval);
    file.gate_patience = gate_patience.unwrap_or(file.gate_patience);
    file.client(builder)
}

/// The lease that a `file:` URL asks for: none, because the system keeps a lock for as long as its holder lives.
///
/// # Errors
/// None; it has the signature of the other backends.
#[allow(
    clippy::unnecessary_wraps,
    reason = "every backend has this function, and elsewhere a URL may be wrong"
)]
pub fn lease_of(_: &LockUrl) -> Result<Option<Duration>, LockError> {
    Ok(None)
}

fn options_of_path(url: &LockUrl) -> Result<FileOptions, LockError> {
    let invalid = |cause: String| {
        LockError::new(ErrorKind::InvalidOption, Operation::Connect)
            .because(cause)
            .remedy("write file: for the default folder, or file:/absolute/path")
    };
    if !matches!(url.hosts(), "" | "localhost") {
        return Err(invalid(format!("a file URL has no host, and this one has {:?}", url.hosts())));
    }
    match url.path() {
        "" => FileOptions::in_default_folder(),
        path if path.starts_with('/') => Ok(FileOptions::in_folder(path)),
        path => Err(invalid(format!("the folder {path:?} is not an absolute path"))),
    }
}
