//! The command on a real MariaDB and a real MySQL.

mod failures;
mod looking;
mod loss;
mod secrets;
mod server;
mod sharing;
mod tls;
mod together;
