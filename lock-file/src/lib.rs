//! Locks between the processes of one machine, without a server.
//!
//! [`FileOptions`] opens a folder and makes a [`LockClient`](lock_core::LockClient); [`connect`] does the same for a `file:`
//! URL. There are mutexes, read-write locks and semaphores. They are fair between processes, have fencing tokens, and can be
//! inspected and broken.
//!
//! # How it holds the lock
//! A client holds a lock alone while it has the `flock` on the file `held/<lock>`, **and that file is still in its place**. A reader,
//! or a holder of permits, has a file of its own instead, in `shared/<lock>` or `permits/<semaphore>`. Nothing else excludes other
//! clients. The kernel drops a `flock` when the last process that has the descriptor open closes it or dies, so there is no lease
//! and no renewal, a stopped holder keeps the lock, and a killed one gives up exactly what it had.
//!
//! * *Sharing.* A writer needs that no reader's file is locked, a reader that `held/<lock>` is not, and a client that wants permits that the
//!   locked files leave enough of them; how many each has is part of its name. No `flock` is ever turned into one of another
//!   kind, which would give it up in between: each file has one owner, which has it exclusively.
//! * *Order.* A waiter draws a ticket: a file with a rising number, which it keeps under a `flock`. It is a waiter's turn when
//!   no living waiter has a lower number; only then does it ask for the lock.
//! * *The gate.* A client makes every decision (take, draw a ticket, inspect, break, clean up) under the `flock` of the file `gate`,
//!   which takes some microseconds. So no ticket with a low number appears late, and no process that only checks a file is
//!   mistaken for a holder.
//! * *The fencing token.* The gate's file contains one counter for the whole folder. A token is max(counter, last holder's
//!   token) + 1, and never below the clock in microseconds. The client draws it and takes the lock in one stay in the gate.
//! * *Waking.* A waiter watches the ticket right before its own, and the first waiter watches the file of a holder, or the folder
//!   with the files of those that have permits, by inotify: one thread and one inotify instance per process, however many
//!   waiters there are. A waiter checks again after the watch has begun, because inotify does not report what happened before.
//!   Where no inotify instance is left, waiters poll.
//!
//! # Where to find it
//!
//! | question | place |
//! |---|---|
//! | where does a file that is gone become a loss? | `LossWatch` in `hold.rs`, which the thread of `watcher.rs` asks; `standing` in `locked_file.rs` decides |
//! | where is a token minted? | `next_numbers` in `gate.rs` |
//! | what does `break` do? | `take_away` in `locked_file.rs`, for the holder that `holders.rs` finds |
//! | who gets the lock next? | `decide` in `attempt.rs` |
//!
//! # How a holder learns of a loss
//! The file of a holder is watched too, from 25 ms after the grant. When the file is no longer in its place, or is
//! marked as broken, the hold is lost: [`Broken`](lock_core::LossReason::Broken) or
//! [`Deleted`](lock_core::LossReason::Deleted). An inspection every 30 s notices a folder that was moved away as a whole.
//!
//! # What happens at each failure
//! The tests of each are in `src/tests`; `cargo test -p lock-file -- --list` names them.
//!
//! * *kill -9 of a holder or a waiter.* The kernel drops its `flock`: the lock, the share or the place is free at once; while a child has its
//!   descriptor, when the last such process is gone. A half-written record does not count.
//! * *SIGSTOP.* A holder keeps what it has, a first waiter its turn. Inside the gate it delays all others: `try`, `status` and `break` end
//!   after `gate_patience`, a timed wait at its deadline, and a release needs no gate.
//! * *A future is dropped.* No ticket and no grant is left, without the gate.
//! * *An attempt is repeated.* It finds its own grant.
//! * *A notice comes before the fact, or is missed.* inotify reports a closed file before the kernel drops the `flock`: after each notice
//!   and each new watch the thread checks again, after 50 µs, 100 µs, and so on for 2 s.
//! * *A release cannot get into the gate within 100 µs.* It unlocks, touches the file, which wakes the next waiter, and cleans up later.
//! * *Files or the folder are deleted, moved or replaced.* A holder learns of it; a waiter draws another ticket; a file counts only if its
//!   path still leads to the device and inode that were locked.
//! * *The gate is deleted.* Two processes may be in two gates, so each side checks again: a writer locks its file and then looks for
//!   readers, a reader locks its own and then looks for a writer, and a client that takes permits checks its gate at the end.
//! * *The disk is full, descriptors, inotify instances, watches or threads run out.* An error that names the limit, or polling; releases
//!   work.
//! * *A newer layout.* The second line of `gate` has the version: nothing is decided and nothing changed.
//! * *The machine crashes.* No `flock` outlives it; the counter may be lost, and tokens rise by the clock.
//!
//! # On systems other than Linux
//! On other Unix systems waiters and holders check every [`poll_interval`](FileOptions::poll_interval), the backend does not detect
//! network file systems, and the error for a stuck gate does not name the process. On systems that are not Unix this crate is empty.
#![forbid(unsafe_code)]
#![cfg(unix)]

mod attempt;
mod backend;
mod default_folder;
mod exclusive;
mod failure;
mod file_events;
mod folder;
mod gate;
mod gated_action;
mod hold;
mod holders;
mod kept_folders;
mod locked_file;
mod members;
mod network;
mod options;
mod queue;
mod record;
mod shares;
mod slots;
mod subject;
mod sweep;
mod sync_point;
#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests;
mod watcher;

pub use default_folder::default_folder;
pub use options::{DRIVER, FileOptions, connect};
