//! What a backend says and understands.

use std::fmt;
use std::future::Future;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use lock_core::{AttemptId, LockError, Memo, Operation, Secret};
use sqlx::error::DatabaseError;

use crate::control::Control;
use crate::failure::{Explained, Failure};
use crate::link::{Link, Mailbox};
use crate::pool::Pool;
use crate::session::{Answer, Row, Session};
use crate::settings::Settings;

/// A kind of SQL server, with the settings that only its clients have.
pub trait Dialect: Send + Sync + Sized + 'static {
    /// The server with an article, as users call it.
    const SERVER: &'static str;

    /// A connection of the client crate.
    type Connection: sqlx::Connection;
    /// What identifies a session of the server, also for other sessions.
    type Id: Clone + fmt::Display + Send + Sync + 'static;
    /// What else a client knows of its own session.
    type OfSession: Send + 'static;
    /// What tells locks apart. A session never has two locks of one key: it does not exclude itself.
    type Key: Clone + Eq + Hash + Send + Sync + 'static;
    /// An attempt's request for a lock.
    type Claim: Clone + Send + Sync + 'static;
    /// What a wait has besides its claim.
    type Waiting: Send + 'static;
    /// A wait at the server that is under way, for tasks that do not carry it out.
    type UnderWay: Send + Sync + 'static;
    /// What a refusal says.
    type Refusal: Clone + Send + 'static;
    /// What an attempt has on a connection, or may have.
    type Held: Send + 'static;
    /// A wait that a client looks at.
    type Wait: Send + Sync + 'static;
    /// What it sees.
    type Seen: Send + 'static;

    /// Returns what a claim asks for.
    fn key_of(claim: &Self::Claim) -> Self::Key;

    /// Returns the attempt that makes a claim.
    fn attempt_of(claim: &Self::Claim) -> AttemptId;

    /// Opens a session, and checks the server and what the session got. The server ends the session after a silence as long as the
    /// lease.
    ///
    /// # Errors
    /// Why there is none, or why it could not keep the guarantees.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection.
    fn open(
        settings: &Settings<Self>,
        password: Option<Secret>,
    ) -> impl Future<Output = Result<Session<Self>, LockError>> + Send;

    /// Sends statements in one message, and receives the answer.
    ///
    /// # Errors
    /// That of the client crate.
    ///
    /// # Cancel safety
    /// If the future is dropped before it is ready, the connection is no longer usable.
    fn ask(
        connection: &mut Self::Connection,
        statement: String,
    ) -> impl Future<Output = Result<Answer, sqlx::Error>> + Send;

    /// Returns the task that owns a connection, and carries out what its mailbox has. It ends with [`Pool::retire`] or
    /// [`Pool::remove`].
    fn drive(
        pool: Arc<Pool<Self>>,
        link: Arc<Link<Self>>,
        session: Session<Self>,
        mailbox: Mailbox<Self>,
    ) -> impl Future<Output = ()> + Send + 'static;

    /// Explains an error of the server to the user; `None` if it is none of this server's.
    fn explain(operation: Operation, said: &(dyn DatabaseError + 'static)) -> Option<Explained>;

    /// Returns whether the server has run without interruption between both sessions, where their numbers begin anew with each start.
    fn is_one_run(one: &Self::Id, other: &Self::Id) -> bool {
        let _ = (one, other);
        true
    }

    /// Returns the statement that cancels what a session waits for.
    fn cancel(id: &Self::Id) -> String;

    /// Returns whether the server still has a session that has ended on this side, or anything of it, and makes the server end it
    /// if that is due. It was called so many times before.
    ///
    /// # Errors
    /// That it is not known.
    fn remains(
        control: &Control<Self>,
        id: &Self::Id,
        calls: u32,
    ) -> impl Future<Output = Result<bool, LockError>> + Send;

    /// Ends the part of an attempt in a wait, and the wait itself unless others stay. Returns whether others do.
    fn leave(waiting: &Self::UnderWay, id: AttemptId) -> bool;

    /// Returns the statement that looks at these waits.
    fn look(waits: &[Self::Wait]) -> String;

    /// Reads what the session with the id has answered to it; something for each wait.
    fn seen(asked: &Self::Id, waits: &[Self::Wait], answer: &Answer) -> Vec<Self::Seen>;

    /// Returns the statement that creates the table of slots.
    fn create_slots() -> String;

    /// Returns the statements that make a slot this writer's unless its time is not over, and then read whose it is, the end of its
    /// time and the server's time, in microseconds. A message that is carried out twice finds its own row.
    ///
    /// # Errors
    /// That the lock has a name which the server cannot have.
    fn remember(&self, memo: &Memo, writer: &str, keep: Duration) -> Result<String, LockError>;

    /// Checks a row that was read so.
    ///
    /// # Errors
    /// That a later release has written the table.
    fn check_slot(row: &Row) -> Result<(), LockError> {
        let _ = row;
        Ok(())
    }

    /// Returns the statement that removes some slots whose time is over.
    fn forget_slots() -> String;

    /// Returns the failure of a statement on a connection of this server.
    fn failure(operation: Operation, error: sqlx::Error) -> Failure {
        Failure::of::<Self>(operation, error)
    }
}
