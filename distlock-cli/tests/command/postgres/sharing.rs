//! Holders, waiters, and how they are distinguished.

use nix::sys::signal::Signal;
use test_servers::ServerOptions;

use super::server::Server;
use crate::at_a_server::Server as _;
use crate::at_a_server::cases;
use crate::at_a_server::sharing::runs_and_has_name_and_token;
use crate::support::{Sandbox, assert_code, lives, until};

cases!(Server::start(), sharing: [
    loops_on_several_processes_lose_no_increment_and_tokens_rise,
    a_signal_while_waiting_leaves_the_queue_at_once,
    locks_elsewhere_and_of_other_names_are_other_locks,
]);

#[test]
fn without_any_option_the_command_runs() {
    let options = ServerOptions::new().user("app", "right", &["CREATE ON SCHEMA public"]);
    let Some(server) = Server::start_with(options) else { return };
    runs_and_has_name_and_token(&Sandbox::at(server.url()));
    for fencing in ["sequence", "table"] {
        runs_and_has_name_and_token(&server.place_with(&[("fencing", fencing)]));
    }
}

#[test]
fn without_tokens_the_command_has_none() {
    let Some(server) = Server::start() else { return };
    let sandbox = server.place_with(&[("fencing", "none")]);
    let output = sandbox.run(["exec", "job", "--", "sh", "-c", "echo ${DISTLOCK_TOKEN-none}"]);
    assert_code(&output, 0, "none");
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "none\n");
}

/// The system closes its connection, which the server notices, so the next holder does not wait for the lease.
#[test]
fn a_killed_holder_takes_its_command_along_and_the_next_has_the_lock_before_the_lease_ends() {
    let Some(server) = Server::start() else { return };
    let sandbox = server.sandbox("1h");
    let mut job = sandbox.exec(&[], "echo $$; exec sleep 1000");
    let child = job.pid_line();
    let mut next = sandbox.exec(&[], "touch mine");
    sandbox.until_waiting("job", 1);
    job.signal(Signal::SIGKILL);
    until("the next one has the lock", || sandbox.file("mine").exists());
    until("the command ends with distlock", || !lives(child));
    assert_eq!(next.code(), 0);
}
