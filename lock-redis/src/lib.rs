//! The Redis backend of distlock: a fair lock with leases, direct hand-off and fencing tokens.
//!
//! [`connect`] makes a [`LockClient`](lock_core::LockClient) from a URL (`redis:`, `rediss:`, `unix:`); [`RedisOptions`] makes
//! one without a URL. `docs/backends/redis.md` describes the promises and their limits, the options, the permissions and
//! tuning.
//!
//! # How it holds the lock
//! The holder is the owner whose id is in **one string key with a time to live**: the lease. [Scripts](scripts()) on the server
//! make every decision, each in one step. Every script compares the id before it changes a hold, and can be sent twice.
//!
//! * *Order.* Waiters are kept in a sorted set, ordered by the server's time when they arrived. Each waiter keeps its place by
//!   a heartbeat, once per renewal interval, which moves its deadline. **A heartbeat never makes a place.**
//! * *Hand-off.* Every script that writes grants a free lock to the first live waiter, in the same step, and publishes the
//!   grant on the channel of that waiter's connection. A waiter is live if its deadline has not passed and a client is
//!   subscribed to its channel.
//! * *Messages* only save time. The next heartbeat or renewal finds out the same.
//! * *The anchor* of a pushed grant is the moment at which the waiter sent the heartbeat that the message names.
//! * *The fencing token* is max(last + 1, the server's time in microseconds), so it rises even when the server forgets
//!   everything.
//! * *The connection.* A client has one. A broken connection is never repaired but replaced, and before the client uses the new
//!   one it has the server close all earlier ones that the server knows: **no request of an old connection is carried out after
//!   its cancel**. The number of unanswered requests is bounded, including requests whose callers have given up. Renewals, and
//!   requests that end a hold or a wait, overtake the requests that are waiting for their turn.
//!
//! The lease that a script compares and deletes comes from Redis's documentation; the debate on Redlock between Martin Kleppmann
//! and Salvatore Sanfilippo covers its limits. Fencing tokens go back at least to Chubby's sequencers. Nothing here relies on several independent servers.
//!
//! # How a loss is noticed
//! The core ends a hold that is not renewed before the server can give the lock away; nothing in this crate decides whether a
//! hold is valid. The next renewal finds a key that is gone or belongs to another client:
//! [`Deleted`](lock_core::LossReason::Deleted), [`Taken`](lock_core::LossReason::Taken),
//! [`Broken`](lock_core::LossReason::Broken). The server also reports a break by a message. A connection counts as broken when
//! the server answers nothing for as long as a reply may take. Any reply counts as a sign of life; the client sends `PING` only
//! on a quiet connection.
//!
//! # What happens at each failure
//! These tests force each failure. They are in `tests/faults`, or in `tests/protocol` where `protocol` stands before the name.
//!
//! | failure | what happens | forced by |
//! |---|---|---|
//! | outcome of an acquire unknown | the client asks again with the same id, or cancels: it holds once | `replies::of_an_acquire`, `replies::of_a_try`, `replies::of_a_place_in_the_queue` |
//! | outcome of a release or cancel unknown | repeated until it is certain | `replies::of_a_release`, `replies::of_a_cancel` |
//! | reply to a renewal lost | suspect, restored; the hold goes on | `replies::of_a_renewal` |
//! | future dropped | cancelled with the same id, whatever the attempt has left behind | `cancellation::at_any_moment_of_an_acquire`, `cancellation::while_the_grant_is_on_its_way` |
//! | lease expired | the holder has learned of the loss before; the first waiter asks 1 ms later, each further one 100 ms after the one before | `silence::a_holder_whom_nothing_reaches_stops_before_anyone_else_has_the_lock` |
//! | late reply | extends no lease | `delays::of_the_granting_answer_do_not_lengthen_the_lease` |
//! | … while other replies arrive | the connection is kept | `delays::answers_that_are_late_one_after_the_other_break_nothing`, `delays::answers_that_nobody_waits_for_break_nothing` |
//! | thousands of requests at once | sent in turn, behind renewals, releases and cancels | `crowds::requests_that_wait_for_their_turn_break_no_connection`, `crowds::a_renewal_goes_past_those_that_wait_for_their_turn`, `crowds::what_ends_a_hold_or_a_wait_goes_past_those_that_wait_for_their_turn` |
//! | thousands of holds, and a server far away | all renewed in one round trip | `crowds::thousands_of_holds_are_renewed_over_a_long_way` |
//! | holder dead | free when its lease ends | `processes::a_killed_holder_keeps_the_lock_until_its_lease_ends_and_no_longer` |
//! | waiter dead | passed over at once | `processes::a_killed_waiter_is_skipped_at_once` |
//! | … while another client subscribes to everything | the same | `queue::somebody_who_listens_to_everything_keeps_no_dead_waiter_alive` |
//! | waiter silent | passed over at its deadline | `silence::a_silent_head_waiter_is_skipped_at_its_deadline` |
//! | push lost | found by the next heartbeat | `queue::a_push_that_is_not_sent_is_found_by_the_heartbeat` |
//! | push late | the grant lasts from the heartbeat that the push names; for an attempt that is over the push means nothing | `silence::a_grant_that_is_pushed_lasts_from_the_last_heartbeat`, `processes::a_waiter_that_stood_still_across_its_grant_does_not_believe_in_it` |
//! | heartbeat of a place that is gone | makes no place; the wait begins anew, with the old score | protocol `a_heartbeat_of_a_place_that_is_gone_makes_none`, `queue::a_blip_across_a_hand_off_costs_no_place` |
//! | connection broken | replaced; holds and places are kept | `queue::a_blip_while_the_lock_is_held_costs_no_place` |
//! | connection half open | noticed by a request that gets no reply; replaced | `silence::a_half_open_connection_is_replaced_and_the_hold_goes_on` |
//! | old request arrives late | takes nothing, ends nothing | `replies::an_old_request_that_arrives_late_takes_nothing`, `replies::an_old_release_that_arrives_late_ends_no_new_hold` |
//! | server stops running | the hold goes on, or is lost before its lease ends | `stopped::for_half_of_the_lease_and_the_hold_goes_on`, `stopped::for_twice_the_lease_and_the_hold_is_lost_in_time` |
//! | restart with its data | the hold goes on, waiters wait on | `restarts::with_its_data_and_the_hold_goes_on`, `restarts::a_waiter_waits_on` |
//! | restart without its data | `Deleted`; with a [`restart_delay`](RedisOptions::restart_delay) no client acquires before the delay is over | `restarts::without_its_data_and_the_hold_is_lost`, `restarts::the_delay_after_a_restart_keeps_everybody_out` |
//! | another primary | the client leaves the old one at its first `READONLY` | `states::a_primary_that_another_has_replaced_is_left` |
//! | flushed, deleted, stolen, broken | the holder learns which; tokens rise | `loss::everything_is_flushed`, `loss::the_key_is_deleted`, `loss::the_key_is_stolen`, `loss::a_broken_hold_is_told_at_once` |
//! | address leads to another server and back | the old request takes nothing | `replies::an_old_request_takes_nothing_when_the_address_comes_back` |
//! | another program's key | an error names it; it is not touched | `states::a_key_of_another_kind_is_named`, protocol `a_fence_by_another_program_undoes_no_release`, `a_queue_or_waiters_by_another_program_undo_no_release` |
//! | out of memory | no new hold; no hold, place or hand-off is lost because of it | `states::out_of_memory_ends_no_hold_and_no_hand_off`, `states::out_of_memory_costs_no_waiter_its_place` |
//! | busy | the client waits until the server answers again | `states::a_script_that_blocks_the_server_costs_no_hold` |
//! | scripts forgotten | loaded again once, and sent again | `states::forgotten_scripts_cost_no_renewal`, `states::scripts_that_are_forgotten_again_and_again` |
//! | no messages | waiters ask every 100 ms | `access::without_channels_everybody_polls`, `preflight::a_server_without_the_newer_protocol_is_polled` |
//! | permission or password refused | an error that says which, without the password | `access::a_wrong_password_is_refused_once_and_shown_nowhere`, `access::without_scripts_the_permission_is_named` |
//! | client closed or dropped | its connection ends for good | `connections::a_closed_client_makes_no_new_one`, `connections::a_dropped_client_has_none` |
//! | server's clock behind the fence | tokens rise above the last one | protocol `tokens_rise_when_the_clock_is_behind` |
//!
//! The backend does not promise exclusion through a pause of the holder that outlasts the lease, a step of the server's clock, or
//! a failover that loses the last writes, so no test expects it there.
#![forbid(unsafe_code)]

mod address;
mod attempt;
mod backend;
mod driver;
mod earlier;
mod failure;
mod groups;
mod keys;
mod line;
mod link;
mod options;
mod push_router;
mod record;
mod scripts;
mod server;
mod supervisor;
mod turn;

pub use driver::DRIVER;
pub use options::{RedisOptions, connect, lease_of};
pub use scripts::{Script, scripts};
