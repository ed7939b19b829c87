//! The hand-off of a lock from task to task of a client, without the server.

use super::state::Occupancy;
use super::{Attempt, Attempted, EntryOwner, LocalMutex, Occupant, Patience, Undo};
use crate::runtime::waker::Wakers;

impl<O: EntryOwner, H: Occupant, A: Attempt> LocalMutex<O, H, A> {
    /// Returns what the next waiter asks for, if the lock may pass to it without the server: then no request to share the
    /// lock came before it.
    pub(crate) fn next_options(&self) -> Option<H::Options> {
        let state = self.state.lock();
        let head = state.head()?;
        let is_next = state.admissions.ahead_of(head).is_none() && !state.admissions.has_queued_before(head);
        is_next.then(|| state.queue.get(head).map(|waiter| waiter.options.clone())).flatten()
    }

    /// Passes the lock on: `hold` follows the one whose last entry has ended, without the server. Returns what no waiter
    /// wants, and the attempt that follows.
    pub(crate) fn hand_off(
        &self,
        hold: H,
        make: impl FnOnce(Patience, &H::Options) -> A,
    ) -> (Undo<H, A>, Option<A>) {
        let mut wakers = Wakers::default();
        let mut state = self.state.lock();
        state.occupancy = Occupancy::Free;
        let undo = match state.head_and_patience() {
            Some((head, patience)) => state.granted(hold, head, patience, &mut wakers),
            None => state.undo_unwanted(Attempted::Granted(hold)),
        };
        let start = state.start_next(make, &mut wakers);
        drop(state);
        wakers.wake();
        (undo, start)
    }
}
