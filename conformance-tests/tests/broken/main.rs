//! Checks that the suite can fail: a small backend passes it, and for each of its seeded bugs the case that is meant
//! for it fails, for the right reason.

mod backend;
mod sharing;
mod table;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use backend::TableHarness;
use conformance_tests::{Case, Harness, Outcome, Tier, Verdict, all, run_case};
use table::{Defect, Table};

/// A busy machine renews it in time.
const LEASE: Duration = Duration::from_secs(5);

/// Which case catches which bug, and with which message.
const CAUGHT: &[(Defect, &str, &str)] = &[
    (
        Defect::ReleaseWithoutCompare,
        "breaking::the_release_of_a_broken_hold_does_not_touch_the_next",
        "should be held",
    ),
    (Defect::ReleaseDoesNothing, "guards::a_guard_dropped_inside_the_runtime_releases", "should be free"),
    (
        Defect::RepeatedAcquireQueues,
        "release::an_acquisition_whose_reply_is_lost_holds_once",
        "held twice, released once",
    ),
    (Defect::DoubleGrant, "exclusion::unguarded_increments_lose_nothing", "exclusion"),
    (
        Defect::LastComeFirstServed,
        "order::clients_are_served_in_the_order_of_their_arrival",
        "has not told of the lock",
    ),
    (
        Defect::LastComeFirstServed,
        "order::a_cancelled_head_leaves_its_place_to_its_client",
        "the next waiter's turn",
    ),
    (Defect::TokenStandsStill, "tokens::tokens_rise_across_many_acquisitions", "given again"),
    (
        Defect::TokenReservedTwice,
        "local_handoff::another_client_waits_for_no_more_sections_than_the_option_allows",
        "the tokens do not rise",
    ),
    (Defect::TokenForgotten, "tokens::tokens_rise_when_clients_come_and_go", "was followed by"),
    (Defect::UnreachableIsHeld, "outages::a_try_while_the_server_is_away_is_an_error", "answered Ok"),
    (
        Defect::UnreachableIsHeld,
        "outages::a_wait_that_ends_while_the_server_is_away_is_an_error",
        "answered Ok",
    ),
    (
        Defect::CancelDoesNothing,
        "cancellation::acquire_dropped_at_every_poll_while_another_holds",
        "was dropped",
    ),
    (Defect::CancelDoesNothing, "closing::idle_means_that_nothing_is_left", "wait at the server"),
    (Defect::CancelLeavesGrant, "release::a_try_whose_reply_is_lost_leaves_nothing", "should be free"),
    (Defect::TryEnqueues, "order::a_single_try_takes_no_place", "those who tried once wait"),
    (Defect::LostWakeUp, "waiting::the_longest_wait_ends_with_the_grant", "the grant"),
    (Defect::SilentQueue, "waiting::a_wait_that_ends_before_the_grant_is_refused", "too busy for every wait"),
    (Defect::BreaksAnyone, "breaking::breaking_one_who_holds_no_longer_changes_nothing", "the wrong holder"),
    (Defect::SilentLoss, "breaking::a_broken_hold_is_lost_and_its_holder_is_notified_once", "the loss"),
    (Defect::SilentLoss, "loss::a_deleted_hold_is_lost", "the loss"),
    (Defect::FoldsCase, "exclusion::names_that_look_alike_are_different_locks", "the same lock as another"),
    (Defect::CutsNames, "exclusion::names_that_look_alike_are_different_locks", "the same lock as another"),
    (Defect::ShowsQueueBackwards, "inspection::the_queue_is_shown_in_order", "LockStatus"),
    (Defect::PingUnasked, "clients::a_ping_while_the_server_is_away_is_an_error", "answered Ok"),
    (Defect::NamesTheAsker, "busy::a_refused_try_names_the_holder", "it is called"),
    (Defect::RemembersNothing, "remembering::of_two_clients_one_gets_the_slot", "was used 3 times"),
    (
        Defect::ForgetsEarly,
        "remembering::a_slot_is_forgotten_after_its_time_and_not_before",
        "forgotten after",
    ),
    (
        Defect::ForgetsNothing,
        "remembering::a_slot_that_is_recalled_stays_until_it_is_to_be_forgotten",
        "remembered before it was used",
    ),
    (Defect::RemembersNames, "remembering::slots_of_one_lock_and_of_others_are_apart", "was used before"),
    (Defect::ShowsNobody, "inspection::the_holder_is_shown", "host is None"),
];

/// The same for bugs of leases.
const CAUGHT_WITH_LEASE: &[(Defect, &str, &str)] = &[
    (Defect::RenewsNothing, "outages::a_hold_is_renewed_for_as_long_as_it_lasts", "lost within two leases"),
    (
        Defect::RenewsNothing,
        "outages::a_user_who_blocks_the_runtime_keeps_the_lock",
        "lost while the runtime was blocked",
    ),
    (Defect::AnchorTooLate, "outages::a_long_outage_ends_a_hold_before_its_lease", "after the last contact"),
    (Defect::RenewsTheLost, "loss::a_deleted_hold_is_lost", "the loss"),
];

fn run(case: &Case, defect: Defect, lease: Option<Duration>, patience: Duration) -> Verdict {
    run_case(case, || async move {
        let table = Table::new(defect, lease);
        Outcome::Ok(Box::new(TableHarness { table, patience }) as Box<dyn Harness>)
    })
}

/// How long a case waits for what the bug prevents. First a short time, which is nearly always enough, so that the
/// tests do not take long. But on a busy machine *any* step of a case may take longer than that, and then the case
/// fails with another message. So the bug counts as missed only if nothing else can be the reason.
const PATIENCES: [Duration; 2] = [Duration::from_secs(3), Duration::from_secs(60)];

/// Returns `None`, or why the bug counts as missed.
fn why_missed(defect: Defect, name: &str, words: &str, lease: Option<Duration>) -> Option<String> {
    let Some(case) = all().iter().find(|case| case.name() == name) else {
        return Some(format!("there is no case {name:?}"));
    };
    // If the case has much to do first, the short patience would only waste time.
    let is_long = name == "exclusion::unguarded_increments_lose_nothing";
    let mut verdict = None;
    for patience in PATIENCES.into_iter().skip(usize::from(is_long)) {
        let ended = run(case, defect, lease, lease.unwrap_or_default() + patience);
        if matches!(&ended, Verdict::Failed(failure) if failure.to_string().contains(words)) {
            return None;
        }
        verdict = Some(ended);
    }
    Some(format!("{defect:?}: {name} was to fail with {words:?}: {verdict:?}"))
}

/// Runs all of them side by side, because most of them wait.
fn all_missed(list: &[(Defect, &'static str, &'static str)], lease: Option<Duration>) -> Vec<String> {
    std::thread::scope(|scope| {
        let start = |(defect, name, words): &(Defect, &'static str, &'static str)| {
            let (defect, name, words) = (*defect, *name, *words);
            scope.spawn(move || why_missed(defect, name, words, lease))
        };
        let runs: Vec<_> = list.iter().map(start).collect();
        runs.into_iter()
            .filter_map(|run| run.join().unwrap_or_else(|_| Some("a run panicked".to_owned())))
            .collect()
    })
}

#[test]
fn every_seeded_defect_is_caught() {
    assert_eq!(all_missed(CAUGHT, None), Vec::<String>::new());
}

#[test]
fn every_seeded_defect_of_leases_is_caught() {
    assert_eq!(all_missed(CAUGHT_WITH_LEASE, Some(LEASE)), Vec::<String>::new());
}

/// Otherwise a case could catch a bug by always failing.
#[test]
fn the_same_backend_without_a_defect_passes() {
    let catches = |case: &&Case| CAUGHT.iter().any(|(_, name, _)| *name == case.name());
    let without_lease = all().iter().filter(|case| Tier::of_this_run() == Tier::All || catches(case));
    let runs = without_lease.map(|case| (case, None)).chain(all().iter().map(|case| (case, Some(LEASE))));
    let runs: Vec<_> = runs.collect();
    let next = AtomicUsize::new(0);
    let pass = || {
        while let Some((case, lease)) = runs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let verdict = run(case, Defect::None, *lease, PATIENCES[1]);
            assert!(
                !matches!(verdict, Verdict::Failed(_)),
                "{} with lease {lease:?}: {verdict:?}",
                case.name()
            );
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(pass);
        }
    });
}
