//! Finds the predecessors of an attempt in the queue, and waits for them to go.
//!
//! The client lists the directory once. No node can come before an existing one, because the existing node's number is higher than
//! all earlier ones and its presence keeps the directory from being removed. So the predecessors in that listing are all there will
//! ever be, with one exception; they only become fewer. When all of them are gone, the lock is ours. A release therefore wakes only
//! a few waiters, however many there are. A reader has fewer predecessors than a writer: other readers are not in its way.
//!
//! **The exception is the successor of a writer of Curator's**: a reader's node that takes the place of the writer's when that one goes
//! on reading. It stands before all that have waited behind the writer, and may have any name. Readers need not care; for a writer the
//! client lists again when such a node has gone.
//!
//! **A writer of ours that goes on reading keeps its nodes**, and says so in its first one's value. Writers wait for it as before. A reader
//! reads the value with the watch that it sets, which also reports the change: one that goes on reading has held the lock, so neither it
//! nor what is before it is in the way of a reader. Those that are between them stay in the way.
//!
//! **The client first watches the node before the nearest predecessor.** When that node goes, the nearest predecessor normally has
//! the lock, or is about to get it. Then the client checks that all others have gone too (a node may also go because its waiter
//! gave up), and watches the nearest. When the nearest goes, no request is left: a hand-off costs no round trip after the release.
//! If the nearest gives up earlier, the client finds it gone when it sets the watch. The same request asks for the own nodes, so that
//! a waiter need not watch those as long as it is farther back.
//!
//! This is ZooKeeper's recipe for locks, except that there is normally no second listing and that another node is watched first.

use lock_core::{Mode, Moment};
use lock_entries::{InLine, Standing, Told, excludes, newer, standing};

use crate::blocker::{Blocker, Next};
use crate::contender::{Accepted, Contender, Entrant, contenders, entrants, is_newer, unknown_before};
use crate::failure::{Failure, stranger};
use crate::node::without_doubles;
use crate::node_claim::{Names, NodeClaim};
use crate::session::{Session, Watched};

/// How many nodes one request checks.
const READ_TOGETHER: usize = 300;

/// One that has to go first.
#[derive(Debug)]
struct Predecessor {
    name: String,
    /// Whether it may leave a reader in its place, which would be in the way as well.
    may_leave_a_reader: bool,
}

/// The predecessors of an attempt, the nearest last.
#[derive(Debug)]
pub(crate) struct Predecessors {
    queue: Vec<Predecessor>,
    /// The name of the first node of all, if it is not the attempt's own.
    first: Option<String>,
    own: Names,
    mode: Mode,
    accepted: Accepted,
    /// Whether one has gone since the last check of the others.
    is_to_be_looked_at: bool,
    /// Whether one that has gone may have left a reader.
    is_to_be_listed: bool,
    saw_own: Option<Moment>,
}

impl Predecessors {
    /// Finds the predecessors of `own`; none if one of `own` is gone. Fails if a stranger is before it.
    pub(crate) async fn find(
        claim: &NodeClaim,
        own: &Names,
        accepted: Accepted,
    ) -> Result<Option<Self>, Failure> {
        let children = claim.session().list(claim.directory()).await?;
        let children = without_doubles(claim, own, children).await?;
        Self::of(claim, own, &children, accepted).await
    }

    /// The predecessors of `own` among the children of its directory; none if one of `own` is not among them. Fails if a stranger
    /// is before `own`.
    pub(crate) async fn of(
        claim: &NodeClaim,
        own: &Names,
        children: &[String],
        accepted: Accepted,
    ) -> Result<Option<Self>, Failure> {
        let first = own.first().and_then(|name| Contender::read(name, accepted));
        let Some(first) = first.filter(|_| own.iter().all(|name| children.contains(name))) else {
            return Ok(None);
        };
        refuse_strangers(Some(&first), children, accepted)?;
        let line = entrants(in_order(claim.session(), claim.directory(), children, accepted).await?);
        let before = match standing(&line, &first.name) {
            Standing::Gone => return Ok(None),
            Standing::Waits { before, .. } => before,
            Standing::Holds | Standing::OtherNumber(_) | Standing::Newer(_) => &[],
        };
        let mode = first.mode();
        let predecessor = |entrant: &Entrant| Predecessor {
            may_leave_a_reader: mode == Mode::Exclusive && entrant.is_curators_writer(),
            name: entrant.name().to_owned(),
        };
        let is_in_the_way = |entrant: &&Entrant| excludes(entrant.mode(), mode);
        Ok(Some(Self {
            queue: before.iter().filter(is_in_the_way).map(predecessor).collect(),
            first: before.first().map(|first| first.name().to_owned()),
            own: Names::clone(own),
            mode,
            accepted,
            is_to_be_looked_at: false,
            is_to_be_listed: false,
            saw_own: None,
        }))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether nothing is in the way any more if the first of all goes on reading.
    pub(crate) fn enters_beside_the_first(&self) -> bool {
        self.mode == Mode::Shared
            && matches!(&self.queue[..], [only] if self.first.as_ref() == Some(&only.name))
    }

    /// The index of the node before the nearest, or of the nearest if it is the only one.
    fn watched(&self) -> usize {
        self.queue.len().saturating_sub(2)
    }

    /// Whether this node is in the way of the attempt; not where both read.
    fn is_in_the_way(&self, node: &Watched) -> bool {
        excludes(Told::read(&node.data).mode(), self.mode)
    }

    /// Neither this one nor those before it are in the way any more.
    fn passes(&mut self, index: usize) {
        self.queue.drain(..=index);
        self.is_to_be_looked_at = false;
    }

    /// Looks at the attempt's own nodes and at all predecessors, and sets a watch on the nearest at the same time. Returns that watch if
    /// the nearest is the only one left; an error if one of its own is gone.
    async fn look_at_all(
        &mut self,
        claim: &NodeClaim,
    ) -> Result<Result<Option<Watched>, OwnIsGone>, Failure> {
        let Some((nearest, others)) = self.queue.split_last() else { return Ok(Ok(None)) };
        let (nearest_path, asked) = (claim.path_of(&nearest.name), claim.session().clock().now());
        let (watched, left) =
            tokio::join!(claim.session().watch(&nearest_path), look_for_the_last(claim, &self.own, others));
        let (watched, Some(left)) = (watched?, left?) else { return Ok(Err(OwnIsGone)) };
        (self.is_to_be_looked_at, self.saw_own) = (false, Some(asked));
        let end = self.queue.len() - usize::from(watched.is_some());
        let mut gone = self.queue.drain(left..end);
        self.is_to_be_listed |= gone.any(|gone| gone.may_leave_a_reader);
        drop(gone);
        Ok(Ok(watched.filter(|_| left == 0)))
    }
}

/// Another program has deleted a node of the attempt.
struct OwnIsGone;

impl Blocker for Predecessors {
    async fn watch_next(&mut self, claim: &NodeClaim) -> Result<Next, Failure> {
        loop {
            if self.is_to_be_listed {
                match Self::find(claim, &self.own, self.accepted).await? {
                    Some(now) => *self = now,
                    None => return Ok(Next::OwnIsGone),
                }
            }
            let index = self.watched();
            let Some(next) = self.queue.get(index) else { return Ok(Next::None) };
            let looks = self.is_to_be_looked_at;
            let watched = if looks {
                let Ok(watched) = self.look_at_all(claim).await? else { return Ok(Next::OwnIsGone) };
                watched
            } else {
                claim.session().watch(&claim.path_of(&next.name)).await?
            };
            match watched {
                Some(watched) if self.is_in_the_way(&watched) => return Ok(Next::Watched(watched.watching)),
                Some(_) => self.passes(self.watched()),
                None if !looks => self.watched_is_gone(),
                None => {}
            }
        }
    }

    /// Where the first of all has gone, the first in the way holds the lock.
    fn first(&self) -> Vec<String> {
        let mut first: Vec<_> =
            self.first.iter().chain(self.queue.first().map(|one| &one.name)).cloned().collect();
        first.dedup();
        first
    }

    fn watched_name(&self) -> Option<&str> {
        self.queue.get(self.watched()).map(|watched| watched.name.as_str())
    }

    fn watched_is_gone(&mut self) {
        let gone = self.queue.remove(self.watched());
        self.is_to_be_listed |= gone.may_leave_a_reader;
        // Where a single one is left, its watch says enough.
        self.is_to_be_looked_at = self.queue.len() > 1;
    }

    /// When the watched one has gone, and it is not the last but one.
    fn asks_for_own(&self) -> bool {
        self.queue.len() > 2
    }

    fn saw_own(&self) -> Option<Moment> {
        self.saw_own
    }
}

/// How many of these there are, up to and including the last one that exists; none if one of the attempt's own nodes is gone.
async fn look_for_the_last(
    claim: &NodeClaim,
    own: &Names,
    others: &[Predecessor],
) -> Result<Option<usize>, Failure> {
    let mut end = others.len();
    while end > 0 {
        let start = end.saturating_sub(READ_TOGETHER);
        let names = own.iter().chain(others[start..end].iter().map(|one| &one.name));
        let paths: Vec<_> = names.map(|name| claim.path_of(name)).collect();
        let mut are_there = claim.session().which_are_there(&paths).await?;
        let others = are_there.split_off(own.len().min(are_there.len()));
        if are_there.contains(&false) {
            return Ok(None);
        }
        if let Some(last) = others.iter().rposition(|is_there| *is_there) {
            return Ok(Some(start + last + 1));
        }
        end = start;
    }
    Ok(Some(0))
}

/// Fails if a stranger may have the lock: one before `own`, or any stranger if there is no `own`.
pub(crate) fn refuse_strangers(
    own: Option<&Contender>,
    children: &[String],
    accepted: Accepted,
) -> Result<(), Failure> {
    let found = unknown_before(own, children, accepted);
    let error = found.map(|name| if is_newer(name) { newer(name) } else { stranger(name) });
    error.map_or(Ok(()), |error| Err(Failure::Refused(error)))
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
    by_creation.sort_by_key(|(created_by, _)| *created_by);
    Ok(by_creation.into_iter().map(|(_, contender)| contender).collect())
}
