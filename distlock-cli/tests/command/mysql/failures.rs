//! The exit codes of failures at the server.

use test_servers::{MySqlFlavour, ServerOptions};

use super::server::{Server, Tokens};
use crate::at_a_server::failures::{doctor, finding, is_64, is_77, lengths_and_graces};
use crate::support::{Sandbox, assert_code, said};

mod mariadb {
    use super::Server;
    use crate::at_a_server::{cases, in_all};

    cases!(Server::mariadb(), failures: [
        a_server_that_is_away_is_69,
        the_doctor_finds_what_there_is_to_find,
        a_server_that_does_not_answer_is_69,
        a_held_lock_exits_with_75_and_names_the_holder,
    ]);

    cases!(in_all(Server::mariadb), failures: [
        a_server_that_starts_late_is_waited_for,
        a_wait_that_ends_before_the_server_starts_is_69_and_says_so,
        a_signal_ends_the_wait_for_a_server,
        a_signal_ends_a_wait_although_the_server_is_silent,
        a_wait_that_ends_while_the_server_is_silent_is_69_and_says_so,
        too_few_descriptors_are_70_with_the_remedy_and_never_a_panic,
    ]);
}

mod mysql57_with_table {
    use super::Server;
    use crate::at_a_server::cases;

    cases!(Server::mysql57_with_table(), failures: [
        a_server_that_is_away_is_69,
        a_server_that_starts_late_is_waited_for,
        a_wait_that_ends_before_the_server_starts_is_69_and_says_so,
        a_signal_ends_the_wait_for_a_server,
        a_server_that_does_not_answer_is_69,
        a_held_lock_exits_with_75_and_names_the_holder,
    ]);
}

/// A server with a user `app` who has these privileges and no others.
fn for_user_with(flavour: MySqlFlavour, grants: &[&str]) -> Option<Server> {
    let options = ServerOptions::new().flavour(flavour).database("locks").user("app", "right", grants);
    Server::start_with(flavour, Tokens::Minted, options)
}

#[test]
fn the_doctor_warns_when_few_connections_are_left() {
    for flavour in MySqlFlavour::ALL {
        let options = ServerOptions::new().flavour(flavour).setting("max_connections", "100");
        let Some(server) = Server::start_with(flavour, Tokens::Minted, options) else { continue };
        let _others: Vec<_> = (0..80).map(|_| server.session()).collect();
        let (_, findings) = doctor(&Sandbox::at(server.url()));
        let message = finding(&findings, "server")["message"].as_str().unwrap();
        let parts = ["of the server's 100 connections", "raise max_connections"];
        assert!(parts.iter().all(|part| message.contains(part)), "{flavour:?}: {findings:?}");
    }
}

#[test]
fn a_refused_login_or_permission_exits_with_77() {
    for flavour in MySqlFlavour::ALL {
        let Some(server) = for_user_with(flavour, &["SELECT ON locks.*"]) else { continue };
        for (login, part) in [
            ("app:wrong@", "check user, password"),
            ("stranger:right@", "check user, password"),
            ("app@", "check user, password"),
        ] {
            is_77(server.url().replace("app:right@", login), part);
        }
        assert_code(&Sandbox::at(server.url()).run(["exec", "job", "--", "true"]), 0, "no rights are needed");
        // Writing tokens into a table needs more.
        is_77(format!("{}&fencing=table", server.url()), "permissions");
        is_77(server.url().replace("/locks", "/mysql"), "access was refused");
    }
}

#[test]
fn a_database_that_is_not_there_is_64() {
    for flavour in MySqlFlavour::ALL {
        let Some(server) = for_user_with(flavour, &["ALL ON *.*"]) else { continue };
        is_64(&server.url().replace("/locks", "/nowhere"), "name a database");
    }
}

#[test]
fn a_replica_is_69_and_says_where_to_go() {
    for server in MySqlFlavour::ALL.into_iter().filter_map(Server::alone) {
        let sandbox = server.place_with(&[("connect_timeout", "0s")]);
        server.execute("SET GLOBAL read_only = 1");
        for arguments in [["exec", "job", "touch", "ran"].as_slice(), &["status", "job"], &["hold", "job"]] {
            let output = sandbox.run(arguments.iter().copied());
            assert_code(&output, 69, arguments);
            assert!(said(&output).contains("connect to the primary"), "{output:?}");
        }
        assert!(!sandbox.file("ran").exists());
        server.execute("SET GLOBAL read_only = 0");
        assert_code(&sandbox.run(["exec", "job", "--", "true"]), 0, "a primary again");
    }
}

#[test]
fn a_url_that_makes_no_sense_is_64_and_says_what_to_write() {
    for (url, part) in [
        ("mysql://", "mysql://user@host:3306/database"),
        ("mariadb:///locks", "mysql://user@host:3306/database"),
        ("mysql://one,two", "primary"),
        ("mysql://db:port", "not a number"),
        ("mysql://db/one/two", "%2F"),
        ("mysql://db?lease=soon", "30s"),
        ("mysql://db?lease=500ms", "at least"),
        ("mysql://app@db?lease=6s&validation_interval=1m", "validation_interval shorter"),
        ("mysql://db?fencing=always", "uuid, table, none"),
        ("mysql://db?fencing=table", "mysql://user@host/database?fencing=table"),
        ("mysql://db?frobnicate=1", "frobnicate"),
        ("mysql://db", "mysql://user@host"),
        ("mysql://app@db?extra_ca=/nonexistent/ca.pem", "/nonexistent/ca.pem"),
        ("mysql://app@db?ca=/nonexistent/ca.pem", "extra_ca"),
        ("mysql://app@db?password_file=/nonexistent/file", "/nonexistent/file"),
        ("mysql://app@db?cert=/x", "both"),
        ("mysql://db?socket=/run/mysqld/mysqld.sock", "mysql://user@localhost/database?socket="),
        ("mysql://db?prefix=Upper", "a-z"),
    ] {
        is_64(url, part);
    }
}

#[test]
fn a_lease_too_short_for_the_grace_is_64_and_says_which_to_change() {
    // Refused before distlock connects: there is no such server.
    let sandbox =
        |lease: &str| Sandbox::at(format!("mysql://app@127.0.0.1:1?lease={lease}&connect_timeout=0s"));
    lengths_and_graces(sandbox, "6s", "a lease of 6s", &["2s", "6s", "30s", "1h"], 69);
}
