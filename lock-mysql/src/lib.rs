//! The MySQL and MariaDB backend of distlock: named locks with validation, a lease and fencing tokens.
//!
//! [`connect`] creates a [`LockClient`](lock_core::LockClient) from a URL (`mysql:`, `mariadb:`), and [`MySqlOptions`] does so
//! without a URL. For guarantees and their limits, options, permissions and tuning see `docs/backends/mysql.md`.
//!
//! # How it holds the lock
//! A lock is a named lock of the server (`GET_LOCK`), which belongs to a **connection** and ends with it. One task owns a
//! connection ([`lock_sql::Connection`]); it alone sends statements on it and receives the answers. Callers await messages of that task, so a
//! dropped future abandons no statement.
//!
//! * *Trying and holding* share connections: a try is a statement with a timeout of zero, which the server carries out
//!   at once. A connection never has a lock twice, because the server would count it.
//! * *Waiting* needs a connection of its own, without holds, and blocks at the server, which serves waiters in order. It uses no
//!   timeout of the server: the core ends a wait, to the millisecond, and then makes the server forget it.
//!   On `MariaDB` it begins with a [prepared](gate) statement that does not wait, unless locks were busy lately: its place in the queue is
//!   that of the text which follows.
//! * *Readers and permits* have locks of their own, [slots](parts), which are only taken behind the lock of that name, the
//!   [gate]. A writer keeps the gate and has seen each slot free. So a lock has at most as many readers at once as it has slots.
//! * *Ending a wait* is `KILL QUERY`, sent on another connection ([`lock_sql::Control`]). The server must have answered both the interrupted
//!   statement and the `KILL` before the connection is used again. Otherwise the client drops the connection without sending
//!   anything on it, and the server notices within a second. The client releases what was granted meanwhile.
//! * *The lease* is the session's `wait_timeout`: the server ends a connection, and with it the locks, when it has heard nothing
//!   for that long. Any statement renews it for all locks of the connection.
//! * *The token* is the server's `UUID_SHORT()`, evaluated after the grant in the same statement; or it comes from a table, minted
//!   by the session that holds the lock, while it does.
//! * *Each session* has a tag ([`session_tag`]): a random number, by which a client recognises a session that belongs to it alone. A lock
//!   named after the number shows other connections that the server still has this one.
//! * *The end of a connection* that may hold something needs care ([`lock_sql::Control::terminate`]). Nothing is left for certain only if
//!   the server no longer knows its number, in the same run of the server.
//!
//! # Where to find it
//!
//! | question | place |
//! |---|---|
//! | where does a lost connection become a loss? | in `lock-sql`: `connection.rs`, what happens when the task of a connection ends |
//! | where is a token minted? | `gate.rs`, in the statement that takes the lock; with `fencing=table`, `mint` in `statement.rs` |
//! | what does `break` send? | `breaking.rs`, with `end` and `end_of` in `statement.rs`; `lock-sql` waits until the lock is free |
//!
//! # How a holder learns of a loss
//! Once per renewal interval each connection asks in one statement, for all its locks, whether `IS_USED_LOCK` is still this
//! connection, and whether the server is still a primary. A connection that breaks loses all its locks at that moment. A silent
//! connection keeps them until the core's deadline, which comes before the server's. An answer counts from the moment before its
//! statement was sent; if a grant took longer than an interval to arrive, the client checks it before relying on it.
//!
//! # What happens at each failure
//! The tests of each are in `tests/faults`; `cargo test -p lock-mysql --test faults -- --list` names them.
//!
//! * *A reply is lost* (unknown outcome). The client asks the same run of the same server for that connection's number until it is gone,
//!   kills it if necessary, and only then confirms a release or repeats an attempt.
//! * *A future is dropped*, a wait ends at the moment of its grant. What was granted all the same is released; nothing is left.
//! * *A holder or a waiter dies.* The system closes its connection: the lock is free at once, the place within a second. *Its host
//!   vanishes*: the server grants the lock to a waiter in its turn, and frees it after one lease.
//! * *A waiter stands still across its grant, or the grant arrives late.* It is checked before the hold begins.
//! * *Requests, replies or both vanish, the server stands still.* Suspect, then `Expired` before the lease is over; a wait that ends
//!   meanwhile is an error.
//! * *A connection is killed, the server restarts.* `ConnectionLost` at the next check for all locks of the connection; a waiter waits
//!   again, at the end of the queue. `KILL QUERY` of a holder changes nothing, of a release: it is repeated.
//! * *The primary becomes a replica.* `SessionClosed` at the next check.
//! * *A proxy spreads or merges connections.* Refused at connecting; a loss at the next check if it begins later.
//! * *Connections run out.* Waits go on with pauses. *A token cannot be written*: an error after a second, which costs no other lock.
//! * *A reader or a writer is interrupted in the middle of a statement with several parts.* No part is left, or the connection ends.
//!
//! # Invariants
//! * **Nothing is sent on a connection before the reply to a pending statement or its `KILL QUERY`**, and nothing at all on one that was
//!   dropped in the middle of a wait.
//! * **A waiting connection holds nothing** but the lock of its own tag, and the gate behind which it waits for slots. A connection with
//!   slots waits for nothing. So no check has to wait, and the server finds no deadlock.
//! * **A writer has seen each slot free since it has the gate. A reader has had the gate, or has seen it free, since it has its slot.**
//! * **Holders learn of the loss before their connection is closed**: the server frees its locks at that moment.
//! * **No connection has a lock twice**, nor the lock and a slot of it.
//! * **A connection's number means something only in one run of one server.** After a restart, `KILL 7` would end another's.
//! * **A wait counts as queued only when the server shows it in a lock's queue.**
//!
//! # Why it is built this way
//! * *The server gets no timeout*: MySQL rounds it to seconds, and a wait may pass to another waiter. It is asked for a day.
//! * *A wait is checked*, because a blocked connection looks the same whether the server lives or not; by the lock of its tag, as the
//!   process list made the server walk over all its connections.
//! * *Checks overtake everything else on a connection*: behind a burst of tries, a check came too late, and 256 locks were lost.
//! * *The answer is one text*: each column costs both sides more than its content.
//! * *Statements count slots in a variable*, by `BENCHMARK`: sixteen functions cost MariaDB 40 µs to parse, one 16.
//! * *A writer's statement is prepared on MariaDB*: of 71 µs that a cycle took the server, reading the texts was 29. It is text at first, and
//!   where locks are busy; `EXECUTE` as text costs 7 µs more than the binary protocol, and much less code.
//! * *One connection tries for all after a failure*: twenty waiters opened 131 connections a second.
//! * *An ended connection is not killed at once*: MySQL 5.7 may overlook a `KILL` as it returns to reading, and keeps the locks.
//! * *`extra_ca`, not `ca`*: the client crate always trusts the system's authorities, and `ca` means that its own are trusted alone.
#![forbid(unsafe_code)]

mod address;
mod admission;
mod breaking;
mod dialect;
mod failure;
mod gate;
mod hold;
mod inspection;
mod options;
mod parts;
mod run;
mod server;
mod session;
mod session_tag;
mod slots;
mod statement;

#[doc(hidden)]
pub use lock_sql::operation_of;
pub use options::{DRIVER, MySqlOptions, TokenSource, connect};
