//! The exit codes of what goes wrong at the server.

use conformance_tests::servers::RedisOptions;

use super::server::Server;
use crate::support::{Place, assert_code, bare, said};

#[test]
fn a_server_that_is_away_is_69() {
    let Some(server) = Server::start() else { return };
    server.kill();
    let place = server.place("30s");
    for arguments in [["exec", "job", "touch", "ran"].as_slice(), &["status", "job"], &["hold", "job"]] {
        let output = place.run(arguments.iter().copied());
        assert_code(&output, 69, arguments);
        assert!(said(&output).contains("check that the server runs and can be reached"), "{output:?}");
    }
    assert!(!place.file("ran").exists());
}

#[test]
fn a_server_that_does_not_answer_is_69() {
    let Some(server) = Server::start() else { return };
    server.stop();
    let output = server.place("30s").run(["exec", "--no-wait", "job", "--", "true"]);
    assert_code(&output, 69, "stopped");
    assert!(said(&output).contains("did not answer"), "{output:?}");
    server.resume();
    assert_code(&server.place("30s").run(["exec", "job", "--", "true"]), 0, "resumed");
}

#[test]
fn whoever_is_not_let_in_or_may_not_do_it_is_77() {
    let rules = "~other:* &* +@all";
    let options = RedisOptions::new().user("app", "right", rules);
    let Some(server) = Server::start_with(options) else { return };
    let address = server.url().rsplit_once('@').unwrap().1.to_owned();
    for (login, part) in [
        ("app:wrong@", "check user and password"),
        ("stranger:right@", "check user and password"),
        (":right@", "check user and password"),
        ("", "check user and password"),
        ("app:right@", "permissions"),
    ] {
        let place = Place::at(format!("redis://{login}{address}"));
        let output = place.run(["exec", "job", "--", "touch", "ran"]);
        assert_code(&output, 77, login);
        assert!(said(&output).contains(part), "{output:?}");
        assert!(!place.file("ran").exists());
    }
}

#[test]
fn a_url_that_makes_no_sense_is_64_and_says_what_to_write() {
    for (url, part) in [
        ("redis://", "redis://host:6379"),
        ("redis://one,two", "primary"),
        ("redis://cache:port", "no number"),
        ("redis://cache/first", "no number"),
        ("redis://cache?lease=soon", "30s"),
        ("redis://cache?lease=500ms", "longer"),
        ("redis://cache?frobnicate=1", "frobnicate"),
        ("redis://app@cache", "password_file"),
        ("redis://cache?password_file=/nonexistent/file", "/nonexistent/file"),
        ("rediss://cache?cert=/x", "both"),
        ("unix://cache/x", "unix:///"),
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
fn a_lease_too_short_for_the_grace_is_64_and_says_which_to_change() {
    // Refused before anybody is asked: there is no such server.
    let place = Place::at("redis://127.0.0.1:1?lease=6s".to_owned());
    let output = place.run(["exec", "--grace", "5s", "job", "--", "true"]);
    assert_code(&output, 64, "6s for 5s");
    assert!(said(&output).contains("a lease of 6s") && said(&output).contains("--grace"), "{output:?}");
    // The default grace fits into any lease, and one that is not used up needs none of it.
    for lease in ["1s", "6s", "30s", "1h"] {
        let place = Place::at(format!("redis://127.0.0.1:1?lease={lease}"));
        assert_code(&place.run(["exec", "job", "--", "true"]), 69, lease);
    }
    assert_code(&place.run(["exec", "--grace", "5s", "--on-lost", "ignore", "job", "true"]), 69, "ignore");
}

#[test]
fn a_lock_that_is_not_to_be_had_is_75_and_says_who_has_it() {
    let Some(server) = Server::start() else { return };
    let place = server.place("30s");
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

#[test]
fn too_few_descriptors_are_70_with_the_remedy_and_never_a_panic() {
    let Some(server) = Server::start() else { return };
    let place = server.place("30s");
    let mut codes = Vec::new();
    for limit in 8..36 {
        let script = format!("ulimit -n {limit} && exec {} exec job -- true", env!("CARGO_BIN_EXE_distlock"));
        let output = std::process::Command::new("sh")
            .args(["-c", &script])
            .env("DISTLOCK_URL", place.url())
            .output()
            .unwrap();
        let code = crate::support::code_of(output.status);
        if code == 70 {
            assert!(said(&output).contains("ulimit -n"), "{limit}: {output:?}");
        } else {
            assert_code(&output, 0, limit);
        }
        codes.push(code);
    }
    assert_eq!((codes.first(), codes.last()), (Some(&70), Some(&0)), "{codes:?}");
}
