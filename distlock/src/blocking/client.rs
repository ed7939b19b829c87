//! A client whose methods block.

use std::sync::Arc;
use std::time::Duration;

use super::election::Election;
use super::lock::DistributedLock;
use super::once::Once;
use super::sharing::{RwLock, Semaphore};
use super::wait;
use crate::capabilities::Capabilities;
use crate::events::Subscription;
use crate::status::{Broken, HolderId, LockList, LockStatus};
use crate::{LockError, LockListener, LockOptions, Operation};

/// A client of one backend whose methods block, see [`connect`](super::connect). It is cheap to clone; all clones are the
/// same client.
///
/// [`LockClient::from`] makes one of an asynchronous client, and [`LockClient::as_async`] returns that: both are the same
/// client, so that code in `spawn_blocking` shares the connections and locks of the rest of a service. A client with
/// `engine=caller` needs its runtime to run meanwhile.
#[derive(Debug, Clone)]
pub struct LockClient(crate::LockClient);

impl From<crate::LockClient> for LockClient {
    fn from(client: crate::LockClient) -> Self {
        Self(client)
    }
}

impl LockClient {
    /// Returns the same client with asynchronous methods.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// let locks = distlock::blocking::connect("memory:")?;
    /// assert_eq!(locks.as_async().capabilities().backend, "memory");
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    pub fn as_async(&self) -> &crate::LockClient {
        &self.0
    }

    /// Returns the lock called `name`, as [`distlock::LockClient::mutex`](crate::LockClient::mutex) does. It does not
    /// block, and nothing is acquired yet.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// let locks = distlock::blocking::connect("memory:")?;
    /// let guard = locks.mutex("orders/42")?.acquire()?;
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`](crate::ErrorKind::InvalidName); [`ErrorKind::Closed`](crate::ErrorKind::Closed) after
    /// [`LockClient::close`].
    pub fn mutex(&self, name: impl AsRef<str>) -> Result<DistributedLock, LockError> {
        self.0.mutex(name).map(DistributedLock::from)
    }

    /// Like [`mutex`](Self::mutex), with options for the holds that are acquired through this lock.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// use distlock::LockOptions;
    /// use std::time::Duration;
    ///
    /// let locks = distlock::blocking::connect("memory:")?;
    /// let nightly = locks.mutex_with("nightly", LockOptions::new().max_hold(Duration::from_secs(1800)))?;
    /// let guard = nightly.acquire()?;
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`distlock::LockClient::mutex_with`](crate::LockClient::mutex_with).
    pub fn mutex_with(
        &self,
        name: impl AsRef<str>,
        options: LockOptions,
    ) -> Result<DistributedLock, LockError> {
        self.0.mutex_with(name, options).map(DistributedLock::from)
    }

    /// Returns a client that puts `prefix` before every name, as
    /// [`distlock::LockClient::scoped`](crate::LockClient::scoped) does.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// let billing = distlock::blocking::connect("memory:")?.scoped("billing/");
    /// assert_eq!(billing.mutex("orders/42")?.name().as_str(), "billing/orders/42");
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    #[must_use = "the client itself keeps its names"]
    pub fn scoped(&self, prefix: impl AsRef<str>) -> Self {
        Self(self.0.scoped(prefix))
    }

    /// Returns work that runs at most once for `slot` among all clients. It does not block, and nothing runs yet.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// use distlock::LockError;
    ///
    /// let nightly = distlock::blocking::connect("memory:")?.once("reports", "2026-11-22")?;
    /// assert_eq!(nightly.run(|_| Ok::<_, LockError>("sent"))?, Some("sent"));
    /// assert_eq!(nightly.run(|_| Ok::<_, LockError>("sent twice"))?, None);
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`distlock::LockClient::once`](crate::LockClient::once).
    pub fn once(&self, name: impl AsRef<str>, slot: impl Into<String>) -> Result<Once, LockError> {
        self.0.once(name, slot).map(Once::from)
    }

    /// Returns for how much longer the server remembers a slot of the work called `name`; `None` if the slot is free. The empty slot is
    /// the pause that [`at_least`](LockOptions::at_least) keeps.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// use distlock::LockError;
    ///
    /// let locks = distlock::blocking::connect("memory:")?;
    /// locks.once("reports", "2026-11-22")?.run(|_| Ok::<_, LockError>(()))?;
    /// assert!(locks.remembered("reports", "2026-11-22")?.is_some());
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`distlock::LockClient::remembered`](crate::LockClient::remembered);
    /// [`ErrorKind::WouldBlock`](crate::ErrorKind::WouldBlock).
    pub fn remembered(
        &self,
        name: impl AsRef<str>,
        slot: impl Into<String>,
    ) -> Result<Option<Duration>, LockError> {
        wait::for_result(Operation::Remember, self.0.remembered(name, slot))
    }

    /// Makes the server forget a slot, so that its work may run again, or the pause of the empty slot. Returns whether it was
    /// remembered.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// use distlock::LockError;
    ///
    /// let locks = distlock::blocking::connect("memory:")?;
    /// let nightly = locks.once("reports", "2026-11-22")?;
    /// nightly.run(|_| Ok::<_, LockError>(()))?;
    /// assert!(locks.forget("reports", "2026-11-22")?);
    /// assert!(nightly.run(|_| Ok::<_, LockError>(()))?.is_some());
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`Self::remembered`].
    pub fn forget(&self, name: impl AsRef<str>, slot: impl Into<String>) -> Result<bool, LockError> {
        wait::for_result(Operation::Remember, self.0.forget(name, slot))
    }

    /// Asks the server for a sign of life, in one small round trip. For readiness probes.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// let locks = distlock::blocking::connect("memory:")?;
    /// locks.ping()?;
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`distlock::LockClient::ping`](crate::LockClient::ping);
    /// [`ErrorKind::WouldBlock`](crate::ErrorKind::WouldBlock).
    pub fn ping(&self) -> Result<(), LockError> {
        wait::for_result(Operation::Ping, self.0.ping())
    }

    /// Returns the locks called `names` as one, as [`distlock::LockClient::mutex_all`](crate::LockClient::mutex_all) does.
    /// It does not block, and nothing is acquired yet.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// let both = distlock::blocking::connect("memory:")?.mutex_all(["account/7", "account/9"])?;
    /// let guard = both.acquire()?;
    /// assert!(guard.hold().token_of("account/7").is_some());
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`distlock::LockClient::mutex_all`](crate::LockClient::mutex_all).
    pub fn mutex_all<N: AsRef<str>>(
        &self,
        names: impl IntoIterator<Item = N>,
    ) -> Result<DistributedLock, LockError> {
        self.0.mutex_all(names).map(DistributedLock::from)
    }

    /// Returns the read-write lock called `name`, the write side of which is the mutex of that name. It does not block, and
    /// nothing is acquired yet.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// let locks = distlock::blocking::connect("memory:")?;
    /// let catalog = locks.rw_lock("catalog")?;
    /// let reading = catalog.read().acquire()?;
    /// assert!(locks.mutex("catalog")?.try_acquire()?.is_none()); // the write side
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`distlock::LockClient::rw_lock`](crate::LockClient::rw_lock).
    pub fn rw_lock(&self, name: impl AsRef<str>) -> Result<RwLock, LockError> {
        self.0.rw_lock(name).map(RwLock::from)
    }

    /// Returns the semaphore called `name`, with `size` permits. It does not block, and nothing is acquired yet.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// let locks = distlock::blocking::connect("memory:")?;
    /// let guard = locks.semaphore("render", 3)?.acquire(1)?;
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`distlock::LockClient::semaphore`](crate::LockClient::semaphore).
    pub fn semaphore(&self, name: impl AsRef<str>, size: u32) -> Result<Semaphore, LockError> {
        self.0.semaphore(name, size).map(Semaphore::from)
    }

    /// Adds a listener for the events of all locks of this client, as
    /// [`distlock::LockClient::add_listener`](crate::LockClient::add_listener) does. It does not block.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// use distlock::{Hold, LossReason};
    /// use std::sync::Arc;
    ///
    /// let locks = distlock::blocking::connect("memory:")?;
    /// let listener = |hold: &Hold, reason: &LossReason| eprintln!("{} is lost: {reason}", hold.name());
    /// locks.add_listener(Arc::new(listener)).detach(); // for ever
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    pub fn add_listener(&self, listener: Arc<dyn LockListener>) -> Subscription {
        self.0.add_listener(listener)
    }

    /// Returns the election called `name`. It does not block, and nothing is acquired yet.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// let locks = distlock::blocking::connect("memory:")?;
    /// let leadership = locks.election("scheduler")?.campaign("10.0.0.7:8080")?;
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`distlock::LockClient::election`](crate::LockClient::election).
    pub fn election(&self, name: impl AsRef<str>) -> Result<Election, LockError> {
        self.0.election(name).map(Election::from)
    }

    /// Returns who holds the lock and who waits for it, as far as the backend can tell.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// let locks = distlock::blocking::connect("memory:")?;
    /// let _guard = locks.mutex("orders/42")?.acquire()?;
    /// assert!(locks.status("orders/42")?.is_held());
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`distlock::LockClient::status`](crate::LockClient::status);
    /// [`ErrorKind::WouldBlock`](crate::ErrorKind::WouldBlock).
    pub fn status(&self, name: impl AsRef<str>) -> Result<LockStatus, LockError> {
        wait::for_result(Operation::Inspect, self.0.status(name))
    }

    /// Returns the locks and semaphores that are held or waited for now.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// let locks = distlock::blocking::connect("memory:")?;
    /// let _guard = locks.mutex("orders/42")?.acquire()?;
    /// assert_eq!(locks.list()?.locks[0].name.as_str(), "orders/42");
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`distlock::LockClient::list`](crate::LockClient::list);
    /// [`ErrorKind::WouldBlock`](crate::ErrorKind::WouldBlock).
    pub fn list(&self) -> Result<LockList, LockError> {
        wait::for_result(Operation::Inspect, self.0.list())
    }

    /// Takes the lock away from `holder`, which reports it as lost. Does nothing if `holder` does not hold the lock any
    /// more.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// let locks = distlock::blocking::connect("memory:")?;
    /// let guard = locks.mutex("orders/42")?.acquire()?;
    /// for holder in locks.status("orders/42")?.holders {
    ///     locks.break_holder("orders/42", &holder.id)?;
    /// }
    /// assert!(guard.release().is_err()); // lost
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`distlock::LockClient::break_holder`](crate::LockClient::break_holder);
    /// [`ErrorKind::WouldBlock`](crate::ErrorKind::WouldBlock).
    pub fn break_holder(&self, name: impl AsRef<str>, holder: &HolderId) -> Result<Broken, LockError> {
        wait::for_result(Operation::Break, self.0.break_holder(name, holder))
    }

    /// Returns what the backend can do.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// let locks = distlock::blocking::connect("memory:")?;
    /// assert_eq!(locks.capabilities().backend, "memory");
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    pub fn capabilities(&self) -> &Capabilities {
        self.0.capabilities()
    }

    /// Blocks until the server has confirmed every release and every cancelled wait.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// let locks = distlock::blocking::connect("memory:")?;
    /// drop(locks.mutex("orders/42")?.acquire()?); // released in the background
    /// locks.idle()?;
    /// assert!(!locks.status("orders/42")?.is_held());
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::WouldBlock`](crate::ErrorKind::WouldBlock).
    pub fn idle(&self) -> Result<(), LockError> {
        let idle = async {
            self.0.idle().await;
            Ok(())
        };
        wait::for_result(Operation::Release, idle)
    }

    /// Closes the client in an orderly way, as [`distlock::LockClient::close`](crate::LockClient::close) does, and blocks
    /// until that is done.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// use std::time::Duration;
    ///
    /// let locks = distlock::blocking::connect("memory:")?;
    /// locks.close(Duration::from_secs(5))?;
    /// assert!(locks.mutex("orders/42").is_err());
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`distlock::LockClient::close`](crate::LockClient::close);
    /// [`ErrorKind::WouldBlock`](crate::ErrorKind::WouldBlock), and the client stays open then.
    pub fn close(&self, timeout: Duration) -> Result<(), LockError> {
        wait::for_result(Operation::Close, self.0.close(timeout))
    }
}
