//! A distributed lock whose backend you choose by a URL.
//!
//! ```
//! # #[cfg(feature = "memory")]
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//!
//! let locks = distlock::connect("memory:").await?;
//! let guard = locks.mutex("orders/42")?.acquire().await?;
//! println!("the token to hand to the store: {:?}", guard.token());
//! guard.release().await?;
//! # Ok::<(), distlock::LockError>(())
//! # }).unwrap();
//! ```
//!
//! # The log
//! distlock logs with [`tracing`](https://docs.rs/tracing), under one target for all crates: `distlock`. An event about
//! a lock has the lock's name (`lock`), its fencing token (`token`) if it has one, and the server (`server`).
//!
//! | level | event |
//! |---|---|
//! | `ERROR` | `lost`: a held lock has been lost (`reason`, `held`). Another holder may have what it protects. If the program itself has closed the client, it is a `WARN` |
//! | `WARN` | `suspect`: contact is lost, and the lock is still held, for `remaining` if contact does not return. `renewals failed`: for this number of `locks`, some of which it `names`; at most every ten seconds for each connection or session. `a grant was lost before its waiter had it`, for the second time `in_a_row` or more, with the `reason` and a `remedy`. `given up`: the client ends before the server has answered a release. `the release after a body is repeated`: `with_lock` has its result, and the server has not confirmed the release. `not connected yet`: an attempt to connect has failed, with a new `error`, and is repeated. Also what a server cannot do, and lost contact |
//! | `INFO` | `restored`: contact has returned in time |
//! | `DEBUG` | `waiting`, `granted` (`holder`, `waited`), `not granted` (`why`), `released` (`held`); requests that are repeated |
//!
//! With the filter `distlock=warn` the log stays empty as long as there are no problems.
//!
//! # This crate
//! This crate is the facade: one cargo feature for each backend, [`connect`], and what users need of [`lock_core`], whose
//! documentation says what a lock promises. The module of each backend says what that backend adds. [`blocking`] is for
//! programs without `async`, and the feature `macros` adds the attribute `#[locked]`. [`spi`] has what a
//! backend needs, which [`register`] adds; [`testing`] has what tests need.
#![forbid(unsafe_code)]

#[cfg(feature = "macros")]
#[doc(hidden)]
#[path = "attribute.rs"]
pub mod __private;
mod backends;
pub mod blocking;
mod registry;

use std::time::Duration;

#[allow(unused_imports, unreachable_pub, reason = "without a feature of a backend there is none")]
pub use backends::*;
#[cfg(feature = "macros")]
pub use distlock_macros::locked;
pub use lock_core::{
    Capabilities, ClientBuilder, Closed, ConnectMode, DistributedLock, Election, EngineChoice, ErrorKind,
    FencingToken, Hold, HoldEnd, HolderId, Leader, LeaderWatch, Leadership, Leading, LockClient, LockError,
    LockEvent, LockEvents, LockGuard, LockListener, LockName, LockOptions, LockStatus, LockUrl, LossReason,
    MultiLock, Once, Operation, Owner, Password, RwLock, Secret, Semaphore, Subscription, Wait,
};
pub use registry::{drivers, register};

/// What a backend can do: the values in [`Capabilities`].
pub mod capabilities {
    pub use lock_core::{
        Breaking, Describing, Fairness, Fencing, Inspection, Leasing, Modes, PermitLimits, Reach,
        Remembering, Reserving, Sharing,
    };
}

/// Who holds a lock and who waits for it: the values in [`LockStatus`], and what breaking a lock returns.
pub mod status {
    pub use lock_core::{Broken, HolderInfo, LockKind, Mode, Others, Participant, ProcessOrigin, TakenAway};
}

/// What a backend implements and is given, the [`Driver`](spi::Driver) that [`register`] takes, and what a
/// [`DistributedLock`] of your own needs.
///
/// `docs/backends/writing-one.md` goes through it. A backend's crate depends on `lock-core`, which has the same items.
pub mod spi {
    #[doc(no_inline)]
    pub use crate::{capabilities::*, status::*};
    pub use lock_core::spi::*;
    pub use lock_core::{
        Alarm, AlarmHandle, CharacterSet, Clock, Connecting, Driver, GuardedLock, HoldControl, Listeners,
        Moment, NameRules, OptionKind, PhysicalName, Sleep, UrlOption, UrlOptions, with_waker,
    };
}

/// What tests need: a clock that they set, and a server in memory that a test can make fail.
#[cfg(feature = "memory")]
pub mod testing {
    pub use lock_core::memory::{Loss, MemoryOptions, MemoryServer, Replies, Told, faults};
    pub use lock_core::{Clock, ManualClock, Moment};
}

/// Connects to the backend that `url` names, with the default settings; see [`connect_with`].
///
/// ```
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let locks = distlock::connect("memory:").await?;
/// let guard = locks.mutex("orders/42")?.acquire().await?;
/// guard.release().await?;
/// # Ok::<(), distlock::LockError>(())
/// # }).unwrap();
/// ```
///
/// # Errors
/// Same as [`connect_with`].
///
/// # Cancel safety
/// Dropping the future ends the attempt to connect.
pub async fn connect(url: impl AsRef<str>) -> Result<LockClient, LockError> {
    connect_with(url, ClientBuilder::new()).await
}

/// Connects to the backend that `url` names. Options in the URL override those of the builder, except for `connect` and
/// `connect_timeout`.
///
/// ```
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use std::time::Duration;
///
/// use distlock::ClientBuilder;
///
/// let builder = ClientBuilder::new().label("billing").connect_timeout(Duration::from_secs(30));
/// let locks = distlock::connect_with("memory:", builder).await?;
/// # Ok::<(), distlock::LockError>(())
/// # }).unwrap();
/// ```
///
/// # Errors
/// [`ErrorKind::InvalidOption`] for a URL that cannot be parsed, a scheme that is neither compiled in nor
/// [registered](register), a scheme whose cargo feature is off, or an option that the backend does not have; any error of the backend.
///
/// # Cancel safety
/// Dropping the future ends the attempt to connect.
pub async fn connect_with(url: impl AsRef<str>, builder: ClientBuilder) -> Result<LockClient, LockError> {
    let url = LockUrl::parse(url.as_ref())?;
    let driver = registry::find(url.scheme())?;
    (driver.connect)(url, builder).await
}

/// Returns the length of the lease that `url` asks for, without connecting; `None` when locks have no lease.
///
/// The abort margin has to fit into this length: a third of it leaves time for renewals. A server may grant a different
/// length.
///
/// ```
/// # #[cfg(feature = "memory")]
/// assert_eq!(distlock::lease_of("memory:")?, None);
/// # Ok::<(), distlock::LockError>(())
/// ```
///
/// # Errors
/// [`ErrorKind::InvalidOption`] for a URL that cannot be parsed, a scheme that is unknown or whose cargo feature is
/// off, or a length that makes no sense. The other options are checked when connecting.
pub fn lease_of(url: impl AsRef<str>) -> Result<Option<Duration>, LockError> {
    let url = LockUrl::parse(url.as_ref())?;
    (registry::find(url.scheme())?.lease_of)(&url)
}

/// The README's program, compiled and run.
#[cfg(all(doctest, feature = "memory"))]
#[doc = include_str!("../../README.md")]
pub struct Readme;

/// The programs of the guide, compiled and, except for two that are examples with their own tests, run.
#[cfg(all(doctest, feature = "memory"))]
#[doc = include_str!("../../docs/guide.md")]
pub struct Guide;

/// The programs of the pages that the guide refers to, compiled and run.
#[cfg(all(doctest, feature = "memory"))]
#[doc = include_str!("../../docs/connecting.md")]
#[doc = include_str!("../../docs/elections.md")]
#[doc = include_str!("../../docs/jobs.md")]
#[doc = include_str!("../../docs/several-locks.md")]
pub struct PagesOfTheGuide;

/// The program of the page about locks without `async`, compiled and run.
#[cfg(all(doctest, feature = "memory"))]
#[doc = include_str!("../../docs/without-async.md")]
pub struct WithoutAsync;

/// The programs of the page about readers, writers and permits, compiled and run.
#[cfg(all(doctest, feature = "memory"))]
#[doc = include_str!("../../docs/sharing.md")]
pub struct SharingPage;

/// The examples of locks that users write, compiled and run.
#[cfg(all(doctest, feature = "memory"))]
#[doc = include_str!("../../docs/own-locks.md")]
pub struct OwnLocks;
