//! A model of the protocol, searched completely within bounds. It has two or three clients and one lock, requests and replies on
//! their way, connections that break while something is on them, processes that die, a server that loses its data, and time.
//!
//! It shows what no test run can show. In no order of events do two clients believe at once that they hold the lock, or does a
//! token fall, a client wait for ever, or something stay of an ended attempt. It also shows that the search finds the flaws that
//! it is meant for, because it finds one for each rule that is removed.
mod client;
mod known;
mod list;
mod rules;
mod search;
mod server;
mod world;

use client::Bounds;
use conformance_tests::Tier;
use rules::{Mode, Rule, Rules};
use search::{Found, search};

/// More states than any search has that runs by default.
const MOST_STATES: usize = 400_000;

const TWO_CLIENTS: Bounds =
    Bounds { clients: 2, attempts: 1, faults: 1, with_restarts: false, with_tries: true };
const ONLY_WAITS: Bounds = Bounds { with_tries: false, ..TWO_ATTEMPTS };
const THREE_WAIT: Bounds = Bounds { with_tries: false, ..THREE_CLIENTS };
const ONE_CLIENT: Bounds = Bounds { clients: 1, ..TWO_CLIENTS };
const WITHOUT_FAULTS: Bounds = Bounds { faults: 0, ..TWO_CLIENTS };
const TWO_ATTEMPTS: Bounds = Bounds { attempts: 2, faults: 0, ..TWO_CLIENTS };
const THREE_CLIENTS: Bounds = Bounds { clients: 3, faults: 0, ..TWO_CLIENTS };
const WITH_RESTARTS: Bounds = Bounds { with_restarts: true, ..TWO_CLIENTS };

const READERS: [Mode; 3] = [Mode::Shared, Mode::Shared, Mode::Exclusive];
const READER_AND_WRITER: [Mode; 3] = [Mode::Shared, Mode::Exclusive, Mode::Shared];
const SMALL_AND_LARGE: [Mode; 3] = [Mode::Permits(1), Mode::Permits(2), Mode::Permits(1)];

const TWO_BELIEVE: &str = "two believe that they hold the lock";
const LEFT: &str = "something is left of an attempt that ended";
const FREE: &str = "a script leaves the lock free while a client waits";
const FOR_EVER: &str = "a client waits for ever although nothing fails";
const TOKEN: &str = "a fencing token does not rise";
const PASSED_OVER: &str = "a client that is there is passed over";
const OVER: &str = "a grant is over when it is given";
const CLOSED: &str = "the lock is given to a connection that the server knows to be closed";

fn finds_nothing(rules: &Rules, bounds: Bounds, most: usize) {
    match search(rules, bounds, most) {
        Found::Nothing { states } => println!("{states} states"),
        Found::TooMany => panic!("more than {most} states"),
        Found::Flaw { what, trace } => panic!("{what}:\n{trace}"),
    }
}

#[test]
fn the_protocol_is_right() {
    finds_nothing(&Rules::without(&[]), WITH_RESTARTS, MOST_STATES);
}

#[test]
fn the_protocol_is_right_for_a_client_that_polls() {
    finds_nothing(&Rules::without(&[]).with_poller(1), TWO_CLIENTS, MOST_STATES);
}

#[test]
fn sharing_is_right() {
    let all = Tier::of_this_run() == Tier::All;
    let modes = if all { &[READERS, READER_AND_WRITER, SMALL_AND_LARGE][..] } else { &[SMALL_AND_LARGE] };
    for modes in modes {
        finds_nothing(&Rules::without(&[]).with_modes(*modes), TWO_CLIENTS, MOST_STATES);
    }
}

/// This many states take minutes and some gigabytes: `cargo test --release -p lock-redis --test protocol -- --ignored`.
#[test]
#[ignore = "takes minutes, and needs --release"]
fn the_protocol_is_right_for_more() {
    for bounds in [
        TWO_ATTEMPTS,
        Bounds { faults: 2, ..WITH_RESTARTS },
        Bounds { attempts: 2, with_tries: false, ..WITH_RESTARTS },
        THREE_CLIENTS,
    ] {
        for rules in [Rules::without(&[]), Rules::without(&[]).with_poller(1)] {
            finds_nothing(&rules, bounds, 60_000_000);
        }
        for modes in [READERS, READER_AND_WRITER, SMALL_AND_LARGE] {
            finds_nothing(&Rules::without(&[]).with_modes(modes), bounds, 60_000_000);
        }
    }
}

struct Mutant {
    without: &'static [Rule],
    bounds: Bounds,
    has_poller: bool,
    modes: [Mode; 3],
    finds: &'static str,
}

const fn mutant(without: &'static [Rule], bounds: Bounds, finds: &'static str) -> Mutant {
    Mutant { without, bounds, has_poller: false, modes: [Mode::Exclusive; 3], finds }
}

/// A mutant of what is shared.
const fn shared(rule: &'static [Rule], modes: [Mode; 3], bounds: Bounds, finds: &'static str) -> Mutant {
    Mutant { modes, ..mutant(rule, bounds, finds) }
}

const MUTANTS: &[Mutant] = &[
    // Rules of the scripts.
    mutant(&[Rule::HeartbeatMakesNoPlace], ONLY_WAITS, LEFT),
    mutant(&[Rule::HeartbeatMakesNoPlace, Rule::PushIgnoresLaterHeartbeats], ONLY_WAITS, TWO_BELIEVE),
    mutant(&[Rule::HeartbeatPassesOn], ONLY_WAITS, FREE),
    mutant(&[Rule::InsertThenPromote], TWO_CLIENTS, FREE),
    mutant(&[Rule::RenewalPassesOn], WITHOUT_FAULTS, FREE),
    mutant(&[Rule::ReleaseCompares], ONLY_WAITS, TWO_BELIEVE),
    mutant(&[Rule::ReleasePassesOn], WITHOUT_FAULTS, FREE),
    mutant(&[Rule::CancelEndsHolds], WITHOUT_FAULTS, LEFT),
    mutant(&[Rule::CancelEndsPlaces], WITHOUT_FAULTS, LEFT),
    mutant(&[Rule::CancelPassesOn], WITHOUT_FAULTS, FREE),
    Mutant { has_poller: true, ..mutant(&[Rule::PollersAreThere], WITHOUT_FAULTS, PASSED_OVER) },
    mutant(&[Rule::ClosedAreSkipped], TWO_CLIENTS, CLOSED),
    mutant(&[Rule::DeadlineCounts], THREE_WAIT, OVER),
    mutant(&[Rule::FenceKnowsTheTime], WITH_RESTARTS, TOKEN),
    mutant(&[Rule::FenceIsAboveTheLast], WITHOUT_FAULTS, TOKEN),
    // Rules of sharing.
    shared(&[Rule::WritersAreAlone], READER_AND_WRITER, WITHOUT_FAULTS, TWO_BELIEVE),
    shared(&[Rule::EntersBesideHolders], READERS, WITHOUT_FAULTS, FREE),
    shared(&[Rule::TheHeadStopsTheQueue], READER_AND_WRITER, THREE_WAIT, PASSED_OVER),
    shared(&[Rule::TheEndedAreRemoved], READER_AND_WRITER, THREE_WAIT, FREE),
    shared(&[Rule::WeightsCount], SMALL_AND_LARGE, WITHOUT_FAULTS, TWO_BELIEVE),
    shared(&[Rule::CancelPassesOn], READER_AND_WRITER, THREE_WAIT, FREE),
    shared(&[Rule::RenewalPassesOn], READER_AND_WRITER, THREE_WAIT, FREE),
    shared(&[Rule::HeartbeatPassesOn], READER_AND_WRITER, THREE_WAIT, FREE),
    // Rules of the client.
    mutant(&[Rule::PushLastsFromItsHeartbeat], ONLY_WAITS, TWO_BELIEVE),
    mutant(&[Rule::AnswerLastsFromItsRequest], WITHOUT_FAULTS, TWO_BELIEVE),
    mutant(&[Rule::RenewalLastsFromItsRequest], WITHOUT_FAULTS, TWO_BELIEVE),
    mutant(&[Rule::OldConnectionIsKilled], TWO_CLIENTS, LEFT),
    mutant(&[Rule::SendsAgain], ONE_CLIENT, FOR_EVER),
    mutant(&[Rule::UnknownPushIsIgnored], ONLY_WAITS, TWO_BELIEVE),
    mutant(&[Rule::OwnTimer], WITHOUT_FAULTS, TWO_BELIEVE),
    mutant(&[Rule::WaitersBeat], WITHOUT_FAULTS, FOR_EVER),
    mutant(&[Rule::GoneBeginsAnew], WITHOUT_FAULTS, FOR_EVER),
];

/// Each of them in `cargo xtask test --all`, and a fifth of them by default.
#[test]
fn a_rule_that_is_taken_out_is_missed() {
    let every = if Tier::of_this_run() == Tier::All { 1 } else { 5 };
    let mut complaints = Vec::new();
    for mutant in MUTANTS.iter().step_by(every) {
        let mut rules = Rules::without(mutant.without).with_modes(mutant.modes);
        if mutant.has_poller {
            rules = rules.with_poller(1);
        }
        let found = match search(&rules, mutant.bounds, MOST_STATES) {
            Found::Flaw { what, .. } if what == mutant.finds => continue,
            Found::Flaw { what, trace } => format!("{what}\n{trace}"),
            Found::Nothing { .. } => "nothing".to_owned(),
            Found::TooMany => "nothing so soon".to_owned(),
        };
        complaints.push(format!("without {:?}: {found}, and not {}", mutant.without, mutant.finds));
    }
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}
