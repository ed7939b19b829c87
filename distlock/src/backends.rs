//! The backends that this crate brings along, one cargo feature for each. No other code in the project chooses between
//! them.

use crate::spi::Driver;

/// Locks across machines, kept by an etcd cluster; see [`lock_etcd`].
#[cfg(feature = "etcd")]
pub use lock_etcd as etcd;

/// Locks between the processes of one machine, on Unix; see [`lock_file`].
#[cfg(all(feature = "file", unix))]
pub use lock_file as file;

/// Locks across machines, kept by a MySQL or MariaDB server; see [`lock_mysql`].
#[cfg(feature = "mysql")]
pub use lock_mysql as mysql;

/// Locks across machines, kept in a bucket of S3, Google Cloud Storage or Azure; see [`lock_object_store`].
#[cfg(feature = "object-store")]
pub use lock_object_store as object_store;

/// Locks across machines, kept by a PostgreSQL server; see [`lock_postgres`].
#[cfg(feature = "postgres")]
pub use lock_postgres as postgres;

/// Locks across machines, kept by a Redis server; see [`lock_redis`].
#[cfg(feature = "redis")]
pub use lock_redis as redis;

/// Locks across machines, kept by a ZooKeeper ensemble; see [`lock_zookeeper`].
#[cfg(feature = "zookeeper")]
pub use lock_zookeeper as zookeeper;

/// One backend.
pub(crate) struct Backend {
    /// The cargo feature that includes it, which is also its name.
    pub(crate) feature: &'static str,
    /// Its schemes, which are taken even when it is left out.
    pub(crate) schemes: &'static [&'static str],
    /// `None` when the feature is off, or when the system does not have the backend.
    pub(crate) driver: Option<&'static Driver>,
}

macro_rules! backend {
    ($feature:literal, $schemes:expr, $driver:path, $condition:meta) => {
        Backend {
            feature: $feature,
            schemes: &$schemes,
            #[cfg($condition)]
            driver: Some(&$driver),
            #[cfg(not($condition))]
            driver: None,
        }
    };
}

pub(crate) static BACKENDS: &[Backend] = &[
    backend!("memory", ["memory"], lock_memory::DRIVER, feature = "memory"),
    backend!("file", ["file"], lock_file::DRIVER, all(feature = "file", unix)),
    backend!("etcd", ["etcd", "etcds"], lock_etcd::DRIVER, feature = "etcd"),
    backend!(
        "redis",
        ["redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster"],
        lock_redis::DRIVER,
        feature = "redis"
    ),
    backend!("zookeeper", ["zookeeper"], lock_zookeeper::DRIVER, feature = "zookeeper"),
    backend!("mysql", ["mysql", "mariadb"], lock_mysql::DRIVER, feature = "mysql"),
    backend!("postgres", ["postgres", "postgresql"], lock_postgres::DRIVER, feature = "postgres"),
    backend!("object-store", ["s3", "gs", "az"], lock_object_store::DRIVER, feature = "object-store"),
];

/// The programs of each crate's README, compiled and, where they need no server, run.
#[cfg(doctest)]
#[cfg_attr(feature = "memory", doc = include_str!("../README.md"))]
#[cfg_attr(feature = "memory", doc = include_str!("../../lock-core/README.md"))]
#[cfg_attr(feature = "memory", doc = include_str!("../../lock-kit/README.md"))]
#[cfg_attr(feature = "memory", doc = include_str!("../../lock-memory/README.md"))]
#[cfg_attr(feature = "etcd", doc = include_str!("../../lock-etcd/README.md"))]
#[cfg_attr(feature = "file", doc = include_str!("../../lock-file/README.md"))]
#[cfg_attr(feature = "redis", doc = include_str!("../../lock-redis/README.md"))]
#[cfg_attr(feature = "zookeeper", doc = include_str!("../../lock-zookeeper/README.md"))]
#[cfg_attr(feature = "mysql", doc = include_str!("../../lock-mysql/README.md"))]
#[cfg_attr(feature = "postgres", doc = include_str!("../../lock-postgres/README.md"))]
#[cfg_attr(feature = "object-store", doc = include_str!("../../lock-object-store/README.md"))]
pub struct CrateReadmes;
