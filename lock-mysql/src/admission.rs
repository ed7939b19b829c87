//! How an attempt goes through its [gate](crate::gate): statement by statement, until it has what it asks for or cannot have it.
//!
//! A try ends with the first refusal. A waiter that has the gate and finds too little behind it keeps the gate, so that all who come
//! later queue behind it at the server:
//! * a writer waits for the readers' slots in turn, without polling, in slices of a lease. Between two slices the server counts the
//!   client's silence, so it frees the gate of a vanished client after two leases;
//! * a reader without a slot, and one who lacks permits, look again: soon at first, and then every 50 ms. No other waiter polls.
//!
//! After an unclear outcome everything that the attempt may have is released, or the connection is dropped.

use std::sync::Arc;
use std::time::Duration;

use lock_core::spi::within;
use lock_core::{AttemptId, ErrorKind, LeaseState, LockError, Mode, Moment, Operation};
use lock_sql::{Answer, Broken, Failure, comment, nonsense};
use tokio::sync::oneshot;

use crate::actor::{Actor, Confirmed, Held};
use crate::batch::Waiting;
use crate::claim::{Claim, Name, Refusal};
use crate::dialect::Taken;
use crate::failure::read_only;
use crate::gate::{Answered, Found, Gate, Word, choose, size_of, sizes};
use crate::options::TokenSource;
use crate::session_tag::SessionTag;
use crate::statement::{self, Waiter};

/// How long the first in the queue pauses before it looks again for slots or permits.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// From this pause on, the table says who looks.
const PAUSE_WITH_A_NOTE: Duration = Duration::from_millis(20);

/// The pause before another look at a size that does not fit.
const PAUSE_AT_A_SIZE: Duration = Duration::from_millis(20);

/// How often in a row a holder must be seen to use a semaphore with another size: a connection that ends may free its size before its
/// slot.
const LOOKS_AT_A_SIZE: u32 = 3;

/// What came of the statements of an attempt.
pub(crate) enum Passed {
    /// These locks are held since an answer to a statement that was sent then.
    Granted {
        locks: Vec<Name>,
        token: u64,
        sent: Moment,
    },
    Refused(Refusal),
    OtherPermits(u32),
    /// Any of these locks may be held.
    Unclear {
        may_have: Vec<Name>,
        failure: Option<Failure>,
    },
}

/// How long an attempt goes on.
pub(crate) enum Patience<'a> {
    Tries,
    Waits { waiter: Waiter, waiting: &'a Waiting },
}

impl Patience<'_> {
    fn comment(&self) -> String {
        match self {
            Self::Tries => comment(Operation::Acquire),
            Self::Waits { waiter, .. } => waiter.comment(),
        }
    }

    /// Whether the callers have gone.
    fn is_over(&self) -> bool {
        matches!(self, Self::Waits { waiting, .. } if waiting.is_abandoned())
    }
}

/// What an attempt does after an answer.
enum Step {
    End(Passed),
    /// Carries out this statement.
    Next(String),
    /// Lacks something behind the gate, which it may still have.
    Short(Gate),
    /// Looks again in a moment.
    Again,
}

impl Actor {
    /// Makes an attempt.
    pub(crate) async fn pass(&mut self, claim: &Claim, patience: &Patience<'_>) -> Passed {
        let manner = self.manner;
        let mut statement = match patience {
            Patience::Tries => claim.take(manner),
            Patience::Waits { waiter, .. } => claim.wait(manner, waiter),
        };
        let mut may_have = vec![Arc::clone(&claim.parts.gate)];
        if claim.mode == Mode::Shared {
            may_have = claim.all_parts(manner);
        }
        let (mut pause, mut misfits, mut is_behind) = (FIRST_PAUSE, 0, false);
        let mut is_noted = false;
        loop {
            if patience.is_over() {
                return Passed::Unclear { may_have, failure: None };
            }
            let sent = self.on.now();
            let said = self.put(patience, statement).await;
            let step = match read(said, self.on.session.id.tag) {
                Ok((word, refusal)) => self.step(claim, word, refusal, sent, &mut misfits).await,
                Err(failure) => return Passed::Unclear { may_have, failure },
            };
            let pausing = match step {
                Step::End(passed) => return passed,
                Step::Next(next) => {
                    may_have = claim.all_parts(manner);
                    statement = next;
                    continue;
                }
                Step::Again => Some(PAUSE_AT_A_SIZE),
                Step::Short(gate) => {
                    let Patience::Waits { waiting, .. } = patience else {
                        return self.refused(claim, gate).await;
                    };
                    if !std::mem::replace(&mut is_behind, true) {
                        waiting.enters_the_gate();
                    }
                    // The server shows by itself who waits for a slot.
                    let pausing = (claim.mode != Mode::Exclusive).then_some(pause);
                    if pausing.is_some_and(|pause| pause >= PAUSE_WITH_A_NOTE)
                        && !std::mem::replace(&mut is_noted, true)
                        && let Err(failure) = self.note(claim).await
                    {
                        return Passed::Unclear { may_have, failure: Some(failure) };
                    }
                    pause = (pause * 2).min(LONGEST_PAUSE);
                    pausing
                }
            };
            may_have = claim.all_parts(manner);
            statement = claim.go_on(manner, &patience.comment());
            if let Some(pausing) = pausing
                && self.stopped_within(patience, pausing).await
            {
                return Passed::Unclear { may_have, failure: None };
            }
        }
    }

    async fn put(&mut self, patience: &Patience<'_>, statement: String) -> Result<Answer, Failure> {
        match patience {
            Patience::Tries => self.on.ask(Operation::Acquire, statement).await,
            Patience::Waits { waiting, .. } => self.on.ask_until(waiting.stop.notified(), statement).await,
        }
    }

    /// Pauses, and returns whether the callers have gone meanwhile.
    async fn stopped_within(&self, patience: &Patience<'_>, pause: Duration) -> bool {
        let clock = self.on.settings.clock();
        let end = clock.now().plus(pause);
        match patience {
            Patience::Tries => {
                clock.sleep_until(end).await;
                false
            }
            Patience::Waits { waiting, .. } => within(clock, end, waiting.stop.notified()).await.is_some(),
        }
    }

    async fn step(
        &mut self,
        claim: &Claim,
        word: Word,
        refusal: Refusal,
        sent: Moment,
        misfits: &mut u32,
    ) -> Step {
        let gate = &claim.parts.gate;
        match word {
            Word::Busy => Step::End(Passed::Refused(refusal)),
            Word::Short { gate } => Step::Short(gate),
            Word::All(token) => Step::End(Passed::Granted { locks: vec![Arc::clone(gate)], token, sent }),
            Word::Slots { slots, token, gate: still } => {
                let locks = claim.parts.held_with(&slots, claim.mode);
                if let (Mode::Shared, [slot]) = (claim.mode, slots.as_slice()) {
                    self.manner.has_had(*slot);
                }
                match self.let_go(claim, still).await {
                    Ok(()) => Step::End(Passed::Granted { locks, token, sent }),
                    Err(Broken(error)) => Step::End(broken(error)),
                }
            }
            Word::Used(used) => self.step_to_permits(claim, &used, misfits).await,
        }
    }

    async fn step_to_permits(&mut self, claim: &Claim, used: &[u64], misfits: &mut u32) -> Step {
        let Mode::Permits { take, of } = claim.mode else {
            return Step::End(broken(nonsense(Operation::Acquire, "it speaks of permits")));
        };
        match choose(used, take, of) {
            Found::Free(slots) => Step::Next(claim.take_permits(&slots, self.manner)),
            Found::TooFew => Step::Short(Gate::Kept),
            Found::OtherSize(_) if *misfits + 1 < LOOKS_AT_A_SIZE => {
                *misfits += 1;
                Step::Again
            }
            Found::OtherSize(slot) => {
                *misfits = 0;
                let asked =
                    self.on.ask(Operation::Acquire, sizes(&claim.parts, slot, Operation::Acquire)).await;
                match asked.map(|answer| answer.value().and_then(size_of)) {
                    Ok(Some(is)) => match self.let_go(claim, Gate::Kept).await {
                        Ok(()) => Step::End(Passed::OtherPermits(is)),
                        Err(Broken(error)) => Step::End(broken(error)),
                    },
                    // It has just been released, or belongs to another program.
                    Ok(None) => Step::Short(Gate::Kept),
                    Err(failure) => Step::End(Passed::Unclear {
                        may_have: claim.all_parts(self.manner),
                        failure: Some(failure),
                    }),
                }
            }
            Found::Nonsense => Step::End(broken(nonsense(Operation::Acquire, "permits are missing"))),
        }
    }

    async fn refused(&mut self, claim: &Claim, gate: Gate) -> Passed {
        match self.let_go(claim, gate).await {
            Ok(()) => Passed::Refused(Refusal::default()),
            Err(Broken(error)) => broken(error),
        }
    }

    /// Releases the gate if it is still this session's.
    async fn let_go(&mut self, claim: &Claim, gate: Gate) -> Result<(), Broken> {
        match gate {
            Gate::Gone => Ok(()),
            Gate::Kept => {
                self.send_release(&[Arc::clone(&claim.parts.gate)], Operation::Cancel).await.map(drop)
            }
        }
    }

    /// Writes down who waits behind the gate. Its place does not depend on it.
    async fn note(&mut self, claim: &Claim) -> Result<(), Failure> {
        let Some(holder) = &claim.holder else { return Ok(()) };
        let waiter = statement::Holder { waits: true, ..statement::Holder::clone(holder) };
        let note = statement::note(&claim.parts.gate, claim.id, &self.on.link.session.run, &waiter);
        match self.on.ask_or_cancel(note).await.1 {
            Err(failure @ Failure::Broken(_)) => Err(failure),
            _ => Ok(()),
        }
    }

    /// Makes an exclusive hold a reader's.
    pub(crate) async fn downgrade(
        &mut self,
        former: AttemptId,
        claim: Claim,
        answer: oneshot::Sender<Result<Taken, LockError>>,
    ) -> Result<(), Broken> {
        let shared = match self.share(former, &claim).await {
            Err(Failure::Broken(error)) => return Err(Broken(error)),
            shared => shared.map_err(Failure::into_error),
        };
        // If the caller has gone, it asks again or undoes this.
        let _ = answer.send(shared);
        Ok(())
    }

    async fn share(&mut self, former: AttemptId, claim: &Claim) -> Result<Taken, Failure> {
        let gate = Arc::clone(&claim.parts.gate);
        let Some(held) = self.on.held.get(&gate) else { return Ok(Taken::Interrupted) };
        let sent = self.on.now();
        if held.id == claim.id {
            // The caller has not heard the first answer.
            let token = self.number().await?;
            return self.confirm_one(claim, token, sent).await;
        }
        if held.id != former {
            return Ok(Taken::Interrupted);
        }
        let manner = self.manner;
        let said = self.on.ask(Operation::Downgrade, claim.share(manner)).await;
        match read(said, self.on.session.id.tag) {
            Ok((Word::Slots { slots, token, gate: still }, _)) => {
                let locks = claim.parts.held_with(&slots, claim.mode);
                self.on.held.insert(gate, Held::after(former, claim.id, locks));
                self.let_go(claim, still).await.map_err(|Broken(error)| Failure::Broken(error))?;
                self.confirm_one(claim, token, sent).await
            }
            Err(Some(failure @ Failure::Broken(_))) => Err(failure),
            _ => self.settle(former, claim).await,
        }
    }

    /// Finds out what a statement has done that was interrupted. If the gate is still held, nothing has happened.
    async fn settle(&mut self, former: AttemptId, claim: &Claim) -> Result<Taken, Failure> {
        let sent = self.on.now();
        let mut parts = claim.all_parts(self.manner);
        let states = self.look(&parts).await?;
        let mut is_held = states.iter().map(|state| *state == LeaseState::Held);
        parts.retain(|_| is_held.next() == Some(true));
        let broken = |Broken(error)| Failure::Broken(error);
        if parts.last() == Some(&claim.parts.gate) {
            parts.pop();
            if !parts.is_empty() {
                self.send_release(&parts, Operation::Cancel).await.map_err(broken)?;
            }
            let error = LockError::new(ErrorKind::Server, Operation::Downgrade)
                .because("the statement was interrupted, or no slot is free")
                .retryable();
            return Err(Failure::refusal(error));
        }
        let gate = Arc::clone(&claim.parts.gate);
        if parts.is_empty() {
            let all = claim.all_parts(self.manner);
            self.on.held.insert(Arc::clone(&gate), Held::after(former, claim.id, all));
            self.give_back(&gate, Operation::Cancel).await.map_err(broken)?;
            return Ok(Taken::Interrupted);
        }
        self.on.held.insert(gate, Held::after(former, claim.id, parts));
        let token = self.number().await?;
        self.confirm_one(claim, token, sent).await
    }

    async fn confirm_one(&mut self, claim: &Claim, token: u64, sent: Moment) -> Result<Taken, Failure> {
        Ok(match self.confirm(claim, token, sent).await? {
            Some(Confirmed { mut tokens, anchor }) => {
                Taken::Granted { token: tokens.pop().flatten(), anchor }
            }
            None => Taken::Interrupted,
        })
    }

    /// A token for a hold that has none yet, if this client's tokens do not come from a table.
    async fn number(&mut self) -> Result<u64, Failure> {
        if self.on.settings.dialect.fencing != TokenSource::Clock {
            return Ok(1);
        }
        Ok(self.numbers(1, Operation::Downgrade).await?.first().copied().unwrap_or_default())
    }

    /// Tokens that do not come from a table.
    pub(crate) async fn numbers(&mut self, count: usize, operation: Operation) -> Result<Vec<u64>, Failure> {
        let answer = self.on.ask(operation, statement::numbers(count, operation)).await?;
        let numbers = answer.value().unwrap_or_default().split(' ').map(|number| number.parse().ok());
        let numbers: Option<Vec<_>> = numbers.collect();
        let all = numbers.filter(|numbers| numbers.len() == count);
        all.ok_or_else(|| Failure::Broken(nonsense(operation, "a token is missing")))
    }
}

fn broken(error: LockError) -> Passed {
    Passed::Unclear { may_have: Vec::new(), failure: Some(Failure::Broken(error)) }
}

/// Reads the answer to an attempt's statement. An error without a failure means that the statement was interrupted.
fn read(said: Result<Answer, Failure>, expected: SessionTag) -> Result<(Word, Refusal), Option<Failure>> {
    let answer = said.map_err(|failure| Some(failure).filter(|failure| !failure.is_interruption()))?;
    let Some(answered) = answer.value().and_then(Answered::read) else { return Err(None) };
    if answered.tag != expected.number() {
        let cause = "another session has answered, or other clients share this session";
        return Err(Some(Failure::Broken(nonsense(Operation::Acquire, cause))));
    }
    let Some(word) = answered.word else { return Err(None) };
    if answered.is_read_only {
        return Err(Some(Failure::refusal(read_only(Operation::Acquire))));
    }
    let record = answer.rows.first().and_then(|row| row.get(1)?.clone());
    Ok((word, Refusal { connection: answered.holder, record, other_permits: None }))
}
