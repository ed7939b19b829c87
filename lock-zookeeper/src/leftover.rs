//! What an attempt may have left at the servers, and how it is removed for certain.
//!
//! A node lives as long as its session, so whatever is left behind in a session that lives on blocks everybody. Every attempt is
//! marked before its first request is sent, and whoever removes it looks for the mark, not for what is thought to have been
//! made.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{Backoff, LockError, Operation};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

use crate::contender::Mark;
use crate::session::Session;
use crate::trouble::{Failure, Outcome};

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// How many removals are under way at once.
const REMOVED_TOGETHER: usize = 16;

/// Nodes with one mark in one directory: at most one, but for requests that were carried out twice.
#[derive(Debug, Clone)]
pub(crate) struct Leftover {
    pub(crate) directory: Arc<str>,
    pub(crate) mark: Mark,
}

impl Leftover {
    /// Removes the nodes, once. When it succeeds, none is left, and none will come.
    pub(crate) async fn remove(&self, session: &Session) -> Result<(), Failure> {
        session.barrier(&self.directory).await?;
        for name in session.list(&self.directory).await? {
            if self.mark.is_on(&name) {
                session.delete(&format!("{}/{name}", self.directory)).await?;
            }
        }
        Ok(())
    }

    /// Removes the nodes, or says why it could not be done yet. What goes with the session counts as removed.
    pub(crate) async fn sweep(&self, session: &Session, operation: Operation) -> Result<(), LockError> {
        if session.is_over() {
            return Ok(());
        }
        session.reach().await;
        match self.remove(session).await {
            Ok(()) => Ok(()),
            Err(failure) if failure.outcome() == Outcome::EndsWithSession => Ok(()),
            Err(failure) => Err(failure.explain(operation)),
        }
    }
}

/// Removes what the session is told of, until it is certain that nothing is left or the session has ended.
pub(crate) async fn clean(session: Arc<Session>, mut leftovers: mpsc::UnboundedReceiver<Leftover>) {
    let cleaning = async {
        // Each by itself: what cannot be removed keeps nothing else waiting.
        let mut removals = JoinSet::new();
        let turns = Arc::new(Semaphore::new(REMOVED_TOGETHER));
        while let Some(leftover) = leftovers.recv().await {
            while removals.try_join_next().is_some() {}
            removals.spawn(remove_for_certain(Arc::clone(&session), leftover, Arc::clone(&turns)));
        }
    };
    tokio::select! {
        () = cleaning => {}
        () = session.ended() => {}
    }
}

async fn remove_for_certain(session: Arc<Session>, leftover: Leftover, turns: Arc<Semaphore>) {
    let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
    let clock = session.clock();
    loop {
        let swept = {
            // Nobody closes it.
            let _turn = turns.acquire().await;
            leftover.sweep(&session, Operation::Cancel).await
        };
        let Err(error) = swept else { return };
        let directory = &leftover.directory;
        if error.is_retryable() {
            tracing::debug!(target: "distlock", %directory, %error, "a node could not be removed yet");
        } else if !session.is_condemned() {
            // Somebody may mend it; else the session ends, and the node with it, as soon as nothing is held in it any more.
            tracing::warn!(target: "distlock", %directory, %error, "a node cannot be removed: its session is used for nothing new");
            session.condemn();
        }
        clock.sleep_until(clock.now().plus(backoff.next_pause())).await;
    }
}
