//! What happens to locks at a real Redis server when something fails: processes, connections, replies, the server itself, its
//! data or its permissions.
//!
//! Each case has its own server. Most cases mostly wait, so many of them run at once, and this program has its own main function.
#![allow(unreachable_pub, reason = "everything here is of this program alone")]

mod stage;

mod access;
mod cancellation;
mod cluster;
mod connections;
mod crowds;
mod delays;
mod loss;
mod pipelining;
mod places;
mod preflight;
mod processes;
mod queue;
mod replicas;
mod replies;
mod restarts;
mod sentinel;
mod sharing;
mod silence;
mod states;

use std::process::ExitCode;
use std::time::Duration;

use conformance_tests::faults::{Program, case, event_recorder, helper, logs};
use test_servers::left_out;

fn main() -> ExitCode {
    if let Some(ended) = helper::run_if_asked(stage::connect) {
        return ended;
    }
    logs::keep();
    let all = [
        crowds::cases(),
        access::cases(),
        cancellation::cases(),
        cluster::cases(),
        connections::cases(),
        delays::cases(),
        loss::cases(),
        pipelining::cases(),
        places::cases(),
        preflight::cases(),
        processes::cases(),
        queue::cases(),
        replicas::cases(),
        replies::cases(),
        restarts::cases(),
        sentinel::cases(),
        sharing::cases(),
        silence::cases(),
        states::cases(),
    ];
    // A contest of clients waits for many leases and failovers.
    let mut program = Program::default().longest(Duration::from_secs(600));
    program.add("redis", left_out("redis").as_deref(), all.into_iter().flatten());
    program.run()
}
