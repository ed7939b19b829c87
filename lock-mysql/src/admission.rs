//! How an attempt goes through its [gate](crate::gate): statement by statement, until it has what it asks for or cannot have it.
//!
//! A try ends with the first refusal. A waiter that has the gate and finds too little behind it keeps the gate, so that all who come
//! later queue behind it at the server:
//! * a writer waits for the readers' slots in turn, without polling: each of its statements for one of them, and for a lease at most. Between
//!   two statements the server counts the client's silence, so it frees the gate of a vanished client after two leases;
//! * a reader without a slot, and one who lacks permits, look again: soon at first, and then every 50 ms. No other waiter polls.
//!
//! After an unclear outcome everything that the attempt may have is released, or the connection is dropped.

use std::sync::Arc;
use std::time::Duration;

use lock_core::spi::within;
use lock_core::{LockError, Mode, Moment, Operation, Participant};
use lock_sql::{Answer, Broken, Failure, Passed, Waiting, Why, nonsense, not_primary};

use crate::dialect::{Claim, Connection};
use crate::gate::{self, Answered, Found, Gate, Word, choose, size_of, sizes};
use crate::hold::{Locks, send_release};
use crate::inspection::named;
use crate::session_tag::SessionTag;
use crate::statement::{self, Holder};

/// How long the first in the queue pauses before it looks again for slots or permits.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// From this pause on, the table says who looks.
const PAUSE_WITH_A_NOTE: Duration = Duration::from_millis(20);

/// What an attempt does after an answer.
enum Step {
    End(Passed<Locks>),
    /// Carries out this statement.
    Next(String),
    /// Lacks something behind the gate, which it may still have.
    Short(Gate),
}

/// Makes an attempt.
pub(crate) async fn pass(on: &mut Connection, claim: &Claim, waiting: Option<&Waiting>) -> Passed<Locks> {
    let manner = on.session.own;
    let whole = || match waiting {
        None => gate::take(claim, manner),
        Some(waiting) => gate::wait(claim, manner, &waiting.comment),
    };
    let mut is_prepared =
        waiting.is_none_or(|waiting| !waiting.has_tried) && on.session.own.begins_prepared(claim);
    let mut statement = if is_prepared { gate::begin(claim, manner) } else { whole() };
    let mut may_have = vec![Arc::clone(&claim.key.gate)];
    if claim.mode == Mode::Shared {
        may_have = gate::all_parts(claim);
    }
    let (mut pause, mut is_noted) = (FIRST_PAUSE, false);
    loop {
        if waiting.is_some_and(Waiting::is_stopped) {
            return Passed::Unclear { may_have: Some(may_have), failure: None };
        }
        let sent = on.now();
        let said = put(on, waiting, statement).await;
        let was_prepared = std::mem::take(&mut is_prepared);
        on.session.own.is_prepared |= was_prepared && said.is_ok();
        if was_prepared && said.as_ref().is_err_and(|failure| failure.why() == Some(Why::Other)) {
            // It has as many prepared as it may have, or cannot do so. The attempt is made again, with the whole text.
            on.session.own.prepared_after = None;
            return Passed::Unclear { may_have: Some(may_have), failure: None };
        }
        let step = match read(said, on.session.id.tag) {
            Ok((Word::Busy | Word::Short { gate: Gate::Gone }, _)) if was_prepared => {
                on.session.own.prepared_after = gate::WHOLE_WHEN_BUSY;
                statement = whole();
                continue;
            }
            Ok((word, answered)) => step(on, claim, word, answered, sent).await,
            Err(failure) => return Passed::Unclear { may_have: Some(may_have), failure },
        };
        may_have = gate::all_parts(claim);
        let gate = match step {
            Step::End(passed) => return passed,
            Step::Next(next) => {
                statement = next;
                continue;
            }
            Step::Short(gate) => gate,
        };
        let Some(waiting) = waiting else {
            return let_go_and(on, claim, gate, refused(claim, None)).await;
        };
        waiting.reaches_head();
        // The server shows by itself who waits for a slot.
        if claim.mode != Mode::Exclusive {
            if pause >= PAUSE_WITH_A_NOTE
                && !std::mem::replace(&mut is_noted, true)
                && let Err(failure) = note(on, claim).await
            {
                return Passed::failed(Some(may_have), failure);
            }
            let _ = within(on.settings.clock(), on.now().plus(pause), waiting.stopped()).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        statement = gate::go_on(claim, manner, &waiting.comment);
    }
}

async fn put(on: &mut Connection, waiting: Option<&Waiting>, statement: String) -> Result<Answer, Failure> {
    match waiting {
        None => on.ask(Operation::Acquire, statement).await,
        Some(waiting) => on.ask_until(waiting.stopped(), statement).await,
    }
}

async fn step(on: &mut Connection, claim: &Claim, word: Word, answered: Refusal, sent: Moment) -> Step {
    match word {
        Word::Busy => Step::End(refused(claim, named(answered, &on.session.id.run).map(Box::new))),
        Word::Short { gate } => Step::Short(gate),
        Word::All(token) => {
            let (has, token) = (vec![Arc::clone(&claim.key.gate)], on.settings.dialect.token(token));
            Step::End(Passed::Granted { has, token, sent })
        }
        Word::Slots { slots, token, gate: still } => {
            let has = claim.key.held_with(&slots, claim.mode);
            if let (Mode::Shared, [slot]) = (claim.mode, slots.as_slice()) {
                on.session.own.has_had(*slot);
            }
            let token = on.settings.dialect.token(token);
            Step::End(let_go_and(on, claim, still, Passed::Granted { has, token, sent }).await)
        }
        Word::Used(used) => step_to_permits(on, claim, &used).await,
    }
}

async fn step_to_permits(on: &mut Connection, claim: &Claim, used: &[u64]) -> Step {
    let Mode::Permits { take, of } = claim.mode else {
        return Step::End(Passed::broken(nonsense(Operation::Acquire, "it speaks of permits")));
    };
    match choose(used, take, of) {
        Found::Free(slots) => Step::Next(gate::take_permits(claim, &slots, on.session.own)),
        Found::TooFew => Step::Short(Gate::Kept),
        Found::OtherSize(slot) => {
            let asked = on.ask(Operation::Acquire, sizes(&claim.key, slot, Operation::Acquire)).await;
            match asked.map(|answer| answer.value().and_then(size_of)) {
                Ok(Some(is)) if is != of.get() => {
                    let error = LockError::other_permits(&claim.name, of.get(), is);
                    let refused = Passed::failed(None, Failure::refusal(error));
                    Step::End(let_go_and(on, claim, Gate::Kept, refused).await)
                }
                // It has just been released, as a connection that ends may free its size before its slot. Or it is another program's.
                Ok(_) => Step::Short(Gate::Kept),
                Err(failure) => {
                    let may_have = gate::all_parts(claim);
                    Step::End(Passed::Unclear { may_have: Some(may_have), failure: Some(failure) })
                }
            }
        }
        Found::Nonsense => Step::End(Passed::broken(nonsense(Operation::Acquire, "permits are missing"))),
    }
}

/// Those who share pass the gate within a millisecond; a writer would keep it.
fn refused(claim: &Claim, holder: Option<Box<Participant>>) -> Passed<Locks> {
    Passed::Refused { holder, is_passing: claim.mode != Mode::Exclusive }
}

async fn let_go_and(on: &mut Connection, claim: &Claim, gate: Gate, passed: Passed<Locks>) -> Passed<Locks> {
    match let_go(on, claim, gate).await {
        Ok(()) => passed,
        Err(broken) => Passed::failed(None, broken.into()),
    }
}

/// Releases the gate if it is still this session's.
pub(crate) async fn let_go(on: &mut Connection, claim: &Claim, gate: Gate) -> Result<(), Broken> {
    match gate {
        Gate::Gone => Ok(()),
        Gate::Kept => send_release(on, &[Arc::clone(&claim.key.gate)], Operation::Cancel).await.map(drop),
    }
}

/// Writes down who waits behind the gate. Its place does not depend on it.
async fn note(on: &mut Connection, claim: &Claim) -> Result<(), Failure> {
    let Some(holder) = Holder::of(claim) else { return Ok(()) };
    let waiter = Holder { waits: true, ..holder };
    let note = statement::note(&claim.key.gate, claim.id, &on.session.id.run, &waiter);
    match on.ask_or_cancel(note).await {
        Err(failure @ Failure::Broken(_)) => Err(failure),
        _ => Ok(()),
    }
}

/// What the answer to a try says of the holder: its connection, and what the table says of the last one.
pub(crate) type Refusal = (Option<u64>, Option<String>);

/// Reads the answer to an attempt's statement. An error without a failure means that the statement was interrupted.
pub(crate) fn read(
    said: Result<Answer, Failure>,
    expected: SessionTag,
) -> Result<(Word, Refusal), Option<Failure>> {
    let answer = said.map_err(|failure| Some(failure).filter(|failure| !failure.is_interruption()))?;
    let Some(answered) = answer.value().and_then(Answered::read) else { return Err(None) };
    if answered.tag != expected.number() {
        let cause = "another session has answered, or other clients share this session";
        return Err(Some(Failure::Broken(nonsense(Operation::Acquire, cause))));
    }
    let Some(word) = answered.word else { return Err(None) };
    if answered.is_read_only {
        return Err(Some(Failure::refusal(not_primary(Operation::Acquire))));
    }
    let record = answer.rows.first().and_then(|row| row.get(1)?.clone());
    Ok((word, (answered.holder, record)))
}
