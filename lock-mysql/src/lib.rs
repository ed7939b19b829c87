//! The MySQL and MariaDB backend of distlock: named locks with validation, a lease and fencing tokens.
#![forbid(unsafe_code)]

mod actor;
mod address;
mod attempt;
mod backend;
mod control;
mod inspection;
mod link;
mod options;
mod pool;
mod secret;
mod server;
mod session;
mod settings;
mod statement;
mod trouble;

pub use options::{MySqlOptions, TokenSource, connect};
pub use statement::operation_of;
