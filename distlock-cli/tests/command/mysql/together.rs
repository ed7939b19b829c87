//! Readers beside each other, and at most so many at a time.

mod mariadb {
    use crate::mysql::server::Server;

    crate::together::all!(crate::at_a_server::places(Server::mariadb_with_table()));
}

mod mysql57 {
    use crate::mysql::server::Server;

    crate::together::all!(crate::at_a_server::places(Server::mysql57_with_table()));
}
