//! Faults at a real MariaDB and a real MySQL, and what they do to locks: processes, connections, statements, the server itself and
//! its permissions.
//!
//! Each case runs on both, with a server for itself; in the default tier MySQL has only the cases in which the servers differ. Most cases mostly wait, so several of them run at once, and this program has
//! its own main function.
#![allow(unreachable_pub, reason = "everything here belongs to this program alone")]

mod case;
mod servers;
mod stage;

mod access;
mod cancellation;
mod crossing;
mod demotion;
mod kills;
mod late;
mod limits;
mod middleman;
mod names;
mod order;
mod places;
mod prepared;
mod races;
mod remembering;
mod restarts;
mod rewritten;
mod runtimes;
mod sharing;
mod silence;
mod spreading;
mod strangers;
mod timeouts;
mod tokens;

use std::process::ExitCode;
use std::time::Duration;

use conformance_tests::Tier;
use conformance_tests::faults::case::Case;
use conformance_tests::faults::{Program, event_recorder, logs};
use test_servers::MySqlFlavour;

/// Many cases wait for leases to end, and each has a server, which takes memory.
const AT_ONCE: usize = 6;

/// No case takes this long unless something hangs.
const LONGEST: Duration = Duration::from_mins(10);

fn main() -> ExitCode {
    logs::keep();
    let mut program = Program::default().at_once(AT_ONCE).longest(LONGEST);
    for flavour in MySqlFlavour::ALL {
        let is_short = flavour == MySqlFlavour::MySql57 && Tier::of_this_run() == Tier::Default;
        let like_mariadb = if is_short { Vec::new() } else { alike() };
        let place = flavour.skip_word();
        let cases = different().into_iter().chain(like_mariadb).map(|case| case.on(place, flavour));
        program.add(place, flavour.left_out().as_deref(), cases);
    }
    program.run()
}

/// The cases that depend on what the servers do differently: how they end statements and sessions, limit them, and what
/// they grant and list.
fn different() -> Vec<Case<MySqlFlavour>> {
    let all = [
        access::cases(),
        kills::cases(),
        limits::cases(),
        strangers::cases(),
        timeouts::cases(),
        tokens::cases(),
    ];
    all.into_iter().flatten().collect()
}

/// The cases in which both servers do the same.
fn alike() -> Vec<Case<MySqlFlavour>> {
    // They leave to chance what cases of `late` force.
    let races = if Tier::of_this_run() == Tier::All { races::cases() } else { Vec::new() };
    let all = [
        races,
        cancellation::cases(),
        crossing::cases(),
        demotion::cases(),
        late::cases(),
        names::cases(),
        order::cases(),
        places::cases(),
        prepared::cases(),
        remembering::cases(),
        restarts::cases(),
        rewritten::cases(),
        runtimes::cases(),
        sharing::cases(),
        silence::cases(),
        spreading::cases(),
    ];
    all.into_iter().flatten().collect()
}
