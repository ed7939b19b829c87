//! The core of distlock: what a distributed lock is, and the policy that is the same for every server.
//!
//! A lock is a local reentrant FIFO mutex in front of a remote lock. This crate has the contract
//! ([`DistributedLock`]), everything that needs to be right once (queueing, deadlines, cancellation, renewal, loss), the
//! SPI that a backend author writes ([`backend`]), and a reference backend that lives in the process ([`memory`]).
//!
//! Users start from the facade crate `distlock`; backend authors start from [`backend`].
//!
//! # What is promised
//! * Between two holders of one lock there is no overlap **as long as the backend's own promise holds**; each backend's
//!   page says what that is.
//! * A holder is told of a loss, and its hold says so, before the server may give the lock to anyone else — provided that
//!   its process runs. A process that is paused (stopped, swapped out, suspended with its machine) learns of it when it runs
//!   again. Only a [`FencingToken`] protects against what such a process does next.
//! * A dropped future leaves nothing behind.
#![forbid(unsafe_code)]

mod acquire;
pub mod backend;
mod capabilities;
mod client;
mod clock;
mod deadline;
mod dispatcher;
mod engine;
mod error;
mod front;
mod guard;
mod hold;
mod host;
mod janitor;
mod keeper;
mod listener;
mod local;
mod lock;
mod log;
pub mod memory;
mod name;
mod owner;
mod process;
mod secret;
mod signals;
mod status;
mod supervise;
mod sync;
mod token;
mod url;
mod validity;
mod waking;

pub use backend::{
    AcquireRequest, AttemptId, Backend, Grant, GroupId, Host, InspectRequest, LeaseState, Mode, Released,
    Term, Wait,
};
pub use capabilities::{Breaking, Capabilities, Fairness, Fencing, Inspection, Reach};
pub use client::{ClientBuilder, LockClient};
pub use clock::{Alarm, AlarmHandle, Clock, ManualClock, Moment, Sleep};
pub use engine::EngineChoice;
pub use error::{ErrorKind, LockError, Operation};
pub use guard::LockGuard;
pub use hold::{Hold, HoldEnd, LossReason};
pub use listener::LockListener;
pub use lock::{DistributedLock, DistributedLockExt, ReentrantLock};
pub use name::{CharacterSet, LockName, NameRules, PhysicalName};
pub use owner::Owner;
pub use process::ProcessOrigin;
pub use secret::Secret;
pub use signals::Signals;
pub use status::{Broken, HolderId, HolderInfo, LockStatus, Others, Participant, TakenAway};
pub use supervise::Backoff;
pub use token::FencingToken;
pub use url::{LockUrl, UrlOptions};
pub use waking::with_waker;
