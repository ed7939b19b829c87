//! The command on a real Redis server.

mod election;
mod failures;
mod loss;
mod once;
mod secrets;
pub(crate) mod server;
mod sharing;
mod tls;
mod together;
