//! Locks between the processes of one machine, without a server.
//!
//! [`FileOptions`] opens a folder and makes a [`LockClient`](lock_core::LockClient); [`connect`] does the same for a `file:`
//! URL. The locks are exclusive, fair between processes, have fencing tokens, and can be inspected and broken.
//!
//! # How it holds the lock
//! A client holds a lock while it has the `flock` on the file `held/<lock>`, **and that file is still in its place**. Nothing
//! else excludes other clients. The kernel drops a `flock` when the last process that has the descriptor open closes it or
//! dies, so there is no lease and no renewal, and a stopped holder keeps the lock.
//!
//! * *Order.* A waiter draws a ticket: a file with a rising number, which it keeps under a `flock`. It is a waiter's turn when
//!   no living waiter has a lower number; only then does it ask for the lock.
//! * *The gate.* Every decision (take, draw a ticket, inspect, break, tidy up) is made under the `flock` of the file `gate`,
//!   which takes some microseconds. So no ticket with a low number appears late, and no process that only looks at a file is
//!   taken for a holder.
//! * *The fencing token.* The gate's file contains one counter for the whole folder. A token is max(counter, last holder's
//!   token) + 1, and never below the clock in microseconds. It is drawn in the same stay in the gate in which the lock is
//!   taken.
//! * *Waking.* A waiter watches the ticket right before its own, and the first waiter watches the `held` file, by inotify: one
//!   thread and one inotify instance per process, however many waiters there are. A waiter looks again after the watch has
//!   begun, because inotify does not report what happened before.
//!
//! # How a loss is noticed
//! The `held` file of a holder is watched too, from 25 ms after the grant. When the file is no longer in its place, or is
//! marked as broken, the hold is lost: [`Broken`](lock_core::LossReason::Broken) or
//! [`Deleted`](lock_core::LossReason::Deleted). An inspection every 30 s notices a folder that was moved away as a whole.
//!
//! # What happens at each failure
//! These tests force each failure; most are in `src/tests`, with a process of their own for each role.
//!
//! | failure | what happens | forced by |
//! |---|---|---|
//! | holder killed | the kernel drops the `flock`; the next waiter wakes at once | `a_killed_holder_frees_the_lock` |
//! | … while a child has its descriptor | the lock stays held until the last such process is gone | `the_lock_of_a_killed_holder_stays_with_the_child_that_inherited_it` |
//! | waiter killed | its ticket no longer counts; the next process that sees it removes it | `killed_waiters_give_up_their_places` |
//! | killed between lock and record | nothing is held | `a_process_killed_before_it_wrote_its_record_holds_nothing` |
//! | holder stopped | it keeps the lock | `a_stopped_holder_keeps_the_lock` |
//! | process stopped in the gate | try and timed waits end in time with an error that names the process; releases go on | `a_process_stopped_in_the_gate_makes_nobody_late` |
//! | slow to draw a ticket | no other process draws one meanwhile | `no_late_lower_ticket` |
//! | release just before the watch, or just before the sleep | the look that follows finds it | `no_lost_wake_up` |
//! | notice before the `flock` is dropped | the waiter looks again after 50 µs, 100 µs, … for 2 s | `an_announcement_before_the_fact_is_not_the_last_look` |
//! | release without the gate | wakes the waiter all the same; the file is reused, or tidied away later | `a_waiter_is_told_of_a_release_that_could_not_get_into_the_gate` |
//! | acquire dropped | `cancel` removes the ticket or gives the lock back; neither needs the gate | `a_dropped_wait_leaves_the_queue` |
//! | outcome unknown | does not occur: a system call fails or succeeds; an attempt that is repeated finds its own grant | `asked_again_an_attempt_finds_its_own_grant` |
//! | broken | that holder or none: found and removed in one stay in the gate | `breaks_that_holder_or_nobody` |
//! | `held` file or folder removed | the holder learns `Deleted`; the next client makes a new one | `a_holder_learns_that_its_file_or_folder_is_gone` |
//! | file replaced between opening and locking | noticed by device and inode | `a_file_replaced_before_it_was_locked_is_not_the_lock`, `a_gate_replaced_before_it_was_locked_is_not_the_gate` |
//! | tidied away while the gate is removed | the file is removed under its `flock`, so no client holds a lock whose file vanishes | `a_file_that_is_being_tidied_away_is_not_the_lock` |
//! | folder moved, first waiter stopped | the next waiter goes to the folder at the path | `a_stopped_waiter_in_a_folder_that_was_moved_away_is_in_nobodys_way` |
//! | modes changed by `chmod -R` | no hold is taken for broken | `changing_the_modes_of_everything_breaks_nobody` |
//! | first waiter stopped | the others wait; timed waits end in time | `behind_a_stopped_waiter_timed_waits_end_in_time` |
//! | ticket removed | its waiter draws another, at the end | `a_waiter_whose_ticket_was_removed_draws_another` |
//! | counter lost, torn or damaged | the clock and the last holder's record keep tokens rising | `numbers_rise_whatever_happens_to_the_file` |
//! | disk full, folder read-only | an error that says so; nothing is held; a lock can still be released | `a_full_disk_is_a_clear_error`, `a_read_only_folder_is_a_clear_error`, `a_lock_is_given_back_on_a_full_disk` |
//! | no inotify instance left | the waiter looks every [`poll_interval`](FileOptions::poll_interval) | `works_without_inotify` |
//! | no inotify watch left | the same | `works_without_inotify_watches` |
//! | out of descriptors | an error that names the limit; a held lock can be released | `a_limit_of_descriptors_is_a_clear_error` |
//! | … for a moment, during a wait | the waiter keeps its place | `a_waiter_that_is_out_of_descriptors_for_a_while_keeps_its_place`, `a_wait_that_was_out_of_descriptors_for_a_while_ends_as_refused` |
//! | a umask that removes the owner's permissions | they are restored | `a_strange_umask_takes_nothing_from_the_owner` |
//! | symbolic link, also one that leads nowhere, no folder, foreign owner, mode too open or too closed | refused | `refusals` |
//! | no thread for the watcher | an error that says so | `a_client_that_gets_no_watcher_is_an_error_with_a_remedy` |
//! | network file system | refused | `refuses_a_network_file_system_by_its_number` |
//!
//! # On systems other than Linux
//! On other Unix systems waiters and holders look every [`poll_interval`](FileOptions::poll_interval), network file systems are
//! not detected, and the error for a stuck gate does not name the process. On systems that are not Unix this crate is empty.
#![forbid(unsafe_code)]
#![cfg(unix)]

mod attempt;
mod backend;
mod default_folder;
mod driver;
mod errand;
mod failure;
mod folder;
mod gate;
mod held;
mod hold;
mod network;
mod notices;
mod options;
mod pause;
mod queue;
mod record;
#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests;
mod tidier;
mod watcher;

pub use backend::{FileBackend, FileLease};
pub use default_folder::default_folder;
pub use driver::DRIVER;
pub use options::{FileOptions, connect, lease_of};
