//! What happens to locks at real etcd servers when something fails: requests, connections, leases, members of a cluster; and what
//! other programs do with the same keys.
#![allow(unreachable_pub, reason = "everything here is of this program alone")]
#![cfg(unix)]

mod stage;

mod access;
mod clusters;
mod late;
mod leases;
mod lines;
mod peers;
mod versions;

use std::process::ExitCode;

use conformance_tests::Tier;
use conformance_tests::faults::{Program, case, event_recorder, logs};
use test_servers::left_out;

fn main() -> ExitCode {
    logs::keep();
    let all = [lines::cases(), access::cases(), late::cases(), leases::cases(), peers::cases()];
    let mut program = Program::default();
    let left_out = left_out("etcd");
    program.add("etcd", left_out.as_deref(), all.into_iter().flatten());
    // Three servers for each case, and one that comes from another place.
    if Tier::of_this_run() == Tier::All {
        program.add("etcd", left_out.as_deref(), clusters::cases().into_iter().chain(versions::cases()));
    }
    program.run()
}
