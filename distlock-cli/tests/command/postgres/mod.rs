//! The command on a real PostgreSQL.

mod election;
mod failures;
mod guide;
mod looking;
mod loss;
mod once;
mod secrets;
mod server;
mod sharing;
mod tls;
mod together;
