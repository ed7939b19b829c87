//! What distlock reports of holders and waiters, and breaking the lock: with a table, and where the server knows only
//! connections.

use std::time::Duration;

use serde_json::{Value, json};

use super::server::{Server, Tokens};
use crate::at_a_server::Server as _;
use crate::at_a_server::sharing::{break_serves_the_next, holder_and_queue};
use crate::support::{Running, assert_code, said};
use crate::terminal::Screen;

/// Known only with a table.
const NOT_KNOWN: &str = "the server knows the connection that holds it, and not whose that is";
/// The warning if the server ends a connection without knowing which locks are on it.
const COST: &str = "all other locks on it are lost as well";

fn status_tells_holder_and_queue(server: &Server) {
    let seen = holder_and_queue(server);
    match server.tokens() {
        Tokens::Written => seen.assert_tells_token_and_since(),
        Tokens::Minted => {
            let held_by = &seen.status["holders"][0];
            assert!(held_by["token"].is_null() && held_by["since"].is_null(), "{held_by}");
        }
    }
    assert_eq!(seen.text.contains(NOT_KNOWN), server.tokens() == Tokens::Minted, "{}", seen.text);
}

/// The interval between two checks ends soon, and the holder then learns of the break.
fn break_ends_the_command_of_the_holder(server: &Server) {
    break_serves_the_next(server, &server.sandbox("60s"), "connection_lost");
}

fn break_tells_what_it_costs(server: &Server) {
    let cost = match server.tokens() {
        Tokens::Written => json!(["other"]),
        Tokens::Minted => Value::Null,
    };
    let sandbox = server.sandbox("60s");
    let holder = server.runtime().block_on(async {
        let locks = distlock::connect(sandbox.url()).await.unwrap();
        let guards = [
            locks.mutex("job").unwrap().acquire().await.unwrap(),
            locks.mutex("other").unwrap().acquire().await.unwrap(),
        ];
        (locks, guards)
    });
    let output = sandbox.run(["break", "--yes", "--json", "job"]);
    assert_code(&output, 0, "--json");
    let event: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&event["event"], &event["name"]), (&"broken".into(), &"job".into()));
    assert_eq!(event["also_lost"], cost, "{event}");
    for name in ["job", "other"] {
        assert_eq!(sandbox.status(name)["held"], false, "{name}");
    }
    server.runtime().block_on(async {
        for guard in &holder.1 {
            guard.hold().lost().await;
        }
        let _ = holder.0.close(Duration::ZERO).await;
    });
}

fn break_says_it_to_people(server: &Server) {
    let sandbox = server.sandbox("60s");
    let mut holder = sandbox.hold("job");
    let output = sandbox.run(["break", "job"]);
    assert_code(&output, 64, "without --yes");
    let who = server.people_read(holder.pid());
    assert!(said(&output).contains("--yes") && said(&output).contains(&who), "{output:?}");
    let output = sandbox.run(["break", "--yes", "job"]);
    assert_code(&output, 0, "with --yes");
    assert!(said(&output).contains(&format!("took lock \"job\" from {who}")), "{output:?}");
    assert_eq!(said(&output).contains(COST), server.tokens() == Tokens::Minted, "{output:?}");
    assert_eq!(holder.output_event()["reason"], "connection_lost");
    assert_eq!(holder.code(), 76);
    let output = sandbox.run(["break", "--yes", "job"]);
    assert_code(&output, 0, "free");
    assert!(said(&output).contains("is not held"), "{output:?}");
}

#[test]
fn break_asks_on_a_terminal_with_what_it_costs_in_view() {
    let Some(server) = Server::mariadb() else { return };
    let sandbox = server.sandbox("60s");
    let mut holder = sandbox.hold("job");
    let mut screen = Screen::open(&sandbox);
    screen.enter("$D break job");
    screen.expect(&format!("lock \"job\" is held by {}", server.people_read(holder.pid())));
    screen.expect("with every other lock on it");
    screen.expect("[y/N]");
    screen.enter("");
    screen.expect("left alone");
    screen.expect_prompt_after(75);
    assert!(holder.runs());
    screen.enter("$D break job");
    screen.expect("[y/N]");
    screen.enter("y");
    screen.expect(COST);
    screen.expect_prompt_after(0);
    assert_eq!(holder.code(), 76);
}

/// The server hides waiters of other users from a user without a privilege, and has leases of connections alone.
#[test]
fn what_is_not_shown_is_said() {
    let Some(server) = Server::mariadb_with_table() else { return };
    let sandbox = server.sandbox("60s");
    let _holder = sandbox.hold("job");
    let unknown = json!(["remaining_ms", "waiters"]);
    for arguments in [&["list", "--json"][..], &["status", "--json", "job"]] {
        let shown: Value = serde_json::from_slice(&sandbox.run(arguments.iter().copied()).stdout).unwrap();
        assert_eq!(shown["unknown"], unknown, "{shown}");
    }
    let waiters = "waiters of users whom this one may not see";
    let text = String::from_utf8(sandbox.run(["status", "job"]).stdout).unwrap();
    assert!(text.ends_with(&format!("\nnot known: {waiters}\n")), "{text}");
    let (lease, waiting) = ("what is left of the lease, ", &["list", "--waiting"]);
    for (arguments, lease) in [(&["list"][..], lease), (waiting, lease), (&["top"], "")] {
        let text = String::from_utf8(sandbox.run(arguments.iter().copied()).stdout).unwrap();
        let last = format!("not known of some: {lease}{waiters}");
        assert!(text.lines().count() > 1 && text.lines().last() == Some(&last), "{text}");
    }
    let mut watch = Running::start(&mut sandbox.distlock(["watch", "--json"]));
    let first = watch.output_event();
    assert_eq!((&first["event"], &first["unknown"]), (&json!("unknown"), &json!(["waiters"])), "{first}");
    assert_eq!(watch.output_event()["event"], "granted");
    let mut watch = Running::start(&mut sandbox.distlock(["watch"]));
    let first = watch.output_line();
    assert!(first.ends_with(&format!(" not shown: {waiters}")), "{first}");
}

/// One test for each function, on this server.
macro_rules! looks {
    ($server:ident: $($look:ident),+) => {
        mod $server {
            use super::Server;

            $(
                #[test]
                fn $look() {
                    if let Some(server) = Server::$server() {
                        super::$look(&server);
                    }
                }
            )+
        }
    };
}

looks!(mariadb: status_tells_holder_and_queue, break_ends_the_command_of_the_holder, break_tells_what_it_costs,
    break_says_it_to_people);
looks!(mariadb_with_table: status_tells_holder_and_queue, break_ends_the_command_of_the_holder, break_tells_what_it_costs);
looks!(mysql57: status_tells_holder_and_queue, break_ends_the_command_of_the_holder, break_tells_what_it_costs);
looks!(mysql57_with_table: status_tells_holder_and_queue, break_ends_the_command_of_the_holder,
    break_tells_what_it_costs, break_says_it_to_people);
