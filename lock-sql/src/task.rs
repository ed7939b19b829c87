//! The task that owns a connection: it alone sends statements on it and receives the answers.
//!
//! It carries out one command after the other, and abandons a statement only together with the connection. If the caller has gone,
//! it releases a granted lock at once.

use lock_core::{
    AttemptId, FencingToken, LeaseState, LockError, LossReason, Moment, Operation, Participant, Released,
};
use tokio::sync::oneshot;

use crate::claim::{Claim, Waiter};
use crate::connection::{Broken, Connection};
use crate::dialect::Dialect;
use crate::failure::Failure;
use crate::link::{Answers, Command, Mailbox, Taken};
use crate::waiting::{Caller, Promise, Waiting};

/// What a connection has, or may have, for an attempt, or for several readers that waited together.
#[derive(Debug)]
pub struct Held<H> {
    /// The attempt; of several, the first that has not ended.
    pub id: AttemptId,
    /// The others that have not ended.
    pub others: Vec<AttemptId>,
    /// What there is of the lock.
    pub has: H,
    /// The exclusive attempt whose hold this one continues.
    former: Option<AttemptId>,
    token: Option<FencingToken>,
}

impl<H> Held<H> {
    /// Returns whether the attempt has a part in it.
    pub fn is(&self, id: AttemptId) -> bool {
        self.id == id || self.former == Some(id) || self.others.contains(&id)
    }
}

/// How long an attempt goes on.
pub enum Patience<'a> {
    /// It takes what is free.
    Tries,
    /// It waits.
    Waits {
        /// Who waits.
        waiter: &'a Waiter,
        /// The wait.
        waiting: &'a Waiting,
    },
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
        /// Why; none if the statement was interrupted, or the callers have gone.
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

/// The tokens of a grant: of the first caller, and of the others.
pub type Tokens = (Option<u64>, Vec<u64>);

/// What there is of a lock that has become a reader's, and the token if one came with it.
pub type Shared<H> = Option<(H, Option<u64>)>;

/// A hold that is certain.
struct Confirmed {
    tokens: Tokens,
    anchor: Moment,
}

/// Carries out what the mailbox has.
pub(crate) async fn work<D: Dialect>(mut on: Connection<D>, mut mailbox: Mailbox<D>) {
    loop {
        let Some(command) = on.next(&mut mailbox).await else { return on.retire().await };
        let carried_out = match command {
            Command::Take { claim, answer } => on.take(claim, answer).await,
            Command::Wait { claim, waiter, promise } => on.wait(claim, waiter, promise).await,
            Command::Release { key, id, operation, answer } => on.release(&key, id, operation, answer).await,
            Command::Downgrade { former, claim, answer } => on.downgrade(former, claim, answer).await,
            Command::Check { leases, answer } => on.check(leases, answer).await,
            Command::Close => return on.retire().await,
        };
        on.has_carried_out_one();
        if let Err(Broken(error)) = carried_out {
            return on.die(&error);
        }
    }
}

impl<D: Dialect> Connection<D> {
    async fn take(&mut self, claim: Claim<D::Key>, answer: Answers) -> Result<(), Broken> {
        if answer.is_closed() {
            self.pool.vacate(self.link.group, &claim.key);
            return Ok(());
        }
        let passed = D::pass(self, &claim, &Patience::Tries).await;
        self.conclude(&claim, passed, Some(Caller { id: claim.id, answer }), Vec::new()).await
    }

    async fn wait(&mut self, claim: Claim<D::Key>, waiter: Waiter, promise: Promise) -> Result<(), Broken> {
        let waiting = &promise.0;
        let passed = if waiting.is_abandoned() {
            Passed::Unclear { may_have: None, failure: None }
        } else {
            D::pass(self, &claim, &Patience::Waits { waiter: &waiter, waiting }).await
        };
        let mut callers = promise.close().into_iter();
        self.conclude(&claim, passed, callers.next(), callers.collect()).await?;
        self.pool.share(self.link.group);
        Ok(())
    }

    /// Turns the outcome into the answers for the callers that asked for the lock.
    async fn conclude(
        &mut self,
        claim: &Claim<D::Key>,
        passed: Passed<D::Has>,
        first: Option<Caller>,
        others: Vec<Caller>,
    ) -> Result<(), Broken> {
        let id = first.as_ref().map_or(claim.id, |caller| caller.id);
        let ids = others.iter().map(|caller| caller.id).collect();
        let held = |has| Held { id, others: ids, has, former: None, token: None };
        let granted = match passed {
            Passed::Granted { has, token, sent } => {
                self.held.insert(claim.key.clone(), held(has));
                self.confirm(claim, token, sent).await
            }
            Passed::Refused { holder, is_passing } => {
                self.pool.vacate(self.link.group, &claim.key);
                answer_all(first, others, &Ok(Taken::Refused { holder, is_passing }));
                return Ok(());
            }
            Passed::Unclear { may_have, failure } => {
                if let Some(may_have) = may_have {
                    self.held.insert(claim.key.clone(), held(may_have));
                }
                failure.map_or(Ok(None), Err)
            }
        };
        let refused = match granted {
            Ok(Some(confirmed)) => return self.grant(&claim.key, confirmed, first, others).await,
            Ok(None) => Ok(Taken::Interrupted),
            Err(Failure::Broken(error)) => {
                // No caller has learned of the grant.
                self.held.remove(&claim.key);
                return Err(Broken(error));
            }
            Err(failure) => Err(failure.into_error()),
        };
        // Before the caller learns of it, which may ask for the lock again.
        self.give_back(&claim.key, Operation::Cancel).await?;
        answer_all(first, others, &refused);
        Ok(())
    }

    /// Completes a grant: mints tokens that take a statement of their own, and asks once more if the answer took long. The server may have
    /// freed the lock and given it to another client meanwhile. `None` if the lock has gone.
    async fn confirm(
        &mut self,
        claim: &Claim<D::Key>,
        token: Option<u64>,
        sent: Moment,
    ) -> Result<Option<Confirmed>, Failure> {
        let tokens = D::mint(self, claim, token).await?;
        if self.now().since(sent) <= self.settings.interval / 2 {
            return Ok(Some(Confirmed { tokens, anchor: sent }));
        }
        let anchor = self.now();
        let id = self.held.get(&claim.key).map_or(claim.id, |held| held.id);
        let states = D::check(self, &[(claim.key.clone(), id)]).await?;
        Ok((states == [LeaseState::Held]).then_some(Confirmed { tokens, anchor }))
    }

    async fn grant(
        &mut self,
        key: &D::Key,
        confirmed: Confirmed,
        first: Option<Caller>,
        others: Vec<Caller>,
    ) -> Result<(), Broken> {
        let Confirmed { tokens: (token, more), anchor } = confirmed;
        let mut more = more.into_iter();
        let mut gone = Vec::new();
        for (place, Caller { id, answer }) in first.into_iter().chain(others).enumerate() {
            let token = if place == 0 { token } else { more.next() }.map(FencingToken::new);
            if answer.send(Ok(Taken::Granted { token, anchor })).is_err() {
                gone.push(id);
            }
        }
        for id in gone {
            self.leave(key, id, Operation::Cancel).await?;
        }
        Ok(())
    }

    async fn check(
        &mut self,
        leases: Vec<(D::Key, AttemptId)>,
        answer: oneshot::Sender<Result<Vec<LeaseState>, LockError>>,
    ) -> Result<(), Broken> {
        if answer.is_closed() {
            return Ok(());
        }
        let states = match D::check(self, &leases).await {
            Err(Failure::Broken(error)) => return Err(Broken(error)),
            states => states.map_err(Failure::into_error),
        };
        // If the caller has gone, its next check asks again.
        let _ = answer.send(states);
        Ok(())
    }

    async fn release(
        &mut self,
        key: &D::Key,
        id: AttemptId,
        operation: Operation,
        answer: oneshot::Sender<Result<Released, LockError>>,
    ) -> Result<(), Broken> {
        let released = self.leave(key, id, operation).await?;
        let _ = answer.send(Ok(released));
        Ok(())
    }

    /// Ends the part that an attempt has in a hold; with the last one the hold ends.
    async fn leave(&mut self, key: &D::Key, id: AttemptId, operation: Operation) -> Result<Released, Broken> {
        let Some(held) = self.held.get_mut(key).filter(|held| held.is(id)) else {
            return Ok(Released::WasLost(LossReason::Deleted));
        };
        if held.others.is_empty() {
            return self.give_back(key, operation).await;
        }
        match held.others.iter().position(|other| *other == id) {
            Some(place) => drop(held.others.remove(place)),
            None => held.id = held.others.remove(0),
        }
        D::leave(self, key, id, operation).await
    }

    /// Releases all that attempts have, or may have, in a hold.
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
    async fn downgrade(
        &mut self,
        former: AttemptId,
        claim: Claim<D::Key>,
        answer: Answers,
    ) -> Result<(), Broken> {
        let shared = match self.share(former, &claim).await {
            Err(Failure::Broken(error)) => return Err(Broken(error)),
            shared => shared.map_err(Failure::into_error),
        };
        // If the caller has gone, it asks again or undoes this.
        let _ = answer.send(shared);
        Ok(())
    }

    async fn share(&mut self, former: AttemptId, claim: &Claim<D::Key>) -> Result<Taken, Failure> {
        let Some(held) = self.held.get(&claim.key) else { return Ok(Taken::Interrupted) };
        let mut token = held.token.map(FencingToken::get);
        let mut sent = self.heard;
        // Otherwise the caller has not heard the first answer.
        if held.id != claim.id {
            if held.id != former {
                return Ok(Taken::Interrupted);
            }
            sent = self.now();
            let Some((has, minted)) = D::share(self, claim).await? else {
                return self.forget(&claim.key).await;
            };
            token = minted;
            let former = Some(former);
            let held =
                Held { id: claim.id, others: Vec::new(), has, former, token: token.map(FencingToken::new) };
            self.held.insert(claim.key.clone(), held);
        }
        let Some(Confirmed { tokens: (token, _), anchor }) = self.confirm(claim, token, sent).await? else {
            return self.forget(&claim.key).await;
        };
        let token = token.map(FencingToken::new);
        if let Some(held) = self.held.get_mut(&claim.key) {
            held.token = token;
        }
        Ok(Taken::Granted { token, anchor })
    }

    /// Ends a hold that the server no longer has; its caller releases nothing then.
    async fn forget(&mut self, key: &D::Key) -> Result<Taken, Failure> {
        let given_back = self.give_back(key, Operation::Cancel).await;
        given_back.map(|_| Taken::Interrupted).map_err(|Broken(error)| Failure::Broken(error))
    }
}

fn answer_all(first: Option<Caller>, others: Vec<Caller>, outcome: &Result<Taken, LockError>) {
    for caller in first.into_iter().chain(others) {
        // Sending fails if the caller has gone.
        let _ = caller.answer.send(outcome.clone());
    }
}
