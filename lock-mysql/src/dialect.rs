//! What only clients of MySQL have, of what clients of SQL servers share.

use std::num::NonZeroU32;
use std::time::Duration;

use lock_core::{
    BackendContext, Breaking, Capabilities, CharacterSet, ErrorKind, Fairness, Fencing, Inspection,
    LockError, LockKind, LockName, Mode, NameRules, Operation, PermitLimits, PhysicalName, Reach, Reserving,
    Secret,
};
use lock_kit::ClientRecord;
use lock_sql::{Answer, Connecting, Dialect, Explained, Failure, Listed, Seen, create_if_missing};
use sqlx::error::DatabaseError;
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};

use crate::address::connect_options;
use crate::gate::Manner;
use crate::hold::Locks;
use crate::inspection::id_of;
use crate::options::{MySqlOptions, TokenSource, is_plain};
use crate::parts::{MOST_PERMITS, Name, Parts};
use crate::session::{self, SessionId};
use crate::statement::{Holder, LONGEST_WAIT};
use crate::{failure, inspection, statement};

/// How many waits of a client may be at the server, each on a connection of its own. By default a server has 151 connections for all.
const MOST_WAITING: usize = 16;

pub(crate) type Settings = lock_sql::Settings<MySql>;
pub(crate) type Session = lock_sql::Session<MySql>;
pub(crate) type Control = lock_sql::Control<MySql>;
pub(crate) type Connection = lock_sql::Connection<MySql>;
pub(crate) type Client = lock_sql::Client<MySql>;
pub(crate) type Claim = lock_sql::Claim<Parts>;
pub(crate) type Held = lock_sql::Held<Locks>;

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
    let slice = whole_seconds(options.server.lease);
    let manner =
        Manner { tokens: options.fencing, first_slot: 0, slice, prepared_after: None, is_prepared: false };
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

/// The longest name that every server accepts.
const LONGEST_NAME: usize = 64;

const BACKEND: &str = "mysql";

/// The most tokens of one grant. Those of the table follow the server's clock, and a hundred last for 100 µs. The statements of one hold
/// take longer, so that the tokens of holds in a row do not get ahead of the clock. `UUID_SHORT()` begins above all of its numbers after a
/// restart only if the server gave fewer than 16 million in each second.
const MOST_TOKENS: NonZeroU32 = NonZeroU32::new(100).unwrap();

/// The most holds of one grant that have no tokens.
const MOST_WITHOUT_TOKENS: NonZeroU32 = NonZeroU32::new(1000).unwrap();

pub(crate) fn capabilities(options: &MySqlOptions) -> Capabilities {
    let prefix = if options.server.prefix.is_empty() { 0 } else { options.server.prefix.len() + 1 };
    // A leading dot comes after the prefix, if there is one, and does no harm.
    let names = NameRules::new(CharacterSet::of(is_plain), LONGEST_NAME - prefix);
    let longest_wait = Duration::from_secs(u64::from(LONGEST_WAIT));
    let capabilities = Capabilities::new(BACKEND, Reach::Network, names)
        .with_fairness(Fairness::Fifo)
        .with_answers_within(options.server.longest_request())
        .with_shared()
        .with_permits(PermitLimits::new(MOST_PERMITS, MOST_PERMITS))
        .with_leftovers_gone_after(longest_wait + options.server.lease);
    let capabilities = match options.database {
        Some(_) => capabilities.with_remembering(),
        None => capabilities,
    };
    match options.fencing {
        TokenSource::Table => capabilities
            .with_fencing(Fencing::Durable)
            .with_reserving(Reserving::AtMost(MOST_TOKENS))
            .with_inspection(Inspection::HolderAndOwnQueue)
            .with_listing()
            .with_breaking(Breaking::Supported)
            .with_describing(),
        TokenSource::Clock => capabilities
            .with_fencing(Fencing::WhileServerLives)
            .with_reserving(Reserving::AtMost(MOST_TOKENS))
            .with_inspection(Inspection::Sessions)
            .with_breaking(Breaking::Sessions),
        TokenSource::None => capabilities
            .with_reserving(Reserving::AtMost(MOST_WITHOUT_TOKENS))
            .with_inspection(Inspection::Sessions)
            .with_breaking(Breaking::Sessions),
    }
}

impl MySql {
    /// The lock, as the server knows it.
    pub(crate) fn name(&self, physical: &PhysicalName) -> Name {
        let prefix = &self.prefix;
        if prefix.is_empty() { physical.as_str().into() } else { format!("{prefix}:{physical}").into() }
    }

    /// The token that came with a lock, unless tokens come from a table.
    pub(crate) fn token(&self, token: u64) -> Option<u64> {
        (self.fencing == TokenSource::Clock).then_some(token)
    }
}

/// How often the client looks at a connection that reads before it ends that connection. `MySQL` 5.7 may miss the command to end a
/// connection that goes back to reading at that very moment, and would then keep its locks until the lease is over.
const LOOKS_BEFORE_THE_END: u32 = 4;

/// What the server shows of a connection that waits for a lock. It checks once a second whether the client is still there.
const WAITS: &str = "User lock";

/// What the server does on a connection, if it has it.
async fn state_of(
    control: &Control,
    id: &SessionId,
    operation: Operation,
) -> Result<Option<String>, LockError> {
    let answer = control.ask_in_run_of(id, operation, statement::state_of(id.number, operation)).await?;
    Ok(answer.and_then(|answer| answer.value().map(str::to_owned)))
}

impl Dialect for MySql {
    const SERVER: &'static str = "a MySQL or MariaDB server";
    const CONNECTIONS: &'static str = "SHOW /*distlock connect*/ GLOBAL STATUS LIKE 'Threads_connected';\
                                       SELECT /*distlock connect*/ CAST(@@max_connections AS CHAR)";
    const PING: &'static str = "SELECT /*distlock ping*/ CAST(@@global.read_only AS CHAR)";
    /// Those who pass are not told from those who stay.
    const TRIES_AT_A_GATE: u32 = 5;

    type Connection = MySqlConnection;
    type Id = SessionId;
    type OfSession = Manner;
    type Key = Parts;

    fn key(&self, _: &LockName, physical: &PhysicalName, kind: LockKind) -> Result<Parts, LockError> {
        Ok(Parts::new(self.name(physical), kind))
    }

    fn is_recorded(&self, _: Mode) -> bool {
        self.fencing == TokenSource::Table
    }

    async fn open(settings: &Settings, password: Option<Secret>) -> Result<Session, LockError> {
        session::open(settings, password).await
    }

    /// The table of tokens. A blocked write fails after a second.
    async fn prepare(settings: &Settings, session: &mut Session) -> Result<(), LockError> {
        if settings.dialect.fencing != TokenSource::Table {
            return Ok(());
        }
        let prepared = create_if_missing(session, statement::probe_table(), statement::create_table()).await;
        let prepared = prepared.map_err(Failure::into_error)?;
        let (ours, found) = (statement::LAYOUT, prepared.value().unwrap_or_default());
        if found == ours {
            return Ok(());
        }
        Err(LockError::new(ErrorKind::Unsupported, Operation::Connect)
            .because(format!("its table is of another release of distlock: {found:?}, and not {ours:?}"))
            .remedy(
                "use the same release everywhere: update this program, or end all clients, and change the comment on the table \
                 distlock_locks",
            ))
    }

    async fn ask(connection: &mut MySqlConnection, statement: String) -> Result<Answer, sqlx::Error> {
        session::ask(connection, statement).await
    }

    fn explain(operation: Operation, said: &(dyn DatabaseError + 'static)) -> Option<Explained> {
        failure::explain(operation, said)
    }

    fn is_primary(answer: &str) -> bool {
        !statement::is_read_only(answer)
    }

    fn is_one_run(one: &SessionId, other: &SessionId) -> bool {
        one.run.is_same_as(&other.run)
    }

    fn cancel(id: &SessionId) -> String {
        statement::cancel(id.number)
    }

    /// Ends it, unless the server is reading: then it will notice by itself that the client has gone, unless the network prevents that.
    async fn remains(control: &Control, id: &SessionId, calls: u32) -> Result<bool, LockError> {
        let Some(state) = state_of(control, id, Operation::Cancel).await? else { return Ok(false) };
        if state == WAITS || calls >= LOOKS_BEFORE_THE_END {
            let end = statement::end(id.number, &id.tag.lock(), Operation::Cancel);
            control.ask_in_run_of(id, Operation::Cancel, end).await?;
        }
        Ok(true)
    }

    async fn is_queued(control: &Control, id: &SessionId) -> Result<bool, LockError> {
        Ok(state_of(control, id, Operation::Acquire).await?.as_deref() == Some(WAITS))
    }

    fn look(key: &Parts, id: &SessionId) -> String {
        statement::holders([&*key.gate, &id.tag.lock()].into_iter(), Operation::Inspect)
    }

    fn seen(asked: &SessionId, id: &SessionId, answer: &Answer) -> Seen {
        let mut numbers =
            answer.value().unwrap_or_default().split(' ').map(|number| number.parse::<u64>().ok());
        let (holder, tagged) = (numbers.next().flatten(), numbers.next().flatten());
        match holder {
            // In another run of the server there is no waiter.
            _ if !asked.run.is_same_as(&id.run) || tagged != Some(id.number) => Seen::Gone,
            None | Some(0) => Seen::Free,
            // It has the lock, or the gate, and its answer is on the way or it waits for what is behind that.
            Some(holder) if holder == id.number => Seen::Idle,
            Some(holder) => Seen::Held(id_of(holder, &id.run)),
        }
    }

    fn list(&self) -> Option<String> {
        (self.fencing == TokenSource::Table).then(|| statement::held(&self.prefix))
    }

    fn listed(&self, seen_by: &SessionId, answer: Answer, names: NameRules) -> Vec<Listed> {
        inspection::listed(self, seen_by, &answer, names)
    }

    fn describe(claim: &Claim, session: &SessionId, holder: &ClientRecord) -> String {
        let written = Holder::of(claim).map(|written| Holder { client: holder.clone(), ..written });
        written.map(|holder| statement::describe(claim, session.number, &holder)).unwrap_or_default()
    }
}
