//! Readers beside each other, and at most so many at a time.

use super::server::Server;
use crate::at_a_server::{in_all, places};

crate::together::all!(places(in_all(Server::start)));
