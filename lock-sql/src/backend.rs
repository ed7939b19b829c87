//! The `Backend` of the core for a SQL server.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{
    AcquireRequest, Backend, Broken, Capabilities, Downgraded, ErrorKind, Grant, GroupId, HolderId,
    HolderInfo, InspectRequest, LeaseState, LockError, LockStatus, LossReason, Memo, Operation, Recall,
    Released, Remembered, Updated,
};
use lock_kit::ClientRecord;

use crate::attempt::Attempt;
use crate::breaking;
use crate::client::{Client, Placed};
use crate::dialect::{Dialect, Listed};
use crate::failure::{Failure, Why, not_primary};
use crate::link::{Command, Taken};
use crate::once;
use crate::pool::downgrade;
use crate::session::{Answer, Session};

/// How many times the time for a statement an inspection gets: for several statements, and for opening a connection.
pub(crate) const STATEMENTS: u32 = 4;

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
        // A server may not tell which of the two it is.
        Err(failed) if matches!(failed.why(), Some(Why::MissingTable | Why::Denied)) => failed,
        probed => return probed,
    };
    let created = session.ask(Operation::Connect, create).await;
    // If another client has created it at the same time, this fails, and nothing is missing.
    match session.ask(Operation::Connect, probe).await {
        Err(still) if failed.why() == Some(Why::MissingTable) => created.and(Err(still)),
        probed => probed,
    }
}

impl<D: Dialect> Backend for Client<D> {
    type Lease = Placed<D>;

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<Option<Grant<Placed<D>>>, LockError> {
        Attempt::new(self, request)?.make().await
    }

    async fn cancel(&self, request: &AcquireRequest) -> Result<(), LockError> {
        self.undo(request.id(), Operation::Cancel).await
    }

    async fn renew(&self, group: GroupId, leases: &[Arc<Placed<D>>]) -> Result<Vec<LeaseState>, LockError> {
        let lost = vec![LeaseState::Lost(LossReason::ConnectionLost); leases.len()];
        let Some(link) = self.pool.link(group) else { return Ok(lost) };
        let leases = leases.iter().map(|lease| (lease.claim.key.clone(), lease.claim.id));
        let leases = leases.collect();
        let asked = link.asked(|answer| Command::Check { leases, answer });
        let checking = async { asked.await.unwrap_or(Ok(lost)) };
        self.settings.in_time(self.settings.request_timeout, Operation::Renew, checking).await
    }

    async fn release(&self, lease: &Placed<D>) -> Result<Released, LockError> {
        let released = self.given_back(lease, Operation::Release).await;
        if released.is_ok() || lease.link.is_terminated() {
            self.forget(lease.claim.id);
        }
        released
    }

    async fn downgrade(
        &self,
        lease: &Placed<D>,
        request: &AcquireRequest,
    ) -> Result<Downgraded<Placed<D>>, LockError> {
        let (link, claim, former) = (&lease.link, self.claim(request)?, lease.claim.id);
        let place = Placed { link: Arc::clone(link), claim: claim.clone() };
        self.track(place.clone(), None);
        let asked = downgrade(&self.pool, link, former, claim);
        let downgrading = async {
            match asked {
                Some(asked) => match asked.await {
                    Ok(taken) => taken.map(Ok).map_err(|error| error.during(Operation::Downgrade)),
                    Err(_) => Ok(Err(LossReason::ConnectionLost)),
                },
                None if link.has_ended() => Ok(Err(LossReason::ConnectionLost)),
                None => Ok(Err(LossReason::Deleted)),
            }
        };
        let limit = self.settings.request_timeout;
        Ok(match self.settings.in_time(limit, Operation::Downgrade, downgrading).await? {
            Ok(Taken::Granted { token, anchor }) => {
                self.forget(former);
                Downgraded::Shared(self.grant(place, token, anchor))
            }
            lost => {
                self.forget(request.id());
                Downgraded::WasLost(lost.err().unwrap_or(LossReason::Deleted))
            }
        })
    }

    async fn inspect(&self, request: &InspectRequest) -> Result<LockStatus, LockError> {
        let key = self.settings.dialect.key(request.name(), request.physical(), request.kind())?;
        let mut status = LockStatus::free(request.name().clone());
        let limit = self.settings.request_timeout * STATEMENTS;
        let looking = D::inspect(self, &key);
        (status.holders, status.waiters) = self.settings.in_time(limit, Operation::Inspect, looking).await?;
        Ok(status)
    }

    /// What is held has a name only in the table.
    async fn list(&self) -> Result<Vec<InspectRequest>, LockError> {
        let (dialect, names) = (&self.settings.dialect, self.capabilities.names);
        let Some(statement) = dialect.list() else {
            return Err(LockError::new(ErrorKind::Unsupported, Operation::Inspect)
                .because("only a table at the server has the names of locks, and this client keeps none")
                .remedy("keep one: fencing=table in all URLs"));
        };
        let asking = async {
            let said = self.auxiliary.try_to_ask(Operation::Inspect, statement, None).await;
            said.map_err(Failure::into_error)
        };
        let limit = self.settings.request_timeout * STATEMENTS;
        let (seen_by, answer) = self.settings.in_time(limit, Operation::Inspect, asking).await?;
        let request = |(name, kind, seen): Listed| {
            let physical = names.apply(&name);
            let request = InspectRequest::new(name, physical).about(kind);
            match seen {
                Some((holders, waiters)) => request.seen(holders, waiters),
                None => request,
            }
        };
        Ok(dialect.listed(&seen_by, answer, names).into_iter().map(request).collect())
    }

    async fn break_holder(&self, request: &InspectRequest, holder: &HolderId) -> Result<Broken, LockError> {
        breaking::break_holder(self, request, holder).await
    }

    async fn update_holder(&self, lease: &Placed<D>, holder: &HolderInfo) -> Result<Updated, LockError> {
        let (claim, session) = (&lease.claim, &lease.link.session);
        if claim.holder.is_none() {
            return Err(LockError::new(ErrorKind::Unsupported, Operation::Describe)
                .remedy("keep a table at the server: fencing=table"));
        }
        let statement = D::describe(claim, session, &ClientRecord::from(holder));
        let describing = self.auxiliary.ask_in_run_of(session, Operation::Describe, statement);
        let limit = self.settings.time_to_ask();
        let described = self.settings.in_time(limit, Operation::Describe, describing).await?;
        let is_held = described.is_some_and(|answer| !answer.rows.is_empty());
        Ok(if is_held { Updated::Done } else { Updated::Lost(LossReason::ConnectionLost) })
    }

    async fn remember(&self, memo: &Memo, keep: Duration) -> Result<Remembered, LockError> {
        once::remember(&self.auxiliary, memo, keep).await
    }

    async fn recall(&self, memo: &Memo, recall: Recall) -> Result<Option<Duration>, LockError> {
        once::recall(&self.auxiliary, memo, recall).await
    }

    async fn ping(&self) -> Result<(), LockError> {
        let asking = self.control.ask(Operation::Ping, D::PING.to_owned());
        let answer = self.settings.in_time(self.settings.time_to_ask(), Operation::Ping, asking).await?;
        if answer.value().is_some_and(D::is_primary) { Ok(()) } else { Err(not_primary(Operation::Ping)) }
    }

    async fn close(&self) {
        self.pool.close();
        tokio::join!(self.auxiliary.close(), self.control.close());
    }
}
