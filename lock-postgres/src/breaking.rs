//! What a break sends: the end of the session that has the lock, if it has it still.

use lock_core::{ErrorKind, HolderId, LockError, Operation, Participant};
use lock_sql::{Breaks, ToEnd};

use crate::dialect::{Client, Postgres};
use crate::inspection::{Party, in_two, parties};
use crate::key::Key;
use crate::pg_locks;
use crate::server::SessionId;

/// A holder that a break is to end.
pub(crate) struct Found {
    session: SessionId,
    /// The acquisition, if the table names it.
    acquisition: Option<String>,
}

impl Breaks<Self> for Postgres {
    type Found = Found;

    async fn inspect(client: &Client, key: &Key) -> Result<(Vec<Participant>, Vec<Participant>), LockError> {
        Ok(in_two(parties(client, *key, Operation::Inspect).await?))
    }

    /// The server knows the keys of the other locks, and not their names.
    async fn find_holder(
        client: &Client,
        key: &Key,
        id: &HolderId,
    ) -> Result<Option<ToEnd<Found>>, LockError> {
        let parties = parties(client, *key, Operation::Break).await?;
        let named = parties.into_iter().find(|party| party.is_holder && party.participant.id == *id);
        let Some(party) = named else { return Ok(None) };
        let session = party.session.ok_or_else(|| {
            LockError::new(ErrorKind::Denied, Operation::Break)
                .because("the session belongs to another user, and this user may not see which session it is")
                .remedy(
                    "GRANT pg_signal_backend, pg_read_all_stats to this user, or break it as the other user",
                )
        })?;
        let acquisition = party.is_recorded.then(|| id.as_str().to_owned());
        let others = client.control.ask(Operation::Break, pg_locks::others(*key, session)).await?;
        let also_lost = (others.value() == Some("0")).then(Vec::new);
        Ok(Some((Found { session, acquisition }, also_lost)))
    }

    async fn end_holder(client: &Client, key: &Key, found: &Found) -> Result<bool, LockError> {
        let end = pg_locks::end_holder(*key, found.session, found.acquisition.as_deref());
        let answer = client.control.ask(Operation::Break, end).await?;
        // Otherwise it has ended by itself meanwhile; or the first of two requests has ended it, and its answer was lost. Should that one
        // not have arrived, the hold is over all the same, and to say that nothing was changed would be the worse error.
        Ok(!answer.rows.is_empty() || answer.is_repeated)
    }

    async fn still_holds(client: &Client, key: &Key, found: &Found) -> Result<bool, LockError> {
        let parties = parties(client, *key, Operation::Break).await?;
        let is_meant = |party: &Party| {
            let is_next = |id: &String| party.participant.id.as_str() != id;
            party.session == Some(found.session) && !found.acquisition.as_ref().is_some_and(is_next)
        };
        Ok(parties.iter().any(|party| party.is_holder && is_meant(party)))
    }
}
