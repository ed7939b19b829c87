//! Finds the predecessors of an attempt in the queue, and waits for them to go.
//!
//! The client lists the directory once. No node can come before an existing one, because the existing node's number is higher than
//! all earlier ones and its presence keeps the directory from being removed. So the predecessors in that listing are all there will
//! ever be, with one exception; they only become fewer. When all of them are gone, the lock is ours. A release therefore wakes only
//! a few waiters, however many there are. A reader has fewer predecessors than a writer: other readers are not in its way.
//!
//! **The exception is the successor of a writer**: a reader's node that takes the place of the writer's when that one goes on reading.
//! It stands before all that have waited behind the writer. Readers need not care. For writers:
//!
//! * The writer of ours that leaves a successor writes to its own node in the same transaction. So a watch that reports only a deletion
//!   says that there is no successor.
//! * The name of our successor follows from that of its writer. A predecessor that went without being watched is gone when neither its
//!   node nor its successor is there, at one moment.
//! * The successor of a writer of Curator's may have any name, and comes unannounced. When such a writer has gone, the client lists again;
//!   also after a loss of contact, when a watch no longer tells changes from deletions.
//!
//! **The client first watches the node before the nearest predecessor.** When that node goes, the nearest predecessor normally has
//! the lock, or is about to get it. Then the client checks that all others have gone too (a node may also go because its waiter
//! gave up), and watches the nearest. When the nearest goes, no request is left: a hand-off costs no round trip after the release.
//! If the nearest gives up earlier, the client finds it gone when it sets the watch.
//!
//! This is ZooKeeper's recipe for locks, except that there is normally no second listing and that another node is watched first.

use lock_core::Mode;
use lock_entries::{InLine, Standing, excludes, newer, standing};

use crate::blocker::{Blocker, Next};
use crate::contender::{
    Accepted, Contender, Entrant, Kind, Successor, contenders, entrants, newer_before, stranger_before,
};
use crate::failure::{Failure, stranger};
use crate::node::without_doubles;
use crate::node_claim::{Names, NodeClaim};
use crate::session::{Session, Watched};

/// How many nodes one request checks.
const READ_TOGETHER: usize = 300;

/// One that has to go first.
#[derive(Debug, Clone)]
struct Predecessor {
    name: String,
    successor: Successor,
}

/// The predecessors of an attempt, the nearest last.
#[derive(Debug)]
pub(crate) struct Predecessors {
    queue: Vec<Predecessor>,
    own: Names,
    accepted: Accepted,
    /// Whether one has gone since the last check of the others.
    is_to_be_looked_at: bool,
    /// Whether the successor of one that has gone may have any name.
    is_to_be_listed: bool,
}

impl Predecessors {
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
        let mode = if first.kind == Kind::Reader { Mode::Shared } else { Mode::Exclusive };
        let predecessor = |entrant: &Entrant| Predecessor {
            successor: if mode == Mode::Shared { Successor::None } else { entrant.successor() },
            name: entrant.name().to_owned(),
        };
        let is_in_the_way = |entrant: &&Entrant| excludes(entrant.mode(), mode);
        let queue = before.iter().filter(is_in_the_way).map(predecessor).collect();
        let own = Names::clone(own);
        Ok(Some(Self { queue, own, accepted, is_to_be_looked_at: false, is_to_be_listed: false }))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// The index of the node before the nearest, or of the nearest if it is the only one.
    fn watched(&self) -> usize {
        self.queue.len().saturating_sub(2)
    }

    /// Looks at all predecessors, and sets a watch on the nearest at the same time. Returns that watch if the nearest is the only
    /// one left.
    async fn look_at_all(&mut self, claim: &NodeClaim) -> Result<Option<Watched>, Failure> {
        let Some((nearest, others)) = self.queue.split_last() else { return Ok(None) };
        let nearest_path = claim.path_of(&nearest.name);
        let (watched, left) =
            tokio::join!(claim.session().watch(&nearest_path), look_for_the_last(claim, nearest, others));
        let (watched, left) = (watched?, left?);
        if left.nearest == Left::Itself && watched.is_none() {
            // It went between the two requests: the next look tells whether it has left a successor.
            return Ok(None);
        }
        self.is_to_be_looked_at = false;
        let gone = left.others..self.queue.len() - 1;
        self.is_to_be_listed |=
            self.queue[gone.clone()].iter().any(|gone| gone.successor == Successor::Unknown);
        self.queue.drain(gone);
        if let (Some(name), Some(last)) = (left.successor, left.others.checked_sub(1)) {
            self.queue[last] = Predecessor { name, successor: Successor::None };
        }
        match (left.nearest, self.queue.last_mut()) {
            (Left::Itself, _) => return Ok(watched.filter(|_| left.others == 0)),
            (Left::Successor(name), Some(nearest)) => {
                *nearest = Predecessor { name, successor: Successor::None }
            }
            (Left::Nothing, Some(nearest)) => {
                self.is_to_be_listed |= nearest.successor == Successor::Unknown;
                self.queue.pop();
            }
            (_, None) => {}
        }
        Ok(None)
    }
}

impl Blocker for Predecessors {
    async fn watch_next(&mut self, claim: &NodeClaim) -> Result<Next, Failure> {
        loop {
            if self.is_to_be_listed {
                let children = claim.session().list(claim.directory()).await?;
                let children = without_doubles(claim, &self.own, children).await?;
                match Self::of(claim, &self.own, &children, self.accepted).await? {
                    Some(now) => *self = now,
                    None => return Ok(Next::OwnIsGone),
                }
            }
            let Some(next) = self.queue.get(self.watched()) else { return Ok(Next::None) };
            let watched = if self.is_to_be_looked_at {
                self.look_at_all(claim).await?
            } else {
                let watched = claim.session().watch(&claim.path_of(&next.name)).await?;
                if watched.is_none() {
                    match next.successor {
                        Successor::None | Successor::Unknown => self.watched_is_gone(),
                        Successor::Named(_) => self.is_to_be_looked_at = true,
                    }
                }
                watched
            };
            if let Some(watched) = watched {
                return Ok(Next::Watched(watched.watching));
            }
        }
    }

    fn first(&self) -> Option<&str> {
        self.queue.first().map(|first| first.name.as_str())
    }

    fn watched_name(&self) -> Option<&str> {
        self.queue.get(self.watched()).map(|watched| watched.name.as_str())
    }

    fn watched_is_gone(&mut self) {
        let gone = self.queue.remove(self.watched());
        self.is_to_be_listed |= gone.successor == Successor::Unknown;
        // Where a single one is left that has no successor, its watch says enough.
        self.is_to_be_looked_at = match &self.queue[..] {
            [] => false,
            [only] => matches!(only.successor, Successor::Named(_)),
            _ => true,
        };
    }

    /// What watches have reported may hide that a writer has left a successor.
    fn contact_was_lost(&mut self) -> bool {
        let writes = self.own.first().and_then(|own| Contender::read(own, self.accepted));
        self.is_to_be_listed |= writes.is_some_and(|own| own.kind != Kind::Reader);
        self.is_to_be_listed
    }
}

/// What is left of predecessors.
struct Remaining {
    nearest: Left,
    /// How many of the others, up to and including the last one of which something is left.
    others: usize,
    /// The name of the successor of that one, if it is gone.
    successor: Option<String>,
}

/// What is left of one predecessor.
#[derive(PartialEq)]
enum Left {
    Itself,
    Successor(String),
    Nothing,
}

/// Looks for the last of these of which something is left, and at the nearest.
async fn look_for_the_last(
    claim: &NodeClaim,
    nearest: &Predecessor,
    others: &[Predecessor],
) -> Result<Remaining, Failure> {
    let first_of = |end: usize| end.saturating_sub(READ_TOGETHER);
    let mut end = others.len();
    let mut looked_at: Vec<&Predecessor> = others[first_of(end)..].iter().chain([nearest]).collect();
    let mut nearest_left = None;
    loop {
        let mut left = what_is_left(claim, &looked_at).await?;
        if nearest_left.is_none() {
            nearest_left = left.pop();
        }
        let nearest = nearest_left.take().unwrap_or(Left::Nothing);
        if let Some(last) = left.iter().rposition(|left| *left != Left::Nothing) {
            let successor = match left.swap_remove(last) {
                Left::Successor(name) => Some(name),
                Left::Itself | Left::Nothing => None,
            };
            return Ok(Remaining { nearest, others: first_of(end) + last + 1, successor });
        }
        end = first_of(end);
        if end == 0 {
            return Ok(Remaining { nearest, others: 0, successor: None });
        }
        nearest_left = Some(nearest);
        looked_at = others[first_of(end)..end].iter().collect();
    }
}

/// What is left of these, all at the same moment: a predecessor and its successor are never both there, and never both missing before
/// they are gone for good.
async fn what_is_left(claim: &NodeClaim, predecessors: &[&Predecessor]) -> Result<Vec<Left>, Failure> {
    let successor = |predecessor: &Predecessor| match &predecessor.successor {
        Successor::Named(name) => Some(name.clone()),
        Successor::None | Successor::Unknown => None,
    };
    let paths: Vec<_> = predecessors
        .iter()
        .flat_map(|one| [Some(one.name.clone()), successor(one)])
        .flatten()
        .map(|name| claim.path_of(&name))
        .collect();
    let mut are_there = claim.session().which_are_there(&paths).await?.into_iter();
    let mut next = || are_there.next().unwrap_or(true);
    let left = predecessors.iter().map(|one| match (next(), successor(one)) {
        (true, successor) => {
            if successor.is_some() {
                next();
            }
            Left::Itself
        }
        (false, Some(successor)) if next() => Left::Successor(successor),
        (false, _) => Left::Nothing,
    });
    Ok(left.collect())
}

/// Fails if a stranger may have the lock: one before `own`, or any stranger if there is no `own`.
pub(crate) fn refuse_strangers(
    own: Option<&Contender>,
    children: &[String],
    accepted: Accepted,
) -> Result<(), Failure> {
    if let Some(name) = newer_before(own, children, accepted) {
        return Err(Failure::Refused(newer(name)));
    }
    let found = stranger_before(own, children, accepted);
    found.map_or(Ok(()), |name| Err(Failure::Refused(stranger(name))))
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
    // The counter does not start again: it sticks, and gives the same number several times. A successor is younger than those that it
    // is before.
    let mut by_creation = Vec::with_capacity(contenders.len());
    for contender in contenders {
        if let Some(stat) = session.stat(&format!("{directory}/{}", contender.name)).await? {
            by_creation.push((stat.czxid, contender));
        }
    }
    by_creation.sort_by_key(|(created_by, contender)| (!contender.is_successor(), *created_by));
    Ok(by_creation.into_iter().map(|(_, contender)| contender).collect())
}
