//! The `Backend` of the core for PostgreSQL: one short function for each operation.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use lock_core::Released;
use lock_core::{
    AcquireRequest, Backend, BackendContext, Breaking, Broken, Capabilities, CharacterSet, Downgraded,
    ErrorKind, Fairness, Fencing, FencingToken, Grant, GroupId, HolderId, HolderInfo, InspectRequest,
    Inspection, LeaseState, LockError, LockName, LockStatus, LossReason, Memo, Moment, NameRules, Operation,
    PermitLimits, Reach, Remembered, Reserving, Term, Updated,
};
use lock_kit::ClientRecord;
use lock_sql::{Answer, Failure};

use crate::attempt::Attempt;
use crate::claim::{Claim, Waiting, Wanted};
use crate::dialect::{self, Client, LONGEST_WAIT, Link, Placed, Session, Settings};
use crate::failure::{newer_layout, standby};
use crate::holder_lookup::HolderLookup;
use crate::inspection;
use crate::options::{PostgresOptions, TokenSource};
use crate::permits::MOST_PERMITS;
use crate::snapshot_monitor::SnapshotMonitor;
use crate::statement;
use crate::table;

const BACKEND: &str = "postgres";

/// The most permits of a semaphore.
const MOST: NonZeroU32 = NonZeroU32::MIN.saturating_add(MOST_PERMITS - 1);

pub(crate) struct PostgresBackend {
    pub(crate) client: Client,
    pub(crate) snapshot_monitor: Arc<SnapshotMonitor>,
    pub(crate) holder_lookup: HolderLookup,
    capabilities: Capabilities,
}

impl PostgresBackend {
    pub(crate) async fn connect(
        context: BackendContext,
        options: PostgresOptions,
    ) -> Result<Self, LockError> {
        let settings = Arc::new(dialect::settings(context, &options)?);
        let mut session = settings.open().await?;
        prepare(&settings, &mut session).await?;
        let client = Client::start(settings, session, options.validation_interval);
        Ok(Self {
            snapshot_monitor: SnapshotMonitor::new(Arc::clone(&client.control)),
            client,
            holder_lookup: HolderLookup::default(),
            capabilities: capabilities(&options),
        })
    }

    /// What an attempt asks for.
    pub(crate) fn claim(&self, request: &AcquireRequest, wanted: Wanted) -> Result<Claim, LockError> {
        let (name, id) = (request.name().clone(), request.id());
        let key = self.client.settings.dialect.key(&name, request.mode().kind())?;
        let is_described = self.client.settings.dialect.has_table() && wanted == Wanted::Exclusive;
        let holder = is_described.then(|| ClientRecord::from(&**request.holder()));
        Ok(Claim { key, name, id, wanted, holder, sections: request.sections() })
    }

    /// What the core gets of a hold.
    pub(crate) fn grant(
        &self,
        link: &Arc<Link>,
        claim: &Claim,
        token: Option<FencingToken>,
        anchor: Moment,
    ) -> Grant<Placed> {
        let term = Term::Leased { anchor, length: self.client.settings.server.lease };
        let mut grant = Grant::new(placed(claim, link), link.group, term).with_sections(claim.sections);
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
        self.client.track(placed(claim, link), waiting);
    }
}

fn placed(claim: &Claim, link: &Arc<Link>) -> Placed {
    Placed { link: Arc::clone(link), key: claim.key, id: claim.id, hold: claim.id }
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
        .with_answers_within(options.server.longest_request())
        .with_leftovers_gone_after(LONGEST_WAIT + options.server.lease)
        .with_inspection(Inspection::Sessions)
        .with_breaking(Breaking::Sessions)
        .with_remembering()
        .with_shared()
        .with_permits(PermitLimits::new(MOST, MOST));
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
async fn prepare(settings: &Settings, session: &mut Session) -> Result<(), LockError> {
    let fencing = settings.dialect.fencing;
    let (Some(probe), Some(create)) = (statement::probe(fencing), statement::create(fencing)) else {
        return Ok(());
    };
    let prepared = async {
        let probed = create_if_missing(session, probe, create).await;
        let description = probed.map_err(Failure::into_error)?;
        if settings.dialect.has_table() && table::is_newer(description.value()) {
            return Err(newer_layout(Operation::Connect, table::TOKENS));
        }
        Ok(())
    };
    settings.in_time(settings.time_to_connect(), Operation::Connect, prepared).await
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

impl Backend for PostgresBackend {
    type Lease = Placed;

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<Option<Grant<Placed>>, LockError> {
        Attempt::new(self, request)?.make().await
    }

    async fn cancel(&self, request: &AcquireRequest) -> Result<(), LockError> {
        self.client.undo(request.id(), Operation::Cancel).await
    }

    async fn renew(&self, group: GroupId, leases: &[Arc<Placed>]) -> Result<Vec<LeaseState>, LockError> {
        let leases = leases.iter().map(|lease| (lease.key, lease.id));
        self.client.renew(group, leases.collect()).await
    }

    async fn release(&self, lease: &Placed) -> Result<Released, LockError> {
        self.client.release(lease).await
    }

    async fn downgrade(
        &self,
        lease: &Placed,
        request: &AcquireRequest,
    ) -> Result<Downgraded<Placed>, LockError> {
        let claim = self.claim(request, Wanted::Shared)?;
        Ok(match self.client.downgrade(lease, claim.clone()).await? {
            Ok((token, anchor)) => Downgraded::Shared(self.grant(&lease.link, &claim, token, anchor)),
            Err(reason) => Downgraded::WasLost(reason),
        })
    }

    async fn inspect(&self, request: &InspectRequest) -> Result<LockStatus, LockError> {
        inspection::inspect(self, request).await
    }

    async fn break_holder(&self, request: &InspectRequest, holder: &HolderId) -> Result<Broken, LockError> {
        inspection::break_holder(self, request, holder).await
    }

    async fn update_holder(&self, lease: &Placed, holder: &HolderInfo) -> Result<Updated, LockError> {
        if !self.client.settings.dialect.has_table() {
            return Err(LockError::new(ErrorKind::Unsupported, Operation::Describe)
                .remedy("keep a table at the server: fencing=table"));
        }
        let (session, holder) = (lease.link.session, ClientRecord::from(holder));
        let statement = table::update(lease.key, &lease.id.to_string(), session, &holder);
        let (settings, asked) =
            (&self.client.settings, self.client.auxiliary.ask(Operation::Describe, statement));
        let answer = settings.in_time(settings.time_to_ask(), Operation::Describe, asked).await?;
        let lost = Updated::Lost(LossReason::ConnectionLost);
        Ok(if answer.rows.is_empty() { lost } else { Updated::Done })
    }

    async fn remember(&self, memo: &Memo, keep: Duration) -> Result<Remembered, LockError> {
        lock_sql::remember(&self.client.auxiliary, memo, keep).await
    }

    async fn ping(&self) -> Result<(), LockError> {
        let answer = self.client.ping(statement::ping()).await?;
        if answer.value() != Some("false") {
            return Err(standby(Operation::Ping));
        }
        Ok(())
    }

    async fn close(&self) {
        self.client.close().await;
    }
}

impl fmt::Debug for PostgresBackend {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("PostgresBackend").field("client", &self.client).finish_non_exhaustive()
    }
}
