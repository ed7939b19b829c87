//! One run of one server, from its start to its end: a connection's number means something only within a run.
//!
//! The [tag](crate::session_tag) of a session is in one run alone, too. But the client does not know the tags of others' sessions, which
//! a status names and a break ends.
//!
//! No server has an id of its run that every user may read. But `UUID_SHORT()` counts up from the second of the start, in units of
//! 2⁻²⁴ s. So during a run its answers are never much above that second, and after a restart they are above every moment of the
//! earlier runs. Two connections therefore belong to one run if the later one reports a start *before* the earlier one was opened.
//!
//! For this, the client must not rely on anything in the very second of a start. The same is true of the tokens, which come from
//! the same numbers and would repeat after another start in that second. A client that opens a connection in that second waits
//! for its end, see [`Run::time_to_wait`].

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The run of the server that a connection belongs to.
#[derive(Debug, Clone)]
pub(crate) struct Run(Arc<OfServer>);

#[derive(Debug, PartialEq, Eq)]
struct OfServer {
    /// Address and id of the server.
    server: Box<str>,
    /// The second of the start, plus one for each 2²⁴ numbers minted since.
    start: u64,
    /// When the client asked for this, by the server's clock.
    asked: Duration,
}

impl Run {
    /// Computes the run from the server's address, the answer of `UUID_SHORT()`, and its time since the epoch by the server's
    /// clock.
    pub(crate) fn new(server: &str, number: u64, asked: Duration) -> Self {
        let (id, start) = (number >> 56, (number >> 24) & 0xffff_ffff);
        Self(Arc::new(OfServer { server: format!("{server}:{id}").into(), start, asked }))
    }

    /// Reads what [`Display`](fmt::Display) has written, for a connection that existed at `moment`.
    pub(crate) fn read(text: &str, moment: Duration) -> Option<Self> {
        let (server, start) = text.rsplit_once(':')?;
        Some(Self(Arc::new(OfServer { server: server.into(), start: start.parse().ok()?, asked: moment })))
    }

    /// Whether the server has run without interruption between both.
    pub(crate) fn is_same_as(&self, other: &Self) -> bool {
        let (earlier, later) = if self.0.asked <= other.0.asked { (self, other) } else { (other, self) };
        let (earlier, later) = (&*earlier.0, &*later.0);
        // If the clock went back, a later run may seem to begin earlier. It does not count as the earlier one.
        earlier.server == later.server
            && earlier.start <= later.start
            && is_before(later.start, earlier.asked)
            || earlier.server == later.server && earlier.start == later.start
    }

    /// How long to wait until the second of the start is over, the only one that another start may share. None if the clock has
    /// gone back behind the start: waiting would take too long.
    pub(crate) fn time_to_wait(&self) -> Option<Duration> {
        let over = Duration::from_secs(self.0.start.saturating_add(1));
        Some(over.saturating_sub(self.0.asked)).filter(|left| *left <= Duration::from_secs(1))
    }
}

fn is_before(start: u64, moment: Duration) -> bool {
    start < moment.as_secs()
}

impl fmt::Display for Run {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}", self.0.server, self.0.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(start: u64, asked: u64) -> Run {
        Run::new("h:3306", (7 << 56) | (start << 24) | 5, Duration::from_secs(asked))
    }

    fn are_one(one: &Run, other: &Run) -> bool {
        assert_eq!(one.is_same_as(other), other.is_same_as(one));
        one.is_same_as(other)
    }

    #[test]
    fn connections_of_one_run_know_each_other() {
        assert!(are_one(&run(100, 101), &run(100, 101)));
        assert!(are_one(&run(100, 101), &run(100, 5000)));
    }

    #[test]
    fn many_numbers_do_not_make_another_run() {
        assert!(are_one(&run(100, 5000), &run(103, 90_000)));
    }

    #[test]
    fn a_start_makes_another_run() {
        assert!(!are_one(&run(100, 101), &run(101, 102)));
        assert!(!are_one(&run(100, 101), &run(150, 151)));
        assert!(!are_one(&run(103, 90_000), &run(90_000, 90_001)));
        // A clock that went back.
        assert!(!are_one(&run(100, 200), &run(50, 250)));
    }

    #[test]
    fn another_server_is_another_run() {
        let other = Run::new("h:3307", (7 << 56) | (100 << 24), Duration::from_secs(101));
        assert!(!are_one(&run(100, 101), &other));
        let other = Run::new("h:3306", (8 << 56) | (100 << 24), Duration::from_secs(101));
        assert!(!are_one(&run(100, 101), &other));
    }

    #[test]
    fn what_is_written_down_is_read_again() {
        let text = run(100, 101).to_string();
        assert_eq!(text, "h:3306:7:100");
        assert!(are_one(&Run::read(&text, Duration::from_secs(2000)).unwrap(), &run(101, 3000)));
        assert!(Run::read("h", Duration::ZERO).is_none());
        assert!(Run::read("h:x", Duration::ZERO).is_none());
    }

    #[test]
    fn the_second_of_a_start_is_waited_for() {
        let number = 100 << 24;
        let left = |asked: f64| Run::new("h", number, Duration::from_secs_f64(asked)).time_to_wait();
        assert_eq!(left(100.25), Some(Duration::from_millis(750)));
        assert_eq!(left(101.0), Some(Duration::ZERO));
        assert_eq!(left(5000.0), Some(Duration::ZERO));
        assert_eq!(left(40.0), None);
    }
}
