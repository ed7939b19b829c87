//! The exit codes of what goes wrong at the server.

use conformance_tests::servers::ZooKeeperOptions;

use super::server::Server;
use crate::support::{Place, assert_code, bare, said};

#[test]
fn a_server_that_is_away_is_69() {
    let Some(server) = Server::start() else { return };
    server.kill();
    let place = server.place("6s");
    for arguments in [["exec", "job", "touch", "ran"].as_slice(), &["status", "job"], &["hold", "job"]] {
        let output = place.run(arguments.iter().copied());
        assert_code(&output, 69, arguments);
        assert!(said(&output).contains("can be reached"), "{output:?}");
    }
    assert!(!place.file("ran").exists());
}

#[test]
fn a_server_that_does_not_answer_is_69() {
    let Some(server) = Server::start() else { return };
    server.stop();
    let output = server.place("6s").run(["exec", "--no-wait", "job", "--", "true"]);
    assert_code(&output, 69, "stopped");
    assert!(said(&output).contains("can be reached"), "{output:?}");
    server.resume();
    assert_code(&server.place("60s").run(["exec", "job", "--", "true"]), 0, "resumed");
}

#[test]
fn whoever_may_not_do_it_is_77() {
    let Some(server) = Server::start_with(ZooKeeperOptions::new().digest_user("app", "right")) else {
        return;
    };
    let own = server.place_with(&[("acl", "creator")]);
    assert_code(&own.run(["exec", "job", "--", "true"]), 0, "who made it");
    // To the scheme digest a wrong password is another user.
    for login in ["app:wrong@", "stranger:right@", ""] {
        let place = Place::at(server.url().replace("app:right@", login));
        let output = place.run(["exec", "job", "--", "touch", "ran"]);
        assert_code(&output, 77, login);
        assert!(said(&output).contains("permissions"), "{output:?}");
        assert!(!place.file("ran").exists());
    }
}

#[test]
fn whoever_is_not_let_in_is_77() {
    let Some(server) = Server::start_with(ZooKeeperOptions::new().sasl_user("app", "right")) else { return };
    assert_code(&server.place_with(&[]).run(["exec", "job", "--", "true"]), 0, "the user");
    let place = Place::at(server.url().replace("app:right@", "app:wrong@"));
    let output = place.run(["exec", "job", "--", "touch", "ran"]);
    assert_code(&output, 77, "a wrong password");
    assert!(said(&output).contains("password"), "{output:?}");
    assert!(!place.file("ran").exists());
}

#[test]
fn a_url_that_makes_no_sense_is_64_and_says_what_to_write() {
    for (url, part) in [
        ("zookeeper:///locks", "zookeeper://host:2181"),
        ("zookeeper://one/zookeeper", "/zookeeper"),
        ("zookeeper://one/a//b", "empty"),
        ("zookeeper://one/locks?session_timeout=soon", "30s"),
        ("zookeeper://one/locks?session_timeout=500ms", "second"),
        ("zookeeper://one/locks?lease=30s", "lease"),
        ("zookeeper://one/locks?acl=creator", "user and password"),
        ("zookeeper://app@one/locks", "password_file"),
        ("zookeeper://app@one/locks?password_file=/nonexistent/file", "/nonexistent/file"),
        ("zookeeper://one/locks?cert=/x", "both"),
        ("zookeeper://one/locks?ca=/nonexistent/ca.pem", "/nonexistent/ca.pem"),
    ] {
        let output = Place::at(url.to_owned()).run(["exec", "job", "--", "true"]);
        assert_code(&output, 64, url);
        assert!(said(&output).contains(part) && said(&output).contains("--url"), "{url}: {output:?}");
        let output = bare().env("DISTLOCK_URL", url).args(["status", "job"]).output().unwrap();
        assert_code(&output, 64, url);
        assert!(said(&output).contains("DISTLOCK_URL"), "{url}: {output:?}");
    }
}

#[test]
fn a_session_too_short_for_the_grace_is_64_and_says_which_to_change() {
    let Some(server) = Server::start() else { return };
    let output = server.place("9s").run(["exec", "--grace", "5s", "job", "--", "true"]);
    assert_code(&output, 64, "6s for 5s");
    assert!(said(&output).contains("session_timeout") && said(&output).contains("--grace"), "{output:?}");
    // The default grace fits into any session, and one that is not used up needs none of it.
    for session in ["4s", "10s", "60s"] {
        assert_code(&server.place(session).run(["exec", "job", "--", "true"]), 0, session);
    }
    let output = server.place("9s").run(["exec", "--grace", "5s", "--on-lost", "ignore", "job", "true"]);
    assert_code(&output, 0, "ignore");
}

#[test]
fn a_lock_that_is_not_to_be_had_is_75_and_says_who_has_it() {
    let Some(server) = Server::start() else { return };
    let place = server.place("60s");
    let holder = place.hold("job");
    let held_by = format!("held by pid {}", holder.pid());
    for wait in ["--no-wait", "--wait=300ms"] {
        let output = place.run(["exec", wait, "job", "--", "touch", "ran"]);
        assert_code(&output, 75, wait);
        assert!(said(&output).contains(&held_by), "{output:?}");
    }
    assert_eq!(place.status("job")["waiters"].as_array().unwrap().len(), 0);
    assert!(!place.file("ran").exists());
}
