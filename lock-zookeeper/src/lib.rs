//! The ZooKeeper backend of distlock: ephemeral sequential nodes, one round trip when free, a queue that is shared with Curator.
//!
//! [`connect`] makes a [`LockClient`](lock_core::LockClient) for a URL (`zookeeper:`), [`ZooKeeperOptions`] does the same without one,
//! [`lease_of`] tells without connecting how long a hold could rely on a URL's session. What is promised and what is not, options,
//! permissions and tuning: `docs/backends/zookeeper.md`.
//!
//! # How it holds the lock
//! It is ZooKeeper's recipe for locks: whoever wants the lock makes an **ephemeral sequential node** in the lock's directory, the
//! lowest number holds it, and each of the others watches one before it. The nodes are called as those of Apache Curator's
//! `InterProcessMutex`, so that both stand in one queue. What differs from the recipe:
//!
//! * *One round trip.* The transaction that creates the node also writes to the directory, and the answer to that write says how
//!   many children there are. One means that the lock is ours, and the transaction's number (`czxid` of the node) is the token.
//! * *One listing.* Nobody can come to stand before a node that is there. Those who were listed once are all who ever will be; they are
//!   looked at again, not listed again.
//! * *Nothing to ask at the hand-off.* The one before the nearest is watched first, and the others are looked at when it goes: while
//!   the nearest holds the lock. When that one goes, the lock is ours.
//! * *A mark for each attempt in each session.* It stands in the node's name, and is written down before the first request is
//!   sent. Whatever becomes of that, the node is found by its mark: adopted, or removed until it is certain. No node of another
//!   session is taken.
//! * *A heartbeat that the leader commits*: a transaction that only checks, for all holds of a session together.
//! * *Sessions.* A session that has ended is followed by another; a hold is never.
//!
//! # How a loss is noticed
//! The core ends a hold that is not renewed before the servers can give the lock away; what a heartbeat proves, and from when on
//! a hold lasts, is worked out in `trust.rs`, which has the formula and its reason. The client library is not waited for: it says
//! that a session has ended after 1.4 timeouts, and the core's deadline comes before two thirds of one.
//!
//! The holder's node is watched, by `getData`: deleted by somebody, it is [`Deleted`](lock_core::LossReason::Deleted) at once; marked
//! by `break_holder` a moment before, it is [`Broken`](lock_core::LossReason::Broken). A session that has ended is
//! [`SessionClosed`](lock_core::LossReason::SessionClosed), one whose servers are silent [`Expired`](lock_core::LossReason::Expired).
//!
//! # What others have met, and what keeps it out
//!
//! | what went wrong | known as | what keeps it out here |
//! |---|---|---|
//! | the answer to a creation is lost, or its caller gives up: a node that nobody knows of blocks everybody | ZOOKEEPER-1262, CURATOR-45, -62, -79, -205, kazoo#732 | the mark, and the session's own removal of what is left, repeated until it is certain |
//! | a server that lags does not show the own node yet, and a second one is made | – | a transaction before looking, which the leader orders behind it; the lowest counts, the others are removed |
//! | a node of a session that is about to end is taken for one's own: two holders | CURATOR-498, -604, -696 | the mark is for one session; who adopts compares the owner |
//! | the holder does not notice that its session has ended | CURATOR-206 | the deadline by the own clock |
//! | a follower or a deposed leader goes on answering: two holders | – | only what the leader commits counts, and only together with what it has been told of the session before |
//! | the holder's node is deleted by hand, unnoticed | CURATOR-171 | the watch over the own node; before a grant it is looked at first |
//! | a failed release drops the local state, and the node stays | CURATOR-486, -678 | it is repeated; a session that cannot get rid of a node is ended |
//! | a slow callback blocks the thread of events | CURATOR-495 | listeners run on threads of their own, in the core |
//! | `exists` leaves watches behind on nodes that are gone | CURATOR-107 | `getData` watches only what is there |
//! | foreign children stop the queue | CURATOR-43 | only what is called like a contender counts; other numbers are refused |
//! | ordered by the session's number instead of the sequence: two holders | ZOOKEEPER-2931 | the sequence number alone |
//! | the sequence overflows: doubles, and negative ones | ZOOKEEPER-4372 | from there on the order of creation |
//! | a session with too many nodes brings the ensemble down when it ends | ZOOKEEPER-4306 | its paths are bounded; further sessions |
//! | the answer to a creation in a transaction is nonsense | ZOOKEEPER-4026 | the answer to the write beside it is read instead |
//!
//! # What happens at each failure
//! The tests named here force it, in `tests/faults` unless `ensemble` stands before the name, which is
//! `conformance-tests/tests/zookeeper_ensemble.rs`.
//!
//! | failure | what happens | forced by |
//! |---|---|---|
//! | outcome of a creation unknown | looked for, adopted or sent again: it holds once | all of `lost_creates` |
//! | outcome of a release or cancel unknown | repeated until it is certain | `lost_requests::of_a_release`, `lost_requests::of_a_cancel`, `lost_requests::of_a_try_that_steps_back` |
//! | answer to a heartbeat lost | suspect, restored; the hold goes on | `lost_requests::of_a_heartbeat`, `lost_requests::of_a_heartbeat_on_a_connection_that_is_dead` |
//! | answer to a listing, watch or look lost | asked again; the place is kept | `lost_requests::of_a_listing`, `lost_requests::of_the_watch_over_the_predecessor`, `lost_requests::of_a_look_at_several_predecessors` |
//! | old request arrives late | takes nothing, removes nobody else's | `late::a_delete_that_arrives_when_the_lock_is_held_anew`, `late::a_creation_that_arrives_after_it_was_undone`, `late::a_creation_that_arrives_after_it_was_done_again`, `ensembles::a_creation_that_arrives_late_at_the_member_that_was_left` |
//! | future dropped | undone, whatever it has left | `cancellation::at_any_moment_of_an_acquire`, `cancellation::while_the_news_of_the_grant_is_on_its_way` |
//! | servers silent | the holder has been told before the session ends | `contact::a_hold_is_lost_by_its_deadline_while_everybody_is_silent`, `contact::a_hold_is_lost_by_its_deadline_while_answers_are_swallowed` |
//! | a deposed leader goes on answering; a follower is cut off right after a pause and one heartbeat | the same | `ensembles::a_deposed_leader_that_goes_on_answering`, `ensembles::a_pause_and_one_heartbeat_and_then_a_cut_behind_the_follower` |
//! | servers back after the deadline | the lost hold's node is removed | `contact::a_hold_whose_deadline_has_passed_does_not_stay_behind_in_a_session_that_recovers` |
//! | a wait ends without contact | an error, not "not acquired" | `contact::a_wait_that_ends_without_contact_is_an_error`, `contact::a_wait_that_ends_without_an_answer_is_an_error` |
//! | server stands still | the hold goes on, or is lost in time | `contact::a_server_that_stands_still_for_half_a_session_costs_no_hold`, `contact::a_server_that_stands_still_for_two_sessions_costs_the_hold_in_time` |
//! | server restarted | holds and places are kept | `contact::a_server_that_is_started_again_keeps_holds_and_places` |
//! | session ended while waiting | a new one, at the end of the queue | `sessions::ended_while_waiting`, `sessions::ended_while_waiting_and_first_in_line` |
//! | … while holding, while releasing | `SessionClosed`; nobody is kept waiting | `sessions::ended_while_holding`, `sessions::ended_while_releasing` |
//! | node of a dying session | waited for, not adopted | `sessions::the_node_of_a_dying_session_is_not_adopted` |
//! | holder dead | free when its session ends | `processes::a_killed_holder_keeps_the_lock_until_its_session_ends` |
//! | waiter dead | passed over when its session ends | `processes::a_killed_waiter_is_skipped` |
//! | waiter paused across its grant | does not believe in it | `processes::a_waiter_that_stood_still_across_its_grant_does_not_believe_in_it` |
//! | predecessor gives up | hands nothing over | `nodes::a_predecessor_that_gives_up_hands_nothing_over`, `nodes::all_predecessors_but_the_holder_give_up_at_once` |
//! | own node deleted | `Deleted`; a waiter goes to the end of the queue | `nodes::the_own_node_deleted_while_holding`, `nodes::the_own_node_deleted_in_the_first_moments_of_a_hold`, `nodes::the_own_node_deleted_together_with_the_holders`, `nodes::the_own_node_deleted_while_there_is_no_contact` |
//! | own node written to | nothing | `nodes::the_own_node_written_to_by_somebody` |
//! | directory deleted | made again | `nodes::the_directory_deleted_while_held`, `nodes::the_directory_deleted_while_waited_for`, `paths::directories_that_are_removed_all_the_time` |
//! | broken | `Broken`, and the holder's until its abort margin is over | `breaking::a_broken_hold_is_told_as_broken_at_once`, `breaking::a_broken_hold_is_its_holders_until_the_abort_margin_is_over` |
//! | numbers at their end | ordered by creation | `paths::numbers_at_their_end`, `paths::numbers_past_their_end_do_not_come_first` |
//! | foreign children | passed over without a number, refused with one, but for contenders of Curator, and on request of kazoo | `paths::children_that_are_none_of_ours`, `paths::numbers_of_other_programs_are_refused`, `paths::contenders_of_curator_count`, `paths::contenders_of_kazoo_count_on_request` |
//! | permission missing | done in another way, or an error that names it | `access::where_the_directory_may_not_be_written_to`, `access::where_nothing_may_be_created`, `access::where_nothing_may_be_listed`, `access::where_nothing_may_be_deleted` |
//! | server throttles | asked again | `access::a_server_that_has_too_much_to_do` |
//! | password refused | an error, without the password | `access::sasl_refuses_a_wrong_password_once`, `access::another_password_is_another_user`, `access::passwords_are_shown_nowhere` |
//! | quota used up | an error that names it | `access::a_quota_that_is_used_up` |
//! | more nodes than a session carries | further sessions | `costs::more_locks_than_one_session_takes` |
//! | leader killed, stopped, isolated | no increment lost, no two believers at once | ensemble `a_leader_that_is_killed`, `a_leader_that_is_stopped_and_runs_on`, `a_leader_that_is_isolated` |
//! | follower stopped, isolated, cut off | the same | ensemble `a_follower_that_is_stopped_and_runs_on`, `a_follower_that_is_isolated`, `a_follower_whose_connections_are_cut` |
//! | client closed or dropped | its sessions end | `clients::a_closed_client_ends_its_session_at_once`, `clients::a_dropped_client_leaves_nothing` |
//!
//! No test can force what is not promised: a paused process, clocks that run wrongly, an ensemble that has lost its data.
#![forbid(unsafe_code)]

mod attempt;
mod backend;
mod contender;
mod hold;
mod leftover;
mod node;
mod options;
mod proof;
mod queue;
mod record;
mod session;
mod sessions;
mod tls;
mod trace;
mod trouble;
mod trust;
mod waiter;

pub use options::{Access, Authentication, TokenSource, ZooKeeperOptions, connect, lease_of};
