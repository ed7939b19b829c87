//! The ZooKeeper backend of distlock.
#![forbid(unsafe_code)]

mod attempt;
mod backend;
mod contender;
mod hold;
mod leftover;
mod node;
mod options;
mod queue;
mod record;
mod session;
mod sessions;
mod trace;
mod trouble;
mod trust;

pub use options::{Access, Authentication, TokenSource, ZooKeeperOptions, connect, lease_of};
