//! The core of distlock: the definition of a distributed lock, and the logic that is the same for every server.
//!
//! A lock is a local, reentrant FIFO mutex in front of a remote lock. This crate contains the contract
//! ([`DistributedLock`]), everything that should be implemented only once (queueing, deadlines, cancellation, renewal,
//! loss) and the SPI that backend authors implement ([`spi`]).
//!
//! Users start from the facade crate `distlock`; backend authors start from [`spi`], and the crate `lock-memory` is the
//! reference. The feature `testing` adds a clock that a test advances; it is for `dev-dependencies`.
//!
//! # What is promised
//! * The holds of two holders of one lock never overlap, **as long as the backend keeps its own promise**; the page of
//!   each backend says what that promise is.
//! * A holder learns of a loss, and its hold reports it, before the server may give the lock to another client,
//!   provided that the holder's process is running. A process that is paused (stopped, swapped out, suspended with its
//!   machine) notices the loss when it runs again. Only a [`FencingToken`] protects against what such a process does
//!   next.
//! * A dropped future leaves nothing behind.
#![forbid(unsafe_code)]

mod api;
mod policy;
mod runtime;
pub mod spi;
mod types;

pub use api::builder::{ClientBuilder, ConnectMode, Unconnected};
pub use api::client::LockClient;
pub use api::election::{Election, LeaderWatch, Leadership, Leading};
pub use api::events::{LockEvent, LockEvents};
pub use api::guard::LockGuard;
pub use api::listener::{LockListener, Subscription};
pub use api::lock::DistributedLock;
pub use api::once::Once;
pub use api::options::LockOptions;
pub use api::several::MultiLock;
pub use api::sharing::{RwLock, Semaphore};
pub use api::watching::{ChangeKind, LockChange, LockWatch};

pub use policy::hold::Hold;
#[cfg(feature = "testing")]
pub use runtime::manual_clock::ManualClock;
#[cfg(feature = "metrics")]
pub use runtime::metrics::METRIC_BUCKETS;
pub use runtime::{Clock, EngineChoice, Moment, Sleep};
pub use spi::{
    AcquireRequest, AttemptId, Backend, BackendContext, Backoff, Downgraded, Grant, GroupId, InspectRequest,
    LeaseState, Memo, Recall, Released, Remembered, Term, Updated, Wait,
};
pub use types::{
    Breaking, Broken, Capabilities, CharacterSet, ErrorKind, Failover, Fairness, Fencing, FencingToken,
    HoldEnd, HolderId, HolderInfo, Inspection, Leasing, LockError, LockKind, LockList, LockName, LockStatus,
    LossReason, Mode, NameRules, Operation, Owner, Participant, Password, PermitLimits, PhysicalName,
    ProcessOrigin, Reach, Reserving, Secret,
};
