//! Locks between the processes of one machine, without a server.
//!
//! [`FileOptions`] opens a folder and makes a [`LockClient`](lock_core::LockClient); [`connect`] does the same for a `file:` URL.
//! The locks are exclusive and fair between processes, have a fencing token, and can be inspected and broken.
//!
//! # How it holds the lock
//! Whoever has the `flock` on the file `held/<lock>`, **and finds that file still in its place**, holds the lock. Nothing
//! else excludes. The kernel drops a `flock` when the last process that has the descriptor open has closed it or died, so
//! there is no lease, nothing is renewed, and a stopped holder keeps the lock.
//!
//! * *Order.* A waiter draws a ticket: a file with a rising number, under a `flock` of its own. It is a waiter's turn when no
//!   living waiter has a lower number; then, and only then, it asks for the lock.
//! * *The gate.* Every decision (take, draw a ticket, inspect, break, tidy up) is made under the `flock` of the file `gate`,
//!   for some microseconds. So no ticket appears late with a low number, and no look at a file is taken for a holder.
//! * *The token.* The gate's file has a counter in it, one for the folder. A token is max(counter, last holder's token) + 1,
//!   and never below the clock in microseconds, taken in the same stay in the gate as the lock itself.
//! * *Telling.* A waiter watches the ticket right before its own, and the first in line the `held` file, by inotify: one thread
//!   and one inotify instance per process, however many wait. It looks again after the watch has begun, because what
//!   happened before is told to nobody.
//!
//! # How a loss is noticed
//! A holder's `held` file is watched too, from 25 ms after the grant on. When the file is not in its place any more, or marked
//! as broken, the hold is lost: [`Broken`](lock_core::LossReason::Broken) or [`Deleted`](lock_core::LossReason::Deleted). A
//! folder that is moved away as a whole is noticed by the inspection that follows every 30 s.
//!
//! # What happens at each failure
//! The tests named here force it; most are in `src/tests`, with a process of their own for each role.
//!
//! | failure | what happens | forced by |
//! |---|---|---|
//! | holder killed | the kernel drops the `flock`; the next waiter is told at once | `a_killed_holder_frees_the_lock` |
//! | … and a child has its descriptor | the lock stays held until the last such process is gone | `the_lock_of_a_killed_holder_stays_with_the_child_that_inherited_it` |
//! | waiter killed | its ticket counts for nothing, and is removed by whoever sees it | `killed_waiters_give_up_their_places` |
//! | killed between lock and record | nothing is held | `a_process_killed_before_it_wrote_its_record_holds_nothing` |
//! | holder stopped | it keeps the lock | `a_stopped_holder_keeps_the_lock` |
//! | process stopped in the gate | try and timed waits end in time with an error that names the process; releases go on | `a_process_stopped_in_the_gate_makes_nobody_late` |
//! | slow to draw a ticket | nobody else draws one meanwhile | `no_late_lower_ticket` |
//! | release just before the watch, or just before the sleep | seen by the look that follows | `no_lost_wake_up` |
//! | notice before the `flock` is dropped | looked at again after 50 µs, 100 µs, … for 2 s | `an_announcement_before_the_fact_is_not_the_last_look` |
//! | release without the gate | wakes the waiter all the same; the file is reused, or tidied away later | `a_waiter_is_told_of_a_release_that_could_not_get_into_the_gate` |
//! | acquire dropped | `cancel` removes the ticket or gives the lock back; neither needs the gate | `a_dropped_wait_leaves_the_queue` |
//! | outcome unknown | there is none: a system call fails or succeeds; the same attempt asked again finds its own grant | `asked_again_an_attempt_finds_its_own_grant` |
//! | broken | that holder or nobody: found and removed in one stay in the gate | `breaks_that_holder_or_nobody` |
//! | `held` file or folder removed | the holder is told `Deleted`; the next client makes a new one | `a_holder_learns_that_its_file_or_folder_is_gone` |
//! | file replaced between opening and locking | noticed by device and inode | `a_file_replaced_before_it_was_locked_is_not_the_lock`, `a_gate_replaced_before_it_was_locked_is_not_the_gate` |
//! | tidied away while the gate is removed | the file is removed under its `flock`, so nobody holds a lock that vanishes | `a_file_that_is_being_tidied_away_is_not_the_lock` |
//! | folder moved, first waiter stopped | the next one goes to the folder at the path | `a_stopped_waiter_in_a_folder_that_was_moved_away_is_in_nobodys_way` |
//! | modes changed by `chmod -R` | nobody is taken for broken | `changing_the_modes_of_everything_breaks_nobody` |
//! | first waiter stopped | the others wait; timed waits end in time | `behind_a_stopped_waiter_timed_waits_end_in_time` |
//! | ticket removed | its waiter draws another, at the end | `a_waiter_whose_ticket_was_removed_draws_another` |
//! | counter lost, torn or damaged | the clock and the last holder's record keep tokens rising | `numbers_rise_whatever_happens_to_the_file` |
//! | disk full, folder read-only | an error that says so; nothing is held; a lock can still be released | `a_full_disk_is_a_clear_error`, `a_read_only_folder_is_a_clear_error`, `a_lock_is_given_back_on_a_full_disk` |
//! | no inotify instance left | looks every [`poll_interval`](FileOptions::poll_interval) | `works_without_inotify` |
//! | no inotify watch left | the same | `works_without_inotify_watches` |
//! | out of descriptors | an error that names the limit; what is held can be released | `a_limit_of_descriptors_is_a_clear_error` |
//! | … for a moment, while it waits | it keeps its place | `a_waiter_that_is_out_of_descriptors_for_a_while_keeps_its_place`, `a_wait_that_was_out_of_descriptors_for_a_while_ends_as_refused` |
//! | a umask that takes the owner's bits | taken back | `a_strange_umask_takes_nothing_from_the_owner` |
//! | symbolic link, also one that leads nowhere, no folder, foreign owner, mode too open or too closed | refused | `refusals` |
//! | no thread for the watcher | an error that says so | `a_client_that_gets_no_watcher_is_an_error_with_a_remedy` |
//! | network file system | refused | `refuses_a_network_file_system_by_its_number` |
//!
//! # Elsewhere than Linux
//! On other Unix systems waiters and holders look every [`poll_interval`](FileOptions::poll_interval), network file systems are
//! not detected, and the error for a stuck gate does not name the process. On systems that are not Unix this crate is empty.
#![forbid(unsafe_code)]
#![cfg(unix)]

mod attempt;
mod backend;
mod default_folder;
mod errand;
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
mod trouble;
mod watcher;

pub use backend::{FileBackend, FileLease};
pub use default_folder::default_folder;
pub use options::{FileOptions, connect, lease_of};
