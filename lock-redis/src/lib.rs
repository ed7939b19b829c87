//! The Redis backend of distlock: a fair lock with leases, direct hand-off and fencing tokens.
#![forbid(unsafe_code)]

mod address;
mod attempt;
mod backend;
mod keys;
mod link;
mod mail;
mod options;
mod record;
mod scripts;
mod secret;
mod server;
mod supervisor;
mod trouble;

pub use options::{RedisOptions, connect};
pub use scripts::{Script, scripts};
