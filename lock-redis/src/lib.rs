//! The Redis backend of distlock: a fair lock with leases, direct hand-off and fencing tokens.
//!
//! [`connect`] makes a [`LockClient`](lock_core::LockClient) for a URL (`redis:`, `rediss:`, `unix:`), [`RedisOptions`] does the same
//! without one. What is promised and what is not, options, permissions and tuning: `docs/backends/redis.md`.
//!
//! # How it holds the lock
//! The holder is whoever's id stands in **one string key with a time to live**, the lease. [Scripts](scripts()) decide everything at the
//! server, each in one step; every one compares the id before it changes a hold, and can be sent twice.
//!
//! * *Order.* Waiters stand in a sorted set by the server's time at arrival. Each keeps its place by a heartbeat, once per renewal
//!   interval, which moves its deadline. **A heartbeat never makes a place.**
//! * *Hand-off.* Every script that writes gives a free lock to the first waiter that lives, in the same step, and publishes that on the
//!   channel of that waiter's connection. A waiter lives if its deadline is not over and somebody listens on its channel.
//! * *Messages* only make things quick. What they say, the next heartbeat or renewal finds as well.
//! * *The anchor* of a grant that is pushed is the moment at which the heartbeat was sent that the message names.
//! * *The token* is max(last + 1, the server's time in microseconds), so it rises also when the server forgets everything.
//! * *The connection.* There is one per client. It is never repaired, but replaced, and the server is told to close all earlier ones
//!   that it knows before the new one is used: **no request of an old connection is carried out after its cancel**. A bounded number of
//!   requests is under way, whether their answers are waited for or not; renewals, and what ends a hold or a wait, go past those that
//!   wait for their turn.
//!
//! The idea of a lease that is compared and deleted by a script, and what is wrong with it under pauses and failover, is that of
//! Redis's own description of locks and of the discussion of Redlock between Martin Kleppmann and Salvatore Sanfilippo; that
//! of fencing tokens is older, Chubby's sequencers among others. Nothing here relies on several independent servers.
//!
//! # How a loss is noticed
//! The core ends a hold that is not renewed before the server can give it away; nothing in this crate decides whether a hold is valid.
//! A key that is gone or somebody else's is found by the next renewal: [`Deleted`](lock_core::LossReason::Deleted),
//! [`Taken`](lock_core::LossReason::Taken), [`Broken`](lock_core::LossReason::Broken); a break is also told by a message. A connection is broken when
//! nothing is answered for the time that an answer may take. Any answer counts as a sign of life; only a quiet connection is asked by `PING`.
//!
//! # What happens at each failure
//! The tests named here force it, in `tests/faults` unless `protocol` stands before the name.
//!
//! | failure | what happens | forced by |
//! |---|---|---|
//! | outcome of an acquire unknown | asked again with the same id, or cancelled: it holds once | `replies::of_an_acquire`, `replies::of_a_try`, `replies::of_a_place_in_the_queue` |
//! | outcome of a release or cancel unknown | repeated until it is certain | `replies::of_a_release`, `replies::of_a_cancel` |
//! | answer to a renewal lost | suspect, restored; the hold goes on | `replies::of_a_renewal` |
//! | future dropped | cancelled with the same id, whatever it has left | `cancellation::at_any_moment_of_an_acquire`, `cancellation::while_the_grant_is_on_its_way` |
//! | lease expired | the holder has been told before; the first waiter asks 1 ms later, each further one 100 ms after the one before | `silence::a_holder_whom_nothing_reaches_stops_before_anyone_else_has_the_lock` |
//! | late answer | lengthens no lease | `delays::of_the_granting_answer_do_not_lengthen_the_lease` |
//! | … and others come meanwhile | the connection is kept | `delays::answers_that_are_late_one_after_the_other_break_nothing`, `delays::answers_that_nobody_waits_for_break_nothing` |
//! | thousands of requests at once | asked in turn, behind renewals, releases and cancels | `crowds::requests_that_wait_for_their_turn_break_no_connection`, `crowds::a_renewal_goes_past_those_that_wait_for_their_turn`, `crowds::what_ends_a_hold_or_a_wait_goes_past_those_that_wait_for_their_turn` |
//! | thousands of holds far away | all renewed in one round trip | `crowds::thousands_of_holds_are_renewed_over_a_long_way` |
//! | holder dead | free when its lease ends | `processes::a_killed_holder_keeps_the_lock_until_its_lease_ends_and_no_longer` |
//! | waiter dead | passed over at once | `processes::a_killed_waiter_is_skipped_at_once` |
//! | … and somebody subscribes to everything | the same | `queue::somebody_who_listens_to_everything_keeps_no_dead_waiter_alive` |
//! | waiter silent | passed over at its deadline | `silence::a_silent_head_waiter_is_skipped_at_its_deadline` |
//! | push lost | found by the next heartbeat | `queue::a_push_that_is_not_sent_is_found_by_the_heartbeat` |
//! | push late | lasts from the heartbeat that it names; for an attempt that is over it means nothing | `silence::a_grant_that_is_pushed_lasts_from_the_last_heartbeat`, `processes::a_waiter_that_stood_still_across_its_grant_does_not_believe_in_it` |
//! | heartbeat of a place that is gone | makes none; the wait begins anew, with the old score | protocol `a_heartbeat_of_a_place_that_is_gone_makes_none`, `queue::a_blip_across_a_hand_off_costs_no_place` |
//! | connection broken | replaced; holds and places are kept | `queue::a_blip_while_the_lock_is_held_costs_no_place` |
//! | connection half open | noticed by a request without an answer, replaced | `silence::a_half_open_connection_is_replaced_and_the_hold_goes_on` |
//! | old request arrives late | takes nothing, ends nothing | `replies::an_old_request_that_arrives_late_takes_nothing`, `replies::an_old_release_that_arrives_late_ends_no_new_hold` |
//! | server stands still | the hold goes on, or is lost before its lease ends | `stopped::for_half_of_the_lease_and_the_hold_goes_on`, `stopped::for_twice_the_lease_and_the_hold_is_lost_in_time` |
//! | restart with its data | the hold goes on, waiters wait on | `restarts::with_its_data_and_the_hold_goes_on`, `restarts::a_waiter_waits_on` |
//! | restart without its data | `Deleted`; with a [`restart_delay`](RedisOptions::restart_delay) nobody acquires before it is over | `restarts::without_its_data_and_the_hold_is_lost`, `restarts::the_delay_after_a_restart_keeps_everybody_out` |
//! | another primary | the old one is left at its first `READONLY` | `states::a_primary_that_another_has_replaced_is_left` |
//! | flushed, deleted, stolen, broken | the holder is told which; tokens rise | `loss::everything_is_flushed`, `loss::the_key_is_deleted`, `loss::the_key_is_stolen`, `loss::a_broken_hold_is_told_at_once` |
//! | address leads elsewhere and back | the old request takes nothing | `replies::an_old_request_takes_nothing_when_the_address_comes_back` |
//! | another program's key | named, and not touched | `states::a_key_of_another_kind_is_named`, protocol `a_fence_by_another_program_undoes_no_release`, `a_queue_or_waiters_by_another_program_undo_no_release` |
//! | out of memory | no new hold; no hold, place or hand-off is lost for it | `states::out_of_memory_ends_no_hold_and_no_hand_off`, `states::out_of_memory_costs_no_waiter_its_place` |
//! | busy | waited for | `states::a_script_that_blocks_the_server_costs_no_hold` |
//! | scripts forgotten | loaded again once, and sent again | `states::forgotten_scripts_cost_no_renewal`, `states::scripts_that_are_forgotten_again_and_again` |
//! | no messages | waiters ask every 100 ms | `access::without_channels_everybody_polls`, `preflight::a_server_without_the_newer_protocol_is_polled` |
//! | permission or password refused | an error that names it, without the password | `access::a_wrong_password_is_refused_once_and_shown_nowhere`, `access::without_scripts_the_permission_is_named` |
//! | client closed or dropped | its connection ends for good | `connections::a_closed_client_makes_no_new_one`, `connections::a_dropped_client_has_none` |
//! | server's clock behind the fence | tokens rise above the last one | protocol `tokens_rise_when_the_clock_is_behind` |
//!
//! No test can force what is not promised: a paused process, a step of the server's clock, a failover that has lost the last writes.
#![forbid(unsafe_code)]

mod address;
mod attempt;
mod backend;
mod earlier;
mod groups;
mod keys;
mod line;
mod link;
mod mail;
mod options;
mod record;
mod scripts;
mod server;
mod supervisor;
mod trouble;
mod turn;

pub use options::{RedisOptions, connect, lease_of};
pub use scripts::{Script, scripts};
