//! What the facade knows about this backend.

use lock_core::Reach;
use lock_kit::Driver;

use crate::options::FileOptions;

/// The backend's driver: its schemes, its options, and how to connect.
pub static DRIVER: Driver = Driver::of::<FileOptions>("file", &["file"])
    .summary("locks between the processes of one machine, in a folder")
    .reach(Reach::Machine)
    .examples(&["file:/srv/locks"]);
