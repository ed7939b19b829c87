//! The exit codes of failures at the server.

use test_servers::ServerOptions;

use super::server::Server;
use crate::at_a_server::Server as _;
use crate::at_a_server::failures::{doctor, finding, is_64, is_77, lengths_and_graces};
use crate::at_a_server::{cases, in_all};
use crate::support::assert_code;

cases!(Server::start(), failures: [
    a_server_that_is_away_is_69,
    the_doctor_finds_what_there_is_to_find,
    a_watch_says_when_it_cannot_look_and_when_it_can_again,
    a_server_that_does_not_answer_is_69,
    a_held_lock_exits_with_75_and_names_the_holder,
]);

cases!(in_all(Server::start), failures: [
    a_server_that_starts_late_is_waited_for,
    a_wait_that_ends_before_the_server_starts_is_69_and_says_so,
    a_signal_ends_the_wait_for_a_server,
]);

/// As Curator's mutex and reader write them, the address included.
#[test]
fn the_doctor_tells_of_the_locks_of_other_programs() {
    let Some(server) = Server::start() else { return };
    let (_, findings) = doctor(&server.sandbox("30s"));
    assert!(!finding(&findings, "list").to_string().contains("other programs"), "{findings:?}");
    let client = "_c_1b2d0a52-6c1d-4d0d-8a73-0d0b63c6f1c5";
    server.create("orders-42", &format!("{client}-lock-"), b"10.0.0.7");
    server.create("reports", &format!("{client}-__READ__"), b"10.0.0.7");
    let (_, findings) = doctor(&server.sandbox("30s"));
    let list = finding(&findings, "list");
    let message = list["message"].as_str().unwrap();
    assert!(list["level"] == "fine" && message.contains("2 of all locks, first \"orders-42\""), "{list}");
    // They are no process of this machine.
    let sandbox = server.sandbox("30s");
    let own = sandbox.hold("own");
    let [all, ours] = ["list", "status"].map(|subcommand| sandbox.run([subcommand]));
    let [all, ours] = [all, ours].map(|output| String::from_utf8(output.stdout).unwrap());
    assert!(all.contains("orders-42") && !ours.contains("orders-42"), "{all}{ours}");
    assert!(ours.contains("own") && ours.contains(&own.pid().to_string()), "{ours}");
}

#[test]
fn the_doctor_names_a_session_timeout_that_the_servers_refuse() {
    let Some(server) = Server::start() else { return };
    let (code, findings) = doctor(&server.sandbox("90s"));
    assert_eq!(code, Some(1), "{findings:?}");
    let told = finding(&findings, "server")["message"].as_str().unwrap();
    assert!(told.contains("maxSessionTimeout") && told.contains("90s") && told.contains("60s"), "{told}");
}

#[test]
fn a_refused_permission_exits_with_77() {
    let Some(server) = Server::start_with(ServerOptions::new().user("app", "right", &["digest"])) else {
        return;
    };
    let own = server.place_with(&[("acl", "creator")]);
    assert_code(&own.run(["exec", "job", "--", "true"]), 0, "who made it");
    // In the digest scheme a wrong password means another user.
    for login in ["app:wrong@", "stranger:right@", ""] {
        is_77(server.url().replace("app:right@", login), "permissions");
    }
}

#[test]
fn a_refused_login_exits_with_77() {
    let Some(server) = Server::start_with(ServerOptions::new().user("app", "right", &["sasl"])) else {
        return;
    };
    assert_code(&server.place_with(&[]).run(["exec", "job", "--", "true"]), 0, "the user");
    is_77(server.url().replace("app:right@", "app:wrong@"), "password");
}

#[test]
fn a_url_that_makes_no_sense_is_64_and_says_what_to_write() {
    let tls: &[_] = if cfg!(feature = "zookeeper-tls") {
        &[
            ("zookeeper://one/locks?cert=/x", "both"),
            ("zookeeper://one/locks?ca=/nonexistent/ca.pem", "/nonexistent/ca.pem"),
        ]
    } else {
        &[("zookeeper://one/locks?ca=/nonexistent/ca.pem", "zookeeper-tls")]
    };
    let all = [
        ("zookeeper:///locks", "zookeeper://host:2181"),
        ("zookeeper://one/zookeeper", "/zookeeper"),
        ("zookeeper://one/a//b", "empty"),
        ("zookeeper://one/locks?session_timeout=soon", "30s"),
        ("zookeeper://one/locks?session_timeout=500ms", "at least 1s"),
        ("zookeeper://one/locks?lease=30s", "lease"),
        ("zookeeper://one/locks?acl=creator", "user and password"),
        ("zookeeper://app@one/locks", "password_file"),
        ("zookeeper://app@one/locks?password_file=/nonexistent/file", "/nonexistent/file"),
    ];
    for &(url, part) in all.iter().chain(tls) {
        is_64(url, part);
    }
}

#[test]
fn a_session_too_short_for_the_grace_is_64_and_says_which_to_change() {
    let Some(server) = Server::start() else { return };
    lengths_and_graces(|session| server.sandbox(session), "9s", "session_timeout", &["10s", "30s", "60s"], 0);
}
