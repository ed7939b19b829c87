//! What a session has of a lock or a semaphore: confirmed, written down, made a reader's, released.

use std::collections::HashMap;

use lock_core::{AttemptId, ErrorKind, LeaseState, LockError, LossReason, Operation, Released};
use lock_kit::gone;
use lock_sql::{Broken, Failure, Holds, Passed, Patience, Shared, Tokens, nonsense};

use crate::admission::{let_go, pass, read};
use crate::dialect::{Claim, Connection, Held, MySql};
use crate::gate::{self, Word};
use crate::options::TokenSource;
use crate::parts::{Name, Parts};
use crate::session_tag;
use crate::statement::{self, Checked, Holder, checked};

/// How often the client sends an interrupted release again before it gives up the connection.
const RELEASES_SENT: usize = 5;

/// How many locks one statement asks about: with names of the greatest length, it takes a third of the megabyte that every server
/// accepts.
const MOST_IN_A_CHECK: usize = 4096;

/// What a session has, or may have.
pub(crate) struct Has {
    /// The server's locks.
    pub(crate) locks: Vec<Name>,
    /// Whether each of several readers has a lock by which the status sees that it has not ended.
    pub(crate) has_reader_locks: bool,
}

impl Has {
    pub(crate) fn these(locks: Vec<Name>) -> Self {
        Self { locks, has_reader_locks: false }
    }
}

impl Holds for MySql {
    type Has = Has;

    async fn pass(on: &mut Connection, claim: &Claim, patience: &Patience<'_>) -> Passed<Has> {
        pass(on, claim, patience).await
    }

    /// A token for each of those that share the hold. The first one came with the lock, unless tokens come from a table.
    async fn mint(on: &mut Connection, claim: &Claim, first: Option<u64>) -> Result<Tokens, Failure> {
        let Some(held) = on.held.get_mut(&claim.key) else { return Ok((first, Vec::new())) };
        match (on.settings.dialect.fencing, held.others.len()) {
            (TokenSource::None, _) | (TokenSource::Clock, 0) => Ok((first, Vec::new())),
            (TokenSource::Clock, more) => Ok((first, numbers(on, more, Operation::Acquire).await?)),
            (TokenSource::Table, _) => {
                held.has.has_reader_locks = !held.others.is_empty();
                let ids = [&[held.id], held.others.as_slice()].concat();
                let slot = held.has.locks.first().cloned();
                let (Some(holder), Some(slot)) = (Holder::of(claim), slot) else {
                    return Ok((None, Vec::new()));
                };
                if ids.len() > 1 {
                    take_reader_locks(on, &ids).await?;
                }
                let minting = statement::mint(claim, &ids, &slot, &on.session.id.run, &holder);
                let last = on.ask_or_cancel(minting).await?.last_insert_id;
                let mut tokens = statement::below_the_last(ids.len()).map(|below| last.saturating_sub(below));
                Ok((tokens.next(), tokens.collect()))
            }
        }
    }

    async fn check(on: &mut Connection, leases: &[(Parts, AttemptId)]) -> Result<Vec<LeaseState>, Failure> {
        let held = leases.iter().map(|(key, id)| {
            let held = on.held.get(key).filter(|held| held.is(*id));
            held.map(|held| held.has.locks.clone()).unwrap_or_default()
        });
        let held: Vec<_> = held.collect();
        // Of readers that share a slot, all have the same locks.
        let mut names = held.concat();
        names.sort_unstable();
        names.dedup();
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
        let mut locks = held.has.locks;
        if held.has.has_reader_locks {
            locks.extend([held.id].iter().chain(&held.others).map(session_tag::of_reader));
        }
        send_release(on, &locks, operation).await
    }

    async fn leave(
        on: &mut Connection,
        key: &Parts,
        id: AttemptId,
        operation: Operation,
    ) -> Result<Released, Broken> {
        if on.held.get(key).is_some_and(|held| held.has.has_reader_locks) {
            return send_release(on, &[session_tag::of_reader(id)], operation).await;
        }
        Ok(Released::Clean)
    }

    /// Makes an exclusive hold a reader's: takes a slot, and lets the gate go.
    async fn share(on: &mut Connection, claim: &Claim) -> Result<Shared<Has>, Failure> {
        let said = on.ask(Operation::Downgrade, gate::share(claim, on.session.own)).await;
        match read(said, on.session.id.tag) {
            Ok((Word::Slots { slots, token, gate }, _)) => {
                let locks = claim.key.held_with(&slots, claim.mode);
                let_go(on, claim, gate).await.map_err(|Broken(error)| Failure::Broken(error))?;
                Ok(Some((Has::these(locks), on.settings.dialect.token(token))))
            }
            Err(Some(failure @ Failure::Broken(_))) => Err(failure),
            _ => settle(on, claim).await,
        }
    }
}

async fn take_reader_locks(on: &mut Connection, ids: &[AttemptId]) -> Result<(), Failure> {
    let reader_locks: Vec<_> = ids.iter().map(session_tag::of_reader).collect();
    let answer = on.ask(Operation::Acquire, statement::take_reader_locks(&reader_locks)).await?;
    if answer.value().is_some_and(|words| words.split(' ').all(|word| word == "1")) {
        return Ok(());
    }
    let interrupted = LockError::new(ErrorKind::Server, Operation::Acquire)
        .because("the statement was interrupted")
        .retryable();
    Err(Failure::refusal(interrupted))
}

/// Tokens that do not come from a table.
async fn numbers(on: &mut Connection, count: usize, operation: Operation) -> Result<Vec<u64>, Failure> {
    let answer = on.ask(operation, statement::numbers(count, operation)).await?;
    let numbers = answer.value().unwrap_or_default().split(' ').map(|number| number.parse().ok());
    let numbers: Option<Vec<_>> = numbers.collect();
    let all = numbers.filter(|numbers| numbers.len() == count);
    all.ok_or_else(|| Failure::Broken(nonsense(operation, "a token is missing")))
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
        match checked.map_err(Failure::Broken)? {
            Checked::States(more) => states.extend(more),
            Checked::ReadOnly => {
                tracing::warn!(target: "distlock", server = %on.settings.server.endpoint, "the server has become read-only: its locks no longer exclude other clients");
                states.resize(states.len() + names.len(), LeaseState::Lost(LossReason::SessionClosed));
            }
        }
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
        match on.ask(operation, statement::release(left.iter().copied(), operation)).await {
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
/// it, only the end of the connection frees what it has: the hold names the gate alone.
async fn settle(on: &mut Connection, claim: &Claim) -> Result<Shared<Has>, Failure> {
    let mut parts = gate::all_parts(claim, on.session.own);
    let unknown = |failure: Failure| Failure::Broken(failure.into_error());
    let states = look(on, &parts).await.map_err(unknown)?;
    let mut is_held = states.iter().map(|state| *state == LeaseState::Held);
    parts.retain(|_| is_held.next() == Some(true));
    if parts.last() == Some(&claim.key.gate) {
        parts.pop();
        send_release(on, &parts, Operation::Cancel).await.map_err(|Broken(error)| Failure::Broken(error))?;
        let error = LockError::new(ErrorKind::Server, Operation::Downgrade)
            .because("the statement was interrupted, or no slot is free")
            .retryable();
        return Err(Failure::refusal(error));
    }
    if parts.is_empty() {
        return Ok(None);
    }
    let is_clock = on.settings.dialect.fencing == TokenSource::Clock;
    let token =
        if is_clock { numbers(on, 1, Operation::Downgrade).await.map_err(unknown)?.pop() } else { None };
    Ok(Some((Has::these(parts), token)))
}
