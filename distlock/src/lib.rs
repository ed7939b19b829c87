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
//! A call that acquires a lock is a span, `acquire`, of the level `INFO`: with `lock`, `mode` and `server`, and at its end `outcome`,
//! `waited` and `token`. A release is a span, `release`, with `lock`, `token`, `held` and `server`. So a trace shows how long a request
//! waited for which lock.
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
//! | `metrics` | the buckets of histograms; with the feature `metrics` |
//! | [`status`], [`capabilities`] | who holds a lock and who waits; what a backend can do |
//! | [`spi`] | what a backend needs, which [`register`] adds |
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
/// Runs the body of a function under a distributed lock.
///
/// ```
/// use distlock::{Hold, LockClient, LockError, locked};
///
/// struct Order {
///     id: u64,
/// }
///
/// struct Billing {
///     locks: LockClient,
/// }
///
/// impl Billing {
///     #[locked("orders/{order.id}", client = self.locks, wait = "2s", hold = hold)]
///     async fn pay(&self, order: &Order) -> Result<String, LockError> {
///         let token = hold.token(); // goes with each write to what the lock protects
///         Ok(format!("order {} is paid with token {token:?}", order.id))
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), LockError> {
/// let billing = Billing { locks: distlock::connect("memory:").await? };
/// println!("{}", billing.pay(&Order { id: 42 }).await?);
/// # Ok(())
/// # }
/// ```
///
/// The function returns `Result<T, E>` with `E: From<LockError>`: an error of the lock is returned in the same way as one of the
/// body. The body is that of a `with_lock`. **It never runs without the lock, and if the lock is lost while it runs, it is
/// dropped at its next await**, and the function returns the loss. A function that calls itself, or another one with the
/// same lock, enters the lock again.
///
/// # The name
/// The first argument is the name of the lock. Each `{…}` in it is any expression with a `Display`: `{order.id}`,
/// `{self.shard_of(order)}`, `{days[0]}`. `{{` and `}}` are braces. The name is made before the body starts, so the body may
/// move the arguments. Values are not escaped: `"{a}/{b}"` is the same name for `1/2` and `3` as for `1` and `2/3`.
///
/// Without a name, the lock is named after the path of the function, such as `billing::jobs::nightly`. It changes when the
/// function is renamed or moved: while two versions of a program run, they do not exclude each other then. A method needs
/// a name, because the attribute does not see the type it belongs to.
///
/// # Options
/// | option | meaning | without it |
/// |---|---|---|
/// | `client = EXPRESSION` | the `LockClient` whose lock it is, or something that points to one | required, or `lock` |
/// | `lock = EXPRESSION` | a lock instead of a name and a client: an `Arc<dyn DistributedLock>` | |
/// | `wait = "2s"` | how long to wait for the lock: `500ms`, `30s`, `1h 30m`; `0s` tries once | for ever |
/// | `on_busy = error` | if another owner has the lock all that time, the function returns an error of the kind `Busy` | `error` |
/// | `on_busy = skip` | the function returns `Ok(None)` instead; its return type is `Result<Option<T>, E>` | |
/// | `hold = NAME` | the `Hold` has that name in the body, for its token | |
/// | `mode = read` | the read side of the read-write lock of that name, for readers beside each other; `write` and `exclusive` are the mutex | `exclusive` |
///
/// # Functions without `async`
/// A function that is not `async` blocks its thread: its client is a `distlock::blocking::LockClient`, or its lock a
/// `distlock::blocking::DistributedLock`. The loss of the lock does not stop its body; it is returned afterwards.
///
/// ```
/// use distlock::{LockError, blocking, locked};
///
/// #[locked(client = locks)]
/// fn migrate(locks: &blocking::LockClient) -> Result<u32, LockError> {
///     Ok(7)
/// }
///
/// assert_eq!(migrate(&blocking::connect("memory:")?)?, 7);
/// # Ok::<(), LockError>(())
/// ```
///
/// # With other attributes
/// In an `#[async_trait]` implementation, write `#[locked]` on the method, and use the arguments by their names, not by parts
/// of a pattern. An attribute that removes the `async` of a function, such as `#[tokio::main]`, stands below `#[locked]`.
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
    pub use lock_core::{ConnectMode, EngineChoice, Password, Secret};
    pub use lock_kit::LockUrl;
}

/// Leaders: [`Leadership`](election::Leadership) and [`Leading`](election::Leading) as they lead,
/// and [`LeaderWatch`](election::LeaderWatch), which shows others who leads. An [`Election`] gives them.
pub mod election {
    pub use lock_core::{LeaderWatch, Leadership, Leading};
}

/// What happens to holds: the stream of a client's events, the subscription of a [`LockListener`], and how a hold ended.
pub mod events {
    pub use lock_core::{HoldEnd, LockEvent, LockEvents, Subscription};
}

/// Who holds a lock and who waits for it, and what breaking a lock returns.
pub mod status {
    pub use lock_core::{
        Broken, ChangeKind, HolderId, HolderInfo, LockChange, LockKind, LockList, LockStatus, LockWatch,
        Mode, Participant, ProcessOrigin,
    };
}

/// What an exporter of metrics needs to know. `docs/metrics.md` lists them.
#[cfg(feature = "metrics")]
pub mod metrics {
    pub use lock_core::METRIC_BUCKETS;
}

/// What a backend can do.
pub mod capabilities {
    pub use lock_core::{
        Breaking, Capabilities, Failover, Fairness, Fencing, Inspection, Leasing, PermitLimits, Reach,
        Reserving,
    };
}

/// What a backend implements and is given, and the [`Driver`](spi::Driver) that [`register`] takes.
///
/// `docs/backends/writing-one.md` goes through it. A backend's crate depends on `lock-core`, whose root has these items and
/// those of [`status`] and [`capabilities`], and on `lock-kit`, which has what concerns URLs and connections.
pub mod spi {
    pub use lock_core::spi::{
        AcquireRequest, AttemptId, Backend, BackendContext, Backoff, Downgraded, Grant, GroupId,
        InspectRequest, LeaseState, Memo, Mutex, Recall, Released, Remembered, Term, Updated, Wait,
        contained, with_waker, within,
    };
    pub use lock_core::{CharacterSet, Clock, Moment, NameRules, PhysicalName, Sleep, Unconnected};
    pub use lock_kit::{
        Authorities, BackendOptions, ClientCertificate, Connecting, Driver, Endpoint, KnownOptions, OwnLink,
        Pool, PoolLimits, PooledLink, PooledServer, ServerOptions, SharedBackoff, TlsFiles, TlsOptions,
        UrlOptions, connect_backend, split_port,
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
    pub use lock_memory::{Loss, MemoryOptions, MemoryServer, Replies, Told, faults};
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

/// The example of a decorator, compiled and run.
#[cfg(all(doctest, feature = "memory"))]
#[doc = include_str!("../../docs/decorating.md")]
pub struct DecoratingPage;
