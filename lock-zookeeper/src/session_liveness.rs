//! Computes from when on a session is certain to be alive, as far as acknowledged requests prove it.
//!
//! With `T` the session's timeout, a hold is valid until
//!
//! ```text
//! min(tᵢ + 2T/3, tᵤ + T − margin)
//! ```
//!
//! `tᵢ` is the time at which the client sent the last **committed** request that was acknowledged. `tᵤ` is the time at which it
//! sent the last acknowledged request of any kind that was answered at least one tick before `tᵢ`.
//!
//! Why `tᵢ` alone is not enough: a request through a follower does not touch the session at the leader. The follower reports it
//! with its next answer to the leader's ping, within a tick. So `tᵢ` proves that the session was alive when the leader committed,
//! but not that the leader will keep it for another `T`. A pause, one heartbeat, and then a cut between follower and leader would
//! lead to two holders. By `tᵢ` the follower has reported what the client sent a tick earlier.
//!
//! The core adds 2T/3 to an anchor and subtracts the possible error of clocks and timers. The anchor that makes both bounds hold is
//! `min(tᵢ, tᵤ + T/3 · (1 − 2ρ))`, with ρ = 1 % as in the core.

use std::collections::VecDeque;
use std::time::Duration;

use lock_core::Moment;

/// What an acknowledgement proves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Proof {
    /// The leader has committed the request in this session, with a quorum.
    Committed,
    /// Some server has answered the request.
    Answered,
}

/// Twice the drift of the clocks, as the divisor of a duration: one fiftieth.
const DRIFT_DIVISOR: u32 = 50;

/// A repeated heartbeat has to gain at least this fraction of the timeout.
const WORTH_REPEATING: u32 = 24;

/// The client does not remember moments that are closer to each other than this fraction of a tick.
const MOMENTS_IN_A_TICK: u32 = 8;

/// Enough moments to reach back over more than one tick.
const MOST_MOMENTS: usize = 3 * MOMENTS_IN_A_TICK as usize;

#[derive(Debug)]
pub(crate) struct SessionLiveness {
    timeout: Duration,
    /// The longest possible tick of the servers.
    tick: Duration,
    /// `tᵢ`.
    committed: Moment,
    /// The beginning of the session, which the leader knows.
    beginning: Acknowledged,
    /// When the last committed request was answered.
    committed_by: Moment,
    /// Acknowledged requests, oldest first.
    answered: VecDeque<Acknowledged>,
}

/// When a request was sent, and when it was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Acknowledged {
    pub(crate) sent: Moment,
    pub(crate) heard: Moment,
}

impl SessionLiveness {
    /// What is known about a session with this timeout that the client asked for at `connecting`.
    pub(crate) fn new(connecting: Acknowledged, timeout: Duration, tick: Duration) -> Self {
        Self {
            timeout,
            tick,
            committed: connecting.sent,
            committed_by: connecting.heard,
            beginning: connecting,
            answered: VecDeque::from([connecting]),
        }
    }

    /// Records that a request has been acknowledged.
    pub(crate) fn acknowledged(&mut self, request: Acknowledged, proof: Proof) {
        if proof == Proof::Committed && request.sent > self.committed {
            self.committed = request.sent;
            self.committed_by = request.heard;
        }
        let newest = self.answered.back().map_or(request.sent, |newest| newest.sent);
        if request.sent >= newest.plus(self.tick / MOMENTS_IN_A_TICK) {
            if self.answered.len() == MOST_MOMENTS {
                self.answered.pop_front();
            }
            self.answered.push_back(request);
        }
    }

    /// The moment from which the core may count the term of a hold.
    pub(crate) fn anchor(&self) -> Moment {
        let a_tick_before = self.committed.minus(self.tick);
        let reported = self.answered.iter().rev().find(|request| request.heard <= a_tick_before);
        // In the first tick of a session, `tᵤ` is the session's beginning.
        let reported = reported.unwrap_or(&self.beginning).sent;
        let third = self.timeout / 3;
        self.committed.min(reported.plus(third.saturating_sub(third / DRIFT_DIVISOR)))
    }

    /// When the client sent the last request that is known to have been answered, to within a fraction of a tick.
    pub(crate) fn last_answer(&self) -> Moment {
        self.answered.back().map_or(self.committed, |newest| newest.sent).max(self.committed)
    }

    /// When another heartbeat would prove more than the last one, which lacked an answered request a tick before it.
    pub(crate) fn worth_repeating_at(&self) -> Option<Moment> {
        let is_much = self.anchor().plus(self.timeout / WORTH_REPEATING) < self.committed;
        is_much.then(|| self.committed_by.plus(self.tick))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A session of 12 s with ticks of 3 s; moments are in tenths of a second.
    fn liveness() -> SessionLiveness {
        SessionLiveness::new(answered(0, 0), Duration::from_secs(12), Duration::from_secs(3))
    }

    fn answered(sent: u64, heard: u64) -> Acknowledged {
        Acknowledged { sent: at(sent), heard: at(heard) }
    }

    /// A request that is answered at once.
    fn quick(tenths: u64) -> Acknowledged {
        answered(tenths, tenths)
    }

    fn at(tenths: u64) -> Moment {
        Moment::from_nanoseconds(tenths * 100_000_000)
    }

    /// `tᵤ + T/3`, without the drift.
    fn third_after(moment: Moment) -> Moment {
        moment.plus(Duration::from_millis(3_920))
    }

    #[test]
    fn in_steady_state_the_last_heartbeat_counts() {
        let mut liveness = liveness();
        for beat in (20..=200).step_by(20) {
            liveness.acknowledged(quick(beat), Proof::Committed);
            if beat >= 40 {
                // The heartbeat before the previous one is a tick older.
                assert_eq!(liveness.anchor(), third_after(at(beat - 40)).min(at(beat)), "{beat}");
            }
        }
    }

    #[test]
    fn a_new_session_counts_from_its_beginning() {
        let mut liveness = liveness();
        assert_eq!(liveness.anchor(), at(0));
        liveness.acknowledged(quick(1), Proof::Committed);
        assert_eq!(liveness.anchor(), at(1));
    }

    #[test]
    fn after_a_pause_one_heartbeat_proves_little_and_a_second_a_tick_later_the_rest() {
        let mut liveness = liveness();
        liveness.acknowledged(quick(20), Proof::Committed);
        liveness.acknowledged(quick(90), Proof::Committed);
        assert_eq!(liveness.anchor(), third_after(at(20)));
        assert_eq!(liveness.worth_repeating_at(), Some(at(120)));
        // Too early to prove more.
        liveness.acknowledged(quick(100), Proof::Committed);
        assert_eq!(liveness.anchor(), third_after(at(20)));
        liveness.acknowledged(quick(120), Proof::Committed);
        assert_eq!(liveness.anchor(), at(120));
        assert_eq!(liveness.worth_repeating_at(), None);
    }

    #[test]
    fn an_answer_is_no_commit_but_shows_that_the_session_was_reported() {
        let mut liveness = liveness();
        for answer in (20..=600).step_by(20) {
            liveness.acknowledged(quick(answer), Proof::Answered);
        }
        assert_eq!(liveness.anchor(), at(0));
        assert_eq!(liveness.last_answer(), at(600));
        liveness.acknowledged(quick(620), Proof::Committed);
        assert_eq!(liveness.anchor(), third_after(at(580)).min(at(620)));
    }

    #[test]
    fn a_request_that_was_under_way_for_long_was_reported_only_a_tick_after_its_answer() {
        let mut liveness = liveness();
        liveness.acknowledged(answered(40, 90), Proof::Answered);
        liveness.acknowledged(quick(100), Proof::Committed);
        assert_eq!(liveness.anchor(), third_after(at(0)));
        liveness.acknowledged(answered(110, 118), Proof::Committed);
        assert_eq!(liveness.worth_repeating_at(), Some(at(148)));
        liveness.acknowledged(quick(120), Proof::Committed);
        assert_eq!(liveness.anchor(), third_after(at(40)));
    }

    #[test]
    fn a_late_acknowledgement_of_an_old_request_takes_nothing_away() {
        let mut liveness = liveness();
        liveness.acknowledged(quick(60), Proof::Committed);
        liveness.acknowledged(quick(100), Proof::Committed);
        let anchor = liveness.anchor();
        liveness.acknowledged(quick(80), Proof::Committed);
        assert_eq!(liveness.anchor(), anchor);
    }

    #[test]
    fn many_requests_do_not_push_out_the_one_that_is_a_tick_old() {
        let mut liveness = liveness();
        for thousandth in 0..100_000 {
            let moment = Moment::from_nanoseconds(thousandth * 1_000_000);
            liveness.acknowledged(Acknowledged { sent: moment, heard: moment }, Proof::Committed);
        }
        assert!(liveness.answered.len() <= MOST_MOMENTS);
        assert_eq!(liveness.anchor(), Moment::from_nanoseconds(99_999 * 1_000_000));
    }
}
