//! A distributed lock whose backend you choose by a URL.
//!
//! ```
//! # #[cfg(feature = "memory")]
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! use distlock::DistributedLockExt;
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
//! | `ERROR` | `lost`: a held lock has been lost (`reason`, `held`). Another holder may have what it protects |
//! | `WARN` | `suspect`: contact is lost, and the lock is still held, for `remaining` if contact does not return. `renewals failed`: for this number of `locks`, some of which it `names`; at most every ten seconds for each connection or session. `a grant was lost before its waiter had it`, for the second time `in_a_row` or more, with the `reason` and a `remedy`. `given up`: the client ends before the server has answered a release. Also what a server cannot do, and lost contact |
//! | `INFO` | `restored`: contact has returned in time |
//! | `DEBUG` | `waiting`, `granted` (`holder`, `waited`), `not granted` (`why`), `released` (`held`); requests that are repeated |
//!
//! With the filter `distlock=warn` the log stays empty as long as there are no problems.
//!
//! # This crate
//! This crate is the facade: one cargo feature for each backend, [`connect`], and the types of [`lock_core`]. The
//! documentation of `lock_core` says what a lock promises; the module of each backend here says what that backend adds.
#![forbid(unsafe_code)]

mod drivers;

use std::time::Duration;

pub use lock_core::*;

/// Locks between the processes of one machine, on Unix; see [`lock_file`].
#[cfg(all(feature = "file", unix))]
pub use lock_file as file;

/// Locks across machines, kept by a MySQL or MariaDB server; see [`lock_mysql`].
#[cfg(feature = "mysql")]
pub use lock_mysql as mysql;

/// Locks across machines, kept by a Redis server; see [`lock_redis`].
#[cfg(feature = "redis")]
pub use lock_redis as redis;

/// Locks across machines, kept by a ZooKeeper ensemble; see [`lock_zookeeper`].
#[cfg(feature = "zookeeper")]
pub use lock_zookeeper as zookeeper;

/// Connects to the backend that `url` names, with the default settings; see [`connect_with`].
///
/// # Errors
/// Same as [`connect_with`].
///
/// # Cancel safety
/// Dropping the future ends the attempt to connect.
pub async fn connect(url: impl AsRef<str>) -> Result<LockClient, LockError> {
    connect_with(url, ClientBuilder::new()).await
}

/// Connects to the backend that `url` names. Options in the URL override those of the builder.
///
/// # Errors
/// [`ErrorKind::InvalidOption`] for a URL that cannot be parsed, an unknown scheme, a scheme whose cargo feature is
/// off, or an option that the backend does not have; any error of the backend.
///
/// # Cancel safety
/// Dropping the future ends the attempt to connect.
pub async fn connect_with(url: impl AsRef<str>, builder: ClientBuilder) -> Result<LockClient, LockError> {
    let url = LockUrl::parse(url.as_ref())?;
    let functions = drivers::find(url.scheme())?;
    (functions.connect)(url, builder).await
}

/// Returns the length of the lease that `url` asks for, without connecting; `None` when locks have no lease.
///
/// The abort margin has to fit into this length: a third of it leaves time for renewals. A server may grant a different
/// length.
///
/// # Errors
/// [`ErrorKind::InvalidOption`] for a URL that cannot be parsed, a scheme that is unknown or whose cargo feature is
/// off, or a length that makes no sense. The other options are checked when connecting.
pub fn lease_of(url: impl AsRef<str>) -> Result<Option<Duration>, LockError> {
    let url = LockUrl::parse(url.as_ref())?;
    (drivers::find(url.scheme())?.lease_of)(&url)
}

/// The README's program, compiled and run.
#[cfg(all(doctest, feature = "memory"))]
#[doc = include_str!("../../README.md")]
pub struct Readme;

/// The programs of the guide, compiled and, except for two that are examples with their own tests, run.
#[cfg(all(doctest, feature = "memory"))]
#[doc = include_str!("../../docs/guide.md")]
pub struct Guide;

/// The programs of each crate's README, compiled and, where they need no server, run.
#[cfg(doctest)]
#[cfg_attr(feature = "memory", doc = include_str!("../README.md"))]
#[cfg_attr(feature = "memory", doc = include_str!("../../lock-core/README.md"))]
#[cfg_attr(feature = "file", doc = include_str!("../../lock-file/README.md"))]
#[cfg_attr(feature = "redis", doc = include_str!("../../lock-redis/README.md"))]
#[cfg_attr(feature = "zookeeper", doc = include_str!("../../lock-zookeeper/README.md"))]
#[cfg_attr(feature = "mysql", doc = include_str!("../../lock-mysql/README.md"))]
pub struct CrateReadmes;

/// The examples of locks that users write, compiled and run.
#[cfg(all(doctest, feature = "memory"))]
#[doc = include_str!("../../docs/own-locks.md")]
pub struct OwnLocks;
