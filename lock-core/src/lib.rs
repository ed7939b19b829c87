//! The core of distlock: what a distributed lock is, and the policy that is the same for every server.
//!
//! A lock is a local reentrant FIFO mutex in front of a remote lock. This crate has the contract
//! ([`DistributedLock`]), everything that needs to be right once (queueing, deadlines, cancellation, renewal, loss), the
//! SPI that a backend author writes ([`spi`]), and a reference backend that lives in the process ([`memory`]).
//!
//! Users start from the facade crate `distlock`; backend authors start from [`spi`].
//!
//! # What is promised
//! * Between two holders of one lock there is no overlap **as long as the backend's own promise holds**; each backend's
//!   page says what that is.
//! * A holder is told of a loss, and its hold says so, before the server may give the lock to anyone else — provided that
//!   its process runs. A process that is paused (stopped, swapped out, suspended with its machine) learns of it when it runs
//!   again. Only a [`FencingToken`] protects against what such a process does next.
//! * A dropped future leaves nothing behind.
#![forbid(unsafe_code)]

mod api;
pub mod memory;
mod policy;
mod runtime;
pub mod spi;
mod types;

pub use api::builder::ClientBuilder;
pub use api::client::LockClient;
pub use api::guard::LockGuard;
pub use api::hold::Hold;
pub use api::listener::LockListener;
pub use api::lock::{DistributedLock, DistributedLockExt};
pub use api::reentrant::ReentrantLock;
pub use runtime::clock::{Alarm, AlarmHandle, Clock, ManualClock, Moment, Sleep};
pub use runtime::engine::EngineChoice;
pub use runtime::waker::with_waker;
pub use spi::{
    AcquireRequest, AttemptId, Backend, Backoff, Grant, GroupId, Host, InspectRequest, LeaseState, Mode,
    Released, Signals, Term, Wait,
};
pub use types::capabilities::{Breaking, Capabilities, Fairness, Fencing, Inspection, Reach};
pub use types::error::{ErrorKind, LockError, Operation};
pub use types::loss::{HoldEnd, LossReason};
pub use types::name::{CharacterSet, LockName, NameRules, PhysicalName};
pub use types::origin::ProcessOrigin;
pub use types::owner::Owner;
pub use types::secret::Secret;
pub use types::status::{Broken, HolderId, HolderInfo, LockStatus, Others, Participant, TakenAway};
pub use types::token::FencingToken;
pub use types::url::{LockUrl, UrlOptions};
