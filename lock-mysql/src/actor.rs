//! The task that owns a connection: it alone sends statements on it and receives the answers.
//!
//! It carries out one command after the other, and abandons a statement only together with the connection. If the caller has gone,
//! it releases a granted lock at once.

use std::collections::HashMap;
use std::sync::Arc;

use lock_core::Released;
use lock_core::{
    AttemptId, ErrorKind, FencingToken, LeaseState, LockError, LossReason, Mode, Moment, Operation,
};
use lock_kit::gone;
use lock_sql::{Broken, Failure, nonsense};
use tokio::sync::oneshot;

use crate::admission::{Passed, Patience};
use crate::batch::{Caller, Promise};
use crate::claim::{Claim, Name, Refusal};
use crate::dialect::{Command, Connection, Link, Mailbox, Pool, Session, Taken};
use crate::gate::Manner;
use crate::options::TokenSource;
use crate::session_tag;
use crate::statement::{self, Checked, Holder, Waiter, checked};

/// How often the client sends an interrupted release again before it gives up the connection.
const RELEASES_SENT: usize = 5;

/// How many locks one statement asks about: with names of the greatest length, it takes a third of the megabyte that every server
/// accepts.
const MOST_IN_A_CHECK: usize = 4096;

/// What a connection has, or may have, for an attempt, or for several readers that share a slot.
pub(crate) struct Held {
    /// Of several readers, the one that sent their wait.
    pub(crate) id: AttemptId,
    /// The exclusive attempt whose hold this one continues.
    former: Option<AttemptId>,
    /// Those that have not ended.
    members: Vec<Member>,
    /// The server's locks.
    locks: Vec<Name>,
}

struct Member {
    id: AttemptId,
    /// The lock by which the status sees that this one of several has not ended.
    reader_lock: Option<Name>,
}

impl Held {
    fn new(id: AttemptId, members: Vec<Member>, locks: Vec<Name>) -> Self {
        Self { id, former: None, members, locks }
    }

    /// What was the hold of `former`, and is that of `id` now.
    pub(crate) fn after(former: AttemptId, id: AttemptId, locks: Vec<Name>) -> Self {
        Self { former: Some(former), ..Self::new(id, vec![Member { id, reader_lock: None }], locks) }
    }

    fn is(&self, id: AttemptId) -> bool {
        self.former == Some(id) || self.members.iter().any(|member| member.id == id)
    }

    fn reader_locks(&self) -> Vec<Name> {
        self.members.iter().filter_map(|member| member.reader_lock.clone()).collect()
    }
}

/// A hold that is certain.
pub(crate) struct Confirmed {
    /// One for each of those that share it.
    pub(crate) tokens: Vec<Option<FencingToken>>,
    pub(crate) anchor: Moment,
}

pub(crate) struct Actor {
    pub(crate) on: Connection,
    pub(crate) manner: Manner,
}

impl Actor {
    pub(crate) fn new(pool: Arc<Pool>, link: Arc<Link>, session: Session) -> Self {
        let on = Connection::new(pool, link, session);
        let manner = on.settings.dialect.manner.starting_with(on.session.id.number);
        Self { on, manner }
    }

    pub(crate) async fn work(mut self, mut mailbox: Mailbox) {
        loop {
            let Some(command) = self.on.next(&mut mailbox).await else { return self.on.retire().await };
            let carried_out = match command {
                Command::Take { claim, answer } => self.take(claim, answer).await,
                Command::Wait { claim, waiting: (waiter, promise) } => {
                    self.wait(claim, waiter, &promise).await
                }
                Command::Downgrade { former, claim, answer } => self.downgrade(former, claim, answer).await,
                Command::Release { key, id, operation, answer } => {
                    self.release(&key, id, operation, answer).await
                }
                Command::Check { leases, answer } => self.check(leases, answer).await,
                Command::Close => return self.on.retire().await,
            };
            self.on.has_carried_out_one();
            if let Err(Broken(error)) = carried_out {
                return self.on.die(&error);
            }
        }
    }

    async fn take(
        &mut self,
        claim: Claim,
        answer: oneshot::Sender<Result<Taken, LockError>>,
    ) -> Result<(), Broken> {
        if answer.is_closed() {
            self.on.pool.vacate(self.on.link.group, &claim.parts.gate);
            return Ok(());
        }
        let passed = self.pass(&claim, &Patience::Tries).await;
        let caller = Caller { id: claim.id, answer };
        self.conclude(&claim, passed, vec![caller]).await
    }

    async fn wait(&mut self, claim: Claim, waiter: Waiter, promise: &Promise) -> Result<(), Broken> {
        let passed = self.pass(&claim, &Patience::Waits { waiter, waiting: &promise.0 }).await;
        self.conclude(&claim, passed, promise.close()).await?;
        self.on.pool.share(self.on.link.group);
        Ok(())
    }

    /// Turns the outcome into the answers for the callers that asked for the lock.
    async fn conclude(&mut self, claim: &Claim, passed: Passed, callers: Vec<Caller>) -> Result<(), Broken> {
        let key = Arc::clone(&claim.parts.gate);
        let has_reader_lock = callers.len() > 1 && self.on.settings.dialect.fencing == TokenSource::Table;
        let mut has = |locks| {
            let member = |caller: &Caller| Member {
                id: caller.id,
                reader_lock: has_reader_lock.then(|| session_tag::of_reader(&caller.id.to_string())),
            };
            let held = Held::new(claim.id, callers.iter().map(member).collect(), locks);
            self.on.held.insert(Arc::clone(&key), held);
        };
        let refused = match passed {
            Passed::Granted { locks, token, sent } => {
                has(locks);
                match self.confirm(claim, token, sent).await {
                    Ok(Some(confirmed)) => return self.grant(&key, confirmed, callers).await,
                    Ok(None) => Ok(Taken::Interrupted),
                    Err(failure) => Err(failure),
                }
            }
            Passed::Refused(refusal) => Ok(Taken::Refused(refusal)),
            Passed::OtherPermits(is) => {
                Ok(Taken::Refused(Refusal { other_permits: Some(is), ..Refusal::default() }))
            }
            // The server may have granted something before the statement was interrupted.
            Passed::Unclear { may_have, failure } => {
                has(may_have);
                failure.map_or(Ok(Taken::Interrupted), Err)
            }
        };
        if let Err(Failure::Broken(error)) = refused {
            // No caller has learned of the grant.
            self.on.held.remove(&key);
            return Err(Broken(error));
        }
        if self.on.held.contains_key(&key) {
            self.give_back(&key, Operation::Cancel).await?;
        } else {
            self.on.pool.vacate(self.on.link.group, &key);
        }
        let refused = refused.map_err(Failure::into_error);
        for caller in callers {
            // Sending fails if the caller has gone.
            let _ = caller.answer.send(refused.clone());
        }
        Ok(())
    }

    async fn grant(&mut self, key: &Name, confirmed: Confirmed, callers: Vec<Caller>) -> Result<(), Broken> {
        let Confirmed { tokens, anchor } = confirmed;
        let mut gone = Vec::new();
        for (Caller { id, answer }, token) in callers.into_iter().zip(tokens) {
            if answer.send(Ok(Taken::Granted { token, anchor })).is_err() {
                gone.push(id);
            }
        }
        for id in gone {
            self.leave(key, id, Operation::Cancel).await?;
        }
        Ok(())
    }

    /// Completes a grant: mints the tokens that take a statement of their own, and checks the lock again if the answer took long.
    /// `None` if the lock has gone.
    pub(crate) async fn confirm(
        &mut self,
        claim: &Claim,
        token: u64,
        sent: Moment,
    ) -> Result<Option<Confirmed>, Failure> {
        let tokens = self.tokens(claim, token).await?;
        let tokens = tokens.into_iter().map(|token| token.map(FencingToken::new)).collect();
        // If the answer took long, the server may have freed the lock and given it to another client meanwhile.
        if self.on.now().since(sent) <= self.on.settings.interval {
            return Ok(Some(Confirmed { tokens, anchor: sent }));
        }
        let anchor = self.on.now();
        let locks = self.on.held.get(&claim.parts.gate).map(|held| held.locks.clone()).unwrap_or_default();
        let states = self.look(&locks).await?;
        let is_held = states.iter().all(|state| *state == LeaseState::Held);
        Ok(is_held.then_some(Confirmed { tokens, anchor }))
    }

    /// A token for each of those that share the hold. The first one came with the lock, unless tokens come from a table.
    async fn tokens(&mut self, claim: &Claim, first: u64) -> Result<Vec<Option<u64>>, Failure> {
        let Some(held) = self.on.held.get(&claim.parts.gate) else { return Ok(Vec::new()) };
        let ids: Vec<_> = held.members.iter().map(|member| member.id).collect();
        let (reader_locks, slot) = (held.reader_locks(), held.locks.first().cloned());
        match (self.on.settings.dialect.fencing, &claim.holder, slot) {
            (TokenSource::Clock, ..) if ids.len() == 1 => Ok(vec![Some(first)]),
            (TokenSource::Clock, ..) => {
                let more = self.numbers(ids.len().saturating_sub(1), Operation::Acquire).await?;
                Ok(std::iter::once(first).chain(more).map(Some).collect())
            }
            (TokenSource::Table, Some(holder), Some(slot)) => {
                self.take_reader_locks(&reader_locks).await?;
                let minting = self.minting(claim, &ids, &slot, holder);
                let last = self.on.ask_or_cancel(minting).await.1?.last_insert_id;
                let below = statement::below_the_last(ids.len());
                Ok(below.map(|below| Some(last.saturating_sub(below))).collect())
            }
            _ => Ok(vec![None; ids.len()]),
        }
    }

    fn minting(&self, claim: &Claim, ids: &[AttemptId], slot: &Name, holder: &Holder) -> String {
        let run = &self.on.link.session.run;
        if claim.mode == Mode::Exclusive {
            statement::mint(claim, run, holder)
        } else {
            statement::mint_beside(&claim.parts.gate, slot, ids, run, holder)
        }
    }

    async fn take_reader_locks(&mut self, reader_locks: &[Name]) -> Result<(), Failure> {
        if reader_locks.is_empty() {
            return Ok(());
        }
        let answer = self.on.ask(Operation::Acquire, statement::take_reader_locks(reader_locks)).await?;
        if answer.value().is_some_and(|words| words.split(' ').all(|word| word == "1")) {
            return Ok(());
        }
        let interrupted = LockError::new(ErrorKind::Server, Operation::Acquire)
            .because("the statement was interrupted")
            .retryable();
        Err(Failure::refusal(interrupted))
    }

    /// The state of these locks.
    pub(crate) async fn look(&mut self, names: &[Name]) -> Result<Vec<LeaseState>, Failure> {
        let mut states = Vec::with_capacity(names.len());
        for names in names.chunks(MOST_IN_A_CHECK) {
            let statement = statement::check(names.iter().map(|name| &**name));
            let answer = self.on.ask(Operation::Renew, statement).await?;
            let text = answer.value().unwrap_or_default();
            // An answer of another session means that this connection is unusable.
            match checked(text, self.on.session.id.number, self.on.session.id.tag, names.len())
                .map_err(Failure::Broken)?
            {
                Checked::States(more) => states.extend(more),
                Checked::ReadOnly => {
                    tracing::warn!(target: "distlock", server = %self.on.settings.server.endpoint, "the server has become read-only: its locks no longer exclude other clients");
                    states.resize(states.len() + names.len(), LeaseState::Lost(LossReason::SessionClosed));
                }
            }
        }
        Ok(states)
    }

    async fn check(
        &mut self,
        leases: Vec<(Name, AttemptId)>,
        answer: oneshot::Sender<Result<Vec<LeaseState>, LockError>>,
    ) -> Result<(), Broken> {
        if answer.is_closed() {
            return Ok(());
        }
        let held = leases.iter().map(|(name, id)| {
            let held = self.on.held.get(name).filter(|held| held.is(*id));
            held.map(|held| held.locks.clone()).unwrap_or_default()
        });
        let held: Vec<_> = held.collect();
        // Of readers that share a slot, all have the same locks.
        let mut names = held.concat();
        names.sort_unstable();
        names.dedup();
        let states: HashMap<_, _> = match self.look(&names).await {
            Ok(states) => names.iter().zip(states).collect(),
            Err(Failure::Broken(error)) => return Err(Broken(error)),
            Err(failure) => {
                let _ = answer.send(Err(failure.into_error()));
                return Ok(());
            }
        };
        let deleted = LeaseState::Lost(LossReason::Deleted);
        let state_of = |name| states.get(name).copied().unwrap_or(deleted);
        let states = held.iter().map(|locks| {
            let lost = locks.iter().map(state_of).find(|state| *state != LeaseState::Held);
            lost.unwrap_or(if locks.is_empty() { deleted } else { LeaseState::Held })
        });
        // If the caller has gone, its next check asks again.
        let _ = answer.send(Ok(states.collect()));
        Ok(())
    }

    async fn release(
        &mut self,
        key: &Name,
        id: AttemptId,
        operation: Operation,
        answer: oneshot::Sender<Result<Released, LockError>>,
    ) -> Result<(), Broken> {
        let released = self.leave(key, id, operation).await?;
        let _ = answer.send(Ok(released));
        Ok(())
    }

    /// Ends the part that an attempt has in a hold; with the last one the hold ends.
    async fn leave(&mut self, key: &Name, id: AttemptId, operation: Operation) -> Result<Released, Broken> {
        let Some(held) = self.on.held.get_mut(key).filter(|held| held.is(id)) else {
            return Ok(Released::WasLost(LossReason::Deleted));
        };
        if held.members.len() == 1 {
            return self.give_back(key, operation).await;
        }
        let (ended, others) =
            std::mem::take(&mut held.members).into_iter().partition(|member| member.id == id);
        held.members = others;
        let ended: Vec<Member> = ended;
        let reader_locks: Vec<_> = ended.into_iter().filter_map(|member| member.reader_lock).collect();
        self.send_release(&reader_locks, operation).await
    }

    /// Releases all that attempts have, or may have, in a hold.
    pub(crate) async fn give_back(&mut self, key: &Name, operation: Operation) -> Result<Released, Broken> {
        // First, so that a silent server costs no more than its timeout: the client no longer relies on this lock.
        let held = self.on.held.remove(key);
        let locks = held.map(|held| [held.reader_locks(), held.locks].concat()).unwrap_or_default();
        let released = self.send_release(&locks, operation).await?;
        self.on.pool.vacate(self.on.link.group, key);
        Ok(released)
    }

    pub(crate) async fn send_release(
        &mut self,
        locks: &[Name],
        operation: Operation,
    ) -> Result<Released, Broken> {
        let mut left: Vec<_> = locks.iter().map(|name| &**name).collect();
        let (mut lost, mut failure) = (None, None);
        for _ in 0..RELEASES_SENT {
            if left.is_empty() {
                return Ok(lost.map_or(Released::Clean, Released::WasLost));
            }
            match self.on.ask(operation, statement::release(left.iter().copied(), operation)).await {
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
}
