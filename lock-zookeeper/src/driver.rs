//! What the facade knows about this backend.

use lock_kit::Driver;

use crate::options::ZooKeeperOptions;

/// The backend's driver: its schemes, its options, and how to connect.
pub static DRIVER: Driver = Driver::of::<ZooKeeperOptions>("zookeeper", &["zookeeper"])
    .summary("locks across machines, kept by a ZooKeeper ensemble")
    .examples(&["zookeeper://zoo1,zoo2,zoo3/locks", "zookeeper://zoo1,zoo2,zoo3/locks?session_timeout=30s"]);
