//! What the facade knows about this backend.

use lock_kit::Driver;

use crate::options::PostgresOptions;

/// The backend's driver: its schemes, its options, and how to connect.
pub static DRIVER: Driver = Driver::of::<PostgresOptions>("postgres", &["postgres", "postgresql"])
    .summary("locks across machines, kept by a PostgreSQL server")
    .examples(&["postgres://app@db/app", "postgres://app:password@db/app?fencing=sequence"]);
