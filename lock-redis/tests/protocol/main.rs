//! The protocol of the scripts, without the client: each rule is played against a real server, and each rule that is taken
//! out is missed by the scenario that is there for it.
#![allow(clippy::panic)] // a test reports by a panic
#![forbid(unsafe_code)]

mod failure;
mod scenarios;
mod scripts;
mod server;
mod stage;

use scripts::Scripts;
use server::Server;

/// Whether Redis is left out by name; said where the tests' output is.
fn is_left_out() -> bool {
    let left_out =
        std::env::var("DISTLOCK_SKIP").is_ok_and(|names| names.split(',').any(|name| name.trim() == "redis"));
    if left_out {
        eprintln!("left out, because DISTLOCK_SKIP names redis");
    }
    left_out
}

fn server() -> Server {
    Server::start(&[]).unwrap_or_else(|failure| panic!("{failure:?}"))
}

#[test]
fn the_scripts_keep_every_promise() {
    if is_left_out() {
        return;
    }
    let (scripts, server) = (Scripts::as_shipped(), server());
    let mut failures = Vec::new();
    for (name, play) in scenarios::ALL {
        if let Err(failure) = play(&scripts, &server) {
            failures.push(format!("{name}: {failure:?}"));
        }
    }
    assert!(
        failures.is_empty(),
        "{} of {} fail:\n{}",
        failures.len(),
        scenarios::ALL.len(),
        failures.join("\n")
    );
}
