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
//! documentation says what a lock promises. The module of each backend says what that backend adds. The root has what a
//! service writes every day, and the modules have the rest:
//!
//! | module | has |
//! |---|---|
//! | [`blocking`] | the same locks for programs without `async` |
//! | [`connection`] | how a client connects and ends, and which backends there are |
//! | [`election`] | leaders, as they lead and as others see them |
//! | [`events`] | what happens to holds |
//! | [`status`], [`capabilities`] | who holds a lock and who waits; what a backend can do |
//! | [`spi`] | what a backend needs, which [`register`] adds, and what a lock of your own needs |
//! | `testing` | what tests need; with the feature `testing`, which belongs to your `dev-dependencies` |
//!
//! The feature `macros` adds the attribute `#[locked]`.
#![forbid(unsafe_code)]

#[cfg(feature = "macros")]
#[doc(hidden)]
#[path = "attribute.rs"]
pub mod __private;
mod backends;
pub mod blocking;
mod registry;

#[allow(unused_imports, unreachable_pub, reason = "without a feature of a backend there is none")]
pub use backends::*;
#[cfg(feature = "macros")]
pub use distlock_macros::locked;
pub use lock_core::{
    ClientBuilder, DistributedLock, Election, ErrorKind, FencingToken, Hold, LockClient, LockError,
    LockGuard, LockListener, LockName, LockOptions, LossReason, MultiLock, Once, Operation, Owner, RwLock,
    Semaphore,
};
pub use registry::register;

/// How a client connects, logs in, runs and ends, and the backends that a URL can name.
pub mod connection {
    pub use crate::registry::{drivers, lease_of};
    pub use lock_core::{Closed, ConnectMode, EngineChoice, LockUrl, Password, Secret};
}

/// Leaders: [`Leadership`](election::Leadership) and [`Leading`](election::Leading) as they lead,
/// [`Leader`](election::Leader) and [`LeaderWatch`](election::LeaderWatch) as others see them. An [`Election`] gives them.
pub mod election {
    pub use lock_core::{Leader, LeaderWatch, Leadership, Leading};
}

/// What happens to holds: the stream of a client's events, the subscription of a [`LockListener`], and how a hold ended.
pub mod events {
    pub use lock_core::{HoldEnd, LockEvent, LockEvents, Subscription};
}

/// Who holds a lock and who waits for it, and what breaking a lock returns.
pub mod status {
    pub use lock_core::{
        Broken, HolderId, HolderInfo, LockKind, LockStatus, Mode, Others, Participant, ProcessOrigin,
        TakenAway,
    };
}

/// What a backend can do.
pub mod capabilities {
    pub use lock_core::{
        Breaking, Capabilities, Describing, Fairness, Fencing, Inspection, Leasing, Modes, PermitLimits,
        Pipelining, Reach, Remembering, Reserving, Sharing,
    };
}

/// What a backend implements and is given, the [`Driver`](spi::Driver) that [`register`] takes, and what a
/// [`DistributedLock`] of your own needs.
///
/// `docs/backends/writing-one.md` goes through it. A backend's crate depends on `lock-core`, whose root has these items and
/// those of [`status`] and [`capabilities`].
pub mod spi {
    pub use lock_core::spi::{
        AcquireRequest, AttemptHandle, AttemptId, Backend, BackendContext, Backoff, ClientCertificate,
        Downgraded, Endpoint, Grant, GroupId, InspectRequest, LeaseState, Memo, Mutex, OwnLink, Pool,
        PoolLimits, PooledLink, PooledServer, Released, Remembered, SharedBackoff, Term, TlsFiles,
        TlsOptions, Updated, Wait, split_port, within,
    };
    pub use lock_core::{
        Alarm, AlarmHandle, CharacterSet, Clock, Connecting, Driver, GuardedLock, HoldControl, Listeners,
        Moment, NameRules, OptionKind, PhysicalName, Sleep, UrlOption, UrlOptions, with_waker,
    };
}

/// What tests need: a server in memory that a test can make fail, and a clock that a test sets, which is the
/// [`Clock`](spi::Clock) of [`Clock::manual`](spi::Clock::manual).
///
/// It needs the feature `testing`. Add that to the `dev-dependencies` alone, so that no program contains it:
///
/// ```toml
/// [dev-dependencies]
/// distlock = { version = "0.1", features = ["testing"] }
/// ```
#[cfg(feature = "testing")]
pub mod testing {
    pub use lock_core::ManualClock;
    pub use lock_core::memory::{Loss, MemoryOptions, MemoryServer, Replies, Told, faults};
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
    let url = connection::LockUrl::parse(url.as_ref())?;
    let driver = registry::find(url.scheme())?;
    (driver.connect)(url, builder).await
}

/// The README's program, compiled and run.
#[cfg(all(doctest, feature = "memory"))]
#[doc = include_str!("../../README.md")]
pub struct Readme;

/// The programs of the guide, compiled and, except for two that are examples with their own tests, run.
#[cfg(all(doctest, feature = "testing"))]
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
