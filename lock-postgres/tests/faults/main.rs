//! Faults at a real PostgreSQL, and what they do to locks: processes, connections, statements, the server itself and its
//! settings.
//!
//! Most cases mostly wait, so several of them run at once, and this program has its own main function.
#![allow(unreachable_pub, reason = "everything here belongs to this program alone")]

mod stage;

mod cancellation;
mod concurrently;
mod connecting;
mod keys;
mod late;
mod libraries;
mod limits;
mod order;
mod permits;
mod poolers;
mod protocol;
mod restarts;
mod settings;
mod sharing;
mod silence;
mod terminations;
mod tokens;
mod transactions;

use std::process::ExitCode;
use std::time::Duration;

use conformance_tests::faults::{Program, logs};

/// Many cases wait for leases to end, and some have a server of their own, which takes memory.
const AT_ONCE: usize = 6;

/// No case takes this long unless something hangs.
const LONGEST: Duration = Duration::from_mins(10);

fn main() -> ExitCode {
    logs::keep();
    let mut program = Program::default().at_once(AT_ONCE).longest(LONGEST);
    let all = [
        cancellation::cases(),
        concurrently::cases(),
        connecting::cases(),
        keys::cases(),
        late::cases(),
        limits::cases(),
        order::cases(),
        permits::cases(),
        poolers::cases(),
        protocol::cases(),
        restarts::cases(),
        sharing::cases(),
        settings::cases(),
        silence::cases(),
        terminations::cases(),
        tokens::cases(),
        libraries::with_each(transactions::cases),
    ];
    program.add("postgres", test_servers::left_out("postgres").as_deref(), all.into_iter().flatten());
    program.run()
}
