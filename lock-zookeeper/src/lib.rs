//! The ZooKeeper backend of distlock: ephemeral sequential nodes, one round trip for a free lock, and a queue shared with Curator.
//!
//! [`connect`] creates a [`LockClient`](lock_core::LockClient) from a URL (`zookeeper:`), and [`ZooKeeperOptions`] does so without
//! a URL. [`lease_of`] says, without connecting, how long a hold could rely on the session that a URL asks for. For guarantees and
//! their limits, options, permissions and tuning see `docs/backends/zookeeper.md`.
//!
//! # How it holds the lock
//! It follows ZooKeeper's recipe for locks: a client that wants the lock creates an **ephemeral sequential node** in the lock's
//! directory. The node with the lowest number holds the lock, and each other client watches one node before its own. The nodes are
//! named like those of Apache Curator's `InterProcessMutex`, so both programs stand in one queue. It differs from the recipe in
//! these points:
//!
//! * *One round trip.* The transaction that creates the node also writes to the directory, and the answer to that write says how
//!   many children the directory has. If there is one, the lock is ours, and the transaction's id (`czxid` of the node) is the
//!   token.
//! * *One listing.* No node can come before an existing one, so the predecessors in one listing are all there will ever be. The
//!   client looks at them again, but does not list the directory again.
//! * *Nothing to ask at the hand-off.* The client first watches the node before its nearest predecessor. When that node goes, it
//!   looks at the others, while the nearest predecessor holds the lock. When the nearest goes, the lock is ours.
//! * *A mark for each attempt in each session.* The mark is part of the node's name, and the client records it before it sends the
//!   first request. Whatever becomes of that request, the client finds the node by its mark and adopts it, or repeats its removal
//!   until it is certain. It takes no node of another session.
//! * *A heartbeat that the leader commits*: a transaction that only checks, for all holds of a session together.
//! * *Sessions.* When a session has ended, another one replaces it. A hold is never replaced.
//!
//! # How a loss is noticed
//! The core ends a hold that is not renewed before the servers can give the lock away. `liveness.rs` works out what a heartbeat proves
//! and from when on a hold lasts; it has the formula and its reason. The core does not wait for the client library, which reports
//! the end of a session after 1.4 timeouts: the core's deadline comes before two thirds of one.
//!
//! The client watches the holder's node with `getData`. If another program deletes it, the hold is
//! [`Deleted`](lock_core::LossReason::Deleted) at once; if `break_holder` has marked it a moment before, the hold is
//! [`Broken`](lock_core::LossReason::Broken). The end of a session is a loss with
//! [`SessionClosed`](lock_core::LossReason::SessionClosed), the silence of its servers one with
//! [`Expired`](lock_core::LossReason::Expired).
//!
//! # Problems of other implementations, and what prevents them here
//!
//! | problem | known as | what prevents it here |
//! |---|---|---|
//! | the answer to a creation is lost, or its caller gives up: an unknown node blocks all clients | ZOOKEEPER-1262, CURATOR-45, -62, -79, -205, kazoo#732 | the mark, and the session's own clean-up, repeated until it is certain |
//! | a server that lags does not show the own node yet, and the client creates a second one | – | a transaction before looking, which the leader orders behind the creation; the lowest node counts, the others are removed |
//! | a client takes a node of a session that is about to end for its own: two holders | CURATOR-498, -604, -696 | the mark is for one session; before adopting a node, the client compares its owner |
//! | the holder does not notice that its session has ended | CURATOR-206 | the deadline by the holder's own clock |
//! | a follower or a deposed leader goes on answering: two holders | – | only what the leader commits counts, and only together with what the leader has learned of the session before |
//! | an operator deletes the holder's node by hand, unnoticed | CURATOR-171 | the watch over the own node; before a grant the client looks at it first |
//! | a failed release drops the local state, and the node stays | CURATOR-486, -678 | the release is repeated; a session that cannot remove a node is ended |
//! | a slow callback blocks the thread of events | CURATOR-495 | listeners run on threads of their own, in the core |
//! | `exists` leaves watches behind on nodes that are gone | CURATOR-107 | `getData` watches only existing nodes |
//! | foreign children stop the queue | CURATOR-43 | only nodes named like a contender count; others with a number are refused |
//! | contenders are ordered by the session's number instead of the sequence: two holders | ZOOKEEPER-2931 | the sequence number alone |
//! | the sequence overflows: doubles, and negative numbers | ZOOKEEPER-4372 | from there on the order of creation |
//! | a session with too many nodes brings the ensemble down when it ends | ZOOKEEPER-4306 | the paths of a session are bounded; further sessions |
//! | the answer to a creation in a transaction is nonsense | ZOOKEEPER-4026 | the client reads the answer to the write beside it instead |
//!
//! # What happens at each failure
//! The tests named here force each failure. They are in `tests/faults`; those with `ensemble` before the name are in
//! `conformance-tests/tests/zookeeper_ensemble.rs`.
//!
//! | failure | what happens | forced by |
//! |---|---|---|
//! | outcome of a creation unknown | the client looks for the node, adopts it or sends the request again: it holds once | all of `lost_creates` |
//! | outcome of a release or cancel unknown | the client repeats it until it is certain | `lost_requests::of_a_release`, `lost_requests::of_a_cancel`, `lost_requests::of_a_try_that_steps_back` |
//! | answer to a heartbeat lost | suspect, restored; the hold goes on | `lost_requests::of_a_heartbeat`, `lost_requests::of_a_heartbeat_on_a_connection_that_is_dead` |
//! | answer to a listing, watch or look lost | the client asks again and keeps its place | `lost_requests::of_a_listing`, `lost_requests::of_the_watch_over_the_predecessor`, `lost_requests::of_a_look_at_several_predecessors` |
//! | old request arrives late | it takes nothing, and removes no other client's node | `late::a_delete_that_arrives_when_the_lock_is_held_anew`, `late::a_creation_that_arrives_after_it_was_undone`, `late::a_creation_that_arrives_after_it_was_done_again`, `ensembles::a_creation_that_arrives_late_at_the_member_that_was_left` |
//! | future dropped | whatever it has left is undone | `cancellation::at_any_moment_of_an_acquire`, `cancellation::while_the_news_of_the_grant_is_on_its_way` |
//! | servers silent | the holder learns of the loss before the session ends | `contact::a_hold_is_lost_by_its_deadline_while_everybody_is_silent`, `contact::a_hold_is_lost_by_its_deadline_while_answers_are_swallowed` |
//! | a deposed leader goes on answering; a follower is cut off right after a pause and one heartbeat | the same | `ensembles::a_deposed_leader_that_goes_on_answering`, `ensembles::a_pause_and_one_heartbeat_and_then_a_cut_behind_the_follower` |
//! | servers back after the deadline | the lost hold's node is removed | `contact::a_hold_whose_deadline_has_passed_does_not_stay_behind_in_a_session_that_recovers` |
//! | a wait ends without contact | an error, not "not acquired" | `contact::a_wait_that_ends_without_contact_is_an_error`, `contact::a_wait_that_ends_without_an_answer_is_an_error` |
//! | server paused | the hold goes on, or is lost in time | `contact::a_server_that_stands_still_for_half_a_session_costs_no_hold`, `contact::a_server_that_stands_still_for_two_sessions_costs_the_hold_in_time` |
//! | server restarted | holds and places stay | `contact::a_server_that_is_started_again_keeps_holds_and_places` |
//! | session ended while waiting | the client opens a new one and goes to the end of the queue | `sessions::ended_while_waiting`, `sessions::ended_while_waiting_and_first_in_line` |
//! | … while holding, while releasing | `SessionClosed`; no waiter is blocked | `sessions::ended_while_holding`, `sessions::ended_while_releasing` |
//! | node of a dying session | the client waits for its end and does not adopt it | `sessions::the_node_of_a_dying_session_is_not_adopted` |
//! | holder dead | the lock is free when its session ends | `processes::a_killed_holder_keeps_the_lock_until_its_session_ends` |
//! | waiter dead | the queue skips it when its session ends | `processes::a_killed_waiter_is_skipped` |
//! | waiter paused across its grant | it does not rely on the grant | `processes::a_waiter_that_stood_still_across_its_grant_does_not_believe_in_it` |
//! | predecessor gives up | this hands nothing over | `nodes::a_predecessor_that_gives_up_hands_nothing_over`, `nodes::all_predecessors_but_the_holder_give_up_at_once` |
//! | own node deleted | `Deleted`; a waiter goes to the end of the queue | `nodes::the_own_node_deleted_while_holding`, `nodes::the_own_node_deleted_in_the_first_moments_of_a_hold`, `nodes::the_own_node_deleted_together_with_the_holders`, `nodes::the_own_node_deleted_while_there_is_no_contact` |
//! | another program writes to the own node | nothing | `nodes::the_own_node_written_to_by_somebody` |
//! | directory deleted | the client creates it again | `nodes::the_directory_deleted_while_held`, `nodes::the_directory_deleted_while_waited_for`, `paths::directories_that_are_removed_all_the_time` |
//! | broken | `Broken`; the lock stays the holder's until its abort margin is over | `breaking::a_broken_hold_is_told_as_broken_at_once`, `breaking::a_broken_hold_is_its_holders_until_the_abort_margin_is_over` |
//! | numbers at their end | the order of creation counts | `paths::numbers_at_their_end`, `paths::numbers_past_their_end_do_not_come_first` |
//! | foreign children | ignored without a number, refused with one, except contenders of Curator and, with an option, of kazoo | `paths::children_that_are_none_of_ours`, `paths::numbers_of_other_programs_are_refused`, `paths::contenders_of_curator_count`, `paths::contenders_of_kazoo_count_on_request` |
//! | permission missing | the client uses another way, or reports an error that names it | `access::where_the_directory_may_not_be_written_to`, `access::where_nothing_may_be_created`, `access::where_nothing_may_be_listed`, `access::where_nothing_may_be_deleted` |
//! | server throttles | the client asks again | `access::a_server_that_has_too_much_to_do` |
//! | password refused | an error that does not contain the password | `access::sasl_refuses_a_wrong_password_once`, `access::another_password_is_another_user`, `access::passwords_are_shown_nowhere` |
//! | quota used up | an error that names it | `access::a_quota_that_is_used_up` |
//! | more nodes than one session can have | further sessions | `costs::more_locks_than_one_session_takes` |
//! | leader killed, stopped, isolated | no increment is lost, and never do two clients believe they hold the lock | ensemble `a_leader_that_is_killed`, `a_leader_that_is_stopped_and_runs_on`, `a_leader_that_is_isolated` |
//! | follower stopped, isolated, cut off | the same | ensemble `a_follower_that_is_stopped_and_runs_on`, `a_follower_that_is_isolated`, `a_follower_whose_connections_are_cut` |
//! | client closed or dropped | its sessions end | `clients::a_closed_client_ends_its_session_at_once`, `clients::a_dropped_client_leaves_nothing` |
//!
//! No test can force what the backend does not promise: a paused process, wrong clocks, an ensemble that has lost its data.
#![forbid(unsafe_code)]

mod attempt;
mod backend;
mod contender;
mod driver;
mod failure;
mod hold;
mod liveness;
mod node;
mod node_claim;
mod options;
mod orphan;
mod proof;
mod queue;
mod record;
mod session;
mod sessions;
mod tls;
mod waiter;

pub use driver::DRIVER;
pub use options::{Access, Authentication, TokenSource, ZooKeeperOptions, connect, lease_of};
