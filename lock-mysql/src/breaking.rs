//! What a break sends: the end of the connection that holds the lock.

use std::collections::HashSet;

use lock_core::{HolderId, LockError, LockName, Operation, Participant};
use lock_sql::{Breaks, Failure, Why};

use crate::dialect::{Client, MySql};
use crate::inspection::{self, Holding, View, view};
use crate::parts::{Name, Parts};
use crate::session::SessionId;
use crate::statement::{self, Holder};

/// A holder that a break is to end.
pub(crate) struct HoldingSession {
    /// The session that has looked, in the run of the server in which the number means something.
    seen_by: SessionId,
    connection: u64,
    /// The part that shows the hold.
    name: Name,
    is_recorded: bool,
}

impl Breaks for MySql {
    type Found = HoldingSession;

    async fn inspect(
        client: &Client,
        parts: &Parts,
    ) -> Result<(Vec<Participant>, Vec<Participant>), LockError> {
        inspection::inspect(client, parts).await
    }

    async fn find_holder(
        client: &Client,
        parts: &Parts,
        id: &HolderId,
    ) -> Result<Option<HoldingSession>, LockError> {
        let View { seen_by, holders, .. } = view(client, parts, Operation::Break).await?;
        let holding = holders.into_iter().find(|holding| holding.is(id, &seen_by.run));
        Ok(holding.map(|Holding { connection, first: name, record, .. }| {
            let is_recorded = record.is_some();
            HoldingSession { seen_by, connection, name, is_recorded }
        }))
    }

    /// The other locks that end with a connection whose locks are in the table.
    async fn also_lost(
        client: &Client,
        _: &Parts,
        found: &HoldingSession,
    ) -> Result<Option<Vec<LockName>>, LockError> {
        if !found.is_recorded {
            return Ok(None);
        }
        let statement = statement::also_held(found.connection, &found.name);
        let answer = client.control.ask(Operation::Break, statement).await?;
        let texts = answer.rows.iter().filter_map(|row| row.first()?.as_deref());
        let holders = texts.filter_map(|text| serde_json::from_str::<Holder>(text).ok());
        let names: HashSet<_> = holders.filter_map(|holder| LockName::new(holder.lock).ok()).collect();
        let mut names: Vec<_> = names.into_iter().collect();
        names.sort();
        Ok(Some(names))
    }

    async fn end_holder(client: &Client, _: &Parts, found: &HoldingSession) -> Result<bool, LockError> {
        let end = statement::end(found.connection, Operation::Break);
        match client.control.ask_in_run_of(&found.seen_by, Operation::Break, end).await {
            Ok(_) => Ok(true),
            // It has ended by itself meanwhile.
            Err(failure) if failure.why() == Some(Why::NoSession) => Ok(false),
            Err(failure) => Err(Failure::into_error(failure)),
        }
    }

    async fn still_holds(client: &Client, _: &Parts, found: &HoldingSession) -> Result<bool, LockError> {
        let answer =
            client.control.ask(Operation::Break, statement::holder(&found.name, Operation::Break)).await?;
        Ok(answer.value() == Some(&found.connection.to_string()))
    }
}
