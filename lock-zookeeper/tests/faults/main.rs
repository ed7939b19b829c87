//! What becomes of locks at a real ZooKeeper server when things fail: requests and their answers, connections, sessions, nodes
//! and permissions, processes, and a network that falls apart between the members of an ensemble.
//!
//! Most cases share a server and wait most of the time, so that many run at once, and this program has a main function of its
//! own.
#![allow(unreachable_pub, reason = "everything here is of this program alone")]

mod case;
mod diary;
mod helper;
mod logs;
mod stage;
mod stall;
mod switch;

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
mod places;
mod processes;
mod sessions;

use std::process::ExitCode;

/// Many cases wait for sessions to end, and hardly any of them needs a processor.
const AT_ONCE: usize = 12;

fn main() -> ExitCode {
    if let Some(ended) = helper::run_if_asked() {
        return ended;
    }
    logs::keep();
    let mut arguments = libtest_mimic::Arguments::from_args();
    arguments.test_threads.get_or_insert(AT_ONCE);
    let left_out = conformance_tests::servers::left_out("zookeeper");
    if let Some(reason) = &left_out {
        eprintln!("zookeeper: {reason}");
    }
    // The ones that take longest come first.
    let all = [
        ensembles::cases(),
        lost_requests::cases(),
        contact::cases(),
        sessions::cases(),
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
        places::cases(),
    ];
    let trials = all
        .into_iter()
        .flatten()
        .map(|case| case.into_trial().with_ignored_flag(left_out.is_some()))
        .collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    stage::end_shared();
    ensembles::end_shared();
    conclusion.exit_code()
}
