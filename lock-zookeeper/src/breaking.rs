//! What a break sends: a mark in the data of the holder's node, and the removal of its nodes.

use std::time::Duration;

use lock_entries::{Breaks, Failed, Marked, Outcome};
use zookeeper_client::{Error, MultiWriteResult};

use crate::backend::ZooKeeperEntries;
use crate::failure::Failure;
use crate::inspection::Nodes;
use crate::session::News;

/// The pause before another check of a node that is about to go, after a failed one.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

impl Breaks for ZooKeeperEntries {
    async fn mark(&self, nodes: &mut Nodes, value: &[u8]) -> Result<Marked, Failure> {
        let (first, version) = (nodes.first(), nodes.version);
        match nodes.session.change(|writer| writer.add_set_data(first, value, version)).await {
            Ok(results) => {
                nodes.version = results.iter().find_map(|result| match result {
                    MultiWriteResult::SetData { stat } => Some(stat.version),
                    _ => None,
                });
                Ok(Marked::Told)
            }
            Err((_, failure)) if failure.is(&Error::NoNode) || failure.is(&Error::BadVersion) => {
                Ok(Marked::Changed)
            }
            // The user may not write to the node, but the right to delete it belongs to its directory.
            Err((_, failure)) if failure.is(&Error::NoAuth) => Ok(Marked::Untold),
            Err((_, failure)) => Err(failure),
        }
    }

    async fn until_gone(&self, nodes: &Nodes) {
        let clock = nodes.session.clock();
        loop {
            match nodes.session.watch(nodes.first()).await {
                Ok(Some(watched)) => {
                    if watched.watching.await == News::Deleted {
                        return;
                    }
                }
                Ok(None) => return,
                // The next request reports the end of the session.
                Err(failure) if failure.outcome() == Outcome::EndsWithSession => return,
                Err(_) => clock.sleep_until(clock.now().plus(LOOK_AGAIN)).await,
            }
        }
    }

    async fn remove(&self, nodes: &Nodes) -> Result<bool, Failure> {
        match nodes.session.delete_all(&nodes.paths, nodes.version).await {
            Ok(_) => Ok(true),
            Err(failure) if failure.is(&Error::BadVersion) => Ok(false),
            // A holder that has learned of the break has already removed the node.
            Err(_) if nodes.session.stat(nodes.first()).await.is_ok_and(|stat| stat.is_none()) => Ok(true),
            Err(failure) => Err(failure),
        }
    }
}
