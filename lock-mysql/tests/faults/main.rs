//! What becomes of locks at a real MariaDB and a real MySQL when things fail: processes, connections, statements, the server
//! itself and its permissions.
//!
//! Each case has a server of its own, and is run on both. Most of them wait most of the time, so that several run at once, and
//! this program has a main function of its own.
#![allow(unreachable_pub)] // everything here is of this program alone

mod case;
mod stage;

// What has nothing to do with the server is shared.
#[path = "../../../lock-redis/tests/faults/diary.rs"]
mod diary;
#[path = "../../../lock-redis/tests/faults/helper.rs"]
mod helper;
#[path = "../../../lock-redis/tests/faults/logs.rs"]
mod logs;
#[path = "../../../lock-redis/tests/faults/stall.rs"]
mod stall;

mod access;
mod cancellation;
mod crossing;
mod demotion;
mod kills;
mod late;
mod limits;
mod middleman;
mod names;
mod places;
mod processes;
mod races;
mod restarts;
mod rewritten;
mod runtimes;
mod silence;
mod spreading;
mod stopped;
mod strangers;
mod timeouts;
mod tokens;

use std::process::ExitCode;

use conformance_tests::servers::MySqlFlavour;

/// Many cases wait for leases to end, and each has a server, which takes memory.
const AT_ONCE: usize = 6;

fn main() -> ExitCode {
    if let Some(ended) = helper::run_if_asked() {
        return ended;
    }
    logs::keep();
    let mut arguments = libtest_mimic::Arguments::from_args();
    arguments.test_threads.get_or_insert(AT_ONCE);
    let mut trials = Vec::new();
    for flavour in MySqlFlavour::ALL {
        let left_out = flavour.left_out();
        if let Some(reason) = &left_out {
            eprintln!("{}: {reason}", flavour.skip_word());
        }
        let all = [
            races::cases(),
            access::cases(),
            cancellation::cases(),
            crossing::cases(),
            demotion::cases(),
            kills::cases(),
            late::cases(),
            limits::cases(),
            names::cases(),
            places::cases(),
            processes::cases(),
            restarts::cases(),
            rewritten::cases(),
            runtimes::cases(),
            silence::cases(),
            spreading::cases(),
            stopped::cases(),
            strangers::cases(),
            timeouts::cases(),
            tokens::cases(),
        ];
        let cases = all.into_iter().flatten();
        trials.extend(cases.map(|case| case.into_trial(flavour).with_ignored_flag(left_out.is_some())));
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}
