//! The command on a real PostgreSQL.

mod failures;
mod looking;
mod loss;
mod secrets;
mod server;
mod sharing;
mod tls;
mod together;
