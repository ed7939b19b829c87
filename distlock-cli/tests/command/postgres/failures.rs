//! The exit codes of failures at the server.

use test_servers::{ServerOptions, left_out};

use super::server::Server;
use crate::at_a_server::failures::{doctor, finding, is_64, is_77, lengths_and_graces};
use crate::at_a_server::{Server as _, cases, in_all};
use crate::support::{Sandbox, assert_code, said};

cases!(Server::start(), failures: [
    a_server_that_is_away_is_69,
    a_server_that_does_not_answer_is_69,
    a_held_lock_exits_with_75_and_names_the_holder,
]);

cases!(in_all(Server::start), failures: [
    a_server_that_starts_late_is_waited_for,
    a_wait_that_ends_before_the_server_starts_is_69_and_says_so,
    a_signal_ends_the_wait_for_a_server,
    a_signal_ends_a_wait_although_the_server_is_silent,
    a_wait_that_ends_while_the_server_is_silent_is_69_and_says_so,
    too_few_descriptors_are_70_with_the_remedy_and_never_a_panic,
]);

cases!(Server::with_table(), failures: [the_doctor_finds_what_there_is_to_find]);

#[test]
fn the_doctor_says_that_no_tokens_come() {
    let Some(server) = Server::start() else { return };
    let (_, findings) = doctor(&server.place_with(&[("fencing", "none")]));
    let lock = finding(&findings, "lock");
    let message = lock["message"].as_str().unwrap();
    assert!(lock["level"] == "warning" && message.contains("no fencing token"), "{lock}");
}

#[test]
fn the_doctor_names_a_permission_that_slots_need_and_locks_do_not() {
    let Some(server) = Server::start() else { return };
    let (code, findings) = doctor(&Sandbox::at(server.url()));
    assert_eq!(code, Some(77), "{findings:?}");
    let faults: Vec<_> = findings.iter().filter(|finding| finding["level"] == "fault").collect();
    let [fault] = faults.as_slice() else { panic!("{findings:?}") };
    assert_eq!(fault["check"], "slots");
    assert!(fault["message"].as_str().unwrap().contains("GRANT CREATE ON SCHEMA"), "{fault}");
    let list = finding(&findings, "list");
    assert!(list["level"] == "warning" && list.to_string().contains("fencing=table in all URLs"), "{list}");
    assert_eq!(finding(&findings, "failover")["level"], "fine");
}

#[test]
fn the_doctor_warns_when_few_connections_and_few_locks_are_left() {
    let options = ServerOptions::new().user("app", "right", &[]).setting("max_locks_per_transaction", "10");
    let Some(server) = Server::start_with(options.setting("max_connections", "100")) else { return };
    let mut others: Vec<_> = (0..78).map(|_| server.session()).collect();
    let taking = "SELECT pg_advisory_lock(number) FROM generate_series(1,850) AS number";
    server.runtime().block_on(others[0].query(taking)).unwrap();
    let (_, findings) = doctor(&Sandbox::at(server.url()));
    let warnings: Vec<_> = findings.iter().filter(|finding| finding["check"] == "server").collect();
    let says = |part: &str| warnings.iter().any(|one| one["message"].as_str().unwrap().contains(part));
    assert!(says("of the server's 97 connections") && says("raise max_connections"), "{findings:?}");
    assert!(says("of 1000 (max_locks") && says("raise max_locks_per_transaction"), "{findings:?}");
}

#[test]
fn the_doctor_names_a_pooler_in_between() {
    if left_out("pgbouncer").is_some() {
        return;
    }
    let Some(server) = Server::alone() else { return };
    let pooler = server.pooler();
    let url = server.url().replace(&server.way().address().to_string(), &pooler.address().to_string());
    let (code, findings) = doctor(&Sandbox::at(url));
    assert_eq!((code, findings.len()), (Some(64), 1), "{findings:?}");
    let fault = finding(&findings, "connect").to_string();
    assert!(fault.contains("pooler=session"), "{fault}");
}

#[test]
fn a_refused_login_or_permission_exits_with_77() {
    let Some(server) = Server::start() else { return };
    for login in ["app:wrong@", "stranger:right@", "app@"] {
        is_77(server.url().replace("app:right@", login), "check user, password");
    }
    assert_code(&Sandbox::at(server.url()).run(["exec", "job", "--", "true"]), 0, "no rights are needed");
    for fencing in ["sequence", "table"] {
        is_77(format!("{}&fencing={fencing}", server.url()), "permission");
    }
}

#[test]
fn a_database_that_is_not_there_is_64() {
    let Some(server) = Server::start() else { return };
    is_64(&server.url().replace("/locks", "/nowhere"), "name a database");
}

#[test]
fn a_standby_is_69_and_says_where_to_go() {
    let Some(server) = Server::alone() else { return };
    let sandbox = server.place_with(&[("connect_timeout", "0s")]);
    server.restart_as_standby();
    for arguments in [["exec", "job", "touch", "ran"].as_slice(), &["status", "job"], &["hold", "job"]] {
        let output = sandbox.run(arguments.iter().copied());
        assert_code(&output, 69, arguments);
        assert!(said(&output).contains("connect to the primary"), "{output:?}");
    }
    assert!(!sandbox.file("ran").exists());
    server.promote();
    assert_code(&sandbox.run(["exec", "job", "--", "true"]), 0, "a primary");
}

/// The first statement of a session needs more than the server has.
#[test]
fn a_server_without_room_is_69_and_says_what_to_raise() {
    let options = ServerOptions::new().user("app", "right", &[]);
    let options = options.setting("max_connections", "4").setting("superuser_reserved_connections", "3");
    let Some(server) = Server::start_with(options) else { return };
    let sandbox = server.place_with(&[("connect_timeout", "0s")]);
    // The session that set the server up may not have ended yet.
    let holder = server.place_with(&[("connect_timeout", "60s")]).hold("job");
    let output = sandbox.run(["exec", "other", "true"]);
    assert_code(&output, 69, "no room");
    assert!(said(&output).contains("raise max_connections"), "{output:?}");
    drop(holder);
}

#[test]
fn a_url_that_makes_no_sense_is_64_and_says_what_to_write() {
    for (url, part) in [
        ("postgres://", "postgres://user@host:5432/database"),
        ("postgresql:///locks", "postgres://user@host:5432/database"),
        ("postgres://one,two", "primary"),
        ("postgres://db:port", "not a number"),
        ("postgres://db/one/two", "%2F"),
        ("postgres://db?lease=soon", "30s"),
        ("postgres://db?lease=500ms", "at least"),
        ("postgres://app@db?lease=6s&validation_interval=1m", "validation_interval shorter"),
        ("postgres://db?fencing=always", "clock, sequence, table, none"),
        ("postgres://db?wait=server", "wait"),
        ("postgres://db?pooler=transaction", "none, session"),
        ("postgres://db?frobnicate=1", "frobnicate"),
        ("postgres://db", "postgres://user@host"),
        ("postgres://app@db?extra_ca=/nonexistent/ca.pem", "/nonexistent/ca.pem"),
        ("postgres://app@db?ca=/nonexistent/ca.pem", "extra_ca"),
        ("postgres://app@db?password_file=/nonexistent/file", "/nonexistent/file"),
        ("postgres://app@db?cert=/x", "both"),
        ("postgres://localhost?socket=/run/postgresql", ".s.PGSQL.5432"),
    ] {
        is_64(url, part);
    }
}

#[test]
fn a_lease_too_short_for_the_grace_is_64_and_says_which_to_change() {
    // Refused before distlock connects: there is no such server.
    let sandbox =
        |lease: &str| Sandbox::at(format!("postgres://app@127.0.0.1:1?lease={lease}&connect_timeout=0s"));
    lengths_and_graces(sandbox, "6s", "a lease of 6s", &["2s", "6s", "30s", "1h"], 69);
}
