//! The error type: what failed, on which lock, why, and what to do about it.
//!
//! An error has two independent properties. The [`ErrorKind`] says what happened and is what a program matches on;
//! [`LockError::is_retryable`] says whether the same call may succeed later. An unreachable server may be retryable
//! today and not tomorrow, while its kind stays the same.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::types::{LockKind, LockName, LossReason, Owner, Participant};

/// What went wrong, as far as a program can act on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The hold that the call was about has been lost; [`LockError::loss`] has the reason.
    #[error("the lock was lost")]
    Lost,
    /// The caller does not hold the lock. Nothing was changed.
    #[error("the caller does not hold it")]
    NotOwner,
    /// Another owner holds the lock, and the time to wait for it is over.
    #[error("another owner holds it")]
    Busy,
    /// The caller would wait for itself: it holds the lock already, as the owner that it acts for here.
    #[error("the caller holds it itself, and would wait for ever")]
    Deadlock,
    /// The lock would have no owner: the call was made outside a task, a runtime and an owner's scope.
    #[error("there is no task, runtime or scope to own it")]
    NoOwner,
    /// The call would block a thread that runs asynchronous tasks. Nothing was done.
    #[error("it would block a thread that runs asynchronous tasks")]
    WouldBlock,
    /// The client could not reach the server, or the server did not answer. No lock is held.
    #[error("the backend cannot be reached")]
    Unreachable,
    /// The request was sent and its outcome is not known; the client keeps working on it in the background.
    #[error("the outcome is not known")]
    Unconfirmed,
    /// The server refused: wrong credentials, a missing permission, a folder that belongs to another user.
    #[error("access was refused")]
    Denied,
    /// The backend cannot do this; its capabilities say so.
    #[error("the backend does not support it")]
    Unsupported,
    /// The name of the lock is empty or longer than 512 bytes.
    #[error("the name is not acceptable")]
    InvalidName,
    /// An option, a URL or a setting is not valid.
    #[error("an option is not acceptable")]
    InvalidOption,
    /// The client has been closed, or the runtime that it ran on has ended.
    #[error("the client is closed")]
    Closed,
    /// The server answered with an error of its own, or with a reply that makes no sense.
    #[error("the backend reported an error")]
    Server,
    /// A bug in distlock or in a backend.
    #[error("internal error")]
    Internal,
}

/// The operation during which an error occurred.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// Reading a URL, an option or a name.
    Configure,
    /// Opening a client.
    Connect,
    /// Acquiring a lock, or reentering one.
    Acquire,
    /// Undoing an acquisition that no caller waits for any more.
    Cancel,
    /// Renewing a lease.
    Renew,
    /// Working under a lock.
    Hold,
    /// Releasing a lock.
    Release,
    /// Keeping the read side of a lock whose write side was released.
    Downgrade,
    /// Inspecting who holds a lock and who waits for it.
    Inspect,
    /// Taking a lock away from its holder.
    Break,
    /// Changing what the server shows of a holder.
    Describe,
    /// Remembering a slot of a lock, looking it up or forgetting it.
    Remember,
    /// Asking the server for a sign of life.
    Ping,
    /// Closing a client.
    Close,
}

impl fmt::Display for Operation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Configure => "configure",
            Self::Connect => "connect",
            Self::Acquire => "acquire",
            Self::Cancel => "cancel",
            Self::Renew => "renew",
            Self::Hold => "go on under",
            Self::Release => "release",
            Self::Downgrade => "downgrade",
            Self::Inspect => "inspect",
            Self::Break => "break",
            Self::Describe => "describe",
            Self::Remember => "use a slot of",
            Self::Ping => "ping",
            Self::Close => "close",
        })
    }
}

/// An error of a lock operation. It is cheap to clone and never contains a secret.
///
/// Its text names the operation, the lock, the server, the cause and, if there is one, the remedy.
///
/// ```
/// # use lock_core::ErrorKind;
/// # lock_memory::example(async |locks| {
/// let lock = locks.mutex("orders/42")?;
/// match lock.acquire().await {
///     Ok(guard) => guard.release().await?,
///     Err(error) if error.kind() == ErrorKind::Lost => eprintln!("stop: {error}"),
///     Err(error) if error.is_retryable() => eprintln!("later: {error}"),
///     Err(error) => return Err(error),
/// }
/// # Ok(()) });
/// ```
///
/// What a log or a metric needs is in values, too:
///
/// ```
/// # use lock_memory::{Loss, MemoryServer, Told};
/// # use lock_core::*;
/// # lock_memory::example(async |_| {
/// # let server = MemoryServer::new();
/// # let guard = server.client()?.mutex("orders/42")?.acquire().await?;
/// # server.lose(guard.hold().name(), Loss::Delete, Told::AtOnce);
/// let error = guard.release().await.unwrap_err();
/// assert_eq!((error.kind(), error.loss()), (ErrorKind::Lost, Some(LossReason::Deleted)));
/// assert_eq!((error.operation(), error.server()), (Operation::Release, Some("memory:")));
/// assert_eq!(error.name().map(LockName::as_str), Some("orders/42"));
/// # Ok(()) });
/// ```
#[derive(Clone)]
pub struct LockError(Arc<Details>);

#[derive(Debug, Clone)]
struct Details {
    kind: ErrorKind,
    operation: Operation,
    name: Option<LockName>,
    /// What has the name.
    named: LockKind,
    server: Option<Arc<str>>,
    cause: Cow<'static, str>,
    remedy: Cow<'static, str>,
    retryable: bool,
    loss: Option<LossReason>,
    holder: Option<Box<Participant>>,
    /// How long the pause after an earlier hold goes on.
    pause: Option<Duration>,
    underlying: Option<Arc<dyn StdError + Send + Sync>>,
}

impl Details {
    fn text(&self) -> String {
        let name = self.name.as_ref().map(|name| format!(" {} {name:?}", self.named));
        let reason = self.loss.map(|reason| format!(": {reason}"));
        let holder = self.holder.as_ref().map(|holder| format!(": {holder}"));
        let cause = if self.cause.is_empty() { None } else { Some(format!(": {}", self.cause)) };
        let remedy = if self.remedy.is_empty() { None } else { Some(format!(" ({})", self.remedy)) };
        let (name, server) = (name.unwrap_or_default(), self.place().unwrap_or_default());
        let what = format!("cannot {}{name}{server}: {}", self.operation, self.problem());
        [Some(what), reason, holder, cause, remedy].into_iter().flatten().collect()
    }

    /// What stands in the way. A pause does so without an owner.
    fn problem(&self) -> String {
        match (self.pause, &self.holder) {
            (Some(pause), None) => {
                let pause = Duration::from_millis(u64::try_from(pause.as_millis()).unwrap_or(u64::MAX));
                format!(
                    "it is kept free for {} more after an earlier hold",
                    humantime::format_duration(pause)
                )
            }
            _ => self.of_semaphore().map_or_else(|| self.kind.to_string(), str::to_owned),
        }
    }

    /// The words of kinds that are about the one holder of a lock, for a semaphore, which has several.
    fn of_semaphore(&self) -> Option<&'static str> {
        match (self.named, self.kind) {
            (LockKind::Semaphore, ErrorKind::Lost) => Some("the permits were lost"),
            (LockKind::Semaphore, ErrorKind::NotOwner) => Some("the caller holds none of its permits"),
            (LockKind::Semaphore, ErrorKind::Busy) => Some("too few of its permits are free"),
            _ => None,
        }
    }

    fn place(&self) -> Option<String> {
        let server = self.server.as_ref()?;
        match self.operation {
            // A wrong option has nothing to do with the server.
            Operation::Configure => None,
            Operation::Connect => Some(format!(" to {server}")),
            Operation::Ping => Some(format!(" {server}")),
            Operation::Close => Some(format!(" the client of {server}")),
            _ => Some(format!(" at {server}")),
        }
    }
}

/// How backends make errors. The documentation of [`spi`](crate::spi) shows it.
#[doc(hidden)]
impl LockError {
    /// Creates an error that has only a kind and the operation that failed.
    pub fn new(kind: ErrorKind, operation: Operation) -> Self {
        Self(Arc::new(Details {
            kind,
            operation,
            name: None,
            named: LockKind::Lock,
            server: None,
            cause: Cow::Borrowed(""),
            remedy: Cow::Borrowed(""),
            retryable: false,
            loss: None,
            holder: None,
            pause: None,
            underlying: None,
        }))
    }

    /// Creates the error of a hold that was lost for `reason`.
    pub fn lost(operation: Operation, name: &LockName, reason: LossReason) -> Self {
        Self::new(ErrorKind::Lost, operation).on(name).with(|details| details.loss = Some(reason))
    }

    /// Creates the error of a wait that ended while another owner held the lock.
    pub fn busy(name: &LockName) -> Self {
        Self::new(ErrorKind::Busy, Operation::Acquire).on(name).retryable()
    }

    /// Creates the error of an owner that ends an entry, and has none.
    pub(crate) fn not_owner(name: &LockName, owner: Owner) -> Self {
        Self::new(ErrorKind::NotOwner, Operation::Release)
            .on(name)
            .because(format!("{owner:?} has no entry"))
            .remedy("unlock in the task or scope that locked, the same lock, once for each lock")
    }

    /// Creates the error of an acquisition that expects another number of permits than the holders and waiters that the
    /// semaphore has now.
    ///
    /// ```
    /// use lock_core::{ErrorKind, LockError, LockName};
    ///
    /// let error = LockError::other_permits(&LockName::new("render")?, 5, 3);
    /// assert_eq!(error.kind(), ErrorKind::InvalidOption);
    /// assert!(error.to_string().contains("3 permits, not 5"));
    /// # Ok::<(), LockError>(())
    /// ```
    pub fn other_permits(name: &LockName, asked: u32, is: u32) -> Self {
        Self::new(ErrorKind::InvalidOption, Operation::Acquire)
            .on(name)
            .of(LockKind::Semaphore)
            .because(format!("its holders and waiters use it with {is} permits, not {asked}"))
            .remedy("use the same number everywhere, or wait until the semaphore is free and has no waiters")
    }

    /// Adds the holder, as the server last described it.
    #[must_use]
    pub fn held_by(self, holder: Participant) -> Self {
        self.with(|details| details.holder = Some(Box::new(holder)))
    }

    /// Adds how long the pause after an earlier hold goes on.
    pub(crate) fn paused_for(self, pause: Duration) -> Self {
        self.with(|details| details.pause = Some(pause))
    }

    fn with(mut self, change: impl FnOnce(&mut Details)) -> Self {
        change(Arc::make_mut(&mut self.0));
        self
    }

    /// Sets the lock that the failed operation was about.
    #[must_use]
    pub fn on(self, name: &LockName) -> Self {
        self.with(|details| details.name = Some(name.clone()))
    }

    /// Sets what has the name: a lock, or a semaphore.
    pub(crate) fn of(self, named: LockKind) -> Self {
        self.with(|details| details.named = named)
    }

    /// Sets the server that the failed operation was about.
    pub(crate) fn at(self, server: &Arc<str>) -> Self {
        self.with(|details| details.server = Some(Arc::clone(server)))
    }

    /// Adds to the cause how long the operation was tried.
    #[must_use]
    pub fn after_trying_for(self, tried: Duration) -> Self {
        let tried = format!("tried for {}", humantime::format_duration(tried));
        self.with(|details| {
            let cause = std::mem::take(&mut details.cause);
            details.cause = if cause.is_empty() { tried } else { format!("{tried}: {cause}") }.into();
        })
    }

    /// Replaces the operation, where the caller knows it better than the code that made the error.
    #[must_use]
    pub fn during(self, operation: Operation) -> Self {
        self.with(|details| details.operation = operation)
    }

    /// Sets the cause, in words. The text must not contain a secret.
    #[must_use]
    pub fn because(self, cause: impl Into<Cow<'static, str>>) -> Self {
        self.with(|details| details.cause = cause.into())
    }

    /// Sets what the reader can do about it.
    #[must_use]
    pub fn remedy(self, remedy: impl Into<Cow<'static, str>>) -> Self {
        self.with(|details| details.remedy = remedy.into())
    }

    /// Marks the error as retryable: the same call may succeed later.
    #[must_use]
    pub fn retryable(self) -> Self {
        self.with(|details| details.retryable = true)
    }

    /// Attaches the underlying error, for [`LockError::underlying`]. Put its text into [`LockError::because`] as well.
    /// Its `Display` and `Debug` must not contain a secret.
    #[must_use]
    pub fn caused_by(self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.with(|details| details.underlying = Some(Arc::new(source)))
    }
}

impl LockError {
    /// Returns the address of the server that the operation was about, if any. It never contains a user name.
    pub fn server(&self) -> Option<&str> {
        self.0.server.as_deref()
    }

    /// Returns the underlying error, for programs. Its text is already part of this error's text, so it is not the
    /// [`source`](StdError::source).
    ///
    /// ```
    /// use std::io;
    ///
    /// let error = lock_core::Password::of_file("/nonexistent/password").unwrap_err();
    /// let cause = error.underlying().and_then(|cause| cause.downcast_ref::<io::Error>());
    /// assert_eq!(cause.map(io::Error::kind), Some(io::ErrorKind::NotFound));
    /// ```
    pub fn underlying(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.underlying.as_deref().map(|error| error as _)
    }

    /// Returns what went wrong.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns the operation that failed.
    pub fn operation(&self) -> Operation {
        self.0.operation
    }

    /// Returns the lock that the operation was about, if any.
    pub fn name(&self) -> Option<&LockName> {
        self.0.name.as_ref()
    }

    /// Returns why the hold was lost, when the kind is [`ErrorKind::Lost`].
    pub fn loss(&self) -> Option<LossReason> {
        self.0.loss
    }

    /// Returns who held the lock when the server was last asked, when the kind is [`ErrorKind::Busy`] and it is known.
    ///
    /// ```
    /// # lock_memory::example(async |locks| {
    /// let lock = locks.mutex("orders/42")?;
    /// let _held = lock.acquire().await?;
    /// let error = lock.acquire_for(std::time::Duration::ZERO).await.unwrap_err();
    /// assert_eq!(error.holder().and_then(|holder| holder.pid), Some(std::process::id()));
    /// # Ok(()) });
    /// ```
    pub fn holder(&self) -> Option<&Participant> {
        self.0.holder.as_deref()
    }

    /// Returns how long the pause goes on that an earlier hold has asked for with
    /// [`LockOptions::at_least`](crate::LockOptions::at_least), when the kind is [`ErrorKind::Busy`] and the caller keeps to it.
    ///
    /// ```
    /// # use lock_core::LockOptions;
    /// # use std::time::Duration;
    /// # lock_memory::example(async |locks| {
    /// let job = locks.mutex_with("nightly", LockOptions::new().at_least(Duration::from_secs(50)))?;
    /// job.acquire().await?.release().await?;
    /// let error = job.acquire_for(Duration::ZERO).await.unwrap_err();
    /// assert!(error.holder().is_none() && error.pause().is_some_and(|left| left <= Duration::from_secs(50)));
    /// # Ok(()) });
    /// ```
    pub fn pause(&self) -> Option<Duration> {
        self.0.pause
    }

    /// Returns whether the same call may succeed later without any change.
    pub fn is_retryable(&self) -> bool {
        self.0.retryable
    }
}

impl fmt::Display for LockError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0.text())
    }
}

/// There is no [`source`](StdError::source): the text contains every cause, so a program that prints the whole chain
/// prints each cause once.
impl StdError for LockError {}

impl fmt::Debug for LockError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("LockError")
            .field("kind", &self.0.kind)
            .field("operation", &self.0.operation)
            .field("name", &self.0.name)
            .field("text", &self.to_string())
            .field("retryable", &self.0.retryable)
            .field("underlying", &self.0.underlying)
            .finish()
    }
}
