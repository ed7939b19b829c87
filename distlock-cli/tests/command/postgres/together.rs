//! Readers beside each other, and at most so many at a time.

use super::server::Server;

crate::together::all!(crate::at_a_server::places(Server::start()));
