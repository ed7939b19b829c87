//! The command on a real ZooKeeper server.

mod election;
mod failures;
mod loss;
mod once;
mod secrets;
mod server;
mod sharing;
mod together;
