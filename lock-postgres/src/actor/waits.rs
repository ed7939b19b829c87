//! Waits at the server: sent, begun anew, cancelled, and for permits.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{Moment, Operation};
use lock_kit::gone;
use lock_sql::{Broken, Failure};

use super::{Actor, StatementLimit, read};
use crate::budget::Reservation;
use crate::claim::{Claim, Has, Wait, Waiting, Wanted};
use crate::permits::Permits;
use crate::prepared::Call;
use crate::statement::{self, Answered, Waiter};

/// The pauses between two looks for permits of the session that is at the head of the queue.
const FIRST_LOOK_FOR_PERMITS: Duration = Duration::from_micros(500);
const LONGEST_LOOK_FOR_PERMITS: Duration = Duration::from_millis(50);

impl Actor {
    pub(super) async fn wait(
        &mut self,
        claim: Claim,
        Wait { waiter, waiting, answer }: Wait,
    ) -> Result<(), Broken> {
        let is_closed = answer.is_closed();
        let reservation = match self.reserve(&claim) {
            Ok(reservation) if !is_closed => reservation,
            refused => {
                self.on.pool.share(self.on.link.group);
                let error = refused.err().unwrap_or_else(|| gone(Operation::Acquire));
                self.refuse(&claim, error, answer);
                return Ok(());
            }
        };
        if let Err(failure) = self.end_record(&claim).await {
            waiting.is_over();
            let sent = self.on.now();
            self.conclude(claim, reservation, sent, Err(failure), answer).await?;
            self.on.pool.share(self.on.link.group);
            return Ok(());
        }
        let (mut sent, mut said) = loop {
            let sent = self.on.now();
            let said = self.send_wait(&claim, &reservation, &waiter, &waiting).await;
            let is_interrupted = said.as_ref().is_err_and(Failure::is_interruption);
            if !is_interrupted || !waiting.begins_anew() {
                break (sent, said);
            }
            // It may have got the lock all the same, and would get it twice.
            self.send_release(claim.key, &Has::at_most(claim.wanted), Operation::Cancel).await?;
            waiting.has_begun_anew();
        };
        if let (Ok(Answered::AtHead), Wanted::Permits(permits)) = (&said, claim.wanted) {
            waiting.reaches_head();
            (sent, said) = self.wait_for_permits(&claim, permits, &waiter, &waiting).await;
        }
        waiting.is_over();
        self.limit = if said.is_ok() { StatementLimit::Off } else { StatementLimit::Unknown };
        self.conclude(claim, reservation, sent, said, answer).await?;
        self.on.pool.share(self.on.link.group);
        Ok(())
    }

    /// Waits at the server until it has the lock, or only permits are missing.
    async fn send_wait(
        &mut self,
        claim: &Claim,
        reservation: &Reservation,
        waiter: &Waiter,
        waiting: &Waiting,
    ) -> Result<Answered, Failure> {
        let (fencing, tag, limit) =
            (self.on.settings.dialect.fencing, self.on.session.own.tag, reservation.limit());
        let beginning = statement::begins_wait(waiter, self.limit != StatementLimit::Off);
        if let Some(wait) = Call::to_wait(claim, fencing).filter(|_| limit.is_none()) {
            let message = self.message(&beginning, &wait);
            let answer = self.on.ask_until(waiting.ended(), message).await;
            return read(&self.noted(&wait, answer)?);
        }
        let statement = beginning + &statement::wait(claim, fencing, tag, limit);
        let sent = self.on.now();
        let answer = self.on.ask_until(waiting.ended(), statement).await?;
        if let Some(taken) = statement::counted(&answer) {
            // The server counted before it waited, and that is not how long it took to count.
            reservation.counted(taken, sent, Duration::ZERO);
        }
        read(&answer)
    }

    /// Looks again and again for permits, and at once when this client has given some back. No other client can take any
    /// meanwhile. A waiter that has gone meanwhile keeps the gate, and the one that concludes gives it back.
    async fn wait_for_permits(
        &mut self,
        claim: &Claim,
        permits: Permits,
        waiter: &Waiter,
        waiting: &Waiting,
    ) -> (Moment, Result<Answered, Failure>) {
        let settings = Arc::clone(&self.on.settings);
        let (beginning, look) = (waiter.comment(), Call::to_look(claim.key, permits));
        let mut pause = FIRST_LOOK_FOR_PERMITS;
        let mut given_back = settings.dialect.permits.notified();
        loop {
            let next = self.on.now().plus(pause);
            pause = (pause * 3 / 2).min(LONGEST_LOOK_FOR_PERMITS);
            tokio::select! {
                biased;
                () = waiting.stopped() => return (self.on.now(), Err(Failure::stopped(Operation::Acquire))),
                () = given_back => {}
                () = settings.clock().sleep_until(next) => {}
            }
            // Before the server looks: what is given back later makes it look again.
            given_back = settings.dialect.permits.notified();
            let sent = self.on.now();
            let said = self.repeat(Operation::Acquire, &beginning, &look).await;
            let said = said.and_then(|said| read(&said));
            if !matches!(said, Ok(Answered::AtHead)) {
                return (sent, said);
            }
        }
    }
}
