//! The recipes of the guide.

use super::server::Server;

crate::guide::recipes!(Server::with_table().map(|server| {
    let locks = server.place_with(&[]);
    (server, locks)
}));
