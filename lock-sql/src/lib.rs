//! What the backends of [distlock](https://docs.rs/distlock) for SQL servers share.
//!
//! On each of these servers a lock belongs to a **session** and ends with it, and the server ends a session from which it has
//! heard nothing for the lease. The rest follows from that, and is here:
//!
//! * [`Settings`] open sessions, after a failure one at a time, and know how long each answer may take.
//! * A *link* is a session for tasks that do not own it. One task owns the [`Connection`] and carries out commands, one after the
//!   other, so that a dropped future abandons no statement. A *pool* says which locks are on which link.
//! * An *attempt* tries a lock, or waits for it at the server, and watches that the server still has the wait.
//! * [`Control`] is a connection without holds and waiters. It cancels waits, looks at them, and makes sure that the server has
//!   forgotten a session that has ended on this side.
//! * A [`Client`] has all of these, and knows where its attempts may have left something. It is the [`Backend`](lock_core::Backend) that the
//!   core sees.
//! * Slots of locks that are remembered are in a table.
//!
//! A backend is a [`Dialect`]: it writes the statements and reads the answers.
//!
//! | what a reader looks for | where |
//! |---|---|
//! | a lost connection becomes a loss | `connection.rs`: what happens when the task ends, however it does |
//! | a token is minted | [`Holds::pass`], with the lock; or [`Holds::mint`], in a table |
//! | what a break sends | [`Breaks::end_holder`]; `breaking.rs` calls it, and waits until the lock is free |
#![forbid(unsafe_code)]

mod attempt;
mod backend;
mod breaking;
mod claim;
mod client;
mod connection;
mod control;
mod dialect;
mod failure;
mod link;
mod once;
mod pool;
mod session;
mod settings;
mod statement;
mod task;
mod waiting;

pub use attempt::Seen;
pub use backend::create_if_missing;
pub use claim::{Claim, Waiter, ascii_json, mode_of, moment, word_of};
pub use client::{Client, Placed};
pub use connection::{Broken, Connection};
pub use control::Control;
pub use dialect::{Breaks, Dialect, Holds, Listed, Slots, ToEnd};
pub use failure::{Explained, Failure, Why, blocked, broken, newer_layout, nonsense, not_primary};
pub use session::{Answer, Row, Session};
pub use settings::{Connecting, Settings};
pub use statement::{COMMENT, comment, hex, operation_of, word};
pub use task::{Held, Passed, Shared};
pub use waiting::Waiting;
