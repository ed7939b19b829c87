//! Who stands before an attempt, and waiting for them to go.
//!
//! The directory is listed once. Nobody can come to stand before a node that is there (its number is higher than all that were
//! given, and it keeps the directory from being removed), so those who stood before it then are all who ever will; they only
//! become fewer. When all have gone, the lock is ours. So one release wakes a few waiters, however many there are.
//!
//! **The one before the nearest is watched first.** When it has gone, the nearest has the lock, as a rule, or is about to get it: that
//! is the time to make sure that all the others have gone too (one that goes may only have given up), and to watch the nearest.
//! When that one goes, there is nothing left to ask: a hand-off costs no round trip after the release. Should the nearest give up
//! before, it is found gone when it is to be watched.
//!
//! That is ZooKeeper's recipe for locks, but for the second listing, and for whom is watched first.

use crate::contender::{Accepted, Contender, contenders, stranger_before};
use crate::session::{Session, Watched, Watching};
use crate::trace::Trace;
use crate::trouble::Failure;

/// How many nodes are looked at in one request.
const READ_TOGETHER: usize = 300;

/// Who stands before a node, the nearest last.
#[derive(Debug)]
pub(crate) struct Predecessors {
    names: Vec<String>,
    /// Whether one has gone since the others were looked at.
    is_to_be_looked_at: bool,
}

/// Who has to go next.
pub(crate) enum Next {
    Watched(Watching),
    /// Nobody stands before the node any more.
    Nobody,
}

impl Predecessors {
    /// Those who stand before `own` among the children of its directory; none if it is not among them itself. Refused where one of
    /// them is a stranger.
    pub(crate) async fn of(
        trace: &Trace,
        own: &Contender,
        children: &[String],
        accepted: Accepted,
    ) -> Result<Option<Self>, Failure> {
        refuse_strangers(Some(own), children, accepted)?;
        let mut names = Vec::new();
        for contender in in_order(trace.session(), trace.directory(), children, accepted).await? {
            if contender.name == own.name {
                return Ok(Some(Self { names, is_to_be_looked_at: false }));
            }
            names.push(contender.name);
        }
        Ok(None)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// The one before the nearest, or the nearest if it is the only one.
    fn watched(&self) -> usize {
        self.names.len().saturating_sub(2)
    }

    /// The name of the one that is watched.
    pub(crate) fn watched_name(&self) -> Option<&str> {
        self.names.get(self.watched()).map(String::as_str)
    }

    /// The one that was watched has gone.
    pub(crate) fn watched_is_gone(&mut self) {
        self.names.remove(self.watched());
        self.is_to_be_looked_at = self.names.len() > 1;
    }

    /// Watches the one who has to go next.
    ///
    /// # Cancel safety
    /// May be dropped at every await: what has been found out is kept.
    pub(crate) async fn watch_next(&mut self, trace: &Trace) -> Result<Next, Failure> {
        while let Some(name) = self.names.get(self.watched()) {
            let watched = if self.is_to_be_looked_at {
                self.look_at_all(trace).await?
            } else {
                let watched = trace.session().watch(&trace.path_of(name)).await?;
                if watched.is_none() {
                    self.watched_is_gone();
                }
                watched
            };
            if let Some(watched) = watched {
                return Ok(Next::Watched(watched.watching));
            }
        }
        Ok(Next::Nobody)
    }

    /// Looks at all but the nearest, and watches that at the same time. Answers its watch if it is the only one left.
    async fn look_at_all(&mut self, trace: &Trace) -> Result<Option<Watched>, Failure> {
        let Some((nearest, others)) = self.names.split_last() else { return Ok(None) };
        let nearest_path = trace.path_of(nearest);
        let (left, nearest) =
            tokio::join!(how_many_are_left(trace, others), trace.session().watch(&nearest_path));
        let (left, nearest) = (left?, nearest?);
        self.is_to_be_looked_at = false;
        self.names.drain(left..self.names.len() - 1);
        if nearest.is_none() {
            self.names.pop();
        }
        Ok(nearest.filter(|_| left == 0))
    }
}

/// How many of these are left, up to and with the last one that is still there.
async fn how_many_are_left(trace: &Trace, names: &[String]) -> Result<usize, Failure> {
    let mut left = names.len();
    while left > 0 {
        let first = left.saturating_sub(READ_TOGETHER);
        let paths: Vec<_> = names[first..left].iter().map(|name| trace.path_of(name)).collect();
        let are_there = trace.session().which_are_there(&paths).await?;
        if let Some(last) = are_there.iter().rposition(|is_there| *is_there) {
            return Ok(first + last + 1);
        }
        left = first;
    }
    Ok(0)
}

/// Refuses what is asked about a contender, or about a free lock, where a stranger may have the lock.
pub(crate) fn refuse_strangers(
    own: Option<&Contender>,
    children: &[String],
    accepted: Accepted,
) -> Result<(), Failure> {
    let stranger = stranger_before(own, children, accepted);
    stranger.map_or(Ok(()), |name| Err(Failure::Stranger(name.to_owned())))
}

/// The contenders among the children of a directory, in the order in which they came.
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
    // The counter does not begin anew: it sticks, and gives the same number to many.
    let mut by_creation = Vec::with_capacity(contenders.len());
    for contender in contenders {
        if let Some(stat) = session.stat(&format!("{directory}/{}", contender.name)).await? {
            by_creation.push((stat.czxid, contender));
        }
    }
    by_creation.sort_unstable_by_key(|(created_by, _)| *created_by);
    Ok(by_creation.into_iter().map(|(_, contender)| contender).collect())
}
