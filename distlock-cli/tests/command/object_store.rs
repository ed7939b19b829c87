//! The command on an object store.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use test_servers::{S3Faults, S3Server, TcpProxy};

use crate::at_a_server::failures::{doctor, is_64};
use crate::at_a_server::sharing::{break_serves_the_next, holder_and_queue};
use crate::at_a_server::{self, Server as _, cases, place, shared};
use crate::support::Sandbox;

static RUNNING: Mutex<Weak<S3Server>> = Mutex::new(Weak::new());

/// The locks of one test in a bucket.
struct Server {
    store: Arc<S3Server>,
    way: TcpProxy,
    prefix: String,
}

impl Server {
    fn start() -> Self {
        let store = shared(&RUNNING, || S3Server::start().unwrap());
        let way = TcpProxy::start(store.address()).unwrap();
        Self { store, way, prefix: place() }
    }
}

impl at_a_server::Server for Server {
    const NAME: &'static str = "s3";
    const BRIEF: &'static str = "12s";
    const AWAY: &'static str = "refused";
    const SILENT: &'static str = "did not answer";
    const LOOPS: [usize; 2] = [8, 4];

    fn address(&self) -> SocketAddr {
        self.store.address()
    }

    fn way(&self) -> &TcpProxy {
        &self.way
    }

    fn place_at(&self, address: SocketAddr, silence: &str) -> Sandbox {
        Sandbox::at(format!("{}&poll=50ms&lease={silence}", S3Server::url_at(address, &self.prefix)))
    }

    fn elsewhere(&self) -> Sandbox {
        Sandbox::at(S3Server::url_at(self.way.address(), &format!("{}-elsewhere", self.prefix)))
    }
}

cases!(Some(Server::start()), sharing: [
    loops_on_several_processes_lose_no_increment_and_tokens_rise,
    a_signal_while_waiting_leaves_the_queue_at_once,
    a_killed_holder_takes_its_command_along_and_the_next_has_the_lock,
    locks_elsewhere_and_of_other_names_are_other_locks,
]);

cases!(Some(Server::start()), failures: [
    a_server_that_is_away_is_69,
    a_server_that_does_not_answer_is_69,
    a_held_lock_exits_with_75_and_names_the_holder,
]);

cases!(Some(Server::start()), loss: [
    a_server_that_returns_in_time_is_suspect_and_then_restored,
    distlock_that_was_stopped_for_too_long_ends_its_command_and_takes_nothing_from_the_next,
]);

cases!(Some(Server::start()), election: [
    a_watch_shows_each_leader_and_a_killed_leader_is_followed_by_the_next,
]);

mod sharing {
    crate::together::all!(crate::at_a_server::places(crate::at_a_server::in_all(|| Some(
        super::Server::start()
    ))));
}

#[test]
fn status_tells_holder_queue_and_token() {
    let server = Server::start();
    holder_and_queue(&server).assert_tells_token_and_since();
}

#[test]
fn break_ends_the_command_of_the_holder_and_serves_the_next() {
    let server = Server::start();
    break_serves_the_next(&server, &server.sandbox("20s"), "broken");
}

/// That nothing is remembered is a warning. Objects stay, and each process has the same.
#[test]
fn the_doctor_finds_no_fault() {
    let server = Server::start();
    let (code, findings) = doctor(&server.sandbox("60s"));
    assert_eq!(code, Some(1), "{findings:?}");
    let exclusion = findings.iter().find(|finding| finding["check"] == "exclusion").unwrap();
    assert_eq!(exclusion["level"], "fine", "{findings:?}");
    let objects = || server.store.objects(&server.prefix).into_keys().collect::<Vec<_>>();
    let before = objects();
    doctor(&server.sandbox("60s"));
    assert_eq!(objects(), before);
}

/// Of several writes on the same condition it carries out each.
#[test]
fn the_doctor_refuses_a_store_that_checks_and_writes_in_two_steps() {
    let store = S3Server::start().unwrap();
    store.set_faults(S3Faults { apart: Duration::from_millis(500), ..S3Faults::default() });
    let (code, findings) = doctor(&Sandbox::at(S3Server::url_at(store.address(), "locks") + "&poll=50ms"));
    let fault = findings.iter().find(|finding| finding["level"] == "fault").unwrap();
    assert_eq!((code, &fault["check"]), (Some(70), &"exclusion".into()), "{findings:?}");
    assert!(fault["message"].as_str().unwrap().contains("at once"), "{fault}");
}

#[test]
fn a_url_that_makes_no_sense_is_64_and_says_what_to_write() {
    for (url, part) in [
        ("s3:", "s3://my-bucket/locks"),
        ("s3://bucket?lease=1s", "at least 5s"),
        ("s3://key@bucket", "s3://KEY:SECRET@bucket"),
        ("gs://bucket?endpoint=http://127.0.0.1:1", "GOOGLE_SERVICE_ACCOUNT"),
    ] {
        is_64(url, part);
    }
}
