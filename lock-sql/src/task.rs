//! The task that owns a connection: it alone sends statements on it and receives the answers.
//!
//! It carries out one command after the other, and abandons a statement only together with the connection. If the caller has gone,
//! it releases a granted lock at once.

use std::sync::Arc;

use lock_core::{AttemptId, LeaseState, LockError, LossReason, Moment, Operation, Participant, Released};
use tokio::sync::oneshot;

use crate::claim::Claim;
use crate::connection::{Broken, Connection};
use crate::dialect::Dialect;
use crate::failure::Failure;
use crate::link::{Answers, Command, Mailbox, Taken};
use crate::pool::Occupant;
use crate::waiting::Waiting;

/// What a connection has, or may have, for an attempt.
#[derive(Debug)]
pub struct Held<H> {
    /// What there is of the lock.
    pub has: H,
    of: Occupant,
    token: Option<u64>,
}

impl<H> Held<H> {
    /// Returns whether it is that of the attempt.
    pub fn is(&self, id: AttemptId) -> bool {
        self.of.is(id)
    }
}

/// What came of the statements of an attempt.
#[derive(Debug)]
pub enum Passed<H> {
    /// This is held since an answer to a statement that was sent then.
    Granted {
        /// What there is of the lock.
        has: H,
        /// The token, if it came with the lock.
        token: Option<u64>,
        /// The moment before the statement.
        sent: Moment,
    },
    /// It is not free.
    Refused {
        /// Who has it, if the answer says so.
        holder: Option<Box<Participant>>,
        /// Whether others pass the gate of the lock: it is not known what is behind it.
        is_passing: bool,
    },
    /// Nothing is known.
    Unclear {
        /// Any of this may be held.
        may_have: Option<H>,
        /// Why; none if the statement was interrupted, or the caller has gone.
        failure: Option<Failure>,
    },
}

impl<H> Passed<H> {
    /// The statement has failed. Any of this may be held.
    pub fn failed(may_have: Option<H>, failure: Failure) -> Self {
        Self::Unclear { may_have, failure: Some(failure).filter(|failure| !failure.is_interruption()) }
    }

    /// The connection is no longer usable.
    pub fn broken(error: LockError) -> Self {
        Self::failed(None, Failure::Broken(error))
    }
}

/// What there is of a lock that has become a reader's, and the token if one came with it.
pub type Shared<H> = Option<(H, Option<u64>)>;

/// Carries out what the mailbox has.
pub(crate) async fn work<D: Dialect>(mut on: Connection<D>, mut mailbox: Mailbox<D>) {
    loop {
        let Some(command) = on.next(&mut mailbox).await else { return on.retire().await };
        let carried_out = match command {
            Command::Acquire { claim, waiting, answer } => on.acquire(claim, waiting, answer).await,
            Command::Release { key, id, operation, answer } => on.release(&key, id, operation, answer).await,
            Command::Downgrade { former, claim, answer } => reply(answer, on.share(former, &claim).await),
            Command::Check { answer, .. } if answer.is_closed() => Ok(()),
            Command::Check { leases, answer } => reply(answer, D::check(&mut on, &leases).await),
            Command::Close => return on.retire().await,
        };
        on.has_carried_out_one();
        if let Err(Broken(error)) = carried_out {
            return on.die(&error);
        }
    }
}

/// Answers a caller. If it has gone, it asks again or undoes this.
fn reply<T>(answer: oneshot::Sender<Result<T, LockError>>, came: Result<T, Failure>) -> Result<(), Broken> {
    if let Err(Failure::Broken(error)) = came {
        return Err(Broken(error));
    }
    let _ = answer.send(came.map_err(Failure::into_error));
    Ok(())
}

impl<D: Dialect> Connection<D> {
    async fn acquire(
        &mut self,
        claim: Claim<D::Key>,
        waiting: Option<Arc<Waiting>>,
        answer: Answers,
    ) -> Result<(), Broken> {
        let passed = if answer.is_closed() {
            Passed::Unclear { may_have: None, failure: None }
        } else {
            D::pass(self, &claim, waiting.as_deref()).await
        };
        if let Some(waiting) = &waiting {
            waiting.is_over();
        }
        self.conclude(&claim, passed, answer).await?;
        if waiting.is_some() {
            self.pool.share(self.link.group);
        }
        Ok(())
    }

    /// Turns the outcome into the answer for the caller that asked for the lock.
    async fn conclude(
        &mut self,
        claim: &Claim<D::Key>,
        passed: Passed<D::Has>,
        answer: Answers,
    ) -> Result<(), Broken> {
        let held = |has| Held { has, of: claim.id.into(), token: None };
        let taken = match passed {
            Passed::Granted { has, token, sent } => {
                self.held.insert(claim.key.clone(), held(has));
                self.confirm(claim, token, sent).await
            }
            Passed::Refused { holder, is_passing } => {
                self.pool.vacate(self.link.group, &claim.key);
                let _ = answer.send(Ok(Taken::Refused { holder, is_passing }));
                return Ok(());
            }
            Passed::Unclear { may_have, failure } => {
                if let Some(may_have) = may_have {
                    self.held.insert(claim.key.clone(), held(may_have));
                }
                failure.map_or(Ok(Taken::Interrupted), Err)
            }
        };
        match taken {
            Ok(granted @ Taken::Granted { .. }) => {
                if answer.send(Ok(granted)).is_err() {
                    self.give_back(&claim.key, Operation::Cancel).await?;
                }
            }
            Err(Failure::Broken(error)) => {
                // No caller has learned of the grant.
                self.held.remove(&claim.key);
                return Err(Broken(error));
            }
            refused => {
                // Before the caller learns of it, which may ask for the lock again.
                self.give_back(&claim.key, Operation::Cancel).await?;
                let _ = answer.send(refused.map_err(Failure::into_error));
            }
        }
        Ok(())
    }

    /// Completes a grant: mints a token that takes a statement of its own, and asks once more if the answer took long. The server may have
    /// freed the lock and given it to another client meanwhile; then the outcome is [`Taken::Interrupted`].
    async fn confirm(
        &mut self,
        claim: &Claim<D::Key>,
        came: Option<u64>,
        sent: Moment,
    ) -> Result<Taken, Failure> {
        let token = if came.is_some() { came } else { D::mint(self, claim).await? };
        if self.now().since(sent) <= self.settings.interval / 2 {
            return Ok(Taken::Granted { token, anchor: sent });
        }
        let anchor = self.now();
        let states = D::check(self, &[(claim.key.clone(), claim.id)]).await?;
        let is_held = states == [LeaseState::Held];
        Ok(if is_held { Taken::Granted { token, anchor } } else { Taken::Interrupted })
    }

    async fn release(
        &mut self,
        key: &D::Key,
        id: AttemptId,
        operation: Operation,
        answer: oneshot::Sender<Result<Released, LockError>>,
    ) -> Result<(), Broken> {
        let is_held = self.held.get(key).is_some_and(|held| held.is(id));
        let lost = Released::WasLost(LossReason::Deleted);
        let released = if is_held { self.give_back(key, operation).await? } else { lost };
        let _ = answer.send(Ok(released));
        Ok(())
    }

    /// Releases all that an attempt has, or may have.
    async fn give_back(&mut self, key: &D::Key, operation: Operation) -> Result<Released, Broken> {
        // First, so that a silent server costs no more than its timeout: the client no longer relies on this lock.
        let released = match self.held.remove(key) {
            Some(held) => D::release(self, key, held, operation).await?,
            None => Released::WasLost(LossReason::Deleted),
        };
        self.pool.vacate(self.link.group, key);
        Ok(released)
    }

    /// Makes an exclusive hold a reader's.
    async fn share(&mut self, former: AttemptId, claim: &Claim<D::Key>) -> Result<Taken, Failure> {
        let Some(held) = self.held.get(&claim.key) else { return Ok(Taken::Interrupted) };
        let (mut token, mut sent) = (held.token, self.heard);
        // Otherwise the caller has not heard the first answer.
        if held.of.id != claim.id {
            if held.of.id != former {
                return Ok(Taken::Interrupted);
            }
            sent = self.now();
            let Some((has, came)) = D::share(self, claim).await? else {
                return self.forget(&claim.key).await;
            };
            token = came;
            let of = Occupant { id: claim.id, former: Some(former) };
            self.held.insert(claim.key.clone(), Held { has, of, token });
        }
        let outcome = self.confirm(claim, token, sent).await?;
        let Taken::Granted { token, .. } = &outcome else { return self.forget(&claim.key).await };
        if let Some(held) = self.held.get_mut(&claim.key) {
            held.token = *token;
        }
        Ok(outcome)
    }

    /// Ends a hold that the server no longer has; its caller releases nothing then.
    async fn forget(&mut self, key: &D::Key) -> Result<Taken, Failure> {
        self.give_back(key, Operation::Cancel).await?;
        Ok(Taken::Interrupted)
    }
}
