//! Finds the predecessors of an attempt in the queue, and waits for them to go.
//!
//! The client lists the directory once. No node can come before an existing one, because the existing node's number is higher than
//! all earlier ones and its presence keeps the directory from being removed. So the predecessors in that listing are all there will
//! ever be; they only become fewer. When all of them are gone, the lock is ours. A release therefore wakes only a few waiters,
//! however many there are.
//!
//! **The client first watches the node before the nearest predecessor.** When that node goes, the nearest predecessor normally has
//! the lock, or is about to get it. Then the client checks that all others have gone too (a node may also go because its waiter
//! gave up), and watches the nearest. When the nearest goes, no request is left: a hand-off costs no round trip after the release.
//! If the nearest gives up earlier, the client finds it gone when it sets the watch.
//!
//! This is ZooKeeper's recipe for locks, except that there is no second listing and that another node is watched first.

use crate::contender::{Accepted, Contender, contenders, stranger_before};
use crate::failure::Failure;
use crate::node_claim::NodeClaim;
use crate::session::{Session, Watched, Watching};

/// How many nodes one request checks.
const READ_TOGETHER: usize = 300;

/// The predecessors of a node, the nearest last.
#[derive(Debug)]
pub(crate) struct Predecessors {
    names: Vec<String>,
    /// Whether one has gone since the last check of the others.
    is_to_be_looked_at: bool,
}

/// The result of looking for the next predecessor.
pub(crate) enum Next {
    Watched(Watching),
    /// No predecessor is left.
    None,
}

impl Predecessors {
    /// The predecessors of `own` among the children of its directory; none if `own` is not among them. Fails if a stranger is
    /// before `own`.
    pub(crate) async fn of(
        claim: &NodeClaim,
        own: &Contender,
        children: &[String],
        accepted: Accepted,
    ) -> Result<Option<Self>, Failure> {
        refuse_strangers(Some(own), children, accepted)?;
        let mut names = Vec::new();
        for contender in in_order(claim.session(), claim.directory(), children, accepted).await? {
            if contender.name == own.name {
                return Ok(Some(Self { names, is_to_be_looked_at: false }));
            }
            names.push(contender.name);
        }
        Ok(None)
    }

    /// The name of the node at the head of the queue: that of the holder.
    pub(crate) fn first(&self) -> Option<&str> {
        self.names.first().map(String::as_str)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// The index of the node before the nearest, or of the nearest if it is the only one.
    fn watched(&self) -> usize {
        self.names.len().saturating_sub(2)
    }

    /// The name of the predecessor that is watched.
    pub(crate) fn watched_name(&self) -> Option<&str> {
        self.names.get(self.watched()).map(String::as_str)
    }

    /// Removes the watched predecessor, which has gone.
    pub(crate) fn watched_is_gone(&mut self) {
        self.names.remove(self.watched());
        self.is_to_be_looked_at = self.names.len() > 1;
    }

    /// Watches the predecessor that has to go next.
    ///
    /// # Cancel safety
    /// May be dropped at every await: it keeps what it has found out.
    pub(crate) async fn watch_next(&mut self, claim: &NodeClaim) -> Result<Next, Failure> {
        while let Some(name) = self.names.get(self.watched()) {
            let watched = if self.is_to_be_looked_at {
                self.look_at_all(claim).await?
            } else {
                let watched = claim.session().watch(&claim.path_of(name)).await?;
                if watched.is_none() {
                    self.watched_is_gone();
                }
                watched
            };
            if let Some(watched) = watched {
                return Ok(Next::Watched(watched.watching));
            }
        }
        Ok(Next::None)
    }

    /// Looks at all predecessors but the nearest, and sets a watch on the nearest at the same time. Returns that watch if the
    /// nearest is the only one left.
    async fn look_at_all(&mut self, claim: &NodeClaim) -> Result<Option<Watched>, Failure> {
        let Some((nearest, others)) = self.names.split_last() else { return Ok(None) };
        let nearest_path = claim.path_of(nearest);
        let (left, nearest) =
            tokio::join!(how_many_are_left(claim, others), claim.session().watch(&nearest_path));
        let (left, nearest) = (left?, nearest?);
        self.is_to_be_looked_at = false;
        self.names.drain(left..self.names.len() - 1);
        if nearest.is_none() {
            self.names.pop();
        }
        Ok(nearest.filter(|_| left == 0))
    }
}

/// How many of these are left, up to and including the last one that still exists.
async fn how_many_are_left(claim: &NodeClaim, names: &[String]) -> Result<usize, Failure> {
    let mut left = names.len();
    while left > 0 {
        let first = left.saturating_sub(READ_TOGETHER);
        let paths: Vec<_> = names[first..left].iter().map(|name| claim.path_of(name)).collect();
        let are_there = claim.session().which_are_there(&paths).await?;
        if let Some(last) = are_there.iter().rposition(|is_there| *is_there) {
            return Ok(first + last + 1);
        }
        left = first;
    }
    Ok(0)
}

/// Fails if a stranger may have the lock: one before `own`, or any stranger if there is no `own`.
pub(crate) fn refuse_strangers(
    own: Option<&Contender>,
    children: &[String],
    accepted: Accepted,
) -> Result<(), Failure> {
    let stranger = stranger_before(own, children, accepted);
    stranger.map_or(Ok(()), |name| Err(Failure::Stranger(name.to_owned())))
}

/// The contenders among the children of a directory, in the order of their creation.
pub(crate) async fn in_order(
    session: &Session,
    directory: &str,
    children: &[String],
    accepted: Accepted,
) -> Result<Vec<Contender>, Failure> {
    let contenders = contenders(children, accepted);
    if !contenders.iter().any(Contender::is_at_the_end_of_sequences) {
        return Ok(contenders);
    }
    // The counter does not start again: it sticks, and gives the same number several times.
    let mut by_creation = Vec::with_capacity(contenders.len());
    for contender in contenders {
        if let Some(stat) = session.stat(&format!("{directory}/{}", contender.name)).await? {
            by_creation.push((stat.czxid, contender));
        }
    }
    by_creation.sort_unstable_by_key(|(created_by, _)| *created_by);
    Ok(by_creation.into_iter().map(|(_, contender)| contender).collect())
}
