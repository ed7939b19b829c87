//! The scripts as the model's server runs them: each in one step.
use super::rules::{Mode, PERMITS, Rule, Rules};
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
        let is_there = |place: &&Place| place.left > 0 && place.line != Line::Closed;
        if self.server.queue.iter().find(is_there).is_some_and(|head| self.leaves_room(rules, head.id)) {
            return Err("a script leaves the lock free while a client waits");
        }
        Ok(reply)
    }

    fn is_held_by(&self, id: Id) -> bool {
        self.server.holds.iter().any(|hold| hold.id == id && hold.left > 0)
    }

    fn extend(&mut self, id: Id) {
        self.server.holds.iter_mut().filter(|hold| hold.id == id).for_each(|hold| hold.left = LEASE);
    }

    /// Whether one more can have the lock, together with those whose lease is not over.
    fn leaves_room(&self, rules: &Rules, id: Id) -> bool {
        let living = self.server.holds.iter().filter(|hold| hold.left > 0);
        Rules::are_together(living.map(|hold| hold.id).chain([id]).map(|id| rules.mode(id.client)))
    }

    /// What the scripts take for room.
    fn fits(&self, rules: &Rules, id: Id) -> bool {
        let holds = || self.server.holds.iter();
        match rules.mode(id.client) {
            Mode::Exclusive if rules.drop(Rule::WritersAreAlone) => {
                holds().all(|hold| rules.mode(hold.id.client) == Mode::Shared)
            }
            _ if rules.drop(Rule::EntersBesideHolders) => holds().next().is_none(),
            Mode::Permits(_) if rules.drop(Rule::WeightsCount) => holds().count() < usize::from(PERMITS),
            _ => Rules::are_together(holds().map(|hold| hold.id).chain([id]).map(|id| rules.mode(id.client))),
        }
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
            self.extend(id);
            self.promote(rules, None)?;
            return Ok(Answer::Held);
        }
        if intent != Intent::Beat && self.server.queue.is_empty() && self.fits(rules, id) {
            self.grant(rules, id, LEASE)?;
            return Ok(Answer::Held);
        }
        if intent == Intent::Try {
            self.promote(rules, None)?;
            if self.server.queue.is_empty() && self.fits(rules, id) {
                self.grant(rules, id, LEASE)?;
                return Ok(Answer::Held);
            }
            return Ok(Answer::Waits);
        }
        let place = Place { id, left: LEASE, age, line };
        if let Some(mine) = self.server.queue.iter_mut().find(|place| place.id == id) {
            *mine = place;
        } else if intent == Intent::Beat && rules.keep(Rule::HeartbeatMakesNoPlace) {
            if rules.keep(Rule::HeartbeatPassesOn) {
                self.promote(rules, None)?;
            }
            return Ok(Answer::Gone);
        } else {
            self.server.queue.push(place);
            if rules.drop(Rule::InsertThenPromote) {
                return Ok(Answer::Waits);
            }
        }
        self.promote(rules, Some(id))?;
        Ok(if self.is_held_by(id) { Answer::Held } else { Answer::Waits })
    }

    fn renew(&mut self, rules: &Rules, id: Id) -> Result<bool, Violation> {
        let is_held = self.is_held_by(id);
        if is_held {
            self.extend(id);
        }
        if rules.keep(Rule::RenewalPassesOn) {
            self.promote(rules, None)?;
        }
        Ok(is_held)
    }

    fn release(&mut self, rules: &Rules, id: Id) -> Result<(), Violation> {
        self.server.holds.retain(|hold| hold.id != id && rules.keep(Rule::ReleaseCompares));
        if rules.keep(Rule::ReleasePassesOn) {
            self.promote(rules, None)?;
        }
        Ok(())
    }

    fn cancel(&mut self, rules: &Rules, id: Id) -> Result<(), Violation> {
        if rules.keep(Rule::CancelEndsHolds) {
            self.server.holds.retain(|hold| hold.id != id);
        }
        if rules.keep(Rule::CancelEndsPlaces) {
            self.server.queue.retain(|place| place.id != id);
        }
        if rules.keep(Rule::CancelPassesOn) {
            self.promote(rules, None)?;
        }
        Ok(())
    }

    /// The first waiter, dead or living, that the scripts look at next.
    fn next_waiter(&self, rules: &Rules) -> Option<Place> {
        let mut places = self.server.queue.iter();
        if rules.drop(Rule::TheHeadStopsTheQueue) {
            return places.find(|place| self.fits(rules, place.id)).copied();
        }
        places.next().copied()
    }

    fn promote(&mut self, rules: &Rules, me: Option<Id>) -> Result<(), Violation> {
        while let Some(place) = self.next_waiter(rules) {
            let is_there = match place.line {
                _ if me == Some(place.id) => true,
                Line::Current | Line::Old => true,
                Line::Polls => rules.keep(Rule::PollersAreThere),
                Line::Closed => rules.drop(Rule::ClosedAreSkipped),
            };
            let is_in_time = place.left > 0 || rules.drop(Rule::DeadlineCounts);
            if is_in_time && is_there && !self.fits(rules, place.id) {
                return Ok(());
            }
            let came_first =
                self.server.queue.iter().find(|other| other.left > 0 && other.line != Line::Closed);
            let passes = place.left > 0 && came_first.is_some_and(|first| first.id != place.id);
            self.server.queue.retain(|other| other.id != place.id);
            if !is_in_time || !is_there && place.line == Line::Closed {
                continue;
            }
            if !is_there || passes {
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
        }
        Ok(())
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
        self.server.holds.push(Hold { id, left });
        Ok(())
    }
}
