//! The command on a real MariaDB and a real MySQL.

mod election;
mod failures;
mod looking;
mod loss;
mod once;
mod secrets;
mod server;
mod sharing;
mod tls;
mod together;
