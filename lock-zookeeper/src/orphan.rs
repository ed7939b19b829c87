//! Removes for certain what an attempt may have left at the servers.
//!
//! A node lives as long as its session, so a node left behind in a living session blocks all other clients. Every attempt
//! gets a protection id before its first request is sent, and the clean-up looks for that id, not for the nodes that the client
//! believes it has created.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{Backoff, Operation};
use lock_entries::{Failed, Outcome};

use crate::contender::ProtectionId;
use crate::failure::Failure;
use crate::session::Session;

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The nodes with one protection id in one directory: at most one, unless a request was carried out twice.
#[derive(Debug, Clone)]
pub(crate) struct Orphan {
    pub(crate) directory: Arc<str>,
    pub(crate) protection_id: ProtectionId,
}

impl Orphan {
    /// Removes the nodes, once. If it succeeds, none is left, and none will appear.
    async fn remove(&self, session: &Session) -> Result<(), Failure> {
        session.barrier(&self.directory).await?;
        for name in session.list(&self.directory).await? {
            if self.protection_id.is_on(&name) {
                session.delete(&format!("{}/{name}", self.directory), None).await?;
            }
        }
        Ok(())
    }

    /// The same when there is contact. Nodes that end with the session count as removed.
    pub(crate) async fn sweep(&self, session: &Session) -> Result<(), Failure> {
        if session.is_over() {
            return Ok(());
        }
        session.reach().await;
        match self.remove(session).await {
            Err(failure) if failure.outcome() == Outcome::EndsWithSession => Ok(()),
            removed => removed,
        }
    }
    /// Removes the nodes, again and again until it is certain that none is left.
    pub(crate) async fn remove_for_certain(&self, session: &Session) {
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        let (clock, directory) = (session.clock(), &self.directory);
        loop {
            let swept = {
                let _turn = session.removal().await;
                self.sweep(session).await
            };
            let Err(failure) = swept else { return };
            let error = failure.explain(Operation::Cancel);
            if error.is_retryable() {
                tracing::debug!(target: "distlock", %directory, %error, "a node could not be removed yet");
            } else if !session.is_draining() {
                // An operator may solve the problem. Otherwise the session ends, and the node with it, as soon as no hold is left in
                // it.
                tracing::warn!(target: "distlock", %directory, %error, "a node cannot be removed: its session creates no new ones");
                session.drain();
            }
            clock.sleep_until(clock.now().plus(backoff.next_pause())).await;
        }
    }
}
