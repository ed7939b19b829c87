//! Tests the protocol of the scripts without the client: scenarios play each rule against a real server, and each scenario
//! fails if its rule is removed.
#![allow(clippy::panic, reason = "a test reports by a panic")]
#![forbid(unsafe_code)]

mod failure;
mod model;
mod mutants;
mod oldest_server;
mod scenarios;
mod scripts;
mod server;
mod stage;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use conformance_tests::Tier;
use mutants::Mutant;
use scripts::Scripts;
use server::Server;
use test_servers::left_out;

/// How many mutants are tried at once: they spend most of the time waiting for the server.
const AT_ONCE: usize = 4;

/// Whether the user left the tests with Redis out; prints that in the tests' output.
fn is_left_out() -> bool {
    left_out("redis").inspect(|reason| eprintln!("{reason}")).is_some()
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

/// Each of them in `cargo xtask test --all`, and a fifth of them by default.
#[test]
fn a_rule_that_is_taken_out_is_missed() {
    if is_left_out() {
        return;
    }
    let server = server();
    let every = if Tier::of_this_run() == Tier::All { 1 } else { 5 };
    let next = AtomicUsize::new(0);
    let unnoticed = Mutex::new(Vec::new());
    let work = || {
        while let Some(mutant) = mutants::ALL.get(next.fetch_add(every, Ordering::Relaxed)) {
            if let Err(complaint) = is_missed(mutant, &server) {
                unnoticed.lock().unwrap_or_else(PoisonError::into_inner).push(complaint);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(work);
        }
    });
    let unnoticed = unnoticed.into_inner().unwrap_or_else(PoisonError::into_inner);
    assert!(unnoticed.is_empty(), "{} of {}:\n{}", unnoticed.len(), mutants::ALL.len(), unnoticed.join("\n"));
}

fn is_missed(mutant: &Mutant, server: &Server) -> Result<(), String> {
    let scripts = Scripts::as_shipped().with(mutant.file, mutant.piece, mutant.replacement)?;
    match (mutant.missed_by)(&scripts, server) {
        Ok(()) => Err(format!("nothing fails although {}", mutant.flaw)),
        Err(failure) if std::env::var_os("SHOW_FAILURES").is_some() => {
            eprintln!("{}: {failure:?}", mutant.flaw);
            Ok(())
        }
        Err(_) => Ok(()),
    }
}

/// The scripts that these tests play are the ones that the crate sends.
#[test]
fn the_crate_sends_these_scripts() {
    let scripts = Scripts::as_shipped();
    for script in lock_redis::scripts() {
        assert_eq!(script.text(), scripts.text(script.name()));
    }
    assert_eq!(lock_redis::scripts().len(), 12);
}
