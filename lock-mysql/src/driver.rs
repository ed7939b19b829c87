//! What the facade knows about this backend.

use lock_kit::Driver;

use crate::options::MySqlOptions;

/// The backend's driver: its schemes, its options, and how to connect.
pub static DRIVER: Driver = Driver::of::<MySqlOptions>("mysql", &["mysql", "mariadb"])
    .summary("locks across machines, kept by a MySQL or MariaDB server")
    .examples(&["mysql://app@db", "mysql://app:password@db/app?fencing=table"]);
