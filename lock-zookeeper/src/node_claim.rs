//! What the client knows about an attempt's nodes, from before the first request until certainly nothing is left.

use std::fmt;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use lock_core::spi::Mutex;
use lock_core::{GroupId, LossReason, Term};
use lock_entries::{Claim, Failed, Outcome, Replaced, Rest, Told, Traces};
use zookeeper_client::{Error, MultiReadResult};

use crate::contender::{ProtectionId, is_worth_resetting};
use crate::failure::{Failure, unexpected};
use crate::orphan::Orphan;
use crate::session::{News, Reservation, Session, Watching};

/// The pause after a failure before the next try.
const PAUSE: Duration = Duration::from_millis(200);

/// The names of nodes of one attempt. They are created and removed together; the first one stands for all of them.
pub(crate) type Names = Arc<[String]>;

/// One attempt in one session.
pub(crate) struct NodeClaim {
    orphan: Orphan,
    /// The names of the nodes that the attempt wants, without their numbers.
    wanted: Vec<String>,
    reservation: Reservation,
    traces: Traces<Names>,
    /// The watch over the nodes, if they were watched when they became a hold.
    watching: Mutex<Option<Watching>>,
    /// The version of the first node's data that the client knows.
    version: AtomicI32,
}

impl NodeClaim {
    pub(crate) fn new(
        directory: Arc<str>,
        protection_id: ProtectionId,
        wanted: Vec<String>,
        reservation: Reservation,
    ) -> Self {
        Self {
            orphan: Orphan { directory, protection_id },
            wanted,
            reservation,
            traces: Traces::default(),
            watching: Mutex::new(None),
            version: AtomicI32::new(0),
        }
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        self.reservation.session()
    }

    /// The nodes have become a hold: they no longer wait for another one.
    pub(crate) fn become_hold(&self, watching: Option<Watching>) {
        self.reservation.keep_at_most(self.wanted.len());
        *self.watching.lock() = watching;
    }

    pub(crate) fn wanted(&self) -> &[String] {
        &self.wanted
    }

    pub(crate) fn directory(&self) -> &Arc<str> {
        &self.orphan.directory
    }

    pub(crate) fn protection_id(&self) -> &ProtectionId {
        &self.orphan.protection_id
    }

    /// The path of a node in the lock's directory.
    pub(crate) fn path_of(&self, name: &str) -> String {
        [self.directory(), "/", name].concat()
    }

    pub(crate) fn paths_of(&self, names: &[String]) -> Vec<String> {
        names.iter().map(|name| self.path_of(name)).collect()
    }

    /// The paths of the nodes; none if they are not there, or are being removed.
    pub(crate) fn paths(&self) -> Option<Vec<String>> {
        Some(self.paths_of(&self.names()?))
    }

    pub(crate) fn names(&self) -> Option<Names> {
        self.traces.entry()
    }

    /// The path of the first node.
    pub(crate) fn first_path(&self) -> Option<String> {
        Some(self.path_of(self.names()?.first()?))
    }

    /// Removes the nodes, once, to create others with the same claim later.
    pub(crate) async fn take_back(&self) -> Result<(), Failure> {
        let Some(paths) = self.paths() else { return Ok(()) };
        self.session().delete_all(&paths, None).await?;
        self.traces.created_nothing();
        Ok(())
    }

    /// What is there, after a change of the first node's data that needs this version of it was refused.
    async fn found_instead(&self, failure: Failure) -> Result<Replaced, Failure> {
        let Some(path) = self.first_path().filter(|_| !failure.is(&Error::NoNode)) else {
            return Ok(Replaced::Gone);
        };
        if !failure.is(&Error::BadVersion) {
            return Err(failure);
        }
        match self.session().read(&[path]).await?.pop() {
            Some(MultiReadResult::Data { data, stat }) => {
                // The mark of a break must not be overwritten.
                if !Told::read(&data).is_broken() {
                    self.version.store(stat.version, Ordering::Relaxed);
                }
                Ok(Replaced::Found(data))
            }
            Some(MultiReadResult::Error { err: Error::NoNode }) => Ok(Replaced::Gone),
            Some(MultiReadResult::Error { err }) => Err(Failure::Told(err)),
            _ => Err(unexpected()),
        }
    }
}

impl Claim for NodeClaim {
    type Failure = Failure;
    type Made = Names;

    fn traces(&self) -> &Traces<Names> {
        &self.traces
    }

    fn is_over(&self) -> bool {
        self.session().is_over()
    }

    fn group(&self) -> GroupId {
        self.session().group
    }

    fn term(&self) -> Term {
        Term::Leased { anchor: self.session().anchor(), length: self.session().term() }
    }

    /// The name of a node contains random bits: a request that arrives late removes no other client's node.
    async fn remove(&self) -> Result<bool, Failure> {
        let Some(names) = self.names() else { return Ok(false) };
        let paths = self.paths_of(&names);
        self.session().reach().await;
        let was_there = self.session().delete_all(&paths, None).await?;
        self.gone();
        if self.traces.is_doubtful() {
            self.session().leave(self.orphan.clone());
        }
        if names.first().is_some_and(|name| is_worth_resetting(name)) {
            // A new directory makes the numbers start again. While clients wait, the servers refuse the deletion, which does no
            // harm.
            let _ = self.session().delete(self.directory(), None).await;
        }
        Ok(was_there)
    }

    async fn sweep(&self) -> Result<(), Failure> {
        self.orphan.sweep(self.session()).await
    }

    /// From here on the claim takes no space in its session, even if it is kept.
    fn gone(&self) {
        self.traces.gone();
        self.reservation.give_back();
    }

    /// Leaves the nodes to the session, which removes them as soon as the servers let it, or ends.
    fn leave(&self) {
        self.gone();
        self.session().leave(self.orphan.clone());
    }

    async fn replace(&self, value: &[u8]) -> Result<Replaced, Failure> {
        let Some(path) = self.first_path() else { return Ok(Replaced::Gone) };
        let (session, version) = (self.session(), self.version.load(Ordering::Relaxed));
        let write = || async {
            let written = session.change(|writer| writer.add_set_data(&path, value, Some(version))).await;
            written.map_err(|(_, failure)| failure)
        };
        match session.patiently(write).await {
            Ok(_) => {
                self.version.store(version + 1, Ordering::Relaxed);
                Ok(Replaced::Done)
            }
            Err(failure) => self.found_instead(failure).await,
        }
    }

    /// It keeps the claim only while it looks, because the claim leaves to the session what it has when it is dropped.
    async fn until_lost(claim: Weak<Self>) -> Option<LossReason> {
        let mut watching = claim.upgrade()?.watching.lock().take();
        loop {
            match watching.take() {
                None => {}
                Some(watching) => match watching.await {
                    News::Deleted => return Some(LossReason::Deleted),
                    News::SessionOver => return None,
                    News::Changed => {}
                },
            }
            let (looked, clock) = {
                let claim = claim.upgrade()?;
                // A hold without nodes is released.
                let paths = claim.paths()?;
                (claim.session().watch_all(&paths).await, claim.session().clock().clone())
            };
            match looked {
                Ok(Some(node)) if Told::read(&node.data).is_broken() => return Some(LossReason::Broken),
                Ok(Some(node)) => watching = Some(node.watching),
                Ok(None) => return Some(LossReason::Deleted),
                Err(failure) if failure.outcome() == Outcome::EndsWithSession => return None,
                Err(_) => clock.sleep_until(clock.now().plus(PAUSE)).await,
            }
        }
    }
}

impl Drop for NodeClaim {
    /// Leaves the rest to the session.
    fn drop(&mut self) {
        if self.traces.rest() != Rest::Nothing && !self.is_over() {
            self.leave();
        }
    }
}

impl fmt::Debug for NodeClaim {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("NodeClaim")
            .field("orphan", &self.orphan)
            .field("traces", &self.traces)
            .finish_non_exhaustive()
    }
}
