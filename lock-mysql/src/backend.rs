//! The `Backend` of the core for MySQL and MariaDB: one short function for each operation.

use std::collections::HashMap;
use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use lock_core::Released;
use lock_core::spi::{Mutex, within};
use lock_core::{
    AcquireRequest, AttemptId, Backend, BackendContext, Breaking, Broken, Capabilities, CharacterSet,
    Downgraded, ErrorKind, Fairness, Fencing, Grant, GroupId, HolderId, HolderInfo, InspectRequest,
    Inspection, LeaseState, LockError, LockKind, LockStatus, LossReason, Memo, Modes, NameRules, Operation,
    PermitLimits, PhysicalName, Reach, Remembered, Reserving, Updated,
};

use crate::attempt::Attempt;
use crate::batch::{Batches, Waiting};
use crate::control::Control;
use crate::failure::{Failure, gone, no_answer, read_only};
use crate::inspection;
use crate::layout;
use crate::link::{Link, Name};
use crate::once_slots;
use crate::options::{MySqlOptions, TokenSource, is_plain};
use crate::parts::{MOST_PERMITS, Parts};
use crate::pool::{self, Pool};
use crate::session::Session;
use crate::settings::Settings;
use crate::statement::{self, Holder, LONGEST_WAIT};

/// The longest name that every server accepts.
const LONGEST_NAME: usize = 64;

const BACKEND: &str = "mysql";

const MODES: Modes =
    Modes::exclusive().with_shared().with_permits(PermitLimits::new(MOST_PERMITS, MOST_PERMITS));

/// Longer than the time after which the core reports the server's silence to callers that wait behind this clean-up, because
/// another request would only queue behind this one on the same connection.
const SHORTEST_TIME_TO_UNDO: Duration = Duration::from_millis(1500);

pub(crate) struct MySqlBackend {
    pub(crate) context: BackendContext,
    pub(crate) settings: Arc<Settings>,
    pub(crate) control: Arc<Control>,
    /// A second connection of that kind, for writes to tables: nothing that is urgent waits behind them.
    pub(crate) auxiliary: Arc<Control>,
    pub(crate) pool: Arc<Pool>,
    /// Where attempts may have left something.
    attempts: Mutex<HashMap<AttemptId, Placed>>,
    pub(crate) batches: Batches,
    capabilities: Capabilities,
}

#[derive(Clone)]
pub(crate) struct Placed {
    pub(crate) link: Arc<Link>,
    pub(crate) key: Name,
    /// The attempt by whose id the connection knows what it has for this one.
    pub(crate) hold: AttemptId,
    /// The attempt's wait at the server, if it waits.
    pub(crate) waiting: Option<Arc<Waiting>>,
}

/// What the client needs to renew and release a hold.
pub(crate) struct Lease {
    pub(crate) link: Arc<Link>,
    /// That of the gate.
    pub(crate) key: Name,
    pub(crate) id: AttemptId,
    /// The attempt by whose id the connection knows what it has for this one.
    pub(crate) hold: AttemptId,
    /// What the table says of the holder, if there is a table.
    pub(crate) holder: Option<Arc<Holder>>,
}

impl MySqlBackend {
    pub(crate) async fn connect(context: BackendContext, options: MySqlOptions) -> Result<Self, LockError> {
        let settings = Arc::new(Settings::new(&context, &options)?);
        let mut session = settings.open(&context).await?;
        if settings.fencing == TokenSource::Table {
            prepare_table(&context, &settings, &mut session).await?;
        }
        let control = Control::start(context.clone(), Arc::clone(&settings));
        let auxiliary = Control::start(context.clone(), Arc::clone(&settings));
        let server = pool::Server {
            context: context.clone(),
            settings: Arc::clone(&settings),
            control: Arc::clone(&control),
        };
        let pool = Pool::new(server);
        pool.adopt(session);
        if let Some(every) = options.validation_interval {
            context.spawn(check_often(context.clone(), Arc::downgrade(&pool), every));
        }
        let capabilities = capabilities(&options);
        let (attempts, batches) = (Mutex::default(), Batches::default());
        Ok(Self { context, settings, control, auxiliary, pool, attempts, batches, capabilities })
    }

    /// The lock, as the server knows it.
    pub(crate) fn name(&self, physical: &PhysicalName) -> Name {
        let prefix = &self.settings.prefix;
        if prefix.is_empty() { physical.as_str().into() } else { format!("{prefix}:{physical}").into() }
    }

    /// The parts of a lock or of a semaphore.
    pub(crate) fn parts(&self, physical: &PhysicalName, kind: LockKind) -> Parts {
        Parts::new(self.name(physical), kind)
    }

    /// Keeps track of where an attempt is made, until nothing of it is left.
    pub(crate) fn track(&self, id: AttemptId, placed: Placed) {
        self.attempts.lock().insert(id, placed);
    }

    /// The readers of this client that take part in the wait that this attempt has sent, in order.
    pub(crate) fn readers_with(&self, sender: &str) -> Vec<AttemptId> {
        let attempts = self.attempts.lock();
        let waits = attempts.values().filter_map(|placed| placed.waiting.as_ref());
        let wait = waits.into_iter().find(|wait| !wait.has_answer() && wait.hold.to_string() == sender);
        wait.map(|wait| wait.ids()).unwrap_or_default()
    }

    pub(crate) fn forget(&self, id: AttemptId) {
        self.attempts.lock().remove(&id);
    }

    /// Makes sure that nothing of an attempt is left, and that nothing of it appears later.
    pub(crate) async fn undo(&self, id: AttemptId, operation: Operation) -> Result<(), LockError> {
        let Some(placed) = self.attempts.lock().get(&id).cloned() else { return Ok(()) };
        let Placed { link, key, hold, waiting } = placed;
        if let Some(waiting) = waiting {
            if waiting.leave(id) {
                self.forget(id);
                return Ok(());
            }
            waiting.stop.notify_one();
        }
        match self.given_back(&link, &key, (hold, id), operation).await {
            Err(_) if link.is_terminated() => {}
            released => drop(released?),
        }
        self.forget(id);
        Ok(())
    }

    /// Releases the part of an attempt in a hold, on the connection that may have it. If the connection has ended, the server frees the
    /// lock by itself.
    async fn given_back(
        &self,
        link: &Link,
        key: &Name,
        part: (AttemptId, AttemptId),
        operation: Operation,
    ) -> Result<Released, LockError> {
        let released = async {
            let has_ended = link.has_ended();
            match pool::give_back(&self.pool, link, key, part, operation) {
                Some(released) => {
                    if let Ok(released) = released.await {
                        return released;
                    }
                }
                None if !link.has_ended() => return Ok(Released::WasLost(LossReason::Deleted)),
                None => {}
            }
            link.terminated().await;
            // If the connection ended during the request, the server may have carried it out.
            if has_ended { Ok(Released::WasLost(LossReason::ConnectionLost)) } else { Err(gone(operation)) }
        };
        let clock = self.context.clock();
        let deadline = clock.now().plus(self.settings.request_timeout.max(SHORTEST_TIME_TO_UNDO));
        within(clock, deadline, released).await.unwrap_or_else(|| Err(no_answer(operation)))
    }
}

/// The most tokens of one grant. Those of the table follow the server's clock, and a hundred last for 100 µs. The statements of one hold
/// take longer, so that the tokens of holds in a row do not get ahead of the clock. `UUID_SHORT()` begins above all of its numbers after a
/// restart only if the server gave fewer than 16 million in each second.
const MOST_TOKENS: NonZeroU32 = NonZeroU32::new(100).unwrap();

/// The most holds of one grant that have no tokens.
const MOST_WITHOUT_TOKENS: NonZeroU32 = NonZeroU32::new(1000).unwrap();

pub(crate) fn capabilities(options: &MySqlOptions) -> Capabilities {
    let prefix = if options.prefix.is_empty() { 0 } else { options.prefix.len() + 1 };
    // A leading dot comes after the prefix, if there is one, and does no harm.
    let names = NameRules::new(CharacterSet::of(is_plain), LONGEST_NAME - prefix);
    let longest_wait = Duration::from_secs(u64::from(LONGEST_WAIT));
    let capabilities = Capabilities::new(BACKEND, Reach::Network, names)
        .with_fairness(Fairness::Fifo)
        .with_modes(MODES)
        .with_leftovers_gone_after(longest_wait + options.lease);
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
async fn prepare_table(
    context: &BackendContext,
    settings: &Settings,
    session: &mut Session,
) -> Result<(), LockError> {
    let clock = context.clock();
    let prepared = async {
        if let Err(missing) = session.ask(Operation::Connect, statement::probe_table()).await {
            if !missing.is_about_a_table() {
                return Err(missing);
            }
            let created = session.ask(Operation::Connect, statement::create_table()).await;
            // A user who may not write to the existing table does not have to create it.
            created
                .map(drop)
                .map_err(|failure| if missing.is_missing_table() { failure } else { missing })?;
        }
        layout::agree(settings, session).await
    };
    // A blocked write fails after a second.
    let deadline = clock.now().plus(settings.time_to_connect());
    match within(clock, deadline, prepared).await {
        Some(prepared) => prepared.map_err(Failure::into_error),
        None => Err(no_answer(Operation::Connect)),
    }
}

/// Checks all holds more often than the core would.
async fn check_often(context: BackendContext, pool: std::sync::Weak<Pool>, every: Duration) {
    loop {
        context.clock().sleep_until(context.clock().now().plus(every)).await;
        let Some(pool) = pool.upgrade() else { return };
        pool.groups_in_use().into_iter().for_each(|group| context.renew_now(group));
    }
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
        self.undo(request.id(), Operation::Cancel).await
    }

    async fn renew(&self, group: GroupId, leases: &[Arc<Lease>]) -> Result<Vec<LeaseState>, LockError> {
        let lost = || vec![LeaseState::Lost(LossReason::ConnectionLost); leases.len()];
        let Some(link) = self.pool.link(group) else { return Ok(lost()) };
        let asked = leases.iter().map(|lease| (Arc::clone(&lease.key), lease.id)).collect();
        let clock = self.context.clock();
        let deadline = clock.now().plus(self.settings.request_timeout);
        match within(clock, deadline, link.check(asked)).await {
            Some(Ok(states)) => states,
            Some(Err(_)) => Ok(lost()),
            None => Err(no_answer(Operation::Renew)),
        }
    }

    async fn release(&self, lease: &Lease) -> Result<Released, LockError> {
        let part = (lease.hold, lease.id);
        let released = self.given_back(&lease.link, &lease.key, part, Operation::Release).await;
        if released.is_ok() || lease.link.is_terminated() {
            self.forget(lease.id);
        }
        released
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
        let (link, lost) = (&lease.link, Updated::Lost(LossReason::ConnectionLost));
        let holder = Holder { value: holder.value.clone(), ..Holder::clone(written) };
        let statement = statement::describe(&lease.key, lease.id, link.connection, &holder);
        let clock = self.context.clock();
        let deadline = clock.now().plus(self.settings.time_to_connect() + self.settings.request_timeout);
        let asked = self.auxiliary.ask_of(&link.run, Operation::Describe, statement);
        match within(clock, deadline, asked).await {
            Some(Ok(answer)) if answer.value() == Some("1") => Ok(Updated::Done),
            Some(Ok(_)) => Ok(lost),
            Some(Err(failure)) if failure.is_unknown_thread() => Ok(lost),
            Some(Err(failure)) => Err(failure.into_error()),
            None => Err(no_answer(Operation::Describe)),
        }
    }

    async fn remember(&self, memo: &Memo, keep: Duration) -> Result<Remembered, LockError> {
        once_slots::remember(self, memo, keep).await
    }

    async fn ping(&self) -> Result<(), LockError> {
        let clock = self.context.clock();
        let deadline = clock.now().plus(self.settings.time_to_connect() + self.settings.request_timeout);
        let asked = self.control.ask(Operation::Ping, statement::ping());
        let answer =
            within(clock, deadline, asked).await.unwrap_or_else(|| Err(no_answer(Operation::Ping)))?;
        if answer.value().is_some_and(statement::is_read_only) {
            return Err(read_only(Operation::Ping));
        }
        Ok(())
    }

    async fn close(&self) {
        self.pool.close();
        tokio::join!(self.auxiliary.close(), self.control.close());
    }
}

impl fmt::Debug for MySqlBackend {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("MySqlBackend").field("pool", &self.pool).finish_non_exhaustive()
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Lease")
            .field("key", &self.key)
            .field("id", &self.id)
            .field("connection", &self.link.connection)
            .finish_non_exhaustive()
    }
}
