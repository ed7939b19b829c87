//! The MySQL and MariaDB backend of distlock: named locks with validation, a lease and fencing tokens.
//!
//! [`connect`] creates a [`LockClient`](lock_core::LockClient) from a URL (`mysql:`, `mariadb:`), and [`MySqlOptions`] does so
//! without a URL. For guarantees and their limits, options, permissions and tuning see `docs/backends/mysql.md`.
//!
//! # How it holds the lock
//! A lock is a named lock of the server (`GET_LOCK`), which belongs to a **connection** and ends with it. One task owns a
//! connection ([`actor`]); it alone sends statements on it and receives the answers. Callers await messages of that task, so a
//! future that is dropped abandons no statement half way.
//!
//! * *Trying and holding* share connections ([`pool`]): a try is a statement with a timeout of zero, which the server carries out
//!   at once. A connection never has a lock twice, because the server would count it.
//! * *Waiting* needs a connection of its own, without holds, and blocks at the server, which serves waiters in order. It uses no
//!   timeout of the server: the core ends a wait, to the millisecond, and then makes the server forget it.
//! * *Ending a wait* is `KILL QUERY`, sent on another connection ([`control`]). The server must have answered both the interrupted
//!   statement and the `KILL` before the connection is used again. Otherwise the client drops the connection without sending
//!   anything on it, and the server notices within a second. The client releases what was granted meanwhile.
//! * *The lease* is the session's `wait_timeout`: the server ends a connection, and with it the locks, when it has heard nothing
//!   for that long. Any statement renews it for all locks of the connection.
//! * *The token* is the server's `UUID_SHORT()`, evaluated after the grant in the same statement; or it comes from a table, minted
//!   by the session that holds the lock, while it does.
//! * *Each session* has a mark ([`mark`]): a random number, by which a client recognizes a session that is its own alone, and a
//!   lock named after the number, by which a waiter sees from outside that the server still has its connection.
//! * *The end of a connection* that may hold something needs care ([`control::Control::bury`]): only if the server no longer knows
//!   its number, in the same run of the server, is it certain that nothing is left.
//!
//! # How a loss is noticed
//! Once per renewal interval each connection asks in one statement, for all its locks, whether `IS_USED_LOCK` is still this
//! connection, and whether the server is still a primary. A connection that breaks loses all its locks at that moment. A silent
//! connection keeps them until the core's deadline, which comes before the server's. An answer counts from the moment before its
//! statement was sent; if a grant took longer than an interval to arrive, the client checks it before relying on it.
//!
//! # What happens at each failure
//! The tests named here force each failure, on both servers. They are in `tests/faults`.
//!
//! | failure | what happens | forced by |
//! |---|---|---|
//! | holder's connection killed | lost at the next check, with all locks of that connection; the next waiter is served at once | `kills::a_killed_holder_is_told`, `kills::all_locks_of_a_killed_connection_are_lost` |
//! | holder's statement interrupted | the client asks again; nothing is lost | `kills::an_interrupted_holder_holds`, `kills::an_interrupted_release_is_repeated` |
//! | waiter killed or interrupted | it waits anew, at the end of the queue | `kills::a_killed_waiter_waits_again`, `kills::an_interrupted_waiter_waits_again` |
//! | unused connection ended | the client replaces it; callers do not notice | `kills::an_idle_connection_that_was_killed_costs_nothing`, `restarts::while_nothing_is_held_and_nobody_notices` |
//! | requests, answers, or both vanish | `Expired`, before the server ends the session | the three of `silence::…_stops_before_anyone_else_has_the_lock` |
//! | a waiter vanishes | the server grants it the lock in its turn, and frees the lock after the lease | `silence::a_waiter_whom_nothing_reaches_is_passed_over` |
//! | the connection of a wait vanishes | it waits anew | `silence::a_wait_that_the_server_has_forgotten_begins_anew` |
//! | an answer comes late, and the connection is given to another wait | a repeated request does not queue behind that wait | `late::what_is_sent_again_does_not_stand_behind_the_wait_of_another` |
//! | server paused | the hold goes on, or is lost before its lease ends | `stopped::for_half_of_the_lease_and_the_hold_goes_on`, `stopped::for_twice_the_lease_and_the_hold_is_lost_in_time` |
//! | … and a wait ends meanwhile | an error, not "held by another client" | `stopped::a_wait_that_ends_meanwhile_is_an_error`, `silence::a_wait_that_ends_in_silence_is_an_error` |
//! | restart | `ConnectionLost`; waits go on, tokens rise | `restarts::while_held_and_the_holder_is_told`, `restarts::while_somebody_waits_and_the_wait_goes_on` |
//! | … and other clients have the numbers of old connections | their connections are left alone | `restarts::and_who_has_the_old_number_is_left_alone`, `restarts::before_summer_time_ends_and_who_has_the_old_number_is_left_alone` |
//! | demotion (`read_only`) | lost; no client acquires a lock there | `demotion::a_holder_at_a_demoted_server_is_told`, `demotion::a_demoted_server_gives_no_lock` |
//! | future dropped | neither a waiter nor a lock is left after a second | all of `cancellation::` |
//! | grant and end of the wait at the same moment | one of the two, and nothing is left | `races::a_grant_that_races_the_end_of_the_wait` |
//! | grant arrives late | the client does not rely on it, or checks it first | `late::a_grant_that_arrives_after_the_lease_is_not_believed`, `late::a_grant_that_took_long_is_checked_first` |
//! | reply lost | acquired once, released once | `late::the_reply_to_an_acquire_is_lost`, `late::the_reply_to_a_release_is_lost` |
//! | a token cannot be written to the table | an error; no other lock is touched | `tokens::that_cannot_be_written_down_cost_no_other_lock` |
//! | the connection's runtime ends, or its task panics | lost, before the server frees it | `runtimes::a_hold_ends_with_the_runtime_of_its_connection` |
//! | server restarted within a second | tokens rise all the same | `tokens::of_the_clock_rise_across_a_restart` |
//! | holder killed | the lock is free at once | `processes::a_killed_holder_frees_the_lock_at_once` |
//! | process paused | the lock is free after the lease; the process learns of the loss when it runs again | `processes::a_stopped_holder_keeps_the_lock_for_its_lease`, `processes::a_waiter_that_stood_still_across_its_grant_does_not_believe_in_it` |
//! | a proxy spreads statements over connections | refused; no grant; lost at the next check | all of `spreading::` |
//! | several clients share one session of the server | refused; no grant; lost at the next check | `spreading::of_one_connection_over_two_clients_is_refused`, `rewritten::a_session_that_has_become_anothers_gives_no_lock`, `rewritten::a_session_that_has_become_anothers_is_a_loss` |
//! | another client has the lock at a check or a release | `Taken`, `Deleted` | all of `rewritten::` |
//! | two locks in opposite order | both clients wait until their time is up; they keep their holds | `crossing::two_locks_in_opposite_order` |
//! | too many connections (1040) | an error that may be retried; waits go on when the server has free connections | `limits::a_server_without_room_is_asked_again`, `limits::a_server_without_room_is_not_asked_all_the_time` |
//! | offline mode | the same | `access::a_server_that_is_offline_for_a_while_ends_no_wait` |
//! | `max_connections` reached | waits queue in the client, in order | `limits::waits_beyond_the_bound_are_served_in_order` |
//! | permission or password refused | an error that names it and does not contain the password | all of `access::` |
//!
//! No test can force what the backend does not promise: a paused process, a failover to a server that does not know the locks.
#![forbid(unsafe_code)]

mod actor;
mod address;
mod attempt;
mod backend;
mod control;
mod driver;
mod failure;
mod inspection;
mod link;
mod mark;
mod opener;
mod options;
mod pool;
mod run;
mod server;
mod session;
mod settings;
mod statement;
mod survey;

pub use driver::DRIVER;
pub use options::{MySqlOptions, TokenSource, connect, lease_of};
pub use statement::operation_of;
