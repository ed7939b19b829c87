//! What becomes of locks at a real Redis server when things fail: processes, connections, replies, the server itself, its data
//! and its permissions.
//!
//! Each case has a server of its own. Most of them wait most of the time, so that many run at once, and this program has a main
//! function of its own.
#![allow(unreachable_pub)] // everything here is of this program alone

mod case;
mod diary;
mod helper;
mod logs;
mod stage;
mod stall;
mod switch;

mod access;
mod cancellation;
mod connections;
mod crowds;
mod delays;
mod loss;
mod places;
mod preflight;
mod processes;
mod queue;
mod replies;
mod restarts;
mod silence;
mod states;
mod stopped;

use std::process::ExitCode;

/// Many cases wait for leases to end, and hardly any of them needs a processor.
const AT_ONCE: usize = 12;

fn main() -> ExitCode {
    if let Some(ended) = helper::run_if_asked() {
        return ended;
    }
    logs::keep();
    let mut arguments = libtest_mimic::Arguments::from_args();
    arguments.test_threads.get_or_insert(AT_ONCE);
    let left_out = conformance_tests::servers::left_out("redis");
    if let Some(reason) = &left_out {
        eprintln!("redis: {reason}");
    }
    let all = [
        crowds::cases(),
        access::cases(),
        cancellation::cases(),
        connections::cases(),
        delays::cases(),
        loss::cases(),
        places::cases(),
        preflight::cases(),
        processes::cases(),
        queue::cases(),
        replies::cases(),
        restarts::cases(),
        silence::cases(),
        states::cases(),
        stopped::cases(),
    ];
    let trials = all
        .into_iter()
        .flatten()
        .map(|case| case.into_trial().with_ignored_flag(left_out.is_some()))
        .collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}
