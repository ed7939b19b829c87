//! What a session has of a lock or a semaphore: confirmed, written down, made a reader's, released.

use lock_core::{AttemptId, LeaseState, LockKind, LossReason, Mode, Operation, Released};
use lock_kit::gone;
use lock_sql::{Broken, Failure, Holds, Passed, Shared, Waiting, comment, nonsense, not_primary};

use crate::acquire::{pass, read, repeat};
use crate::budget::Reservation;
use crate::dialect::{Claim, Connection, Held, Postgres, lease_milliseconds};
use crate::failure::shared_session;
use crate::key::Key;
use crate::options::TokenSource;
use crate::prepared::Call;
use crate::statement::{self, Answered, checked};
use crate::table;

/// How often the client sends a cancelled release again before it gives up the connection.
const RELEASES_SENT: usize = 5;

/// What a session has, or may have.
pub(crate) struct Hold {
    pub(crate) has: Has,
    /// Goes back with it.
    pub(crate) reservation: Option<Reservation>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Has {
    Exclusive,
    Shared,
    /// These permits of a semaphore of this size.
    Permits {
        of: u32,
        numbers: Vec<u32>,
    },
    /// Any of its locks: some of a semaphore, or an exclusive one that was about to become a shared one.
    Unclear,
}

impl Has {
    /// What a session may have after a request whose outcome is not known.
    pub(crate) fn at_most(mode: Mode) -> Self {
        match mode {
            Mode::Shared => Self::Shared,
            Mode::Permits { .. } => Self::Unclear,
            _ => Self::Exclusive,
        }
    }
}

impl Holds<Self> for Postgres {
    type Has = Hold;

    async fn pass(on: &mut Connection, claim: &Claim, waiting: Option<&Waiting>) -> Passed<Hold> {
        pass(on, claim, waiting).await
    }

    /// The tokens of the table are minted by the session that holds the lock.
    async fn mint(on: &mut Connection, claim: &Claim) -> Result<Option<u64>, Failure> {
        if on.settings.dialect.fencing != TokenSource::Table {
            return Ok(None);
        }
        if claim.holder.is_some() {
            on.session.own.recorded.insert(claim.key);
        }
        let answer = on.ask_or_cancel(table::mint(claim, on.session.id)).await?;
        let token = answer.value().and_then(|text| text.parse().ok());
        let token = token
            .ok_or_else(|| Failure::Broken(nonsense(Operation::Acquire, "it does not say the token")))?;
        Ok(Some(token))
    }

    /// All locks of a session are held as long as it exists.
    async fn check(on: &mut Connection, leases: &[(Key, AttemptId)]) -> Result<Vec<LeaseState>, Failure> {
        let state = if is_primary(on).await? {
            LeaseState::Held
        } else {
            tracing::warn!(target: "distlock", server = %on.settings.server.endpoint, "the server has become a standby: its locks no longer exclude other clients");
            LeaseState::Lost(LossReason::SessionClosed)
        };
        let states = leases.iter().map(|(key, id)| match on.held.get(key) {
            Some(held) if held.is(*id) => state,
            _ => LeaseState::Lost(LossReason::Deleted),
        });
        Ok(states.collect())
    }

    async fn release(
        on: &mut Connection,
        key: &Key,
        held: Held,
        operation: Operation,
    ) -> Result<Released, Broken> {
        let released = send_release(on, *key, &held.has.has, operation).await?;
        if key.kind() == LockKind::Semaphore {
            on.settings.dialect.permits.notify_waiters();
        }
        Ok(released)
    }

    /// Makes an exclusive hold a shared one. A statement that fails may have done so all the same; it is sent again until its answer says so.
    /// With a token of the sequence it waits for a standby as a mint does, and is guarded as one.
    async fn share(on: &mut Connection, claim: &Claim) -> Result<Shared<Hold>, Failure> {
        if let Some(held) = on.held.get_mut(&claim.key) {
            held.has.has = Has::Unclear;
        }
        let (fencing, tag) = (on.settings.dialect.fencing, on.session.own.tag);
        let statement = statement::downgrade(claim.key, fencing, tag, on.settings.request_timeout / 2);
        let answer = match fencing {
            TokenSource::Sequence => on.ask_or_cancel(statement).await?,
            _ => on.ask(Operation::Downgrade, statement).await?,
        };
        let Answered::Granted(token, _) = read(&answer)? else {
            return Err(why_elsewhere(on, Operation::Downgrade).await);
        };
        let reservation = on.held.get_mut(&claim.key).and_then(|held| held.has.reservation.take());
        let hold = Hold { has: Has::Shared, reservation };
        Ok(Some((hold, fencing.is_in_grant().then_some(token))))
    }
}

/// Ends what the table says of an earlier hold of this session, before it asks for the same lock again.
pub(crate) async fn end_record(on: &mut Connection, claim: &Claim) -> Result<(), Failure> {
    if claim.holder.is_none() || !on.session.own.recorded.contains(&claim.key) {
        return Ok(());
    }
    on.ask_or_cancel(table::end_record(claim.key, on.session.id)).await?;
    on.session.own.recorded.remove(&claim.key);
    Ok(())
}

/// Whether our session, which this still is, is on a primary. Also ends what a wait has changed in the session.
async fn is_primary(on: &mut Connection) -> Result<bool, Failure> {
    let limit = (!on.session.own.is_limited).then(|| lease_milliseconds(&on.settings));
    let answer = on.ask(Operation::Renew, statement::check(on.session.own.tag, limit)).await?;
    on.session.own.is_limited = true;
    // An answer of another session means that this connection is unusable.
    checked(answer.value()).map_err(Failure::Broken)
}

/// Why the server did not look at a lock.
pub(crate) async fn why_elsewhere(on: &mut Connection, operation: Operation) -> Failure {
    match is_primary(on).await {
        Ok(false) => Failure::Broken(not_primary(operation)),
        Ok(true) => Failure::Broken(shared_session(operation)),
        Err(failure) => failure,
    }
}

pub(crate) async fn send_release(
    on: &mut Connection,
    key: Key,
    has: &Has,
    operation: Operation,
) -> Result<Released, Broken> {
    let mut failure = None;
    for _ in 0..RELEASES_SENT {
        let asked = match Call::to_release(key, has) {
            Some(release) => repeat(on, operation, &comment(operation), &release).await,
            None => on.ask(operation, statement::clear(key, on.session.own.tag, operation)).await,
        };
        match asked {
            Ok(answer) => match answer.value() {
                Some("true") => return Ok(Released::Clean),
                // A statement that was cancelled may have released it.
                Some(_) => return Ok(Released::WasLost(LossReason::Deleted)),
                None => return Err(Broken(shared_session(operation))),
            },
            Err(Failure::Broken(error)) => return Err(Broken(error)),
            Err(refused) => failure = Some(refused.into_error()),
        }
    }
    // Ending the connection certainly frees the lock.
    Err(Broken(failure.unwrap_or_else(|| gone(operation))))
}
