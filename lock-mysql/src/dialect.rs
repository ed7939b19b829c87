//! What only clients of MySQL have, of what clients of SQL servers share.
//!
//! A connection never has two slots of a lock for different attempts, or the lock and a slot: a session does not exclude itself. So
//! locks are told apart by their gates.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{AttemptId, BackendContext, LockError, Memo, Operation, PhysicalName, Secret};
use lock_sql::{Answer, Connecting, Dialect, Explained};
use sqlx::error::DatabaseError;
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};

use crate::actor::{Actor, Held};
use crate::address::connect_options;
use crate::batch::{Promise, Waiting};
use crate::claim::{Claim, Name, Refusal};
use crate::control::{self, Seen};
use crate::failure;
use crate::gate::Manner;
use crate::options::{MySqlOptions, TokenSource};
use crate::parts::READER_SLOTS;
use crate::session::{self, SessionId};
use crate::statement::{self, Waiter};

/// How many waits of a client may be at the server, each on a connection of its own. By default a server has 151 connections for all.
const MOST_WAITING: usize = 16;

pub(crate) type Settings = lock_sql::Settings<MySql>;
pub(crate) type Session = lock_sql::Session<MySql>;
pub(crate) type Control = lock_sql::Control<MySql>;
pub(crate) type Link = lock_sql::Link<MySql>;
pub(crate) type Mailbox = lock_sql::Mailbox<MySql>;
pub(crate) type Command = lock_sql::Command<MySql>;
pub(crate) type Connection = lock_sql::Connection<MySql>;
pub(crate) type Pool = lock_sql::Pool<MySql>;
pub(crate) type OwnLink = lock_sql::OwnLink<MySql>;
pub(crate) type Asked = lock_sql::Asked<MySql>;
pub(crate) type Taken = lock_sql::Taken<Refusal>;
pub(crate) type Client = lock_sql::Client<MySql>;
pub(crate) type Placed = lock_sql::Placed<MySql>;

pub(crate) struct MySql {
    pub(crate) connect_options: MySqlConnectOptions,
    pub(crate) fencing: TokenSource,
    pub(crate) manner: Manner,
    pub(crate) prefix: String,
}

/// A time as the server counts it, rounded up.
pub(crate) fn whole_seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

pub(crate) fn settings(context: BackendContext, options: &MySqlOptions) -> Result<Settings, LockError> {
    let manner = Manner {
        tokens: options.fencing,
        readers: READER_SLOTS,
        first_slot: 0,
        slice: whole_seconds(options.server.lease),
    };
    let dialect = MySql {
        connect_options: connect_options(options),
        fencing: options.fencing,
        manner,
        prefix: options.server.prefix.clone(),
    };
    let connecting = Connecting {
        server: options.server.clone(),
        locks_per_connection: options.locks_per_connection,
        max_waiting: MOST_WAITING,
        max_connections: options.max_connections,
    };
    Settings::new(context, dialect, connecting)
}

impl MySql {
    /// The lock, as the server knows it.
    pub(crate) fn name(&self, physical: &PhysicalName) -> Name {
        let prefix = &self.prefix;
        if prefix.is_empty() { physical.as_str().into() } else { format!("{prefix}:{physical}").into() }
    }
}

impl Dialect for MySql {
    const SERVER: &'static str = "a MySQL or MariaDB server";

    type Connection = MySqlConnection;
    type Id = SessionId;
    type OfSession = ();
    type Key = Name;
    type Claim = Claim;
    type Waiting = (Waiter, Promise);
    type UnderWay = Waiting;
    type Refusal = Refusal;
    type Held = Held;
    type Wait = (Name, SessionId);
    type Seen = Seen;

    fn key_of(claim: &Claim) -> Name {
        Arc::clone(&claim.parts.gate)
    }

    fn attempt_of(claim: &Claim) -> AttemptId {
        claim.id
    }

    async fn open(settings: &Settings, password: Option<Secret>) -> Result<Session, LockError> {
        session::open(settings, password).await
    }

    async fn ask(connection: &mut MySqlConnection, statement: String) -> Result<Answer, sqlx::Error> {
        session::ask(connection, statement).await
    }

    fn drive(
        pool: Arc<Pool>,
        link: Arc<Link>,
        session: Session,
        mailbox: Mailbox,
    ) -> impl Future<Output = ()> + Send + 'static {
        Actor::new(pool, link, session).work(mailbox)
    }

    fn explain(operation: Operation, said: &(dyn DatabaseError + 'static)) -> Option<Explained> {
        failure::explain(operation, said)
    }

    fn is_one_run(one: &SessionId, other: &SessionId) -> bool {
        one.run.is_same_as(&other.run)
    }

    fn cancel(id: &SessionId) -> String {
        statement::cancel(id.number)
    }

    async fn remains(control: &Control, id: &SessionId, calls: u32) -> Result<bool, LockError> {
        control::remains(control, id, calls).await
    }

    fn leave(waiting: &Waiting, id: AttemptId) -> bool {
        let others_stay = waiting.leave(id);
        if !others_stay {
            waiting.stop.notify_one();
        }
        others_stay
    }

    fn look(waits: &[(Name, SessionId)]) -> String {
        let names = waits.iter().flat_map(|(name, id)| [name.to_string(), id.tag.lock()]);
        statement::holders(names, Operation::Inspect)
    }

    fn seen(asked: &SessionId, waits: &[(Name, SessionId)], answer: &Answer) -> Vec<Seen> {
        control::seen(asked, waits, answer)
    }

    fn create_slots() -> String {
        statement::create_slots()
    }

    fn remember(&self, memo: &Memo, writer: &str, keep: Duration) -> Result<String, LockError> {
        Ok(statement::remember(&self.name(memo.physical()), memo, writer, keep))
    }

    fn forget_slots() -> String {
        statement::forget_slots()
    }
}
