//! How an attempt gets a lock or permits on a connection: tries them, or waits at the server. A wait may begin anew, and one for permits
//! looks for them itself as soon as it is the first in the queue.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{LockError, Mode, Moment, Operation};
use lock_sql::{Answer, Failure, Passed, Waiting, comment, nonsense};

use crate::budget::Reservation;
use crate::dialect::{Claim, Connection};
use crate::hold::{Has, Hold, end_record, send_release, why_elsewhere};
use crate::permits;
use crate::prepared::Call;
use crate::statement::{self, Answered};

/// The pauses between two looks for permits of the session that is at the head of the queue.
const FIRST_LOOK_FOR_PERMITS: Duration = Duration::from_micros(500);
const LONGEST_LOOK_FOR_PERMITS: Duration = Duration::from_millis(50);

pub(crate) async fn pass(on: &mut Connection, claim: &Claim, waiting: Option<&Waiting>) -> Passed<Hold> {
    let sent = on.now();
    let (locks, capacity) = (permits::locks(claim.mode), on.session.own.capacity);
    let mut reservation = match on.settings.dialect.budget.claim(locks, capacity) {
        Ok(reservation) => reservation,
        Err(error) => return Passed::failed(None, Failure::refusal(error)),
    };
    if let Err(failure) = end_record(on, claim).await {
        return Passed::failed(None, failure);
    }
    let (sent, said) = match waiting {
        None => (sent, take(on, claim, &mut reservation, sent).await),
        Some(waiting) => wait(on, claim, &mut reservation, waiting).await,
    };
    let answered = match said {
        Ok(answered) => answered,
        // A statement that fails may have got the lock all the same.
        Err(failure) => {
            let hold = Hold { has: Has::at_most(claim.mode), reservation: Some(reservation) };
            return Passed::failed(Some(hold), failure);
        }
    };
    match answered {
        Answered::Refused => Passed::Refused { holder: None, is_passing: false },
        Answered::GateTaken => Passed::Refused { holder: None, is_passing: true },
        Answered::Granted(token, numbers) => {
            let has = match claim.mode {
                Mode::Permits { of, .. } => Has::Permits { of: of.get(), numbers },
                mode => Has::at_most(mode),
            };
            if let Some(error) = reservation.refusal() {
                return Passed::failed(Some(Hold { has, reservation: None }), Failure::refusal(error));
            }
            let token = on.settings.dialect.fencing.is_in_grant().then_some(token);
            Passed::Granted { has: Hold { has, reservation: Some(reservation) }, token, sent }
        }
        Answered::OtherNumber(number) => {
            let ours = if let Mode::Permits { of, .. } = claim.mode { of.get() } else { 0 };
            Passed::failed(None, Failure::refusal(LockError::other_permits(&claim.name, ours, number)))
        }
        Answered::Elsewhere => Passed::failed(None, why_elsewhere(on, Operation::Acquire).await),
        Answered::AtHead => {
            Passed::broken(nonsense(Operation::Acquire, "it has a gate that it was not to keep"))
        }
    }
}

async fn take(
    on: &mut Connection,
    claim: &Claim,
    reservation: &mut Reservation,
    sent: Moment,
) -> Result<Answered, Failure> {
    let take = Call::to_take(claim);
    let message = message(on, &(comment(Operation::Acquire) + reservation.counting()), &take);
    let answer = on.ask_or_cancel(message).await;
    let took = on.now().since(sent);
    noted(on, &take, answer).and_then(|said| read_counted(&said, reservation, sent, took))
}

async fn wait(
    on: &mut Connection,
    claim: &Claim,
    reservation: &mut Reservation,
    waiting: &Waiting,
) -> (Moment, Result<Answered, Failure>) {
    let (mut sent, mut said) = loop {
        let sent = on.now();
        let said = send_wait(on, claim, reservation, waiting).await;
        let has_failed = said.as_ref().is_err_and(|failure| !failure.is_interruption());
        if has_failed || !waiting.begins_anew() {
            break (sent, said);
        }
        // It may have got the lock all the same, and would get it twice; or with a token that no standby has.
        let has = Has::at_most(claim.mode);
        if let Err(broken) = send_release(on, claim.key, &has, Operation::Cancel).await {
            return (sent, Err(broken.into()));
        }
    };
    if let (Ok(Answered::AtHead), Mode::Permits { .. }) = (&said, claim.mode) {
        waiting.reaches_head();
        (sent, said) = wait_for_permits(on, claim, waiting).await;
    }
    (sent, said)
}

/// Waits at the server until it has the lock, or only permits are missing.
async fn send_wait(
    on: &mut Connection,
    claim: &Claim,
    reservation: &mut Reservation,
    waiting: &Waiting,
) -> Result<Answered, Failure> {
    let beginning = statement::begins_wait(&waiting.comment, on.session.own.is_limited);
    let wait = Call::to_wait(claim);
    let message = message(on, &(beginning + reservation.counting()), &wait);
    let sent = on.now();
    let answer = on.ask_until(waiting.ended(), message).await;
    let said = noted(on, &wait, answer)?;
    on.session.own.is_limited = false;
    // The server counted before it waited, and that is not how long it took to count.
    read_counted(&said, reservation, sent, Duration::ZERO)
}

/// Looks again and again for permits, and at once when this client has given some back. No other client can take any meanwhile. A waiter
/// that has gone meanwhile keeps the gate, which is given back with what it may have.
async fn wait_for_permits(
    on: &mut Connection,
    claim: &Claim,
    waiting: &Waiting,
) -> (Moment, Result<Answered, Failure>) {
    let settings = Arc::clone(&on.settings);
    let look = Call::to_look(claim);
    let mut pause = FIRST_LOOK_FOR_PERMITS;
    let mut given_back = settings.dialect.permits.notified();
    loop {
        let next = on.now().plus(pause);
        pause = (pause * 3 / 2).min(LONGEST_LOOK_FOR_PERMITS);
        tokio::select! {
            biased;
            () = waiting.stopped() => return (on.now(), Err(Failure::stopped(Operation::Acquire))),
            () = given_back => {}
            () = settings.clock().sleep_until(next) => {}
        }
        // Before the server looks: what is given back later makes it look again.
        given_back = settings.dialect.permits.notified();
        let sent = on.now();
        let said = repeat(on, Operation::Acquire, &waiting.comment, &look).await.and_then(|said| read(&said));
        if !matches!(said, Ok(Answered::AtHead)) {
            return (sent, said);
        }
    }
}

/// Carries out such a statement as [`ask`](Connection::ask) does. The beginning of the message is a comment.
pub(crate) async fn repeat(
    on: &mut Connection,
    operation: Operation,
    beginning: &str,
    call: &Call,
) -> Result<Answer, Failure> {
    let message = message(on, beginning, call);
    let answer = on.ask(operation, message).await;
    noted(on, call, answer)
}

fn message(on: &Connection, beginning: &str, call: &Call) -> String {
    on.session.own.prepared.message(beginning, call, on.settings.dialect.fencing, on.session.own.tag)
}

fn noted(on: &mut Connection, call: &Call, answer: Result<Answer, Failure>) -> Result<Answer, Failure> {
    on.session.own.prepared.is_answered(call, answer.is_ok());
    answer
}

/// What the server has answered to a request for a lock, behind the count of entries if it has counted.
fn read_counted(
    answer: &Answer,
    reservation: &mut Reservation,
    sent: Moment,
    took: Duration,
) -> Result<Answered, Failure> {
    if let [counted, _] = answer.rows.as_slice() {
        let taken = counted.first().and_then(|text| text.as_deref()?.parse().ok());
        reservation.counted(taken.unwrap_or_default(), sent, took);
    }
    read(answer)
}

/// What the server has answered to a request for a lock.
pub(crate) fn read(answer: &Answer) -> Result<Answered, Failure> {
    let value = answer.rows.last().and_then(|row| row.first()?.as_deref());
    Answered::read(value)
        .ok_or_else(|| Failure::Broken(nonsense(Operation::Acquire, value.unwrap_or("nothing"))))
}
