//! What the facade knows about this backend.

use lock_core::Reach;
use lock_kit::{Driver, UrlOption};

/// The backend's driver: its schemes, its options, and how to connect.
pub static DRIVER: Driver = Driver::new(
    "file",
    &["file"],
    |url, builder| Box::pin(async move { crate::connect(&url, builder) }),
    crate::lease_of,
)
.summary("locks between the processes of one machine, in a folder")
.reach(Reach::Machine)
.examples(&["file:/srv/locks"])
.options(&[
    UrlOption::duration(
        "poll_interval",
        "how often a waiter or holder checks, if the system reports no changes",
    )
    .default_value("100 ms"),
    UrlOption::duration("gate_patience", "how long try, status and break wait for the gate")
        .default_value("500 ms"),
]);
