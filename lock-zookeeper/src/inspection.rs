//! Who holds a lock and who waits for it, and taking it from a holder.

use std::time::Duration;

use lock_core::{Broken, HolderId, InspectRequest, LockStatus, Moment, Participant};
use zookeeper_client::{Error, MultiReadResult};

use crate::backend::{READ_TOGETHER, ZooKeeperBackend};
use crate::contender::{Entrant, entrants, how_many_hold, is_newer};
use crate::failure::{Failure, Outcome};
use crate::queue::{in_order, refuse_strangers};
use crate::record::{broken, broken_unread, stops_within};
use crate::session::{Session, Told};

/// The pause before another check of a node that is about to go, after a failed one.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// How long a holder may take to learn that its hold is broken: longer than the time in which a new hold is not watched yet, even
/// on a busy machine.
const TOLD_BEFORE: Duration = Duration::from_secs(1);

impl ZooKeeperBackend {
    /// The holders of a lock and its waiters as the servers know them now, in the order of the queue.
    async fn entrants(&self, session: &Session, directory: &str) -> Result<Vec<Entrant>, Failure> {
        session.catch_up(directory).await?;
        let children = session.list(directory).await?;
        if let Some(name) = children.iter().find(|name| is_newer(name)) {
            return Err(Failure::Newer(name.clone()));
        }
        let contenders = in_order(session, directory, &children, self.recipe.accepted).await?;
        refuse_strangers(contenders.first(), &children, self.recipe.accepted)?;
        Ok(entrants(contenders))
    }

    pub(crate) async fn status_of(
        &self,
        session: &Session,
        request: &InspectRequest,
    ) -> Result<LockStatus, Failure> {
        let directory = self.directory(request.physical());
        let (mut queue, mut participants) = (Vec::new(), Vec::new());
        for entrants in self.entrants(session, &directory).await?.chunks(READ_TOGETHER) {
            let paths: Vec<_> =
                entrants.iter().map(|entrant| format!("{directory}/{}", entrant.name())).collect();
            for (entrant, found) in entrants.iter().zip(&session.read(&paths).await?) {
                let node = &entrant.node;
                if let Some(participant) = self.participant(&node.name, node.mode(), found) {
                    queue.push(entrant.clone());
                    participants.push(participant);
                }
            }
        }
        let waiters = participants.split_off(how_many_hold(&queue));
        let mut status = LockStatus::free(request.name().clone());
        status.holders = participants;
        status.waiters = waiters.into_iter().map(|waiter: Participant| waiter.with_token(None)).collect();
        Ok(status)
    }

    pub(crate) async fn take_from(
        &self,
        session: &Session,
        request: &InspectRequest,
        holder: &HolderId,
    ) -> Result<Broken, Failure> {
        let directory = self.directory(request.physical());
        let mut holders = self.entrants(session, &directory).await?;
        holders.truncate(how_many_hold(&holders));
        let Some(holder) = holders.iter().find(|entrant| entrant.name() == holder.as_str()) else {
            return Ok(Broken::not_held());
        };
        let paths: Vec<_> = holder.names().map(|name| format!("{directory}/{name}")).collect();
        self.break_nodes(session, &paths).await
    }

    /// Tells the holder with these nodes that its hold is broken, and removes them when it has had time to stop. The first node stands
    /// for all of them.
    pub(crate) async fn break_nodes(&self, session: &Session, paths: &[String]) -> Result<Broken, Failure> {
        let Some(path) = paths.first() else { return Ok(Broken::not_held()) };
        let protection_id = match session.read(std::slice::from_ref(path)).await?.pop() {
            Some(MultiReadResult::Data { data, .. }) => broken(&data),
            Some(MultiReadResult::Error { err: Error::NoNode }) => return Ok(Broken::not_held()),
            // The user may not read the node, but can still mark it as broken for its holder.
            _ => broken_unread(),
        };
        match session.change(|writer| writer.add_set_data(path, &protection_id, None)).await {
            Ok(_) => {
                // The holder learns of it, stops, and removes the node before another client can have the lock.
                let clock = self.context.clock();
                let stopped_by = clock.now().plus(TOLD_BEFORE.saturating_add(stops_within(&protection_id)));
                until_gone(session, path, stopped_by).await;
            }
            Err((_, failure)) if failure.is(&Error::NoNode) => return Ok(Broken::not_held()),
            // The user may not write to the node, but the right to delete it belongs to its directory.
            Err((_, failure)) if failure.is(&Error::NoAuth) => {}
            Err((_, failure)) => return Err(failure),
        }
        match session.delete_all(paths).await {
            Ok(_) => Ok(Broken::taken_away()),
            // A holder that has learned of it has already removed the node.
            Err(_) if session.stat(path).await.is_ok_and(|stat| stat.is_none()) => Ok(Broken::taken_away()),
            Err(failure) => Err(failure),
        }
    }
}

/// Waits until a node is gone, but not beyond `give_up`.
async fn until_gone(session: &Session, path: &str, give_up: Moment) {
    let clock = session.clock();
    let gone = async {
        loop {
            match session.watch(path).await {
                Ok(Some(watched)) => {
                    if watched.watching.await == Told::Deleted {
                        return;
                    }
                }
                Ok(None) => return,
                // The next request reports the end of the session.
                Err(failure) if failure.outcome() == Outcome::EndsWithSession => return,
                Err(_) => clock.sleep_until(clock.now().plus(LOOK_AGAIN)).await,
            }
        }
    };
    tokio::select! {
        biased;
        () = gone => {}
        () = clock.sleep_until(give_up) => {}
    }
}
