//! The task that owns a connection: it alone sends statements on it and receives the answers.
//!
//! It carries out one command after the other, and abandons a statement only together with the connection. If the caller has gone,
//! it releases a granted lock at once.

use std::collections::HashSet;
use std::sync::Arc;

use lock_core::Released;
use lock_core::{AttemptId, FencingToken, LeaseState, LockError, LossReason, Moment, Operation};
use lock_kit::gone;
use lock_sql::{Answer, Broken, Failure, comment, nonsense};
use tokio::sync::oneshot;

use crate::budget::Reservation;
use crate::claim::{Claim, Has, Refusal, Wanted};
use crate::dialect::{Command, Connection, Link, Mailbox, Pool, Session, Taken, lease_milliseconds};
use crate::failure::{blocked, shared_session, standby};
use crate::key::Key;
use crate::options::TokenSource;
use crate::prepared::Call;
use crate::statement::{self, Answered, Checked, checked};
use crate::table;

mod downgrade;
mod waits;

/// How often the client sends a cancelled release again before it gives up the connection.
const RELEASES_SENT: usize = 5;

/// What an attempt has on this connection, or may have.
pub(crate) struct Held {
    id: AttemptId,
    has: Has,
    token: Option<FencingToken>,
    /// Goes back with it.
    _reservation: Option<Reservation>,
}

/// Whether the session has its limit for statements, which a wait switches off. If a wait fails, the server takes that back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StatementLimit {
    On,
    Off,
    Unknown,
}

pub(crate) struct Actor {
    on: Connection,
    /// The locks whose rows in the table are about this session, perhaps about an earlier hold of it.
    recorded: HashSet<Key>,
    limit: StatementLimit,
}

impl Actor {
    pub(crate) fn new(pool: Arc<Pool>, link: Arc<Link>, session: Session) -> Self {
        let on = Connection::new(pool, link, session);
        Self { on, recorded: HashSet::new(), limit: StatementLimit::On }
    }

    pub(crate) async fn work(mut self, mut mailbox: Mailbox) {
        loop {
            let Some(command) = self.on.next(&mut mailbox).await else { return self.on.retire().await };
            let carried_out = match command {
                Command::Take { claim, answer } => self.take(claim, answer).await,
                Command::Wait { claim, waiting } => self.wait(claim, waiting).await,
                Command::Release { key, id, operation, answer } => {
                    self.release(key, id, operation, answer).await
                }
                Command::Downgrade { former, claim, answer } => self.downgrade(former, claim, answer).await,
                Command::Check { leases, answer } => self.check(leases, answer).await,
                Command::Close => return self.on.retire().await,
            };
            self.on.has_carried_out_one();
            if let Err(Broken(error)) = carried_out {
                return self.on.die(&error);
            }
        }
    }

    /// Carries out such a statement as [`ask`](Connection::ask) does. The beginning of the message is a comment.
    async fn repeat(
        &mut self,
        operation: Operation,
        beginning: &str,
        call: &Call,
    ) -> Result<Answer, Failure> {
        let message = self.message(beginning, call);
        let answer = self.on.ask(operation, message).await;
        self.noted(call, answer)
    }

    fn message(&self, beginning: &str, call: &Call) -> String {
        let text = || call.statement.text(self.on.settings.dialect.fencing, self.on.session.own.tag);
        self.on.session.own.prepared.message(beginning, call, text)
    }

    fn noted(&mut self, call: &Call, answer: Result<Answer, Failure>) -> Result<Answer, Failure> {
        match &answer {
            Ok(_) => self.on.session.own.prepared.is_answered(call.statement),
            Err(_) => self.on.session.own.prepared.is_refused(call.statement),
        }
        answer
    }

    async fn take(
        &mut self,
        claim: Claim,
        answer: oneshot::Sender<Result<Taken, LockError>>,
    ) -> Result<(), Broken> {
        if answer.is_closed() {
            self.on.pool.vacate(self.on.link.group, &claim.key);
            return Ok(());
        }
        let reservation = match self.reserve(&claim) {
            Ok(reservation) => reservation,
            Err(error) => {
                self.refuse(&claim, error, answer);
                return Ok(());
            }
        };
        let sent = self.on.now();
        let (fencing, tag) = (self.on.settings.dialect.fencing, self.on.session.own.tag);
        if let Err(failure) = self.end_record(&claim).await {
            return self.conclude(claim, reservation, sent, Err(failure), answer).await;
        }
        let said = match Call::to_take(&claim, fencing) {
            Some(take) if reservation.limit().is_none() => {
                let message = self.message(&comment(Operation::Acquire), &take);
                let answer = self.ask_or_cancel(message).await;
                self.noted(&take, answer)
            }
            _ => {
                let statement = statement::take(&claim, fencing, tag, reservation.limit());
                self.ask_or_cancel(statement).await
            }
        };
        if let Some(taken) = said.as_ref().ok().and_then(statement::counted) {
            reservation.counted(taken, sent, self.on.now().since(sent));
        }
        let said = said.and_then(|said| read(&said));
        self.conclude(claim, reservation, sent, said, answer).await
    }

    /// Reserves entries in the server's table of locks.
    fn reserve(&self, claim: &Claim) -> Result<Reservation, LockError> {
        self.on.settings.dialect.budget.claim(claim.wanted.locks(), self.on.session.own.capacity)
    }

    /// Answers a request that is not sent to the server.
    fn refuse(&self, claim: &Claim, error: LockError, answer: oneshot::Sender<Result<Taken, LockError>>) {
        self.on.pool.vacate(self.on.link.group, &claim.key);
        // Sending fails if the caller has gone.
        let _ = answer.send(Err(error));
    }

    /// Turns the server's answer into the answer for the caller that asked for the lock.
    async fn conclude(
        &mut self,
        claim: Claim,
        reservation: Reservation,
        sent: Moment,
        said: Result<Answered, Failure>,
        answer: oneshot::Sender<Result<Taken, LockError>>,
    ) -> Result<(), Broken> {
        let Claim { key, id, wanted, .. } = claim;
        let held = |has: Has, reservation: Reservation| Held {
            id,
            has,
            token: None,
            _reservation: Some(reservation),
        };
        let taken = match said {
            Ok(Answered::Refused) => Ok(Taken::Refused(Refusal::Held)),
            Ok(Answered::GateTaken) => Ok(Taken::Refused(Refusal::AtGate)),
            Ok(Answered::Granted(token, numbers)) => {
                let has = match wanted {
                    Wanted::Permits(permits) => Has::Permits { of: permits.of, numbers },
                    wanted => Has::at_most(wanted),
                };
                self.on.held.insert(key, held(has, reservation));
                self.confirm(&claim, token, sent).await
            }
            Ok(Answered::OtherNumber(number)) => {
                let ours = if let Wanted::Permits(permits) = wanted { permits.of } else { 0 };
                Err(Failure::refusal(LockError::other_permits(&claim.name, ours, number)))
            }
            Ok(Answered::Full(taken)) => Err(Failure::refusal(reservation.refused(taken))),
            Ok(Answered::Elsewhere) => self.explain_elsewhere().await,
            Ok(Answered::AtHead) => {
                Err(Failure::Broken(nonsense(Operation::Acquire, "it has a gate that it was not to keep")))
            }
            // A statement that fails may have got the lock all the same.
            Err(failure) => {
                self.on.held.insert(key, held(Has::at_most(wanted), reservation));
                if failure.is_interruption() { Ok(Taken::Interrupted) } else { Err(failure) }
            }
        };
        if let Err(Failure::Broken(error)) = taken {
            // No caller has learned of the grant.
            self.on.held.remove(&key);
            return Err(Broken(error));
        }
        let is_granted = matches!(taken, Ok(Taken::Granted { .. }));
        if !is_granted {
            self.give_back_or_vacate(key).await?;
        }
        // Sending fails if the caller has gone.
        if answer.send(taken.map_err(Failure::into_error)).is_err() && is_granted {
            self.give_back(key, Operation::Cancel).await?;
        }
        Ok(())
    }

    /// Gives back what may be held. Before the caller learns of it, which may ask for the lock again.
    async fn give_back_or_vacate(&mut self, key: Key) -> Result<(), Broken> {
        if self.on.held.contains_key(&key) {
            self.give_back(key, Operation::Cancel).await?;
        } else {
            self.on.pool.vacate(self.on.link.group, &key);
        }
        Ok(())
    }

    /// Why the server did not look at the lock.
    async fn explain_elsewhere(&mut self) -> Result<Taken, Failure> {
        match self.look().await? {
            Checked::Standby => Err(Failure::Broken(standby(Operation::Acquire))),
            Checked::Held => Err(Failure::Broken(shared_session(Operation::Acquire))),
        }
    }

    /// Completes a grant: mints a token if that takes a statement of its own. The answer to a wait is no proof that the
    /// session still exists, and the moment before the wait is long gone; so the client asks once more.
    async fn confirm(&mut self, claim: &Claim, token: u64, sent: Moment) -> Result<Taken, Failure> {
        let token = match self.on.settings.dialect.fencing {
            TokenSource::Clock | TokenSource::Sequence => Some(token),
            TokenSource::Table => Some(self.mint(claim).await?),
            TokenSource::None => None,
        };
        let token = token.map(FencingToken::new);
        if self.on.now().since(sent) <= self.on.settings.interval / 2 {
            return Ok(Taken::Granted { token, anchor: sent });
        }
        let anchor = self.on.now();
        match self.look().await? {
            Checked::Held => Ok(Taken::Granted { token, anchor }),
            Checked::Standby => Err(Failure::Broken(standby(Operation::Acquire))),
        }
    }

    async fn mint(&mut self, claim: &Claim) -> Result<u64, Failure> {
        if claim.holder.is_some() {
            self.recorded.insert(claim.key);
        }
        let answer = self.ask_or_cancel(table::mint(claim, self.on.session.id)).await?;
        let token = answer.value().and_then(|text| text.parse().ok());
        token.ok_or_else(|| Failure::Broken(nonsense(Operation::Acquire, "it does not say the token")))
    }

    /// Carries out a statement that others may block, for many reasons, while the checks of the holds on this connection wait
    /// behind it. So it has a limit of its own, and is cancelled then.
    async fn ask_or_cancel(&mut self, statement: String) -> Result<Answer, Failure> {
        let (is_cancelled, answer) = self.on.ask_or_cancel(statement).await;
        if let Err(Failure::Broken(_)) = answer {
            return answer;
        }
        // A commit that waited for a standby is done, at the primary alone: a token that may fall again.
        if is_cancelled { Err(Failure::refusal(blocked(Operation::Acquire))) } else { answer }
    }

    /// Ends what the table says of an earlier hold of this session, before it asks for the same lock again.
    async fn end_record(&mut self, claim: &Claim) -> Result<(), Failure> {
        if claim.holder.is_none() || !self.recorded.contains(&claim.key) {
            return Ok(());
        }
        self.ask_or_cancel(table::end_record(claim.key, self.on.session.id)).await?;
        self.recorded.remove(&claim.key);
        Ok(())
    }

    /// Whether this is still our session, on a primary. Also ends what a wait has changed in the session.
    async fn look(&mut self) -> Result<Checked, Failure> {
        let limit = (self.limit != StatementLimit::On).then(|| lease_milliseconds(&self.on.settings));
        let statement = statement::check(self.on.session.own.tag, limit);
        let answer = self.on.ask(Operation::Renew, statement).await?;
        self.limit = StatementLimit::On;
        // An answer of another session means that this connection is unusable.
        checked(answer.value()).map_err(Failure::Broken)
    }

    async fn check(
        &mut self,
        leases: Vec<(Key, AttemptId)>,
        answer: oneshot::Sender<Result<Vec<LeaseState>, LockError>>,
    ) -> Result<(), Broken> {
        if answer.is_closed() {
            return Ok(());
        }
        let state = match self.look().await {
            Ok(Checked::Held) => LeaseState::Held,
            Ok(Checked::Standby) => {
                tracing::warn!(target: "distlock", server = %self.on.settings.server.endpoint, "the server has become a standby: its locks no longer exclude other clients");
                LeaseState::Lost(LossReason::SessionClosed)
            }
            Err(Failure::Broken(error)) => return Err(Broken(error)),
            Err(failure) => {
                let _ = answer.send(Err(failure.into_error()));
                return Ok(());
            }
        };
        let states = leases.iter().map(|(key, id)| match self.on.held.get(key) {
            Some(held) if held.id == *id => state,
            _ => LeaseState::Lost(LossReason::Deleted),
        });
        // If the caller has gone, its next check asks again.
        let _ = answer.send(Ok(states.collect()));
        Ok(())
    }

    async fn release(
        &mut self,
        key: Key,
        id: AttemptId,
        operation: Operation,
        answer: oneshot::Sender<Result<Released, LockError>>,
    ) -> Result<(), Broken> {
        let released = if self.on.held.get(&key).is_some_and(|held| held.id == id) {
            self.give_back(key, operation).await?
        } else {
            Released::WasLost(LossReason::Deleted)
        };
        let _ = answer.send(Ok(released));
        Ok(())
    }

    /// Releases a lock, whether it is held or not.
    async fn give_back(&mut self, key: Key, operation: Operation) -> Result<Released, Broken> {
        // First, so that a silent server costs no more than its timeout: the client no longer relies on this lock.
        let held = self.on.held.remove(&key);
        let has = held.as_ref().map_or(Has::Exclusive, |held| held.has.clone());
        let released = self.send_release(key, &has, operation).await?;
        drop(held);
        self.on.pool.vacate(self.on.link.group, &key);
        if matches!(has, Has::Permits { .. } | Has::PartOfSemaphore) {
            self.on.settings.dialect.permits.notify_waiters();
        }
        Ok(released)
    }

    async fn send_release(&mut self, key: Key, has: &Has, operation: Operation) -> Result<Released, Broken> {
        let mut failure = None;
        for _ in 0..RELEASES_SENT {
            let answer = if let Some(release) = Call::to_release(key, has) {
                self.repeat(operation, &comment(operation), &release).await
            } else {
                let statement = statement::release(key, has, self.on.session.own.tag, operation);
                self.on.ask(operation, statement).await
            };
            match answer {
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
}

/// What the server has answered to a request for a lock.
fn read(answer: &Answer) -> Result<Answered, Failure> {
    let value = answer.value();
    Answered::read(value)
        .ok_or_else(|| Failure::Broken(nonsense(Operation::Acquire, value.unwrap_or("nothing"))))
}
