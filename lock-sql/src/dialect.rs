//! What a backend says and understands.

use std::fmt;
use std::future::Future;
use std::hash::Hash;
use std::sync::Arc;

use lock_core::{
    AttemptId, HolderId, LeaseState, LockError, LockKind, LockName, Memo, Mode, NameRules, Operation,
    Participant, PhysicalName, Released, Secret,
};
use lock_kit::ClientRecord;
use sqlx::error::DatabaseError;

use crate::attempt::Seen;
use crate::claim::Claim;
use crate::client::Client;
use crate::connection::{Broken, Connection};
use crate::control::Control;
use crate::failure::{Explained, Failure};
use crate::session::{Answer, Row, Session};
use crate::settings::Settings;
use crate::task::{Held, Passed, Shared};
use crate::waiting::Waiting;

/// A kind of SQL server, with the settings that only its clients have.
///
/// Its functions without a `Cancel safety` of their own may be dropped at every await: what they have sent may be carried out.
pub trait Dialect: Holds<Self> + Breaks<Self> + Slots<Self> + Send + Sync + Sized + 'static {
    /// The server with an article, as users call it.
    const SERVER: &'static str;
    /// Asks how many connections the server has, and how many it may have for such clients. These are the first numbers of the answer.
    const CONNECTIONS: &'static str;
    /// The statement for a sign of life.
    const PING: &'static str;
    /// How often a try that finds others at the gate of a lock is made.
    const TRIES_AT_A_GATE: u32;
    /// Whether [`holder_of`](Self::holder_of) names holders, and no refusal does.
    const NAMES_HOLDERS_LATER: bool = false;

    /// A connection of the client crate.
    type Connection: sqlx::Connection;
    /// What identifies a session of the server, also for other sessions.
    type Id: Clone + fmt::Display + Send + Sync + 'static;
    /// What else a client knows of its own session.
    type OfSession: Send + 'static;
    /// What tells locks apart. A session never has two locks of one key: it does not exclude itself.
    type Key: Clone + Eq + Hash + fmt::Debug + Send + Sync + 'static;

    /// Returns the lock or the semaphore with this name.
    ///
    /// # Errors
    /// That the server cannot have such a name.
    fn key(&self, name: &LockName, physical: &PhysicalName, kind: LockKind) -> Result<Self::Key, LockError>;

    /// Returns whether a table says who holds a lock in this mode.
    fn is_recorded(&self, mode: Mode) -> bool;

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

    /// Makes sure that there is what the client needs, with its first session.
    ///
    /// # Errors
    /// That it is missing, and cannot be created.
    fn prepare(
        settings: &Settings<Self>,
        session: &mut Session<Self>,
    ) -> impl Future<Output = Result<(), LockError>> + Send;

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

    /// Explains an error of the server to the user; `None` if it is none of this server's.
    fn explain(operation: Operation, said: &(dyn DatabaseError + 'static)) -> Option<Explained>;

    /// Reads from the answer to it whether the server is a primary.
    fn is_primary(answer: &str) -> bool;

    /// Is told that a wait was sent.
    fn begins_to_wait(&self, control: &Arc<Control<Self>>, session: &Self::Id, waiting: &Arc<Waiting>) {
        let _ = (control, session, waiting);
    }

    /// Returns who holds a lock, for the error of a caller that does not get it, if no refusal says so.
    fn holder_of(
        client: &Client<Self>,
        claim: &Claim<Self::Key>,
    ) -> impl Future<Output = Option<Participant>> + Send {
        let _ = (client, claim);
        async { None }
    }

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

    /// Returns whether the server has put the statement of a session into a queue, where a [look](Self::look) does not show that.
    ///
    /// # Errors
    /// That it is not known.
    fn is_queued(
        control: &Control<Self>,
        id: &Self::Id,
    ) -> impl Future<Output = Result<bool, LockError>> + Send {
        let _ = (control, id);
        async { Ok(false) }
    }

    /// Returns the statement that looks at a session's wait for a lock.
    fn look(key: &Self::Key, id: &Self::Id) -> String;

    /// Reads what the session `asked` has answered to it.
    fn seen(asked: &Self::Id, id: &Self::Id, answer: &Answer) -> Seen;

    /// Returns the statement that reads the names of the locks that are held, if the client keeps such.
    fn list(&self) -> Option<String>;

    /// Reads the locks of this client from the answer of a session.
    fn listed(&self, seen_by: &Self::Id, answer: Answer, names: NameRules) -> Vec<Listed>;

    /// Returns the statement that replaces what the table says of a holder, if its session still holds the lock. It answers a row then.
    fn describe(claim: &Claim<Self::Key>, session: &Self::Id, holder: &ClientRecord) -> String;
}

/// A lock or semaphore of a list; and who holds it and who waits for it, if the list says so.
pub type Listed = (LockName, LockKind, Option<(Vec<Participant>, Vec<Participant>)>);

/// What a client says about the table of slots that are remembered. A row has a writer and the end of its time, in microseconds.
pub trait Slots<D: Dialect> {
    /// Returns the statement that creates it.
    fn create_slots() -> String;

    /// Returns the statements that make a slot of a lock this writer's for so many microseconds, unless its time is not over, and then read
    /// whose it is, the end of its time and the server's time. A message that is carried out twice finds its own row.
    fn remember(key: &D::Key, memo: &Memo, writer: &str, keep: u128) -> String;

    /// Returns the statement that reads the same of a slot whose time is not over.
    fn recall(key: &D::Key, memo: &Memo) -> String;

    /// Returns the statement that removes the row of a slot if it is this writer's, whose name was read there.
    fn forget(key: &D::Key, memo: &Memo, writer: &str) -> String;

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
}

/// How attempts are made on a connection, and what becomes of what they have there. The task that owns the connection calls these
/// functions; if they are dropped, it ends.
pub trait Holds<D: Dialect> {
    /// What a connection has of a lock, or may have.
    type Has: Send + 'static;

    /// Makes an attempt on a connection, from its first statement to its outcome. It takes what is free, or it waits, and then watches for
    /// the [end](Waiting::ended) of the wait.
    fn pass(
        on: &mut Connection<D>,
        claim: &Claim<D::Key>,
        waiting: Option<&Waiting>,
    ) -> impl Future<Output = Passed<Self::Has>> + Send;

    /// Mints the token of a hold that the connection has now, if none came with the lock, or comes at all.
    ///
    /// # Errors
    /// The failure. Then the lock is given back.
    fn mint(
        on: &mut Connection<D>,
        claim: &Claim<D::Key>,
    ) -> impl Future<Output = Result<Option<u64>, Failure>> + Send;

    /// Returns the state of these locks, each of an attempt, on this connection.
    ///
    /// # Errors
    /// The failure. An answer of another session means that this connection is unusable.
    fn check(
        on: &mut Connection<D>,
        leases: &[(D::Key, AttemptId)],
    ) -> impl Future<Output = Result<Vec<LeaseState>, Failure>> + Send;

    /// Releases whatever there is of a lock.
    ///
    /// # Errors
    /// That only the end of the connection certainly frees it.
    fn release(
        on: &mut Connection<D>,
        key: &D::Key,
        held: Held<Self::Has>,
        operation: Operation,
    ) -> impl Future<Output = Result<Released, Broken>> + Send;

    /// Makes the exclusive hold that the connection has a shared one, without a gap. Returns what there is of it then, and the token if one
    /// comes with it; none if it was lost. It is called again after a failure, and then may have done so before.
    ///
    /// # Errors
    /// The failure.
    fn share(
        on: &mut Connection<D>,
        claim: &Claim<D::Key>,
    ) -> impl Future<Output = Result<Shared<Self::Has>, Failure>> + Send;
}

/// A holder that a break is to end, and which other locks end with its session, if the server knows their names.
pub type ToEnd<F> = (F, Option<Vec<LockName>>);

/// Who has a lock, and how it is taken away. The functions may be dropped at every await.
pub trait Breaks<D: Dialect> {
    /// A holder that a break is to end.
    type Found: Send + Sync;

    /// Returns who holds a lock, and who waits for it, in order.
    ///
    /// # Errors
    /// That the server did not say.
    fn inspect(
        client: &Client<D>,
        key: &D::Key,
    ) -> impl Future<Output = Result<(Vec<Participant>, Vec<Participant>), LockError>> + Send;

    /// Finds the holder of a lock that a break is to end, if it still holds it.
    ///
    /// # Errors
    /// That the server did not say, or that this user may not see it.
    fn find_holder(
        client: &Client<D>,
        key: &D::Key,
        id: &HolderId,
    ) -> impl Future<Output = Result<Option<ToEnd<Self::Found>>, LockError>> + Send;

    /// Ends the session of a holder, and returns whether it was there.
    ///
    /// # Errors
    /// That it is not known.
    fn end_holder(
        client: &Client<D>,
        key: &D::Key,
        found: &Self::Found,
    ) -> impl Future<Output = Result<bool, LockError>> + Send;

    /// Returns whether the session of a holder still holds the lock.
    ///
    /// # Errors
    /// That it is not known.
    fn still_holds(
        client: &Client<D>,
        key: &D::Key,
        found: &Self::Found,
    ) -> impl Future<Output = Result<bool, LockError>> + Send;
}
