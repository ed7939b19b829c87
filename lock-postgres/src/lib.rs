//! The PostgreSQL backend of distlock: advisory locks with a lease and fencing tokens, also inside your own transaction.
//!
//! [`connect`] creates a [`LockClient`](lock_core::LockClient) from a URL (`postgres:`, `postgresql:`), and [`PostgresOptions`]
//! does so without a URL. For guarantees and their limits, options, permissions and tuning see `docs/backends/postgres.md`.
//!
//! # How it holds the lock
//! A lock is a session-level advisory lock with the [key](key()) of its name. It belongs to a **session** of the server and ends
//! with it. One task owns a connection ([`lock_sql::Connection`]); it alone sends statements on it and receives the answers. Callers await
//! messages of that task, so a dropped future abandons no statement.
//!
//! * *The lease* is the session's `idle_session_timeout`: the server ends a session, and with it the locks, when it has received
//!   no message for that long. Any message renews it for all locks of the session. The client sets it with the login, and reads
//!   it back. **Every message is one simple query**, which arrives whole or not at all: messages of the extended protocol whose
//!   end is cut off would switch the lease off for good.
//! * *Trying and holding* share connections: a try is carried out at once. A session never has a lock twice, because
//!   the server would grant it.
//! * *Waiting* needs a session of its own, without holds, and blocks in the server's queue, first come, first served. Only so
//!   many waits of a client are there at the same time; the others queue in the client.
//! * *Ending a wait* is `pg_cancel_backend`, sent on another connection ([`lock_sql::Control`]). The server must have answered both the
//!   cancelled statement and the cancellation before the connection is used again. A wait that failed may have got the lock all
//!   the same, so the first thing that follows releases it.
//! * *The token* is the server's clock, read after the grant in the same statement; or a number of a sequence or a table, minted
//!   by the session that holds the lock.
//! * *The tag* ([`session_tag`]) is a random number in the settings of a session. Every statement about a lock has an effect only in
//!   the session with the tag. So a pooler that lets another session answer takes no lock, and is noticed.
//! * *The end of a connection* that may hold something needs care ([`lock_sql::Control::terminate`]). Nothing is left for certain only
//!   if the server no longer has the session, which its process id and its start identify; behind a pooler, if it no longer shows the tag.
//!
//! # Where to find it
//!
//! | question | place |
//! |---|---|
//! | where does a lost connection become a loss? | in `lock-sql`: `connection.rs`, what happens when the task of a connection ends |
//! | where is a token minted? | `token` in `statement.rs`, in the statement that takes the lock; with `fencing=table`, `mint` in `table.rs` |
//! | what does `break` send? | `breaking.rs`, with `end_holder` in `pg_locks.rs`; `lock-sql` waits until the lock is free |
//!
//! # How a holder learns of a loss
//! Once per renewal interval each session asks in one statement, for all its locks, whether it still has the tag and whether
//! the server is a primary. Nothing but the end of a session ends its locks, as no other program has the session; so it need
//! not look at the locks themselves, which would cost the server more the more locks it has. A connection that breaks loses all
//! its locks at that moment; the client learns that from the next statement on it. A silent one keeps them until the core's deadline, which comes before the server's: an answer
//! counts from the moment before its statement was sent, and the server counts from when it has sent that answer. A grant that
//! ends a wait counts from the moment before one more question, because the server may have sent it long ago.
//!
//! # What happens at each failure
//! The tests of each are in `tests/faults`; `cargo test -p lock-postgres --test faults -- --list` names them.
//!
//! * *A reply is lost* (unknown outcome). The client looks from another connection whether the server still has the session, ends it if
//!   necessary, and only then confirms a release or repeats an attempt.
//! * *A future is dropped*, a wait ends at the moment of its grant. What the cancelled wait got all the same is released.
//! * *A holder or a waiter dies.* The system closes its connection: the lock is free at once, the place within a second. *Its host
//!   vanishes*: after one lease.
//! * *A waiter stands still across its grant, or the grant arrives late.* It is checked by one more question before the hold begins.
//! * *Requests, replies or both vanish, the server stands still.* Suspect, then `Expired` before the lease is over; a wait that ends
//!   meanwhile is an error. A message that is cut off leaves the lease as it is.
//! * *A session is terminated, the server restarts or crashes.* `ConnectionLost` at the next check for all locks of the session; a waiter
//!   waits again, at the end of the queue. A cancelled statement of a holder changes nothing.
//! * *The server becomes a standby.* Its holds are lost at the next check; a new one is refused.
//! * *Connections or the table of locks run out.* Waits go on with pauses; a lock is refused before others could not connect.
//! * *A writer becomes a reader* in one statement; cancelled or unanswered, it reads, or its session is over. No writer comes between.
//! * *The head of a semaphore's queue dies.* The next one is the head at once, or after the lease.
//! * *An index is built beside waiters, or many transactions begin.* They begin anew, in their order, and waits of other clients may
//!   overtake them.
//!
//! # Invariants
//! * **Every message on a session with locks is one simple query.**
//! * **Nothing is sent on a connection before the replies to a pending statement and to its cancellation.** After a wait that failed the
//!   first statement releases the lock.
//! * **A waiting session holds nothing** but the gate of a semaphore, whose holder waits for no lock: the server finds no deadlock.
//! * **No session has a lock twice**, not even a shared one: the server would grant it without a look at its queue.
//! * **Holders learn of the loss before their connection is closed**: the server frees its locks at that moment.
//! * **A wait counts as queued only when the server shows that its session waits.**
//!
//! # Why it is built this way
//! * *A check does not look at the locks*: a session that has its tag has its locks, and a look at `pg_locks` costs the server 6 ms where
//!   10,000 are held; this check costs 40 µs.
//! * *The tag is a setting of the login*, which does not reach the shared session of a pooler, and survives `DISCARD ALL`.
//! * *A grant that ends a wait is checked.* Behind a network that delays answers by up to a lease, the holders of 59 of 60 grants would
//!   have believed in locks that others already had.
//! * *`extra_ca`, not `ca`*: the client crate always trusts the system's authorities, and `ca` means that its own are trusted alone.
//! * *Taking and releasing are prepared* the second time: planning costs the server several times what the lock costs.
//! * *A wait begins anew when its snapshot is old*, because `VACUUM` removes no row that it might show. Beside a wait, each 2,000
//!   acquisitions with `fencing=table` added 35 pages to those that the next one reads (46, 81, 115); beside one that had begun anew,
//!   `VACUUM` removed all but 14.
//! * *Who holds the lock is asked in a request of its own*, by those who do not get it: as a part of the statement that takes a lock, the
//!   server had to parse it each time.
//! * *Transaction ids and log positions are no tokens*: both fall when a server crashes before it has written its log.
#![forbid(unsafe_code)]

mod acquire;
mod address;
mod breaking;
mod budget;
mod dialect;
mod failure;
mod hold;
mod holder_lookup;
mod inspection;
mod key;
mod options;
mod permits;
mod pg_locks;
mod prepared;
mod server;
mod session;
mod session_tag;
mod slots;
mod snapshot_monitor;
mod statement;
mod table;
mod transaction;

pub use key::key;
#[doc(hidden)]
pub use lock_sql::operation_of;
pub use options::{DRIVER, Keys, Pooler, PostgresOptions, TokenSource, connect};
pub use transaction::{GenericTransaction, InTransaction, in_transaction};
