//! What a break sends: the end of the connection that has the lock, if it has it still, and by the table still of that acquisition.

use std::collections::BTreeSet;

use lock_core::{HolderId, LockError, LockName, Operation, Participant};
use lock_sql::{Breaks, ToEnd};

use crate::dialect::{Client, MySql};
use crate::inspection::{self, Holding, View, view};
use crate::parts::{Name, Parts};
use crate::session::SessionId;
use crate::statement::{self, Holder};

impl Breaks<Self> for MySql {
    /// The session that has looked, in the run of the server in which the numbers mean something, and what it has found.
    type Found = (SessionId, Holding);

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
    ) -> Result<Option<ToEnd<(SessionId, Holding)>>, LockError> {
        let View { seen_by, holders, .. } = view(client, parts, Operation::Break).await?;
        let holding = holders.into_iter().find(|holding| holding.is(id, &seen_by.run));
        let Some(found) = holding else { return Ok(None) };
        if found.record.is_none() {
            return Ok(Some(((seen_by, found), None)));
        }
        let statement = statement::also_held(found.connection, &found.first);
        let answer = client.control.ask(Operation::Break, statement).await?;
        let texts = answer.rows.iter().filter_map(|row| row.first()?.as_deref());
        let holders = texts.filter_map(|text| serde_json::from_str::<Holder>(text).ok());
        let names: BTreeSet<_> = holders.filter_map(|holder| LockName::new(holder.lock).ok()).collect();
        Ok(Some(((seen_by, found), Some(names.into_iter().collect()))))
    }

    async fn end_holder(
        client: &Client,
        parts: &Parts,
        (seen_by, found): &(SessionId, Holding),
    ) -> Result<bool, LockError> {
        let (connection, first) = (found.connection, &found.first);
        // The gate has also the tokens of readers and of permits, for whose slots it mints them.
        let is_like_first = |part: &Name| (*part == parts.gate) == (*first == parts.gate);
        let alike: Vec<_> = parts.all().into_iter().filter(is_like_first).collect();
        let end = match &found.record {
            Some(record) => statement::end_of(connection, first, record.token, &alike, Operation::Break),
            None => statement::end(connection, first, Operation::Break),
        };
        // Otherwise it has released the lock, or has ended by itself, meanwhile.
        Ok(client.control.ask_in_run_of(seen_by, Operation::Break, end).await?.is_some())
    }

    async fn still_holds(
        client: &Client,
        _: &Parts,
        (_, found): &(SessionId, Holding),
    ) -> Result<bool, LockError> {
        let holder = statement::holders([&*found.first].into_iter(), Operation::Break);
        let answer = client.control.ask(Operation::Break, holder).await?;
        Ok(answer.value() == Some(&found.connection.to_string()))
    }
}
