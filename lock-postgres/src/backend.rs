//! The `Backend` of the core for PostgreSQL: one short function for each operation.

use std::collections::HashMap;
use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use lock_core::Released;
use lock_core::spi::{Mutex, within};
use lock_core::{
    AcquireRequest, AttemptId, Backend, BackendContext, Breaking, Broken, Capabilities, CharacterSet,
    Downgraded, ErrorKind, Fairness, Fencing, FencingToken, Grant, GroupId, HolderId, HolderInfo,
    InspectRequest, Inspection, LeaseState, LockError, LockKind, LockName, LockStatus, LossReason, Memo,
    Modes, Moment, NameRules, Operation, PermitLimits, Reach, Remembered, Reserving, Term, Updated,
};

use crate::attempt::Attempt;
use crate::control::Control;
use crate::failure::{Failure, gone, newer_layout, no_answer, standby};
use crate::holder_lookup::HolderLookup;
use crate::inspection;
use crate::key::Key;
use crate::link::{Claim, Link, Taken, Waiting, Wanted};
use crate::options::{self, PostgresOptions, TokenSource};
use crate::permits::MOST_PERMITS;
use crate::pool::{self, Pool};
use crate::session::{Answer, Session};
use crate::settings::{LONGEST_WAIT, Settings};
use crate::slots;
use crate::snapshot_monitor::SnapshotMonitor;
use crate::statement;
use crate::table::{self, Holder};

const BACKEND: &str = "postgres";

/// The most permits of a semaphore.
const MOST: NonZeroU32 = NonZeroU32::MIN.saturating_add(MOST_PERMITS - 1);

/// Longer than the time after which the core reports the server's silence to callers that wait behind this clean-up, because
/// another request would only queue behind this one on the same connection.
const SHORTEST_TIME_TO_UNDO: Duration = Duration::from_millis(1500);

pub(crate) struct PostgresBackend {
    pub(crate) context: BackendContext,
    pub(crate) settings: Arc<Settings>,
    pub(crate) control: Arc<Control>,
    /// Reads and writes tables, which others may block.
    pub(crate) auxiliary: Arc<Control>,
    pub(crate) pool: Arc<Pool>,
    pub(crate) snapshot_monitor: Arc<SnapshotMonitor>,
    pub(crate) holder_lookup: HolderLookup,
    /// Where attempts may have left something.
    attempts: Mutex<HashMap<AttemptId, Placed>>,
    capabilities: Capabilities,
}

#[derive(Clone)]
struct Placed {
    link: Arc<Link>,
    key: Key,
    /// The attempt's wait at the server, if it waits.
    waiting: Option<Arc<Waiting>>,
}

/// What the client needs to renew and release a hold.
pub(crate) struct Lease {
    pub(crate) link: Arc<Link>,
    pub(crate) key: Key,
    pub(crate) id: AttemptId,
}

impl PostgresBackend {
    pub(crate) async fn connect(
        context: BackendContext,
        options: PostgresOptions,
    ) -> Result<Self, LockError> {
        let settings = Arc::new(Settings::new(&context, &options)?);
        let mut session = settings.open(&context).await?;
        prepare(&context, &settings, &mut session).await?;
        let control = Control::start(context.clone(), Arc::clone(&settings));
        let auxiliary = Control::start(context.clone(), Arc::clone(&settings));
        let snapshot_monitor =
            SnapshotMonitor::new(context.clone(), Arc::clone(&settings), Arc::clone(&control));
        let server = pool::Server::new(context.clone(), Arc::clone(&settings), Arc::clone(&control));
        let pool = Pool::new(server);
        pool.adopt(session);
        if let Some(every) = options.validation_interval {
            context.spawn(check_often(context.clone(), Arc::downgrade(&pool), every));
        }
        let capabilities = capabilities(&options);
        Ok(Self {
            context,
            settings,
            control,
            auxiliary,
            pool,
            snapshot_monitor,
            holder_lookup: HolderLookup::default(),
            attempts: Mutex::default(),
            capabilities,
        })
    }

    /// The lock or the semaphore, as the server knows it.
    pub(crate) fn key(&self, name: &LockName, kind: LockKind) -> Result<Key, LockError> {
        let (prefix, text) = (&self.settings.prefix, name.as_str());
        match (kind, self.settings.keys) {
            (LockKind::Semaphore, _) => Ok(Key::of_semaphore(prefix, text)),
            (_, options::Keys::Hashed) => Ok(Key::of(prefix, text)),
            (_, options::Keys::Raw) => Key::raw(text).ok_or_else(|| {
                LockError::new(ErrorKind::InvalidName, Operation::Configure)
                    .on(name)
                    .because(
                        "with keys=raw a name is a number from -9223372036854775807 to 9223372036854775807",
                    )
                    .remedy("write the number in decimal digits, or leave out keys=raw")
            }),
        }
    }

    pub(crate) fn has_table(&self) -> bool {
        self.settings.fencing == TokenSource::Table
    }

    /// What an attempt asks for.
    pub(crate) fn claim(&self, request: &AcquireRequest, wanted: Wanted) -> Result<Claim, LockError> {
        let (name, id) = (request.name().clone(), request.id());
        let key = self.key(&name, request.mode().kind())?;
        let is_described = self.has_table() && wanted == Wanted::Exclusive;
        let holder = is_described.then(|| Holder::of(request.holder()));
        Ok(Claim { key, name, id, wanted, holder, sections: request.sections() })
    }

    /// What the core gets of a hold.
    pub(crate) fn grant(
        &self,
        link: &Arc<Link>,
        claim: &Claim,
        token: Option<FencingToken>,
        anchor: Moment,
    ) -> Grant<Lease> {
        let lease = Lease { link: Arc::clone(link), key: claim.key, id: claim.id };
        let term = Term::Leased { anchor, length: self.settings.lease };
        let mut grant = Grant::new(lease, link.group, term).with_sections(claim.sections);
        if claim.holder.is_none() {
            // The server knows only its session.
            grant = grant.with_holder(HolderId::new(link.session.to_string()));
        }
        match token {
            Some(token) => grant.with_token(token),
            None => grant,
        }
    }

    /// Keeps track of where an attempt is made, until nothing of it is left.
    pub(crate) fn track(&self, claim: &Claim, link: &Arc<Link>, waiting: Option<Arc<Waiting>>) {
        let placed = Placed { link: Arc::clone(link), key: claim.key, waiting };
        self.attempts.lock().insert(claim.id, placed);
    }

    pub(crate) fn forget(&self, id: AttemptId) {
        self.attempts.lock().remove(&id);
    }

    /// Makes sure that nothing of an attempt is left, and that nothing of it appears later.
    pub(crate) async fn undo(&self, id: AttemptId, operation: Operation) -> Result<(), LockError> {
        let Some(placed) = self.attempts.lock().get(&id).cloned() else { return Ok(()) };
        // Boxed: most attempts have left nothing, and need no space for this.
        Box::pin(self.undo_placed(id, placed, operation)).await
    }

    async fn undo_placed(
        &self,
        id: AttemptId,
        placed: Placed,
        operation: Operation,
    ) -> Result<(), LockError> {
        let Placed { link, key, waiting } = placed;
        if let Some(waiting) = waiting {
            waiting.stop();
        }
        match self.given_back(&link, key, id, operation).await {
            Err(_) if link.is_terminated() => {}
            released => drop(released?),
        }
        self.forget(id);
        Ok(())
    }

    /// Releases a lock on the connection that may have it. If the connection has ended, the server frees the lock by itself.
    async fn given_back(
        &self,
        link: &Link,
        key: Key,
        id: AttemptId,
        operation: Operation,
    ) -> Result<Released, LockError> {
        let released = async {
            let has_ended = link.has_ended();
            match pool::give_back(&self.pool, link, key, id, operation) {
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

/// The most holds of one grant.
const MOST_SECTIONS: NonZeroU32 = NonZeroU32::new(1000).unwrap();

/// The same with tokens of a table. They follow the server's clock, and a hundred last for 100 µs. The statements of one hold take longer, so
/// that the tokens of holds in a row do not get ahead of the clock.
const MOST_OF_TABLE: NonZeroU32 = NonZeroU32::new(100).unwrap();

pub(crate) fn capabilities(options: &PostgresOptions) -> Capabilities {
    // The server gets a key of each name.
    let names = NameRules::new(CharacterSet::ANY, LockName::MAX_LENGTH);
    let capabilities = Capabilities::new(BACKEND, Reach::Network, names)
        .with_fairness(Fairness::Fifo)
        .with_leftovers_gone_after(LONGEST_WAIT + options.lease)
        .with_inspection(Inspection::Sessions)
        .with_breaking(Breaking::Sessions)
        .with_remembering()
        .with_modes(Modes::exclusive().with_shared().with_permits(PermitLimits::new(MOST, MOST)));
    match options.fencing {
        TokenSource::Clock => capabilities.with_fencing(Fencing::WhileServerLives).with_reserving(
            Reserving::Refused("they are its clock; choose fencing=sequence or fencing=table"),
        ),
        TokenSource::Sequence => {
            capabilities.with_fencing(Fencing::Durable).with_reserving(Reserving::AtMost(MOST_SECTIONS))
        }
        TokenSource::Table => capabilities
            .with_fencing(Fencing::Durable)
            .with_reserving(Reserving::AtMost(MOST_OF_TABLE))
            .with_inspection(Inspection::HolderAndQueue)
            .with_describing(),
        TokenSource::None => capabilities.with_reserving(Reserving::AtMost(MOST_SECTIONS)),
    }
}

/// Makes sure that there is what tokens come from. It creates that only if it is missing, so that clients can start while the
/// database allows no changes.
async fn prepare(
    context: &BackendContext,
    settings: &Settings,
    session: &mut Session,
) -> Result<(), LockError> {
    let clock = context.clock();
    let prepared = async {
        if let (Some(probe), Some(create)) =
            (statement::probe(settings.fencing), statement::create(settings.fencing))
        {
            let probed = create_if_missing(session, probe, create).await;
            let description = probed.map_err(Failure::into_error)?;
            if settings.fencing == TokenSource::Table && table::is_newer(description.value()) {
                return Err(newer_layout(Operation::Connect, table::TOKENS));
            }
        }
        Ok(())
    };
    let prepared = within(clock, clock.now().plus(settings.time_to_connect()), prepared).await;
    prepared.unwrap_or_else(|| Err(no_answer(Operation::Connect)))
}

/// The answer to the probe.
async fn create_if_missing(session: &mut Session, probe: String, create: String) -> Result<Answer, Failure> {
    let failed = match session.ask(Operation::Connect, probe.clone()).await {
        Err(failed) if failed.is_about_a_table() => failed,
        probed => return probed,
    };
    let created = session.ask(Operation::Connect, create).await;
    // If another client has created it at the same time, this fails, and nothing is missing.
    match session.ask(Operation::Connect, probe).await {
        Err(still) if failed.is_missing_table() => created.and(Err(still)),
        probed => probed,
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

impl Backend for PostgresBackend {
    type Lease = Lease;

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<Option<Grant<Lease>>, LockError> {
        Attempt::new(self, request)?.make().await
    }

    async fn cancel(&self, request: &AcquireRequest) -> Result<(), LockError> {
        self.undo(request.id(), Operation::Cancel).await
    }

    async fn renew(&self, group: GroupId, leases: &[Arc<Lease>]) -> Result<Vec<LeaseState>, LockError> {
        let lost = || vec![LeaseState::Lost(LossReason::ConnectionLost); leases.len()];
        let Some(link) = self.pool.link(group) else { return Ok(lost()) };
        let asked = leases.iter().map(|lease| (lease.key, lease.id)).collect();
        let clock = self.context.clock();
        let deadline = clock.now().plus(self.settings.request_timeout);
        match within(clock, deadline, link.check(asked)).await {
            Some(Ok(states)) => states,
            Some(Err(_)) => Ok(lost()),
            None => Err(no_answer(Operation::Renew)),
        }
    }

    async fn release(&self, lease: &Lease) -> Result<Released, LockError> {
        let released = self.given_back(&lease.link, lease.key, lease.id, Operation::Release).await;
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
        let link = &lease.link;
        let (id, claim) = (request.id(), self.claim(request, Wanted::Shared)?);
        self.track(&claim, link, None);
        let asked = pool::downgrade(&self.pool, link, lease.id, &claim);
        let clock = self.context.clock();
        let deadline = clock.now().plus(self.settings.request_timeout);
        let answered = match asked {
            Some(asked) => within(clock, deadline, asked).await,
            None => Some(Ok(Ok(None))),
        };
        let downgraded = match answered {
            None => return Err(no_answer(Operation::Downgrade)),
            Some(Ok(Err(error))) => return Err(error),
            Some(Ok(Ok(Some(Taken::Granted { token, anchor })))) => {
                Downgraded::Shared(self.grant(link, &claim, token, anchor))
            }
            Some(Ok(Ok(_))) if !link.has_ended() => Downgraded::WasLost(LossReason::Deleted),
            Some(_) => Downgraded::WasLost(LossReason::ConnectionLost),
        };
        self.forget(if let Downgraded::Shared(_) = downgraded { lease.id } else { id });
        Ok(downgraded)
    }

    async fn inspect(&self, request: &InspectRequest) -> Result<LockStatus, LockError> {
        inspection::inspect(self, request).await
    }

    async fn break_holder(&self, request: &InspectRequest, holder: &HolderId) -> Result<Broken, LockError> {
        inspection::break_holder(self, request, holder).await
    }

    async fn update_holder(&self, lease: &Lease, holder: &HolderInfo) -> Result<Updated, LockError> {
        if !self.has_table() {
            return Err(LockError::new(ErrorKind::Unsupported, Operation::Describe)
                .remedy("keep a table at the server: fencing=table"));
        }
        let (session, holder) = (lease.link.session, Holder::of(holder));
        let statement = table::update(lease.key, &lease.id.to_string(), session, &holder);
        let clock = self.context.clock();
        let deadline = clock.now().plus(self.settings.time_to_connect() + self.settings.request_timeout);
        let asked = within(clock, deadline, self.auxiliary.ask(Operation::Describe, statement)).await;
        let answer = asked.unwrap_or_else(|| Err(no_answer(Operation::Describe)))?;
        let lost = Updated::Lost(LossReason::ConnectionLost);
        Ok(if answer.rows.is_empty() { lost } else { Updated::Done })
    }

    async fn remember(&self, memo: &Memo, keep: Duration) -> Result<Remembered, LockError> {
        slots::remember(self, memo, keep).await
    }

    async fn ping(&self) -> Result<(), LockError> {
        let clock = self.context.clock();
        let deadline = clock.now().plus(self.settings.time_to_connect() + self.settings.request_timeout);
        let asked = self.control.ask(Operation::Ping, statement::ping());
        let answer =
            within(clock, deadline, asked).await.unwrap_or_else(|| Err(no_answer(Operation::Ping)))?;
        if answer.value() != Some("false") {
            return Err(standby(Operation::Ping));
        }
        Ok(())
    }

    async fn close(&self) {
        self.pool.close();
        tokio::join!(self.auxiliary.close(), self.control.close());
    }
}

impl fmt::Debug for PostgresBackend {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("PostgresBackend").field("pool", &self.pool).finish_non_exhaustive()
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Lease")
            .field("key", &self.key)
            .field("id", &self.id)
            .field("session", &self.link.session)
            .finish()
    }
}
