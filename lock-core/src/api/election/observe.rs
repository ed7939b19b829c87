//! Shows all clients who leads.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::Election;
use crate::runtime::log::log;
use crate::runtime::{AbortOnDrop, race, within};
use crate::types::{ErrorKind, LockError, LockKind, Mode, Operation, Participant};

/// A view of the leader that follows the election until it is dropped. Clones share one view.
///
/// It asks the server once per [interval](Election::with_interval), so it may be that late; changes through the same
/// client are seen at once. **It may show a leader that has just lost its leadership**: only the term, checked where it
/// counts, excludes an earlier leader. While the server cannot be reached, it shows what it knew.
#[derive(Debug, Clone)]
#[must_use = "dropping the watch ends it"]
pub struct LeaderWatch {
    leader: watch::Receiver<Option<Participant>>,
    election: Election,
    _observer: Arc<AbortOnDrop<()>>,
}

impl Election {
    /// Returns a view of the leader, without being a candidate. It knows the leader when this returns.
    ///
    /// ```
    /// # lock_memory::example(async |locks| {
    /// let election = locks.election("scheduler")?;
    /// let mut watch = election.observe().await?;
    /// assert_eq!(watch.leader(), None);
    /// let _leadership = election.campaign("10.0.0.7:8080").await?;
    /// let leader = watch.changed().await?;
    /// assert_eq!(leader.and_then(|leader| leader.value).as_deref(), Some("10.0.0.7:8080"));
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`] for an interval of zero; and those of
    /// [`LockClient::status`](crate::LockClient::status).
    ///
    /// # Cancel safety
    /// The future may be dropped at any time; it changes nothing.
    pub async fn observe(&self) -> Result<LeaderWatch, LockError> {
        if self.interval.is_zero() {
            return Err(LockError::new(ErrorKind::InvalidOption, Operation::Inspect)
                .on(self.name())
                .because("the interval of an observer is zero"));
        }
        let mut changes = self.lock.of_client.changes();
        let (sender, leader) = watch::channel(self.leader().await?);
        let election = self.clone();
        let observing = async move {
            loop {
                // Until something changes through this client, or it is time to ask.
                let clock = election.lock.of_client.clock();
                let time = within(clock, clock.now().plus(election.interval), changes.changed());
                if race(election.lock.client.closing(), time).await.is_ok() {
                    return;
                }
                match election.leader().await {
                    Ok(leader) => {
                        sender.send_if_modified(|known| {
                            let is_new = *known != leader;
                            *known = leader;
                            is_new
                        });
                    }
                    Err(error) => {
                        log!(debug, lock = %election.name(), %error, "not observed");
                    }
                }
            }
        };
        let observer = Arc::new(AbortOnDrop(self.lock.client.engine().spawn(observing)));
        Ok(LeaderWatch { leader, election: self.clone(), _observer: observer })
    }

    async fn leader(&self) -> Result<Option<Participant>, LockError> {
        let status = self.lock.client.status_of(self.name().clone(), LockKind::Lock).await?;
        // A reader of the lock of the same name leads nothing.
        Ok(status.holders.into_iter().find(|holder| holder.mode == Mode::Exclusive))
    }
}

impl LeaderWatch {
    /// Returns the leader; `None` while there is none. Its token is the term, if the backend has fencing tokens and shows them. A
    /// holder of the lock that is no candidate has no value.
    ///
    /// ```
    /// # lock_memory::example(async |locks| {
    /// let election = locks.election("scheduler")?;
    /// let leadership = election.campaign("10.0.0.7:8080").await?;
    /// let leader = election.observe().await?.leader().expect("there is one");
    /// assert_eq!((leader.value.as_deref(), leader.token), (Some("10.0.0.7:8080"), leadership.term()));
    /// # Ok(()) });
    /// ```
    pub fn leader(&self) -> Option<Participant> {
        self.leader.borrow().clone()
    }

    /// Waits until the leader, its term or its value is another than at the last call, and returns the leader. Only the
    /// latest change counts: a leader that led between two looks is not seen.
    ///
    /// ```
    /// # lock_memory::example(async |locks| {
    /// let election = locks.election("scheduler")?;
    /// let leadership = election.campaign("a").await?;
    /// let mut watch = election.observe().await?;
    /// leadership.resign().await?;
    /// assert_eq!(watch.changed().await?, None); // in a loop: the next leader, and so on
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] after [`LockClient::close`](crate::LockClient::close).
    ///
    /// # Cancel safety
    /// The future may be dropped and the method called again at any time.
    pub async fn changed(&mut self) -> Result<Option<Participant>, LockError> {
        self.leader.changed().await.map_err(|_| {
            self.election.lock.of_client.about(LockError::new(ErrorKind::Closed, Operation::Inspect))
        })?;
        Ok(self.leader.borrow_and_update().clone())
    }

    /// Returns how often it asks the server.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # lock_memory::example(async |locks| {
    /// assert_eq!(locks.election("scheduler")?.observe().await?.interval(), Duration::from_secs(1));
    /// # Ok(()) });
    /// ```
    pub fn interval(&self) -> Duration {
        self.election.interval
    }
}
