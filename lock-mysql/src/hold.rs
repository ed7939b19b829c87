//! What a session has of a lock or a semaphore: confirmed, written down, made a reader's, released.

use std::collections::HashMap;

use lock_core::{AttemptId, ErrorKind, LeaseState, LockError, LossReason, Operation, Released};
use lock_kit::gone;
use lock_sql::{Broken, Failure, Holds, Passed, Shared, Waiting, nonsense};

use crate::admission::{let_go, pass, read};
use crate::dialect::{Claim, Connection, Held, MySql};
use crate::gate::{self, Word};
use crate::options::TokenSource;
use crate::parts::{Name, Parts};
use crate::statement::{self, Holder, checked};

/// How often the client sends an interrupted release again before it gives up the connection.
const RELEASES_SENT: usize = 5;

/// How many locks one statement asks about: with names of the greatest length, it takes a third of the megabyte that every server
/// accepts.
const MOST_IN_A_CHECK: usize = 4096;

/// The server's locks that a session has, or may have.
pub(crate) type Locks = Vec<Name>;

impl Holds<Self> for MySql {
    type Has = Locks;

    async fn pass(on: &mut Connection, claim: &Claim, waiting: Option<&Waiting>) -> Passed<Locks> {
        pass(on, claim, waiting).await
    }

    async fn mint(on: &mut Connection, claim: &Claim) -> Result<Option<u64>, Failure> {
        let answer = if on.settings.dialect.fencing == TokenSource::Clock {
            on.ask(Operation::Acquire, statement::NUMBER.to_owned()).await?
        } else {
            let first = on.held.get(&claim.key).and_then(|held| held.has.first());
            let (Some(holder), Some(first)) = (Holder::of(claim), first) else { return Ok(None) };
            on.ask_or_cancel(statement::mint(claim, first, &on.session.id.run, &holder)).await?
        };
        let token = answer.value().and_then(|number| number.parse().ok());
        token.map(Some).ok_or_else(|| Failure::Broken(nonsense(Operation::Acquire, "a token is missing")))
    }

    async fn check(on: &mut Connection, leases: &[(Parts, AttemptId)]) -> Result<Vec<LeaseState>, Failure> {
        let held = leases.iter().map(|(key, id)| {
            let held = on.held.get(key).filter(|held| held.is(*id));
            held.map(|held| held.has.clone()).unwrap_or_default()
        });
        let held: Vec<_> = held.collect();
        let names = held.concat();
        let states: HashMap<_, _> = names.iter().zip(look(on, &names).await?).collect();
        let deleted = LeaseState::Lost(LossReason::Deleted);
        let state_of = |name| states.get(name).copied().unwrap_or(deleted);
        let states = held.iter().map(|locks| {
            let lost = locks.iter().map(state_of).find(|state| *state != LeaseState::Held);
            lost.unwrap_or(if locks.is_empty() { deleted } else { LeaseState::Held })
        });
        Ok(states.collect())
    }

    async fn release(
        on: &mut Connection,
        _: &Parts,
        held: Held,
        operation: Operation,
    ) -> Result<Released, Broken> {
        send_release(on, &held.has, operation).await
    }

    /// Makes an exclusive hold a reader's: takes a slot, and lets the gate go.
    async fn share(on: &mut Connection, claim: &Claim) -> Result<Shared<Locks>, Failure> {
        let said = on.ask(Operation::Downgrade, gate::share(claim, on.session.own)).await;
        match read(said, on.session.id.tag) {
            Ok((Word::Slots { slots, token, gate }, _)) => {
                let locks = claim.key.held_with(&slots, claim.mode);
                let_go(on, claim, gate).await?;
                Ok(Some((locks, on.settings.dialect.token(token))))
            }
            Err(Some(failure @ Failure::Broken(_))) => Err(failure),
            _ => settle(on, claim).await,
        }
    }
}

/// The state of these locks.
async fn look(on: &mut Connection, names: &[Name]) -> Result<Vec<LeaseState>, Failure> {
    let mut states = Vec::with_capacity(names.len());
    for names in names.chunks(MOST_IN_A_CHECK) {
        let statement = statement::check(names.iter().map(|name| &**name));
        let answer = on.ask(Operation::Renew, statement).await?;
        let text = answer.value().unwrap_or_default();
        // An answer of another session means that this connection is unusable.
        let checked = checked(text, on.session.id.number, on.session.id.tag, names.len());
        states.extend(checked.map_err(Failure::Broken)?);
    }
    if states.contains(&LeaseState::Lost(LossReason::SessionClosed)) {
        tracing::warn!(target: "distlock", server = %on.settings.server.endpoint, "the server has become read-only: its locks no longer exclude other clients");
    }
    Ok(states)
}

pub(crate) async fn send_release(
    on: &mut Connection,
    locks: &[Name],
    operation: Operation,
) -> Result<Released, Broken> {
    let mut left: Vec<_> = locks.iter().map(|name| &**name).collect();
    let (mut lost, mut failure) = (None, None);
    for _ in 0..RELEASES_SENT {
        if left.is_empty() {
            break;
        }
        let release = match left.as_slice() {
            one @ [_] if on.session.own.is_prepared => gate::execute(gate::RELEASE, operation, one),
            names => statement::release(names.iter().copied(), operation),
        };
        match on.ask(operation, release).await {
            Ok(answer) => {
                let mut words = answer.value().unwrap_or_default().split(' ');
                left.retain(|_| match words.next() {
                    Some("1") => false,
                    Some("0") => {
                        lost = Some(LossReason::Taken);
                        false
                    }
                    // Either no client holds the lock, or the statement was interrupted. After a repetition, no client holds it.
                    _ if failure.is_some() => {
                        lost = Some(LossReason::Deleted);
                        false
                    }
                    _ => true,
                });
                failure = Some(nonsense(operation, "the lock is free"));
            }
            Err(Failure::Broken(error)) => return Err(Broken(error)),
            Err(refused) => failure = Some(refused.into_error()),
        }
    }
    if left.is_empty() {
        return Ok(lost.map_or(Released::Clean, Released::WasLost));
    }
    // Ending the connection certainly frees the lock.
    Err(Broken(failure.unwrap_or_else(|| gone(operation))))
}

/// Finds out what a statement has done that was interrupted. If the gate is still held, nothing has happened. If the server does not say
/// it, only the end of the connection frees what it has: the hold names the gate alone. Of a lock that is lost, as at a server that is no
/// primary any more, all parts are given back.
async fn settle(on: &mut Connection, claim: &Claim) -> Result<Shared<Locks>, Failure> {
    let mut parts = gate::all_parts(claim);
    let unknown = |failure: Failure| Failure::Broken(failure.into_error());
    let states = look(on, &parts).await.map_err(unknown)?;
    let mut is_held = states.iter().map(|state| *state == LeaseState::Held);
    parts.retain(|_| is_held.next() == Some(true));
    if parts.last() == Some(&claim.key.gate) {
        parts.pop();
        send_release(on, &parts, Operation::Cancel).await?;
        let error = LockError::new(ErrorKind::Server, Operation::Downgrade)
            .because("the statement was interrupted, or no slot is free")
            .retryable();
        return Err(Failure::refusal(error));
    }
    if !parts.is_empty() {
        return Ok(Some((parts, None)));
    }
    if let Some(held) = on.held.get_mut(&claim.key) {
        held.has = gate::all_parts(claim);
    }
    Ok(None)
}
