//! The command on a real etcd server.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, Weak};

use test_servers::{EtcdServer, ServerOptions, TcpProxy, left_out};
use tokio::runtime::{Builder, Runtime};

use crate::at_a_server::failures::{doctor, finding, is_64, is_77};
use crate::at_a_server::loss::the_command_ends;
use crate::at_a_server::secrets::{
    SECRET, nothing_that_is_said_has_it, processes_do_not_show_it, with_and_without,
};
use crate::at_a_server::sharing::{break_serves_the_next, holder_and_queue};
use crate::at_a_server::{self, Server as _, cases, in_all, place, shared};
use crate::support::{Sandbox, assert_code};

static RUNNING: Mutex<Weak<EtcdServer>> = Mutex::new(Weak::new());

/// The locks of one test at a server, with blocking calls.
struct Server {
    etcd: Arc<EtcdServer>,
    way: TcpProxy,
    prefix: String,
    runtime: Runtime,
}

impl Server {
    /// A part of a server without access control that other tests use as well; `None` if the user left its tests out.
    fn start() -> Option<Self> {
        Self::of(|start| shared(&RUNNING, || start(ServerOptions::new())))
    }

    /// A server of this test alone, with a user who may use the prefix of the locks.
    fn with_user() -> Option<Self> {
        Self::of(|start| Arc::new(start(ServerOptions::new().user("app", SECRET, &["locks/"]))))
    }

    fn of(server: impl FnOnce(&dyn Fn(ServerOptions) -> EtcdServer) -> Arc<EtcdServer>) -> Option<Self> {
        if let Some(reason) = left_out("etcd") {
            eprintln!("etcd: {reason}");
            return None;
        }
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let etcd = server(&|options| runtime.block_on(EtcdServer::start_with(options)).unwrap());
        let way = TcpProxy::start(etcd.address()).unwrap();
        Some(Self { etcd, way, prefix: format!("locks/{}", place()), runtime })
    }

    fn url(&self) -> String {
        self.etcd.url_at(&[self.way.address()], &self.prefix)
    }

    fn keys(&self, lock: &str) -> Vec<String> {
        self.runtime.block_on(self.etcd.keys(&format!("{}/{lock}/", self.prefix))).unwrap()
    }

    fn command(&self, words: &[&str]) {
        self.runtime.block_on(self.etcd.command(words)).unwrap();
    }
}

impl at_a_server::Server for Server {
    const NAME: &'static str = "etcd";
    const BRIEF: &'static str = "12s";
    const AWAY: &'static str = "check that the servers run, have a majority and can be reached";
    const SILENT: &'static str = "did not answer";
    const LOOPS: [usize; 2] = [8, 8];

    fn address(&self) -> SocketAddr {
        self.etcd.address()
    }

    fn way(&self) -> &TcpProxy {
        &self.way
    }

    fn place_at(&self, address: SocketAddr, silence: &str) -> Sandbox {
        Sandbox::at(format!("{}?lease={silence}", self.etcd.url_at(&[address], &self.prefix)))
    }

    fn elsewhere(&self) -> Sandbox {
        Sandbox::at(format!("{}-elsewhere", self.url()))
    }
}

cases!(Server::start(), sharing: [
    loops_on_several_processes_lose_no_increment_and_tokens_rise,
    a_signal_while_waiting_leaves_the_queue_at_once,
    a_killed_holder_takes_its_command_along_and_the_next_has_the_lock,
    locks_elsewhere_and_of_other_names_are_other_locks,
]);

cases!(Server::start(), failures: [
    a_server_that_is_away_is_69,
    the_doctor_finds_what_there_is_to_find,
    a_watch_says_when_it_cannot_look_and_when_it_can_again,
    a_server_that_starts_late_is_waited_for,
    a_server_that_does_not_answer_is_69,
    a_held_lock_exits_with_75_and_names_the_holder,
]);

cases!(Server::start(), loss: [
    a_server_that_returns_in_time_is_suspect_and_then_restored,
    the_lock_is_not_granted_again_before_the_command_is_killed,
    distlock_that_was_stopped_for_too_long_ends_its_command_and_takes_nothing_from_the_next,
]);

cases!(Server::start(), election: [
    a_watch_shows_each_leader_and_a_killed_leader_is_followed_by_the_next,
    elections_and_locks_of_one_name_exclude_each_other,
]);

cases!(in_all(Server::start), once: [
    a_slot_runs_once_and_a_failure_consumes_it,
    a_slot_is_shown_and_forgotten,
    a_lock_is_kept_after_its_release,
    a_slot_is_forgotten_after_its_time,
]);

mod sharing {
    crate::together::all!(crate::at_a_server::places(crate::at_a_server::in_all(super::Server::start)));
}

#[test]
fn status_tells_holder_queue_and_token() {
    let Some(server) = Server::start() else { return };
    let seen = holder_and_queue(&server);
    seen.assert_tells_token_and_since();
    let held_by = &seen.status["holders"][0];
    assert!(server.keys("job")[0].ends_with(held_by["id"].as_str().unwrap()), "{held_by}");
}

#[test]
fn break_ends_the_command_of_the_holder_and_serves_the_next() {
    let Some(server) = Server::start() else { return };
    break_serves_the_next(&server, &server.sandbox("60s"), "broken");
}

#[test]
fn a_deleted_key_and_a_revoked_lease_end_the_command() {
    let Some(server) = Server::start() else { return };
    let sandbox = server.sandbox("60s");
    the_command_ends(&sandbox, &["deleted"], || server.command(&["del", &server.keys("job")[0]]));
    the_command_ends(&sandbox, &["session_closed", "deleted"], || {
        let key = server.keys("job").remove(0);
        let (lease, _) = key.rsplit('/').next().unwrap().split_once('-').unwrap();
        server.command(&["lease", "revoke", lease]);
    });
}

/// As `etcdctl lock` writes it.
#[test]
fn the_doctor_tells_of_the_locks_of_other_programs() {
    let Some(server) = Server::start() else { return };
    server.command(&["put", &format!("{}/orders-42/694d71ddacfda227", server.prefix), ""]);
    let (_, findings) = doctor(&server.sandbox("60s"));
    let list = finding(&findings, "list");
    let message = list["message"].as_str().unwrap();
    assert!(list["level"] == "fine" && message.contains("1 of all locks, first \"orders-42\""), "{list}");
}

/// In the tier of all, where there is such a version.
#[test]
fn the_doctor_names_a_version_with_a_known_fault() {
    let oldest = || Server::of(|start| Arc::new(start(ServerOptions::new().oldest())));
    let Some(server) = in_all(oldest) else { return };
    let (_, findings) = doctor(&server.sandbox("60s"));
    let fault = finding(&findings, "server").to_string();
    assert!(fault.contains("etcd 3.4") && fault.contains("update the servers to"), "{fault}");
    assert_eq!(finding(&findings, "failover")["level"], "fine");
}

#[test]
fn a_refused_login_or_permission_exits_with_77_and_nothing_shows_the_password() {
    let Some(server) = Server::with_user() else { return };
    let sandbox = Sandbox::new();
    assert_code(&Sandbox::at(server.url()).run(["exec", "job", "--", "true"]), 0, "the user");
    is_77(server.url().replace(SECRET, "wrong"), "check user and password");
    is_77(server.url().replace("/locks/", "/others/"), "readwrite");
    processes_do_not_show_it(&with_and_without(server.url(), &sandbox));
    nothing_that_is_said_has_it(&server, with_and_without(server.url(), &sandbox), "lease=soon");
}

/// The script of the page: a token that is not that of the holder's key is refused.
#[test]
fn etcd_refuses_the_late_write_of_a_script() {
    let Some(server) = Server::start() else { return };
    let page = include_str!("../../../docs/backends/etcd.md");
    let script = page.split("```sh\n").skip(1).find(|block| block.contains("DISTLOCK_TOKEN")).unwrap();
    let script = script.split("```").next().unwrap().replace("locks/", &format!("{}/", server.prefix));
    let written = |token: &str| {
        let etcdctl = server.etcd.etcdctl(&[]);
        let folder = Path::new(etcdctl.get_program()).parent().unwrap();
        let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
        let sandbox = server.sandbox("60s");
        let mut exec =
            sandbox.distlock(["exec", "orders-42", "--", "sh", "-c", &format!("{token}\n{script}")]);
        exec.env("PATH", path).env("ETCDCTL_API", "3");
        let output = exec.env("ETCDCTL_ENDPOINTS", server.etcd.address().to_string()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().lines().next().unwrap().to_owned()
    };
    assert_eq!(written(""), "SUCCESS");
    assert_eq!(written("DISTLOCK_TOKEN=$((DISTLOCK_TOKEN - 1))"), "FAILURE");
}

#[test]
fn a_url_that_makes_no_sense_is_64_and_says_what_to_write() {
    for (url, part) in [
        ("etcd://one,,two", "etcd://host:2379"),
        ("etcd://one/a//b", "etcd://host:2379/apps/locks"),
        ("etcd://one?lease=1s", "at least 2s"),
        ("etcd://one?ca=/nonexistent/ca.pem", "etcds://"),
        ("etcds://one?ca=/nonexistent/ca.pem", "/nonexistent/ca.pem"),
        ("etcd://app@one", "password_file"),
    ] {
        is_64(url, part);
    }
}
