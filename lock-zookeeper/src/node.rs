//! Creates the nodes of an attempt.
//!
//! One transaction creates the nodes and writes the directory's data. The answer to the write says how many children the directory
//! has now; if there are no others, no other contender wants the lock. It also contains the transaction's id, which is the fencing token.
//! (Inside a transaction, the answer to the creation itself is useless before ZooKeeper 3.9: ZOOKEEPER-4026.)

use std::sync::Arc;

use lock_core::{ErrorKind, FencingToken, LockError, Operation};
use lock_entries::{Claim, Failed, Outcome};
use zookeeper_client::{Acls, Client, CreateMode, Error, MultiWriteResult};

use crate::contender::{Accepted, read_sequence};
use crate::failure::{Failure, unexpected};
use crate::node_claim::{Names, NodeClaim};
use crate::options::Access;
use crate::session::Session;
use crate::session_liveness::Proof;

/// What all nodes of a client have in common.
#[derive(Debug)]
pub(crate) struct Recipe {
    pub(crate) access: Access,
    pub(crate) accepted: Accepted,
}

/// The nodes of an attempt that the client has created or found.
#[derive(Debug)]
pub(crate) struct Made {
    pub(crate) names: Names,
    /// The fencing token: the id of the transaction that created them. None if the server has not said.
    pub(crate) token: Option<FencingToken>,
    /// Whether they are certainly the only nodes in their directory.
    pub(crate) are_alone: bool,
    /// All children of their directory, if they were looked for among them.
    pub(crate) children: Option<Vec<String>>,
}

impl Made {
    /// The name of the node that stands for all of them.
    pub(crate) fn first(&self) -> &str {
        self.names.first().map_or("", String::as_str)
    }
}

/// Unused directories come and go, so creating a node may need several rounds, but not more than this.
const MOST_ROUNDS: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// The directory exists.
    InDirectory,
    /// The same transaction creates the directory.
    WithDirectory,
    /// The user may not write the directory's data, but may create nodes in it.
    Alone,
}

impl Recipe {
    pub(crate) fn access(&self) -> Acls<'static> {
        match self.access {
            Access::Open => Acls::anyone_all(),
            Access::Creator => Acls::creator_all(),
        }
    }

    /// Creates the nodes that the claim wants. After an error that leaves the outcome unknown, the claim stays in doubt.
    /// `data` says who the client is.
    pub(crate) async fn create(&self, claim: &NodeClaim, data: &[u8]) -> Result<Made, LockError> {
        self.create_counting(claim, None, data).await.map(|(made, _)| made)
    }

    /// The same, and counts the children of another directory in the same transaction, if the user may write to both.
    pub(crate) async fn create_counting(
        &self,
        claim: &NodeClaim,
        other: Option<&str>,
        data: &[u8],
    ) -> Result<(Made, Option<i32>), LockError> {
        // The writes follow the creations.
        let writes = claim.wanted().len();
        let mut way = Way::InDirectory;
        let explained = |failure: Failure| failure.explain(Operation::Acquire);
        for _ in 0..MOST_ROUNDS {
            claim.traces().about_to_create();
            let (index, failure) = match self.create_once(claim, other, data, way).await {
                Ok((made, counted)) => {
                    claim.traces().made(Arc::clone(&made.names));
                    return Ok((made, counted));
                }
                Err(failed) => failed,
            };
            if failure.outcome() != Outcome::Unknown {
                claim.traces().created_nothing();
            }
            way = match (way, index, &failure) {
                (way, _, Failure::Told(Error::NoNode)) if other.is_some() => {
                    for directory in other.into_iter().chain([&**claim.directory()]) {
                        self.make(claim.session(), directory).await.map_err(explained)?;
                    }
                    way
                }
                (Way::InDirectory | Way::Alone, _, Failure::Told(Error::NoNode)) => Way::WithDirectory,
                (Way::WithDirectory, 0, Failure::Told(Error::NodeExists)) => Way::InDirectory,
                (Way::WithDirectory, 0, Failure::Told(Error::NoNode)) => {
                    self.make(claim.session(), claim.directory()).await.map_err(explained)?;
                    Way::InDirectory
                }
                (Way::InDirectory, index, Failure::Told(Error::NoAuth)) if index >= writes => Way::Alone,
                _ => return Err(explained(failure)),
            };
        }
        Err(LockError::new(ErrorKind::Server, Operation::Acquire)
            .because("the lock's directory is removed again and again")
            .remedy("find out who removes it")
            .retryable())
    }

    async fn create_once(
        &self,
        claim: &NodeClaim,
        other: Option<&str>,
        data: &[u8],
        way: Way,
    ) -> Result<(Made, Option<i32>), (usize, Failure)> {
        let directory = &**claim.directory();
        let contender = CreateMode::EphemeralSequential.with_acls(self.access());
        let counted = [Some(directory), other].into_iter().flatten().filter(|_| way != Way::Alone);
        let changes = claim.session().change(|writer| {
            if way == Way::WithDirectory {
                writer.add_create(directory, &[], &CreateMode::Container.with_acls(self.access()))?;
            }
            for (number, name) in claim.wanted().iter().enumerate() {
                let data = if number == 0 { data } else { &[] };
                writer.add_create(&claim.path_of(name), data, &contender)?;
            }
            counted.into_iter().try_for_each(|directory| writer.add_set_data(directory, &[], None))
        });
        read(&changes.await?, claim.wanted().len()).ok_or_else(|| (0, unexpected()))
    }

    /// Creates a directory and those above it.
    pub(crate) async fn make(&self, session: &Session, directory: &str) -> Result<(), Failure> {
        let options = CreateMode::Container.with_acls(self.access());
        let making = |client: Arc<Client>| async move { client.mkdir(directory, &options).await };
        session.ask(Proof::Committed, making).await
    }

    /// The nodes of an earlier call for the same attempt, or new ones.
    pub(crate) async fn find_or_create(&self, claim: &NodeClaim, data: &[u8]) -> Result<Made, LockError> {
        if claim.traces().has_left_something() {
            let found = self.look_for(claim).await.map_err(|failure| failure.explain(Operation::Acquire))?;
            if let Some(made) = found {
                return Ok(made);
            }
        }
        self.create(claim, data).await
    }

    /// Looks for the nodes of a request with an unknown outcome. Returns none, or the lowest that were created together. Removes the
    /// other nodes of the attempt.
    async fn look_for(&self, claim: &NodeClaim) -> Result<Option<Made>, Failure> {
        let session = claim.session();
        claim.traces().doubt();
        session.barrier(claim.directory()).await?;
        let children = session.list(claim.directory()).await?;
        let own = children.iter().filter(|name| claim.protection_id().is_on(name));
        let names: Names =
            made_together(own.map(String::as_str).collect(), claim.wanted()).unwrap_or_default().into();
        let children = without_doubles(claim, &names, children).await?;
        let Some(first) = names.first() else {
            claim.traces().created_nothing();
            return Ok(None);
        };
        let stat = session.stat(&claim.path_of(first)).await?;
        let Some(stat) = stat.filter(|stat| stat.ephemeral_owner == session.number) else {
            // The node has gone meanwhile.
            claim.traces().created_nothing();
            return Ok(None);
        };
        claim.traces().made(Arc::clone(&names));
        Ok(Some(Made {
            names,
            token: Some(token_of(stat.czxid)),
            are_alone: false,
            children: Some(children),
        }))
    }
}

/// The lowest of an attempt's nodes that one transaction has created: their numbers follow each other. None if some are missing.
fn made_together(own: Vec<&str>, wanted: &[String]) -> Option<Vec<String>> {
    let number_of =
        |name: &str| read_sequence(wanted.iter().find_map(|wanted| name.strip_prefix(wanted.as_str()))?);
    let mut numbered: Vec<_> = own.into_iter().filter_map(|name| Some((number_of(name)?, name))).collect();
    numbered.sort_unstable();
    let is_whole = |nodes: &&[(i64, &str)]| {
        nodes.windows(2).all(|pair| pair[0].0 + 1 == pair[1].0)
            && nodes.iter().zip(wanted).all(|((_, name), wanted)| name.starts_with(wanted.as_str()))
    };
    let whole = numbered.windows(wanted.len()).find(is_whole)?;
    Some(whole.iter().map(|(_, name)| (*name).to_owned()).collect())
}

/// Removes duplicates of the attempt's own nodes, and returns the other children of the lock's directory. An attempt that waited
/// for itself would wait for ever.
pub(crate) async fn without_doubles(
    claim: &NodeClaim,
    own: &[String],
    mut children: Vec<String>,
) -> Result<Vec<String>, Failure> {
    let is_double = |name: &String| claim.protection_id().is_on(name) && !own.contains(name);
    for double in children.iter().filter(|name| is_double(name)) {
        claim.traces().doubt();
        claim.session().delete(&claim.path_of(double), None).await?;
    }
    children.retain(|name| !is_double(name));
    Ok(children)
}

/// The token of a hold whose nodes this transaction has created.
pub(crate) fn token_of(transaction: i64) -> FencingToken {
    FencingToken::new(transaction.unsigned_abs())
}

/// Reads the result of a transaction that has created so many nodes of an attempt, and then perhaps counted the children of their
/// directory and of another one.
fn read(results: &[MultiWriteResult], count: usize) -> Option<(Made, Option<i32>)> {
    let is_creation = |result: &MultiWriteResult| matches!(result, MultiWriteResult::Create { .. });
    let end = results.iter().rposition(is_creation)? + 1;
    let created = &results[end.checked_sub(count)?..end];
    let name_in = |result: &MultiWriteResult| match result {
        MultiWriteResult::Create { path, .. } => path.rsplit('/').next().map(str::to_owned),
        _ => None,
    };
    let mut counted = results[end..].iter().filter_map(|result| match result {
        MultiWriteResult::SetData { stat } => Some(stat),
        _ => None,
    });
    let own = counted.next();
    let made = Made {
        names: created.iter().map(name_in).collect::<Option<_>>()?,
        // All changes of a transaction have its id.
        token: own.map(|stat| token_of(stat.mzxid)),
        are_alone: own.is_some_and(|stat| usize::try_from(stat.num_children) == Ok(count)),
        children: None,
    };
    Some((made, counted.next().map(|stat| stat.num_children)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_nodes_of_one_transaction_belong_together() {
        let wanted = ["a-lock-", "a-__WRIT__"].map(str::to_owned);
        let found = |own: &[&str]| made_together(own.to_vec(), &wanted).unwrap_or_default();
        let (one, two) =
            (["a-lock-0000000003", "a-__WRIT__0000000004"], ["a-lock-0000000007", "a-__WRIT__0000000008"]);
        assert_eq!(found(&one), one);
        assert_eq!(found(&[two[1], one[0], two[0], one[1]]), one);
        assert_eq!(found(&[one[1], two[1], two[0]]), two);
        assert_eq!(found(&[one[0], two[1]]), [""; 0]);
        assert_eq!(found(&[one[0]]), [""; 0]);
    }
}
