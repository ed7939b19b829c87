//! The promises of the scripts, each played against a real server.
//!
//! A scenario takes the scripts as a value, so that the table of mutants can show that the scenario fails when its rule is
//! missing.
use crate::failure::Outcome;
use crate::scripts::Scripts;
use crate::server::Server;

pub(crate) mod acquire;
pub(crate) mod beat;
pub(crate) mod faults;
pub(crate) mod fence;
pub(crate) mod foreign;
pub(crate) mod handoff;
pub(crate) mod inspect;
pub(crate) mod keys;
pub(crate) mod lease;
pub(crate) mod permits;
pub(crate) mod queue;
pub(crate) mod sharing;
pub(crate) mod undo;

/// One promise.
pub(crate) type Scenario = fn(&Scripts, &Server) -> Outcome;

macro_rules! scenarios {
    ($($room:ident: $($name:ident),+;)+) => {
        /// All scenarios, with their names.
        pub(crate) const ALL: &[(&str, Scenario)] = &[
            $($((concat!(stringify!($room), "::", stringify!($name)), $room::$name),)+)+
        ];
    };
}

scenarios! {
    acquire: a_free_lock_is_granted_in_one_call, an_attempt_sent_twice_holds_once, an_attempt_sent_twice_waits_once,
        a_try_never_waits, a_hold_says_who_and_since_when, an_id_inside_of_the_hold_is_not_the_owner;
    beat: a_heartbeat_of_a_place_that_is_gone_makes_none, a_heartbeat_takes_a_free_lock,
        a_heartbeat_of_a_place_that_is_gone_passes_the_lock_on, a_heartbeat_finds_a_grant_whose_push_was_lost,
        a_heartbeat_moves_the_deadline_and_the_channel, a_heartbeat_of_an_expired_hold_makes_no_place;
    queue: waiters_are_served_in_order, two_arrivals_in_one_microsecond_keep_their_order,
        a_lost_place_comes_before_later_arrivals, a_place_in_the_future_is_now, a_free_lock_is_the_first_waiters,
        a_newcomer_gets_a_free_lock_past_the_dead, a_try_gets_a_free_lock_past_the_dead,
        a_newcomer_is_granted_without_a_message, many_dead_waiters_are_looked_at_in_pieces,
        the_queue_ends_with_its_last_waiter;
    handoff: release_hands_over_with_a_message, cancel_of_a_hold_hands_over, break_hands_over,
        renewal_of_a_lost_hold_hands_over, a_try_hands_an_expired_lock_over, a_release_that_is_late_hands_over,
        a_head_without_connection_is_skipped, a_subscriber_to_everything_keeps_no_dead_head,
        a_head_past_its_deadline_is_skipped, a_waiter_that_polls_is_granted, a_grant_ends_at_the_waiters_deadline,
        a_release_in_the_usual_case_is_short,
        a_refused_look_at_the_channel_grants, a_refused_message_grants;
    lease: only_the_owner_renews, a_late_renewal_does_not_revive, release_by_another_changes_nothing,
        a_broken_holder_learns_why, a_release_sent_twice_says_gone, only_the_owner_describes_its_hold,
        a_late_description_changes_nothing_and_hands_over;
    undo: cancel_of_nothing_changes_nothing, cancel_of_a_place, cancel_of_a_hold, break_of_another_changes_nothing,
        break_tells_the_holder, break_keeps_the_queue;
    fence: tokens_rise_over_releases_and_hand_offs, tokens_rise_over_expiry, tokens_rise_when_all_keys_are_deleted,
        tokens_rise_after_a_flush, tokens_rise_after_a_restart_without_data, tokens_rise_when_the_clock_is_behind,
        tokens_keep_all_their_digits, a_series_has_its_tokens_alone, what_a_series_has_not_used_goes_back, the_fence_outlasts_its_own_value_by_a_day;
    inspect: it_shows_the_queue_in_order, it_shows_who_was_granted, it_leaves_the_expired_out,
        it_shows_a_long_queue, it_shows_a_very_long_queue, it_changes_nothing;
    foreign: a_hold_by_another_program_is_respected, a_queue_of_another_type_is_an_error_before_any_write,
        waiters_of_another_type_leave_nothing_for_ever, a_hold_of_another_type_ends_nothing,
        a_waiter_by_another_program_is_skipped, a_fence_by_another_program_is_an_error_before_any_write,
        a_fence_by_another_program_undoes_no_release, a_queue_or_waiters_by_another_program_undo_no_release, a_mark_by_another_program_is_left_as_it_is;
    faults: without_memory_nothing_is_acquired, without_memory_a_release_hands_over, without_memory_a_break_hands_over,
        without_memory_a_waiter_keeps_its_place, a_replica_refuses;
    sharing: readers_are_beside_each_other, a_reader_stands_behind_a_writer_that_waits,
        neighbours_that_read_enter_together, a_reader_that_is_silent_is_gone,
        a_late_renewal_of_a_reader_does_not_revive, renewals_extend_the_leases_of_readers,
        a_writer_that_gives_up_lets_those_behind_it_in, a_silent_writer_at_the_head_stops_none,
        a_writer_goes_on_reading, one_reader_is_broken_and_the_others_stay, inspect_shows_who_shares,
        no_script_walks_the_readers, without_memory_readers_go_on, an_operator_deletes_keys, a_newer_layout_is_refused;
    permits: no_more_are_taken_than_there_are, the_head_takes_all_or_nothing,
        a_large_one_that_gives_up_lets_the_small_in, the_permits_of_the_silent_come_back, another_number_is_reported;
    keys: one_node_of_a_cluster_has_them_all, every_key_is_declared;
}
