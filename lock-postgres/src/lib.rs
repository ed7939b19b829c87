//! The PostgreSQL backend of distlock: advisory locks with a lease and fencing tokens, also inside your own transaction.
//!
//! [`connect`] creates a [`LockClient`](lock_core::LockClient) from a URL (`postgres:`, `postgresql:`), and [`PostgresOptions`]
//! does so without a URL. For guarantees and their limits, options, permissions and tuning see `docs/backends/postgres.md`.
//!
//! # How it holds the lock
//! A lock is a session-level advisory lock with the [key](key()) of its name. It belongs to a **session** of the server and ends
//! with it. One task owns a connection ([`actor`]); it alone sends statements on it and receives the answers. Callers await
//! messages of that task, so a dropped future abandons no statement.
//!
//! * *The lease* is the session's `idle_session_timeout`: the server ends a session, and with it the locks, when it has received
//!   no message for that long. Any message renews it for all locks of the session. The client sets it with the login, and reads
//!   it back. **Every message is one simple query**, which arrives whole or not at all: messages of the extended protocol whose
//!   end is cut off would switch the lease off for good.
//! * *Trying and holding* share connections ([`pool`]): a try is carried out at once. A session never has a lock twice, because
//!   the server would grant it.
//! * *Waiting* needs a session of its own, without holds, and blocks in the server's queue, first come, first served. Only so
//!   many waits of a client are there at the same time; the others queue in the client.
//! * *Ending a wait* is `pg_cancel_backend`, sent on another connection ([`control`]). The server must have answered both the
//!   cancelled statement and the cancellation before the connection is used again. A wait that failed may have got the lock all
//!   the same, so the first thing that follows releases it.
//! * *The token* is the server's clock, read after the grant in the same statement; or a number of a sequence or a table, minted
//!   by the session that holds the lock.
//! * *The tag* ([`session_tag`]) is a random number in the settings of a session. Every statement about a lock has an effect only in
//!   the session with the tag. So a pooler that lets another session answer takes no lock, and is noticed.
//! * *The end of a connection* that may hold something needs care ([`control::Control::terminate`]). Nothing is left for certain only
//!   if the server no longer has the session, which its process id and its start identify.
//!
//! # How a holder learns of a loss
//! Once per renewal interval each session asks in one statement, for all its locks, whether it still has the tag and whether
//! the server is a primary. Nothing but the end of a session ends its locks, as no other program has the session; so it need
//! not look at the locks themselves, which would cost the server more the more locks it has. A connection that breaks loses all
//! its locks at that moment. A silent one keeps them until the core's deadline, which comes before the server's: an answer
//! counts from the moment before its statement was sent, and the server counts from when it has sent that answer. A grant that
//! ends a wait counts from the moment before one more question, because the server may have sent it long ago.
//!
//! # What happens at each failure
//! `docs/backends/postgres.md` says for each failure what the holder and the next client see, and names the test that forces it.
#![forbid(unsafe_code)]

mod actor;
mod address;
mod attempt;
mod backend;
mod budget;
mod control;
mod driver;
mod failure;
mod holder_lookup;
mod inspection;
mod key;
mod link;
mod options;
mod permits;
mod pg_locks;
mod pool;
mod prepared;
mod quiet_wait;
mod server;
mod session;
mod session_tag;
mod settings;
mod slots;
mod snapshot_monitor;
mod statement;
mod table;
mod transaction;

pub use driver::DRIVER;
pub use key::key;
pub use options::{Keys, Pooler, PostgresOptions, TokenSource, Waiting, connect, lease_of};
#[doc(hidden)]
pub use statement::operation_of;
pub use transaction::{GenericTransaction, InTransaction, in_transaction};
