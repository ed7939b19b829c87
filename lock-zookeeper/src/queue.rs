//! Who stands before an attempt, and waiting for them to go.
//!
//! The directory is listed once. Nobody can come to stand before a node that is there (its number is higher than all that were
//! given, and it keeps the directory from being removed), so those who stood before it then are all who ever will; they only
//! become fewer. Of these the nearest is watched, and when it has gone, the others are looked at: one that waits may have given
//! up. When all have gone, the lock is ours. So one release wakes one waiter, and a crowd costs no more than two.
//!
//! That is ZooKeeper's recipe for locks, but for the second listing.

use zookeeper_client::{Error, MultiReadResult, OneshotWatcher};

use crate::contender::{Accepted, Contender, contenders};
use crate::session::Session;
use crate::trace::Trace;
use crate::trouble::Failure;

/// How many nodes are looked at in one request.
const READ_TOGETHER: usize = 200;

/// Who stands before a node, the nearest last.
#[derive(Debug)]
pub(crate) struct Predecessors {
    names: Vec<String>,
}

/// What became of the nearest predecessor when it was to be watched.
pub(crate) enum Nearest {
    Watched(OneshotWatcher),
    /// Nobody stands before the node any more.
    None,
}

impl Predecessors {
    /// Those who stand before `own` among the children of its directory; none if it is not among them itself.
    pub(crate) async fn of(
        trace: &Trace,
        own: &Contender,
        children: &[String],
        accepted: Accepted,
    ) -> Result<Option<Self>, Failure> {
        let mut names = Vec::new();
        for contender in in_order(trace.session(), trace.directory(), children, accepted).await? {
            if contender.name == own.name {
                return Ok(Some(Self { names }));
            }
            names.push(contender.name);
        }
        Ok(None)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Watches the nearest one that is still there.
    ///
    /// # Cancel safety
    /// May be dropped at every await: what has been found out is kept.
    pub(crate) async fn watch_nearest(&mut self, trace: &Trace) -> Result<Nearest, Failure> {
        while let Some(name) = self.names.last() {
            if let Some(watched) = trace.session().watch(&trace.path_of(name)).await? {
                return Ok(Nearest::Watched(watched.watcher));
            }
            self.names.pop();
            self.forget_the_gone(trace).await?;
        }
        Ok(Nearest::None)
    }

    /// The nearest one has gone.
    ///
    /// # Cancel safety
    /// As [`Predecessors::watch_nearest`].
    pub(crate) async fn nearest_is_gone(&mut self, trace: &Trace) -> Result<(), Failure> {
        self.names.pop();
        self.forget_the_gone(trace).await
    }

    /// Where several are left, looks at all of them at once: as a rule they have gone, one after the other.
    async fn forget_the_gone(&mut self, trace: &Trace) -> Result<(), Failure> {
        while self.names.len() > 1 {
            let first = self.names.len().saturating_sub(READ_TOGETHER);
            let paths: Vec<_> = self.names[first..].iter().map(|name| trace.path_of(name)).collect();
            let found = trace.session().read(&paths).await?;
            match found.iter().rposition(|result| !is_gone(result)) {
                Some(nearest) => {
                    self.names.truncate(first + nearest + 1);
                    return Ok(());
                }
                None => self.names.truncate(first),
            }
        }
        Ok(())
    }
}

fn is_gone(result: &MultiReadResult) -> bool {
    matches!(result, MultiReadResult::Error { err: Error::NoNode })
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
