//! The exit codes of failures at the server.

use std::net::TcpStream;

use serde_json::Value;
use test_servers::ServerOptions;

use super::server::Server;
use crate::at_a_server::failures::{doctor, doctor_with, finding, is_64, is_77, lengths_and_graces};
use crate::at_a_server::{Server as _, cases};
use crate::support::{Sandbox, until};

cases!(Server::start(), failures: [
    a_server_that_is_away_is_69,
    the_doctor_finds_what_there_is_to_find,
    a_watch_says_when_it_cannot_look_and_when_it_can_again,
    a_server_that_starts_late_is_waited_for,
    the_wait_for_a_server_is_reported,
    a_wait_that_ends_before_the_server_starts_is_69_and_says_so,
    a_signal_ends_the_wait_for_a_server,
    a_server_that_does_not_answer_is_69,
    a_held_lock_exits_with_75_and_names_the_holder,
    a_signal_ends_a_wait_although_the_server_is_silent,
    a_wait_that_ends_while_the_server_is_silent_is_69_and_says_so,
    too_few_descriptors_are_70_with_the_remedy_and_never_a_panic,
]);

#[test]
fn the_doctor_warns_of_a_server_that_evicts_and_of_one_that_forgets_at_a_restart() {
    let Some(server) = Server::start_with(ServerOptions::new()) else { return };
    server.command(&["CONFIG", "SET", "maxmemory", "1gb"]);
    server.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    for options in [[].as_slice(), &["-vv"]] {
        let (code, findings) = doctor_with(&Sandbox::at(server.url()), options);
        assert_eq!(code, Some(1), "{options:?}: {findings:?}");
        for part in ["maxmemory-policy allkeys-lru", "appendonly no"] {
            let warns = |finding: &Value| {
                finding["check"] == "server"
                    && finding["message"].as_str().is_some_and(|text| text.contains(part))
            };
            assert_eq!(findings.iter().filter(|finding| warns(finding)).count(), 1, "{findings:?}");
        }
    }
}

#[test]
fn the_doctor_warns_of_replicas_that_a_plain_url_knows_nothing_of() {
    let (Some(primary), Some(replica)) =
        (Server::start_with(ServerOptions::new()), Server::start_with(ServerOptions::new()))
    else {
        return;
    };
    let address = primary.address();
    replica.command(&["REPLICAOF", &address.ip().to_string(), &address.port().to_string()]);
    until("the primary has a replica", || {
        format!("{:?}", primary.command(&["INFO", "replication"])).contains("connected_slaves:1")
    });
    let (code, findings) = doctor(&Sandbox::at(primary.url()));
    assert_eq!(code, Some(1), "{findings:?}");
    let says = |part: &str| findings.iter().any(|one| one["message"].as_str().unwrap().contains(part));
    assert!(says("connected_slaves 1") && says("redis+sentinel://"), "{findings:?}");
}

#[test]
fn the_doctor_warns_when_few_connections_are_left() {
    let Some(server) = Server::start_with(ServerOptions::new()) else { return };
    server.command(&["CONFIG", "SET", "maxclients", "100"]);
    let _others: Vec<_> = (0..80).map(|_| TcpStream::connect(server.address()).unwrap()).collect();
    let (code, findings) = doctor(&Sandbox::at(server.url()));
    assert_eq!(code, Some(1), "{findings:?}");
    let says = |part: &str| findings.iter().any(|one| one["message"].as_str().unwrap().contains(part));
    assert!(says("the 100 connections") && says("raise maxclients"), "{findings:?}");
}

#[test]
fn the_doctor_names_the_right_to_list() {
    let options = ServerOptions::new().user("app", "right", &["~* &* +@all -scan"]);
    let Some(server) = Server::start_with(options) else { return };
    let (code, findings) = doctor(&Sandbox::at(server.url()));
    assert_eq!(code, Some(1), "{findings:?}");
    let list = finding(&findings, "list");
    assert!(list["level"] == "warning" && list["message"].as_str().unwrap().contains("scan"), "{list}");
}

#[test]
fn the_doctor_says_what_is_not_checked_without_the_right_to_ask() {
    let options = ServerOptions::new().user("app", "right", &["~* &* +@all -info"]);
    let Some(server) = Server::start_with(options) else { return };
    let (code, findings) = doctor(&Sandbox::at(server.url()));
    assert_eq!(code, Some(1), "{findings:?}");
    let says = |finding: &Value| finding["message"].as_str().unwrap().contains("INFO");
    let told = findings.iter().find(|finding| says(finding)).unwrap();
    assert!(told["check"] == "server" && told["level"] == "warning", "{told}");
}

#[test]
fn the_doctor_names_a_permission_that_is_missing() {
    let options = ServerOptions::new().user("app", "right", &["~other:* &* +@all"]);
    let Some(server) = Server::start_with(options) else { return };
    let (code, findings) = doctor(&Sandbox::at(server.url()));
    assert_eq!(code, Some(77), "{findings:?}");
    let fault = findings.iter().find(|finding| finding["level"] == "fault").unwrap();
    assert!(fault["message"].as_str().unwrap().contains("permissions"), "{fault}");
}

/// The only finding, and the exit code.
fn fault_of(url: String) -> (i32, String) {
    let (code, findings) = doctor(&Sandbox::at(url));
    let [fault] = findings.as_slice() else { panic!("{findings:?}") };
    assert_eq!((&fault["check"], &fault["level"]), (&"connect".into(), &"fault".into()));
    (code.unwrap(), fault["message"].as_str().unwrap().to_owned())
}

#[test]
fn the_doctor_names_a_login_that_is_refused() {
    let Some(server) = Server::start_with(ServerOptions::new().password("right")) else { return };
    let (code, message) = fault_of(server.url().replace("right", "wrong"));
    assert!(code == 77 && message.contains("check user and password"), "{code}: {message}");
}

#[test]
fn the_doctor_names_a_lack_of_tls_and_an_authority_that_is_not_trusted() {
    let Some(server) = Server::start_with(ServerOptions::new().tls()) else { return };
    let address = server.url().split_once('?').unwrap().0.to_owned();
    for (url, part) in [(address.clone(), "certificate"), (address.replace("rediss:", "redis:"), "TLS")] {
        let (code, message) = fault_of(format!("{url}?connect_timeout=0s"));
        assert!(code == 69 && message.contains(part), "{code}: {message}");
    }
}

#[test]
fn a_refused_login_or_permission_exits_with_77() {
    let rules = "~other:* &* +@all";
    let options = ServerOptions::new().user("app", "right", &[rules]);
    let Some(server) = Server::start_with(options) else { return };
    let address = server.url().rsplit_once('@').unwrap().1.to_owned();
    for (login, part) in [
        ("app:wrong@", "check user and password"),
        ("stranger:right@", "check user and password"),
        (":right@", "check user and password"),
        ("", "check user and password"),
        ("app:right@", "permissions"),
    ] {
        is_77(format!("redis://{login}{address}"), part);
    }
}

#[test]
fn a_url_that_makes_no_sense_is_64_and_says_what_to_write() {
    for (url, part) in [
        ("redis://", "redis://host:6379"),
        ("redis://one,two", "primary"),
        ("redis://cache:port", "not a number"),
        ("redis://cache/first", "not a number"),
        ("redis://cache?lease=soon", "30s"),
        ("redis://cache?lease=500ms", "at least"),
        ("redis://cache?frobnicate=1", "frobnicate"),
        ("redis://app@cache", "password_file"),
        ("redis://cache?password_file=/nonexistent/file", "/nonexistent/file"),
        ("rediss://cache?cert=/x", "both"),
        ("unix://cache/x", "unix:///"),
    ] {
        is_64(url, part);
    }
}

#[test]
fn a_lease_too_short_for_the_grace_is_64_and_says_which_to_change() {
    // Refused before distlock connects: there is no such server.
    let sandbox = |lease: &str| Sandbox::at(format!("redis://127.0.0.1:1?lease={lease}&connect_timeout=0s"));
    lengths_and_graces(sandbox, "6s", "a lease of 6s", &["1s", "6s", "30s", "1h"], 69);
}
