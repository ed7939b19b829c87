//! The `Backend` of the core for a SQL server: one short function for each operation.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lock_core::{
    AcquireRequest, Backend, Broken, Capabilities, Downgraded, ErrorKind, Grant, GroupId, HolderId,
    HolderInfo, InspectRequest, LeaseState, LockError, LockStatus, LossReason, Memo, Operation, Released,
    Remembered, Updated,
};
use lock_kit::ClientRecord;

use crate::attempt::Attempt;
use crate::breaking;
use crate::client::{Client, Placed};
use crate::dialect::Dialect;
use crate::failure::{Failure, Why, not_primary};
use crate::inspection;
use crate::once;
use crate::session::{Answer, Session};
use crate::settings::Settings;

/// A backend: a client, and what it can do.
pub struct SqlBackend<D: Dialect> {
    client: Client<D>,
    capabilities: Capabilities,
}

impl<D: Dialect> SqlBackend<D> {
    /// Connects, and makes sure that there is what the client needs at the server. It checks its holds so often, if that is more often
    /// than the core would.
    ///
    /// # Errors
    /// Why there is no connection, or why it could not keep the guarantees.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection.
    pub async fn connect(
        settings: Result<Settings<D>, LockError>,
        capabilities: Capabilities,
        check_every: Option<Duration>,
    ) -> Result<Self, LockError> {
        let settings = Arc::new(settings?);
        let mut session = settings.open().await?;
        let prepared = D::prepare(&settings, &mut session);
        settings.in_time(settings.time_to_connect(), Operation::Connect, prepared).await?;
        Ok(Self { client: Client::start(settings, session, check_every), capabilities })
    }
}

/// Makes sure that there is what a statement asks for, and returns its answer. Creates that only if it is missing, so that clients can
/// start while the database allows no changes.
///
/// # Errors
/// Why it is missing.
///
/// # Cancel safety
/// It may have been created.
pub async fn create_if_missing<D: Dialect>(
    session: &mut Session<D>,
    probe: String,
    create: String,
) -> Result<Answer, Failure> {
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

impl<D: Dialect> Backend for SqlBackend<D> {
    type Lease = Placed<D>;

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<Option<Grant<Placed<D>>>, LockError> {
        Attempt::new(&self.client, request)?.make().await
    }

    async fn cancel(&self, request: &AcquireRequest) -> Result<(), LockError> {
        self.client.undo(request.id(), Operation::Cancel).await
    }

    async fn renew(&self, group: GroupId, leases: &[Arc<Placed<D>>]) -> Result<Vec<LeaseState>, LockError> {
        let leases = leases.iter().map(|lease| (lease.claim.key.clone(), lease.claim.id));
        self.client.renew(group, leases.collect()).await
    }

    async fn release(&self, lease: &Placed<D>) -> Result<Released, LockError> {
        self.client.release(lease).await
    }

    async fn downgrade(
        &self,
        lease: &Placed<D>,
        request: &AcquireRequest,
    ) -> Result<Downgraded<Placed<D>>, LockError> {
        self.client.downgrade(lease, self.client.claim(request)?).await
    }

    async fn inspect(&self, request: &InspectRequest) -> Result<LockStatus, LockError> {
        inspection::inspect(&self.client, request).await
    }

    async fn break_holder(&self, request: &InspectRequest, holder: &HolderId) -> Result<Broken, LockError> {
        breaking::break_holder(&self.client, request, holder).await
    }

    async fn update_holder(&self, lease: &Placed<D>, holder: &HolderInfo) -> Result<Updated, LockError> {
        let (claim, session) = (&lease.claim, &lease.link.session);
        if claim.holder.is_none() {
            return Err(LockError::new(ErrorKind::Unsupported, Operation::Describe)
                .remedy("keep a table at the server: fencing=table"));
        }
        let lost = Updated::Lost(LossReason::ConnectionLost);
        let describing = async {
            let statement = D::describe(claim, session, &ClientRecord::from(holder));
            match self.client.auxiliary.ask_in_run_of(session, Operation::Describe, statement).await {
                Ok(answer) if answer.rows.is_empty() => Ok(lost),
                Ok(_) => Ok(Updated::Done),
                Err(failure) if failure.why() == Some(Why::NoSession) => Ok(lost),
                Err(failure) => Err(failure.into_error()),
            }
        };
        let settings = &self.client.settings;
        settings.in_time(settings.time_to_ask(), Operation::Describe, describing).await
    }

    async fn remember(&self, memo: &Memo, keep: Duration) -> Result<Remembered, LockError> {
        once::remember(&self.client.auxiliary, memo, keep).await
    }

    async fn ping(&self) -> Result<(), LockError> {
        let answer = self.client.ping().await?;
        if answer.value().is_some_and(D::is_primary) { Ok(()) } else { Err(not_primary(Operation::Ping)) }
    }

    async fn close(&self) {
        self.client.close().await;
    }
}

impl<D: Dialect> fmt::Debug for SqlBackend<D> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("SqlBackend").field("client", &self.client).finish_non_exhaustive()
    }
}
