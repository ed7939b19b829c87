//! What the backends of [distlock](https://docs.rs/distlock) for SQL servers share.
//!
//! On each of these servers a lock belongs to a **session** and ends with it, and the server ends a session from which it has
//! heard nothing for the lease. The rest follows from that, and is here:
//!
//! * [`Settings`] open sessions, after a failure one at a time, and know how long each answer may take.
//! * [`Link`] is a session for tasks that do not own it. One task owns the [`Connection`] and carries out [commands](Command), one
//!   after the other, so that a dropped future abandons no statement. [`Pool`] says which locks are on which link.
//! * [`Control`] is a connection without holds and waiters. It cancels waits, looks at them, and makes sure that the server has
//!   forgotten a session that has ended on this side.
//! * [`Client`] has all of these, and knows where its attempts may have left something.
//! * [`remember`] keeps slots of locks in a table.
//!
//! A backend is a [`Dialect`]: it writes the statements and reads the answers.
#![forbid(unsafe_code)]

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

pub use client::{Client, Placed};
pub use connection::{Broken, Connection};
pub use control::Control;
pub use dialect::Dialect;
pub use failure::{Explained, Failure, Why, broken, nonsense};
pub use link::{Asked, Command, GivenBack, Link, Mailbox, Taken};
pub use once::remember;
pub use pool::{Occupant, OwnLink, Pool, Server, Started};
pub use session::{Answer, Row, Session, next};
pub use settings::{Connecting, Settings};
pub use statement::{COMMENT, comment, operation_of, word};
