//! The `Backend` of the core for MySQL and MariaDB: one short function for each operation.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use lock_core::Released;
use lock_core::{
    AcquireRequest, AttemptId, Backend, BackendContext, Breaking, Broken, Capabilities, CharacterSet,
    Downgraded, ErrorKind, Fairness, Fencing, Grant, GroupId, HolderId, HolderInfo, InspectRequest,
    Inspection, LeaseState, LockError, LockKind, LockStatus, LossReason, Memo, NameRules, Operation,
    PermitLimits, PhysicalName, Reach, Remembered, Reserving, Updated,
};
use lock_sql::{Failure, Why};

use crate::attempt::Attempt;
use crate::batch::{Batches, Waiting};
use crate::dialect::{self, Client, Placed, Session, Settings};
use crate::failure::read_only;
use crate::inspection;
use crate::layout;
use crate::options::{MySqlOptions, TokenSource, is_plain};
use crate::parts::{MOST_PERMITS, Parts};
use crate::statement::{self, Holder, LONGEST_WAIT};

/// The longest name that every server accepts.
const LONGEST_NAME: usize = 64;

const BACKEND: &str = "mysql";

pub(crate) struct MySqlBackend {
    pub(crate) client: Client,
    pub(crate) batches: Batches,
    capabilities: Capabilities,
}

/// What the client needs to renew and release a hold. Its key is that of the gate.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) placed: Placed,
    /// What the table says of the holder, if there is a table.
    pub(crate) holder: Option<Arc<Holder>>,
}

impl MySqlBackend {
    pub(crate) async fn connect(context: BackendContext, options: MySqlOptions) -> Result<Self, LockError> {
        let settings = Arc::new(dialect::settings(context, &options)?);
        let mut session = settings.open().await?;
        if settings.dialect.fencing == TokenSource::Table {
            prepare_table(&settings, &mut session).await?;
        }
        let client = Client::start(settings, session, options.validation_interval);
        let capabilities = capabilities(&options);
        Ok(Self { client, batches: Batches::default(), capabilities })
    }

    /// The parts of a lock or of a semaphore.
    pub(crate) fn parts(&self, physical: &PhysicalName, kind: LockKind) -> Parts {
        Parts::new(self.client.settings.dialect.name(physical), kind)
    }

    /// The readers of this client that take part in the wait that this attempt has sent, in order.
    pub(crate) fn readers_with(&self, sender: &str) -> Vec<AttemptId> {
        let is_sent = |wait: &Waiting| !wait.has_answer() && wait.hold.to_string() == sender;
        self.client.find_in_waits(|wait| is_sent(wait).then(|| wait.ids())).unwrap_or_default()
    }
}

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
            .with_inspection(Inspection::HolderAndQueue)
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

/// Makes sure that the table exists. It creates the table only if that is missing, so that clients can start while the database
/// allows no writes.
async fn prepare_table(settings: &Settings, session: &mut Session) -> Result<(), LockError> {
    let prepared = async {
        if let Err(missing) = session.ask(Operation::Connect, statement::probe_table()).await {
            if !missing.is_about_a_table() {
                return Err(missing.into_error());
            }
            let created = session.ask(Operation::Connect, statement::create_table()).await;
            // A user who may not write to the existing table does not have to create it.
            let failure = |failure| if missing.is_missing_table() { failure } else { missing };
            created.map_err(|created| failure(created).into_error())?;
        }
        layout::agree(settings, session).await.map_err(Failure::into_error)
    };
    // A blocked write fails after a second.
    settings.in_time(settings.time_to_connect(), Operation::Connect, prepared).await
}

impl Backend for MySqlBackend {
    type Lease = Lease;

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<Option<Grant<Lease>>, LockError> {
        Attempt::new(self, request).make().await
    }

    async fn cancel(&self, request: &AcquireRequest) -> Result<(), LockError> {
        self.client.undo(request.id(), Operation::Cancel).await
    }

    async fn renew(&self, group: GroupId, leases: &[Arc<Lease>]) -> Result<Vec<LeaseState>, LockError> {
        let placed = leases.iter().map(|lease| (Arc::clone(&lease.placed.key), lease.placed.id));
        self.client.renew(group, placed.collect()).await
    }

    async fn release(&self, lease: &Lease) -> Result<Released, LockError> {
        self.client.release(&lease.placed).await
    }

    async fn downgrade(
        &self,
        lease: &Lease,
        request: &AcquireRequest,
    ) -> Result<Downgraded<Lease>, LockError> {
        Attempt::new(self, request).downgrade(lease).await
    }

    async fn inspect(&self, request: &InspectRequest) -> Result<LockStatus, LockError> {
        inspection::inspect(self, request).await
    }

    async fn break_holder(&self, request: &InspectRequest, holder: &HolderId) -> Result<Broken, LockError> {
        inspection::break_holder(self, request, holder).await
    }

    async fn update_holder(&self, lease: &Lease, holder: &HolderInfo) -> Result<Updated, LockError> {
        let Some(written) = &lease.holder else {
            return Err(LockError::new(ErrorKind::Unsupported, Operation::Describe)
                .remedy("keep a table at the server: fencing=table"));
        };
        let placed = &lease.placed;
        let (session, lost) = (&placed.link.session, Updated::Lost(LossReason::ConnectionLost));
        let holder = Holder { client: holder.into(), ..Holder::clone(written) };
        let statement = statement::describe(&placed.key, placed.id, session.number, &holder);
        let describing = async {
            match self.client.auxiliary.ask_in_run_of(session, Operation::Describe, statement).await {
                Ok(answer) if answer.value() == Some("1") => Ok(Updated::Done),
                Ok(_) => Ok(lost),
                Err(failure) if failure.why() == Some(Why::NoSession) => Ok(lost),
                Err(failure) => Err(failure.into_error()),
            }
        };
        let settings = &self.client.settings;
        settings.in_time(settings.time_to_ask(), Operation::Describe, describing).await
    }

    async fn remember(&self, memo: &Memo, keep: Duration) -> Result<Remembered, LockError> {
        lock_sql::remember(&self.client.auxiliary, memo, keep).await
    }

    async fn ping(&self) -> Result<(), LockError> {
        let answer = self.client.ping(statement::ping()).await?;
        if answer.value().is_some_and(statement::is_read_only) {
            return Err(read_only(Operation::Ping));
        }
        Ok(())
    }

    async fn close(&self) {
        self.client.close().await;
    }
}

impl fmt::Debug for MySqlBackend {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("MySqlBackend").field("client", &self.client).finish_non_exhaustive()
    }
}
