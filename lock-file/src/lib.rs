//! Locks between the processes of one machine, without a server.
#![forbid(unsafe_code)]
#![cfg(unix)]

mod attempt;
mod backend;
mod default_folder;
mod errand;
mod folder;
mod gate;
mod held;
mod hold;
mod network;
mod notices;
mod options;
mod pause;
mod queue;
mod record;
#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests;
mod tidier;
mod trouble;
mod watcher;

pub use backend::{FileBackend, FileLease};
pub use default_folder::default_folder;
pub use options::{FileOptions, connect};
