//! Readers beside each other, and at most so many at a time.

mod mariadb {
    use crate::at_a_server::{in_all, places};
    use crate::mysql::server::Server;

    crate::together::all!(places(in_all(Server::mariadb_with_table)));
}

mod mysql57 {
    use crate::at_a_server::{in_all, places};
    use crate::mysql::server::Server;

    crate::together::all!(places(in_all(Server::mysql57_with_table)));
}
