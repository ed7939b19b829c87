//! What distlock reports of holders and waiters, and breaking the lock: the server knows sessions.

use std::time::Duration;

use serde_json::{Value, json};

use super::server::Server;
use crate::at_a_server::Server as _;
use crate::at_a_server::sharing::{break_serves_the_next, holder_and_queue};
use crate::support::{assert_code, said};

/// The warning if the server ends a session without knowing the names of the locks on it.
const COST: &str = "all other locks on it are lost as well";

#[test]
fn status_tells_holder_and_queue() {
    let Some(server) = Server::start() else { return };
    let seen = holder_and_queue(&server);
    let held_by = &seen.status["holders"][0];
    assert!(held_by["token"].is_null() && held_by["since"].is_null(), "{held_by}");
    assert!(!seen.text.contains("not whose that is"), "{}", seen.text);
}

/// The interval between two checks ends soon, and the holder then learns of the break.
#[test]
fn break_ends_the_command_of_the_holder() {
    let Some(server) = Server::start() else { return };
    break_serves_the_next(&server, &server.sandbox("60s"), "connection_lost");
}

#[test]
fn break_tells_what_it_costs() {
    let Some(server) = Server::start() else { return };
    for (names, cost) in [(["job", "other"].as_slice(), Value::Null), (&["job"], json!([]))] {
        let sandbox = server.sandbox("60s");
        let (locks, guards) = server.runtime().block_on(async {
            let locks = distlock::connect(sandbox.url()).await.unwrap();
            let mut guards = Vec::new();
            for name in names {
                guards.push(locks.mutex(*name).unwrap().acquire().await.unwrap());
            }
            (locks, guards)
        });
        let output = sandbox.run(["break", "--yes", "--json", "job"]);
        assert_code(&output, 0, "--json");
        let event: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&event["event"], &event["name"]), (&"broken".into(), &"job".into()));
        assert_eq!(event["also_lost"], cost, "{event}");
        for name in names {
            assert_eq!(sandbox.status(name)["held"], false, "{name}");
        }
        server.runtime().block_on(async {
            for guard in &guards {
                guard.hold().lost().await;
            }
            let _ = locks.close(Duration::ZERO).await;
        });
    }
}

/// The server has only keys, and the names stand in a table.
#[test]
fn what_has_no_name_is_not_listed_and_64_says_how_it_would_be() {
    let Some(server) = Server::start() else { return };
    let sandbox = server.sandbox("60s");
    let _holder = sandbox.hold("job");
    for subcommand in ["list", "watch", "top", "status"] {
        let output = sandbox.run([subcommand]);
        assert_code(&output, 64, subcommand);
        assert!(said(&output).contains("fencing=table in all URLs"), "{output:?}");
    }
    let Some(server) = Server::with_table() else { return };
    let sandbox = server.sandbox("60s");
    let _holder = sandbox.hold("job");
    let output = sandbox.run(["list"]);
    assert_code(&output, 0, "list");
    assert!(output.stdout.starts_with(b"lock \"job\" is held by "), "{output:?}");
}

#[test]
fn break_says_it_to_people() {
    let Some(server) = Server::start() else { return };
    let sandbox = server.sandbox("60s");
    let mut holder = sandbox.hold("job");
    let output = sandbox.run(["break", "job"]);
    assert_code(&output, 64, "without --yes");
    let who = server.people_read(holder.pid());
    assert!(said(&output).contains("--yes") && said(&output).contains(&who), "{output:?}");
    let output = sandbox.run(["break", "--yes", "job"]);
    assert_code(&output, 0, "with --yes");
    assert!(said(&output).contains(&format!("took lock \"job\" from {who}")), "{output:?}");
    assert!(!said(&output).contains(COST), "it had no other: {output:?}");
    assert_eq!(holder.output_event()["reason"], "connection_lost");
    assert_eq!(holder.code(), 76);
    let output = sandbox.run(["break", "--yes", "job"]);
    assert_code(&output, 0, "free");
    assert!(said(&output).contains("is not held"), "{output:?}");
}
