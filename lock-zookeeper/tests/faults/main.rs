//! Faults at a real ZooKeeper server, and what they do to locks: lost requests and answers, connections, sessions, nodes and
//! permissions, processes, and network partitions between the members of an ensemble.
//!
//! Most cases share a server and mostly wait, so many of them run at once, and this program has its own main function.
#![allow(unreachable_pub, reason = "everything here is of this program alone")]

mod stage;

mod access;
mod breaking;
mod cancellation;
mod clients;
mod contact;
mod costs;
mod ensembles;
mod late;
mod lost_creates;
mod lost_requests;
mod nodes;
mod paths;
mod permits;
#[cfg(feature = "tls")]
mod places;
mod processes;
mod sessions;
mod sharing;

use std::process::ExitCode;
use std::time::Duration;

use conformance_tests::Tier;
use conformance_tests::faults::{Program, case, event_recorder, helper, logs};
use test_servers::left_out;

/// No case takes this long unless something hangs: those of an ensemble take turns, and each waits for the ones before.
const LONGEST: Duration = Duration::from_secs(600);

fn main() -> ExitCode {
    if let Some(ended) = helper::run_if_asked(stage::connect_patiently) {
        return ended;
    }
    logs::keep();
    // The ones that take longest come first.
    let all = [
        lost_requests::cases(),
        contact::cases(),
        sessions::cases(),
        sharing::cases(),
        permits::cases(),
        processes::cases(),
        costs::cases(),
        lost_creates::cases(),
        late::cases(),
        nodes::cases(),
        cancellation::cases(),
        breaking::cases(),
        clients::cases(),
        paths::cases(),
        access::cases(),
        #[cfg(feature = "tls")]
        places::cases(),
    ];
    let mut program = Program::default().longest(LONGEST);
    let left_out = left_out("zookeeper");
    // Three servers, and each case has them for itself.
    if Tier::of_this_run() == Tier::All {
        program.add("zookeeper", left_out.as_deref(), ensembles::cases());
    }
    program.add("zookeeper", left_out.as_deref(), all.into_iter().flatten());
    let ended = program.run();
    stage::end_shared();
    ensembles::end_shared();
    ended
}
