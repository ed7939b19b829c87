//! The client of the table, and the harness for both.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use conformance_tests::{Ability, Failure, Harness, Losing, Outcome, Removal};
use lock_core::{
    AcquireRequest, AttemptId, Backend, BackendContext, Breaking, Broken, Capabilities, CharacterSet,
    ClientBuilder, Fairness, Fencing, FencingToken, Grant, GroupId, HolderId, InspectRequest, Inspection,
    LeaseState, LockClient, LockError, LockName, LockStatus, LossReason, Memo, NameRules, Operation, Reach,
    Recall, Released, Remembered, Reserving, Term, Wait,
};

use super::table::{Answer, Defect, Table, Waiting};

/// How often a waiter checks the table, so that it notices when leases end.
const LOOK_EVERY: Duration = Duration::from_millis(10);

#[derive(Debug)]
struct TableLease {
    key: String,
    id: AttemptId,
}

struct TableBackend {
    table: Arc<Table>,
    context: BackendContext,
    capabilities: Capabilities,
}

impl std::fmt::Debug for TableBackend {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("TableBackend")
    }
}

impl TableBackend {
    /// Waits until the attempt has been granted the lock.
    async fn granted(&self, key: &str, id: AttemptId) -> Result<u64, LockError> {
        loop {
            let changed = self.table.changed.notified();
            self.table.reach(Operation::Acquire)?;
            if let Some(token) = self.table.token_of(key, id) {
                return Ok(token);
            }
            if self.table.lease.is_some() {
                let _ = tokio::time::timeout(LOOK_EVERY, changed).await;
            } else {
                changed.await;
            }
        }
    }

    fn grant(
        &self,
        key: String,
        request: &AcquireRequest,
        token: u64,
        anchor: lock_core::Moment,
    ) -> Grant<TableLease> {
        let term = match self.table.lease {
            Some(length) if self.table.defect == Defect::AnchorTooLate => {
                Term::Leased { anchor: anchor.plus(length / 2), length }
            }
            Some(length) => Term::Leased { anchor, length },
            None => Term::UntilReported,
        };
        let lease = TableLease { key, id: request.id() };
        let (token, sections) = (Some(FencingToken::new(token)), request.sections());
        Grant { token, sections, ..Grant::new(lease, GroupId::new(0), term) }
    }
}

impl Backend for TableBackend {
    type Lease = TableLease;

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<Option<Grant<TableLease>>, LockError> {
        if let Err(error) = self.table.reach(Operation::Acquire) {
            if self.table.defect == Defect::UnreachableIsHeld {
                request.queued();
                return Ok(None);
            }
            return Err(error);
        }
        let key = self.table.key(request.name().as_str());
        let who = Waiting {
            id: request.id(),
            sections: request.sections().get(),
            info: Arc::clone(request.holder()),
            attempt: request.clone(),
        };
        let anchor = self.context.clock().now();
        let answer = self.table.request(&key, who, request.wait() == Wait::Try);
        self.table.reply(Operation::Acquire)?;
        if !matches!(answer, Answer::Granted(_))
            && let Some(holder) = self.table.holder(&key, request.holder())
        {
            request.held_by(holder);
        }
        match answer {
            Answer::Granted(token) => Ok(Some(self.grant(key, request, token, anchor))),
            Answer::Refused => Ok(None),
            Answer::Queued => {
                if self.table.defect != Defect::SilentQueue {
                    request.queued();
                }
                let token = self.granted(&key, request.id()).await?;
                // The lease has run since the grant, which was made no earlier than the previous check.
                let anchor = self.context.clock().now().minus(LOOK_EVERY * 10);
                Ok(Some(self.grant(key, request, token, anchor)))
            }
        }
    }

    async fn cancel(&self, request: &AcquireRequest) -> Result<(), LockError> {
        self.table.reach(Operation::Cancel)?;
        self.table.cancel(&self.table.key(request.name().as_str()), request.id());
        Ok(())
    }

    async fn renew(&self, _: GroupId, leases: &[Arc<TableLease>]) -> Result<Vec<LeaseState>, LockError> {
        self.table.reach(Operation::Renew)?;
        let renewed = leases.iter().map(|lease| self.table.renew(&lease.key, lease.id));
        let state = |held| if held { LeaseState::Held } else { LeaseState::Lost(LossReason::Deleted) };
        Ok(renewed.map(state).collect())
    }

    async fn release(&self, lease: &TableLease) -> Result<Released, LockError> {
        self.table.reach(Operation::Release)?;
        while !self.table.is_settled(&lease.key) {
            tokio::time::sleep(LOOK_EVERY).await;
        }
        let was_held = self.table.release(&lease.key, lease.id);
        self.table.reply(Operation::Release)?;
        Ok(if was_held { Released::Clean } else { Released::WasLost(LossReason::Deleted) })
    }

    async fn inspect(&self, request: &InspectRequest) -> Result<LockStatus, LockError> {
        self.table.reach(Operation::Inspect)?;
        Ok(self.table.status(request.name(), &self.table.key(request.name().as_str())))
    }

    async fn break_holder(&self, request: &InspectRequest, holder: &HolderId) -> Result<Broken, LockError> {
        self.table.reach(Operation::Break)?;
        Ok(self.table.break_holder(&self.table.key(request.name().as_str()), holder))
    }

    async fn remember(&self, memo: &Memo, keep: Duration) -> Result<Remembered, LockError> {
        self.table.reach(Operation::Remember)?;
        let remembered = self.table.remember(memo, keep);
        self.table.reply(Operation::Remember)?;
        Ok(remembered)
    }

    async fn recall(&self, memo: &Memo, recall: Recall) -> Result<Option<Duration>, LockError> {
        self.table.reach(Operation::Remember)?;
        Ok(self.table.recall(memo, recall))
    }

    async fn ping(&self) -> Result<(), LockError> {
        if self.table.defect == Defect::PingUnasked {
            return Ok(());
        }
        self.table.reach(Operation::Ping)
    }
}

/// A table under test.
pub(crate) struct TableHarness {
    pub(crate) table: Arc<Table>,
    pub(crate) patience: Duration,
}

#[async_trait]
impl Harness for TableHarness {
    async fn start() -> Outcome<Self> {
        Err(Failure::new("a table is made with its defect"))
    }

    fn lacks(&self, ability: Ability) -> Option<&'static str> {
        match ability {
            Ability::SeparateProcesses => Some("the table is in the memory of one process"),
            Ability::Outages | Ability::LostReplies | Ability::Removal(Removal::Deletion) => None,
            _ => Some("the table is simple"),
        }
    }

    async fn client(&self, builder: ClientBuilder) -> Result<LockClient, LockError> {
        builder.build(|context| {
            let names = NameRules::new(CharacterSet::ANY, 512);
            let capabilities = Capabilities::new("table", Reach::Process, names)
                .with_fencing(Fencing::WhileServerLives)
                .with_fairness(Fairness::Fifo)
                .with_inspection(Inspection::HolderAndQueue)
                .with_breaking(Breaking::Supported)
                .with_reserving(Reserving::AtMost(NonZeroU32::MAX))
                .with_remembering();
            Ok(TableBackend { table: Arc::clone(&self.table), context, capabilities })
        })
    }

    async fn leftovers(&self) -> Outcome<Vec<String>> {
        Ok(self.table.leftovers())
    }

    fn lease(&self) -> Option<Duration> {
        self.table.lease
    }

    /// With a lease the client notices its loss at a renewal, without a reason.
    fn reason_of_a_break(&self) -> Option<LossReason> {
        self.table.lease.is_none().then_some(LossReason::Broken)
    }

    fn patience(&self) -> Duration {
        self.patience
    }

    async fn sever(&self) -> Outcome {
        self.table.state().is_severed = true;
        self.table.changed.notify_waiters();
        Ok(())
    }

    async fn heal(&self) -> Outcome {
        self.table.state().is_severed = false;
        Ok(())
    }

    async fn lose_reply(&self, operation: Operation, _: Losing) -> Outcome {
        self.table.state().replies_to_lose.push(operation);
        Ok(())
    }

    async fn take_away(&self, name: &LockName, _: Removal) -> Outcome {
        if self.table.delete(&self.table.key(name.as_str())) {
            Ok(())
        } else {
            Err(Failure::new(format!("{name:?} is free")))
        }
    }
}
