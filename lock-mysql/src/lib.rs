//! The MySQL and MariaDB backend of distlock: named locks with validation, a lease and fencing tokens.
//!
//! [`connect`] creates a [`LockClient`](lock_core::LockClient) from a URL (`mysql:`, `mariadb:`), and [`MySqlOptions`] does so
//! without a URL. For guarantees and their limits, options, permissions and tuning see `docs/backends/mysql.md`.
//!
//! # How it holds the lock
//! A lock is a named lock of the server (`GET_LOCK`), which belongs to a **connection** and ends with it. One task owns a
//! connection ([`actor`]); it alone sends statements on it and receives the answers. Callers await messages of that task, so a
//! dropped future abandons no statement.
//!
//! * *Trying and holding* share connections ([`pool`]): a try is a statement with a timeout of zero, which the server carries out
//!   at once. A connection never has a lock twice, because the server would count it.
//! * *Waiting* needs a connection of its own, without holds, and blocks at the server, which serves waiters in order. It uses no
//!   timeout of the server: the core ends a wait, to the millisecond, and then makes the server forget it.
//! * *Readers and permits* have locks of their own, [slots](parts), which are only taken behind the lock of that name, the
//!   [gate]. A writer keeps the gate and has seen each slot free. Readers of one client that wait together share a connection and a slot
//!   ([`batch`]).
//! * *Ending a wait* is `KILL QUERY`, sent on another connection ([`control`]). The server must have answered both the interrupted
//!   statement and the `KILL` before the connection is used again. Otherwise the client drops the connection without sending
//!   anything on it, and the server notices within a second. The client releases what was granted meanwhile.
//! * *The lease* is the session's `wait_timeout`: the server ends a connection, and with it the locks, when it has heard nothing
//!   for that long. Any statement renews it for all locks of the connection.
//! * *The token* is the server's `UUID_SHORT()`, evaluated after the grant in the same statement; or it comes from a table, minted
//!   by the session that holds the lock, while it does.
//! * *Each session* has a tag ([`session_tag`]): a random number, by which a client recognises a session that belongs to it alone. A lock
//!   named after the number shows other connections that the server still has this one.
//! * *The end of a connection* that may hold something needs care ([`control::Control::terminate`]). Nothing is left for certain only if
//!   the server no longer knows its number, in the same run of the server.
//!
//! # How a holder learns of a loss
//! Once per renewal interval each connection asks in one statement, for all its locks, whether `IS_USED_LOCK` is still this
//! connection, and whether the server is still a primary. A connection that breaks loses all its locks at that moment. A silent
//! connection keeps them until the core's deadline, which comes before the server's. An answer counts from the moment before its
//! statement was sent; if a grant took longer than an interval to arrive, the client checks it before relying on it.
//!
//! # What happens at each failure
//! `docs/backends/mysql.md` says for each failure what the holder and the next client see, and names the test that forces it.
#![forbid(unsafe_code)]

mod actor;
mod address;
mod admission;
mod attempt;
mod backend;
mod batch;
mod control;
mod driver;
mod failure;
mod gate;
mod inspection;
mod layout;
mod link;
mod once_slots;
mod options;
mod parts;
mod pool;
mod run;
mod server;
mod session;
mod session_tag;
mod settings;
mod statement;

pub use driver::DRIVER;
pub use options::{MySqlOptions, TokenSource, connect, lease_of};
#[doc(hidden)]
pub use statement::operation_of;
