//! The scripts as the model's server runs them: each in one step.
use super::rules::{Rule, Rules};
use super::world::{Answer, Hold, Id, Intent, LEASE, Line, Place, Push, Reply, Request, World};

/// A violation of the protocol, in words.
pub(crate) type Violation = &'static str;

/// A token below the clock.
const LONG_AGO: i8 = -1;

impl World {
    /// Runs a request that arrived over this connection of a client.
    pub(crate) fn run(&mut self, rules: &Rules, request: Request, line: Line) -> Result<Reply, Violation> {
        let reply = match request {
            Request::Acquire { id, intent, age } => {
                Reply::Acquire { id, answer: self.acquire(rules, id, intent, age, line)?, age }
            }
            Request::Renew { id, age } => Reply::Renew { id, is_held: self.renew(rules, id)?, age },
            Request::Release { id } => {
                self.release(rules, id)?;
                Reply::Ended { id }
            }
            Request::Cancel { id } => {
                self.cancel(rules, id)?;
                Reply::Ended { id }
            }
        };
        let is_forgotten = |place: &Place| place.left > 0 && place.line != Line::Closed;
        if self.server.hold.is_none() && self.server.queue.iter().any(is_forgotten) {
            return Err("a script leaves the lock free while a client waits");
        }
        Ok(reply)
    }

    fn is_held_by(&self, id: Id) -> bool {
        self.server.hold.is_some_and(|hold| hold.id == id)
    }

    fn acquire(
        &mut self,
        rules: &Rules,
        id: Id,
        intent: Intent,
        age: u8,
        line: Line,
    ) -> Result<Answer, Violation> {
        if self.is_held_by(id) {
            self.server.hold = Some(Hold { id, left: LEASE });
            return Ok(Answer::Held);
        }
        let is_free = self.server.hold.is_none();
        if is_free && intent != Intent::Beat && self.server.queue.is_empty() {
            self.grant(rules, id, LEASE)?;
            return Ok(Answer::Held);
        }
        if intent == Intent::Try {
            if is_free && self.promote(rules, None)?.is_none() {
                self.grant(rules, id, LEASE)?;
                return Ok(Answer::Held);
            }
            return Ok(Answer::Waits);
        }
        let place = Place { id, left: LEASE, age, line };
        if let Some(mine) = self.server.queue.iter_mut().find(|place| place.id == id) {
            *mine = place;
        } else if intent == Intent::Beat && rules.keep(Rule::HeartbeatMakesNoPlace) {
            if is_free && rules.keep(Rule::HeartbeatPassesOn) {
                self.promote(rules, None)?;
            }
            return Ok(Answer::Gone);
        } else {
            self.server.queue.push(place);
            if rules.drop(Rule::InsertThenPromote) {
                return Ok(Answer::Waits);
            }
        }
        let is_mine = is_free && self.promote(rules, Some(id))? == Some(id);
        Ok(if is_mine { Answer::Held } else { Answer::Waits })
    }

    fn renew(&mut self, rules: &Rules, id: Id) -> Result<bool, Violation> {
        if self.is_held_by(id) {
            self.server.hold = Some(Hold { id, left: LEASE });
            return Ok(true);
        }
        if self.server.hold.is_none() && rules.keep(Rule::RenewalPassesOn) {
            self.promote(rules, None)?;
        }
        Ok(false)
    }

    fn release(&mut self, rules: &Rules, id: Id) -> Result<(), Violation> {
        if self.is_held_by(id) || rules.drop(Rule::ReleaseCompares) {
            self.server.hold = None;
        }
        if self.server.hold.is_none() && rules.keep(Rule::ReleasePassesOn) {
            self.promote(rules, None)?;
        }
        Ok(())
    }

    fn cancel(&mut self, rules: &Rules, id: Id) -> Result<(), Violation> {
        if self.is_held_by(id) && rules.keep(Rule::CancelEndsHolds) {
            self.server.hold = None;
        }
        if rules.keep(Rule::CancelEndsPlaces) {
            self.server.queue.retain(|place| place.id != id);
        }
        if self.server.hold.is_none() && rules.keep(Rule::CancelPassesOn) {
            self.promote(rules, None)?;
        }
        Ok(())
    }

    fn promote(&mut self, rules: &Rules, me: Option<Id>) -> Result<Option<Id>, Violation> {
        while let Some(place) = self.server.queue.pop_first() {
            let is_there = match place.line {
                _ if me == Some(place.id) => true,
                Line::Current | Line::Old => true,
                Line::Polls => rules.keep(Rule::PollersAreThere),
                Line::Closed => rules.drop(Rule::ClosedAreSkipped),
            };
            if place.left == 0 && rules.keep(Rule::DeadlineCounts) {
                continue;
            }
            if !is_there {
                if place.line == Line::Closed {
                    continue;
                }
                return Err("a client that is there is passed over");
            }
            if place.left == 0 {
                return Err("a grant is over when it is given");
            }
            if place.line == Line::Closed {
                return Err("the lock is given to a connection that the server knows to be closed");
            }
            self.grant(rules, place.id, place.left)?;
            if me != Some(place.id) && place.line == Line::Current {
                let client = &mut self.clients[usize::from(place.id.client)];
                if let Some(link) = &mut client.link {
                    link.pushes.push(Push { id: place.id, age: place.age });
                }
            }
            return Ok(Some(place.id));
        }
        Ok(None)
    }

    fn grant(&mut self, rules: &Rules, id: Id, left: u8) -> Result<(), Violation> {
        let now = if rules.keep(Rule::FenceKnowsTheTime) { 0 } else { LONG_AGO };
        let above = self.server.fence.map_or(now, |fence| (fence + 1).max(now));
        let token = if rules.keep(Rule::FenceIsAboveTheLast) { above } else { now };
        if self.last_token.is_some_and(|last| token <= last) {
            return Err("a fencing token does not rise");
        }
        self.last_token = Some(token);
        self.server.fence = Some(token);
        self.server.hold = Some(Hold { id, left });
        Ok(())
    }
}
