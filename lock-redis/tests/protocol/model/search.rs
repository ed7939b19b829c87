//! Visits all states of the model, the nearest first.
use std::fmt::Write as _;

use super::client::{Bounds, Step};
use super::known::Known;
use super::rules::Rules;
use super::world::World;

/// From this state on, a waiter gets the lock or there is no waiter.
const DONE: u32 = u32::MAX;

/// The result of a search.
pub(crate) enum Found {
    /// The search visited all states and found no flaw.
    Nothing { states: usize },
    /// There are more states than the limit; the visited ones have no flaw.
    TooMany,
    /// A flaw, and the steps that lead to it.
    Flaw { what: &'static str, trace: String },
}

struct Search<'a> {
    rules: &'a Rules,
    bounds: Bounds,
    start: World,
    known: Known,
    /// The step by which each state was first reached.
    reached: Vec<(u32, Step)>,
    /// The state that follows each one if nothing fails.
    next: Vec<u32>,
    /// States that have not been visited.
    front: Vec<(u32, World)>,
}

/// Visits all states, up to `most` of them.
pub(crate) fn search(rules: &Rules, bounds: Bounds, most: usize) -> Found {
    let start = World::new(bounds.clients, bounds.faults);
    let mut search = Search {
        rules,
        bounds,
        start,
        known: Known::default(),
        reached: Vec::new(),
        next: Vec::new(),
        front: Vec::new(),
    };
    search.note(0, Step::Tick, &start);
    while !search.front.is_empty() {
        if search.reached.len() > most {
            return Found::TooMany;
        }
        for (index, world) in std::mem::take(&mut search.front) {
            if let Err((what, step)) = search.look_at(index, &world) {
                return Found::Flaw { what, trace: search.trace(index, Some(step)) };
            }
        }
    }
    match search.never_done() {
        Some(index) => Found::Flaw {
            what: "a client waits for ever although nothing fails",
            trace: search.trace(index, None),
        },
        None => Found::Nothing { states: search.reached.len() },
    }
}

impl Search<'_> {
    fn look_at(&mut self, index: u32, world: &World) -> Result<(), (&'static str, Step)> {
        let follows = world.next_without_faults(self.rules);
        let mut next = if world.has_waiters() { None } else { Some(DONE) };
        let believers = world.believers().count();
        for step in world.steps(self.rules, self.bounds) {
            let after = world.after(self.rules, self.bounds, step).map_err(|what| (what, step))?;
            let reached = self.note(index, step, &after);
            if step == follows && next.is_none() {
                next = Some(if after.believers().count() > believers { DONE } else { reached });
            }
        }
        // The following state results from one of the steps.
        self.next[index as usize] = next.unwrap_or(index);
        Ok(())
    }

    fn note(&mut self, from: u32, step: Step, world: &World) -> u32 {
        let (index, is_new) = self.known.number(world);
        if is_new {
            self.reached.push((from, step));
            self.next.push(index);
            self.front.push((index, *world));
        }
        index
    }

    /// Finds a state whose successors form a cycle.
    fn never_done(&self) -> Option<u32> {
        let mut is_done = vec![false; self.next.len()];
        let mut seen_in = vec![DONE; self.next.len()];
        for first in 0..self.next.len() {
            let mut path = Vec::new();
            let round = u32::try_from(first).unwrap_or(DONE - 1);
            let mut at = round;
            while at != DONE && !is_done[at as usize] {
                if seen_in[at as usize] == round {
                    return Some(at);
                }
                seen_in[at as usize] = round;
                path.push(at);
                at = self.next[at as usize];
            }
            for index in path {
                is_done[index as usize] = true;
            }
        }
        None
    }

    /// The steps that lead to a state, and one more, with the server and the clients after each.
    fn trace(&self, index: u32, last: Option<Step>) -> String {
        let mut steps: Vec<Step> = last.into_iter().collect();
        let mut at = index;
        while at != 0 {
            let (from, step) = self.reached[at as usize];
            steps.push(step);
            at = from;
        }
        let mut text = String::new();
        let mut world = Ok(self.start);
        for step in steps.into_iter().rev() {
            world = world.and_then(|world| world.after(self.rules, self.bounds, step));
            // Writing to a string does not fail.
            let _ = match &world {
                Ok(world) => writeln!(text, "{step:?}\n      {:?}\n      {:?}", world.server, world.clients),
                Err(what) => writeln!(text, "{step:?}: {what}"),
            };
        }
        text
    }
}
