//! Models of the protocols. They go through all states of a few clients, with servers that lag behind, and notice each rule that is
//! removed.

mod read_write;
mod semaphore;

use std::collections::HashSet;
use std::hash::Hash;

/// What is wrong in a state.
type Wrong = &'static str;

/// One state of the servers and all clients.
trait World: Clone + Eq + Hash {
    /// All states that may follow.
    fn next(&self) -> Vec<Self>;

    /// Forgets what no client can see any more.
    fn forget(&mut self);

    /// What is wrong in this state, if anything is.
    fn check(&self) -> Result<(), Wrong>;

    /// Whether every client has what it wanted.
    fn is_done(&self) -> bool;
}

/// Goes through all states, and returns how many there are, or what is wrong in one of them.
fn search<W: World>(first: W) -> Result<usize, Wrong> {
    let mut seen = HashSet::from([first.clone()]);
    let mut open = vec![first];
    while let Some(world) = open.pop() {
        world.check()?;
        let next = world.next();
        if next.is_empty() && !world.is_done() {
            return Err("nobody can go on");
        }
        for mut world in next {
            world.forget();
            if seen.insert(world.clone()) {
                open.push(world);
            }
        }
    }
    Ok(seen.len())
}
