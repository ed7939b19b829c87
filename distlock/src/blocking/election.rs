//! An election whose methods block.

use std::time::Duration;

use super::wait;
use crate::status::Participant;
use crate::{FencingToken, Hold, LockError, LockName, Operation};

/// An election, in which of all candidates at most one leads; see [`distlock::Election`](crate::Election).
///
/// ```
/// # #[cfg(feature = "memory")] {
/// let election = distlock::blocking::connect("memory:")?.election("scheduler")?;
/// let leadership = election.campaign("10.0.0.7:8080")?; // blocks until it leads
/// let leader = election.observe()?.leader(); // also without being a candidate
/// assert_eq!(leader.and_then(|leader| leader.value).as_deref(), Some("10.0.0.7:8080"));
/// leadership.resign()?;
/// # }
/// # Ok::<(), distlock::LockError>(())
/// ```
#[derive(Debug, Clone)]
#[must_use = "an election does nothing until a client campaigns or observes"]
pub struct Election(crate::Election);

impl From<crate::Election> for Election {
    fn from(election: crate::Election) -> Self {
        Self(election)
    }
}

impl Election {
    /// Sets how often [`Election::observe`] asks the server; one second by default.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// use std::time::Duration;
    ///
    /// let election = distlock::blocking::connect("memory:")?.election("scheduler")?;
    /// let watch = election.with_interval(Duration::from_secs(5)).observe()?;
    /// assert!(watch.leader().is_none());
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    pub fn with_interval(self, interval: Duration) -> Self {
        Self(self.0.with_interval(interval))
    }

    /// Returns the name of the election.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// let election = distlock::blocking::connect("memory:")?.election("scheduler")?;
    /// assert_eq!(election.name().as_str(), "scheduler");
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    pub fn name(&self) -> &LockName {
        self.0.name()
    }

    /// Blocks until this candidate leads. From then on the server shows `value` as the leader's.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// let election = distlock::blocking::connect("memory:")?.election("scheduler")?;
    /// let leadership = election.campaign("10.0.0.7:8080")?;
    /// assert!(leadership.is_leading());
    /// leadership.resign()?;
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`distlock::Election::campaign`](crate::Election::campaign);
    /// [`ErrorKind::WouldBlock`](crate::ErrorKind::WouldBlock).
    pub fn campaign(&self, value: impl Into<String>) -> Result<Leadership, LockError> {
        wait::for_result(Operation::Acquire, self.0.campaign(value)).map(Leadership)
    }

    /// Like [`Election::campaign`], but waits at most `duration`. Zero tries once.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// use distlock::ErrorKind;
    /// use std::time::Duration;
    ///
    /// let election = distlock::blocking::connect("memory:")?.election("scheduler")?;
    /// let _leadership = election.campaign_for("10.0.0.7:8080", Duration::from_secs(2))?;
    /// let error = election.campaign_for("10.0.0.8:8080", Duration::ZERO).unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::Busy);
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`Election::campaign`]; [`ErrorKind::Busy`](crate::ErrorKind::Busy) when another candidate leads, or comes before
    /// this one, all that time.
    pub fn campaign_for(
        &self,
        value: impl Into<String>,
        duration: Duration,
    ) -> Result<Leadership, LockError> {
        wait::for_result(Operation::Acquire, self.0.campaign_for(value, duration)).map(Leadership)
    }

    /// Returns a view of the leader, without being a candidate. It knows the leader when this returns.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// let election = distlock::blocking::connect("memory:")?.election("scheduler")?;
    /// let _leadership = election.campaign("10.0.0.7:8080")?;
    /// assert!(election.observe()?.leader().is_some()); // a new view knows the leader at once
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`distlock::Election::observe`](crate::Election::observe);
    /// [`ErrorKind::WouldBlock`](crate::ErrorKind::WouldBlock).
    pub fn observe(&self) -> Result<LeaderWatch, LockError> {
        wait::for_result(Operation::Inspect, self.0.observe()).map(LeaderWatch)
    }
}

/// The leadership of a candidate, until it resigns or loses it. **The loss does not stop the thread**: check
/// [`Leadership::is_leading`] between two steps. Dropping it resigns in the background.
#[must_use = "dropping the leadership resigns"]
#[derive(Debug)]
pub struct Leadership(crate::election::Leadership);

impl Leadership {
    /// Returns the term, if the backend has fencing tokens: a number that rises from leader to leader.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// let election = distlock::blocking::connect("memory:")?.election("scheduler")?;
    /// let leadership = election.campaign("10.0.0.7:8080")?;
    /// assert!(leadership.term().is_some()); // send it with each write
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    pub fn term(&self) -> Option<FencingToken> {
        self.0.term()
    }

    /// Returns the hold of the election's lock.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// let election = distlock::blocking::connect("memory:")?.election("scheduler")?;
    /// let leadership = election.campaign("10.0.0.7:8080")?;
    /// assert_eq!(leadership.hold().name().as_str(), "scheduler");
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    pub fn hold(&self) -> &Hold {
        self.0.hold()
    }

    /// Returns whether it leads now, by the clock. [`Hold::is_valid`] says what that is worth.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// let election = distlock::blocking::connect("memory:")?.election("scheduler")?;
    /// let leadership = election.campaign("10.0.0.7:8080")?;
    /// if leadership.is_leading() {
    ///     // … one step of the work …
    /// }
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    pub fn is_leading(&self) -> bool {
        self.0.is_leading()
    }

    /// Replaces the value that the server shows of this leader, and blocks until it does.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// let election = distlock::blocking::connect("memory:")?.election("scheduler")?;
    /// let leadership = election.campaign("starting")?;
    /// leadership.proclaim("10.0.0.7:8080")?; // now it serves
    /// let leader = election.observe()?.leader();
    /// assert_eq!(leader.and_then(|leader| leader.value).as_deref(), Some("10.0.0.7:8080"));
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`Leading::proclaim`](crate::election::Leading::proclaim);
    /// [`ErrorKind::WouldBlock`](crate::ErrorKind::WouldBlock).
    pub fn proclaim(&self, value: impl Into<String>) -> Result<(), LockError> {
        wait::for_result(Operation::Describe, self.0.proclaim(value))
    }

    /// Resigns: the next candidate leads. Resign only when the work of the leader has ended.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// let election = distlock::blocking::connect("memory:")?.election("scheduler")?;
    /// election.campaign("10.0.0.7:8080")?.resign()?;
    /// assert!(election.observe()?.leader().is_none());
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`election::Leadership::resign`](crate::election::Leadership::resign);
    /// [`ErrorKind::WouldBlock`](crate::ErrorKind::WouldBlock), and it resigns in the background then.
    pub fn resign(self) -> Result<(), LockError> {
        wait::for_result(Operation::Release, self.0.resign())
    }
}

/// A view of the leader that follows the election until it is dropped; see
/// [`election::LeaderWatch`](crate::election::LeaderWatch).
#[derive(Debug, Clone)]
#[must_use = "dropping the watch ends it"]
pub struct LeaderWatch(crate::election::LeaderWatch);

impl LeaderWatch {
    /// Returns the leader; `None` while there is none. It does not block.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// let election = distlock::blocking::connect("memory:")?.election("scheduler")?;
    /// let _leadership = election.campaign("10.0.0.7:8080")?;
    /// assert!(election.observe()?.leader().is_some());
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    pub fn leader(&self) -> Option<Participant> {
        self.0.leader()
    }

    /// Blocks until the leader, its term or its value is another than at the last call, and returns the leader.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// let election = distlock::blocking::connect("memory:")?.election("scheduler")?;
    /// let mut watch = election.observe()?;
    /// assert!(watch.leader().is_none());
    /// let _leadership = election.campaign("10.0.0.7:8080")?;
    /// assert!(watch.changed()?.is_some());
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Closed`](crate::ErrorKind::Closed) after [`LockClient::close`](super::LockClient::close);
    /// [`ErrorKind::WouldBlock`](crate::ErrorKind::WouldBlock).
    pub fn changed(&mut self) -> Result<Option<Participant>, LockError> {
        wait::for_result(Operation::Inspect, self.0.changed())
    }
}
