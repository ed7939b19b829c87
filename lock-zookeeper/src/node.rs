//! Creates the node of an attempt.
//!
//! One transaction creates the node and writes the directory's data. The answer to the write says how many children the directory
//! has now; if there is one, no other contender wants the lock. It also contains the transaction's id, which is the fencing token.
//! (Inside a transaction, the answer to the creation itself is useless before ZooKeeper 3.9: ZOOKEEPER-4026.)

use std::sync::Arc;

use lock_core::{ErrorKind, LockError, Operation};
use zookeeper_client::{Acls, Client, CreateMode, Error, MultiWriteResult};

use crate::contender::{Accepted, Contender, contenders};
use crate::failure::{Failure, Outcome, nonsense};
use crate::liveness::Proof;
use crate::node_claim::NodeClaim;
use crate::options::Access;

/// What all nodes of a client have in common.
#[derive(Debug)]
pub(crate) struct Recipe {
    pub(crate) access: Access,
    pub(crate) accepted: Accepted,
}

/// A node that the client has created or found.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) contender: Contender,
    /// The id of the transaction that created it; none if the server has not said.
    pub(crate) created_by: Option<i64>,
    /// Whether it is certainly the only node in its directory.
    pub(crate) is_alone: bool,
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

    /// Creates the node. After an error that leaves the outcome unknown, the claim stays in doubt.
    /// `data` says who the client is.
    pub(crate) async fn create(&self, claim: &NodeClaim, data: &[u8]) -> Result<Node, LockError> {
        let mut way = Way::InDirectory;
        for _ in 0..MOST_ROUNDS {
            claim.about_to_create();
            let (index, failure) = match self.create_once(claim, data, way).await {
                Ok(node) => {
                    claim.made(node.contender.clone());
                    return Ok(node);
                }
                Err(failed) => failed,
            };
            if failure.outcome() != Outcome::Unknown {
                claim.created_nothing();
            }
            way = match (way, index, &failure) {
                (Way::InDirectory | Way::Alone, _, Failure::Told(Error::NoNode)) => Way::WithDirectory,
                (Way::WithDirectory, 0, Failure::Told(Error::NodeExists)) => Way::InDirectory,
                (Way::WithDirectory, 0, Failure::Told(Error::NoNode)) => {
                    self.make_ancestors(claim).await?;
                    Way::WithDirectory
                }
                (Way::InDirectory, 1, Failure::Told(Error::NoAuth)) => Way::Alone,
                _ => return Err(failure.explain(Operation::Acquire)),
            };
        }
        Err(LockError::new(ErrorKind::Server, Operation::Acquire)
            .because("the lock's directory is removed again and again")
            .remedy("find out who removes it")
            .retryable())
    }

    async fn create_once(&self, claim: &NodeClaim, data: &[u8], way: Way) -> Result<Node, (usize, Failure)> {
        let directory = &**claim.directory();
        let prefix = claim.path_of(&claim.mark().prefix());
        let contender = CreateMode::EphemeralSequential.with_acls(self.access());
        if way == Way::Alone {
            return self.create_alone(claim, data, &prefix).await.map_err(|failure| (0, failure));
        }
        let changes = claim.session().change(|writer| {
            if way == Way::WithDirectory {
                writer.add_create(directory, &[], &CreateMode::Container.with_acls(self.access()))?;
            }
            writer.add_create(&prefix, data, &contender)?;
            writer.add_set_data(directory, &[], None)
        });
        read(&changes.await?)
            .ok_or((0, Failure::Told(Error::UnexpectedError("an unexpected result".to_owned()))))
    }

    /// Creates the node where the user may not write the directory's data.
    async fn create_alone(&self, claim: &NodeClaim, data: &[u8], prefix: &str) -> Result<Node, Failure> {
        let options = CreateMode::EphemeralSequential.with_acls(self.access());
        let creating = |client: Arc<Client>| async move { client.create(prefix, data, &options).await };
        let (stat, sequence) = claim.session().ask(Proof::Committed, creating).await?;
        let name = format!("{}{sequence}", claim.mark().prefix());
        let contender = Contender { sequence: sequence.into_i64(), name };
        let created_by = (!stat.is_invalid()).then_some(stat.czxid);
        Ok(Node { contender, created_by, is_alone: false })
    }

    /// Creates the directories above the lock's own.
    async fn make_ancestors(&self, claim: &NodeClaim) -> Result<(), LockError> {
        let Some((parent, _)) = claim.directory().rsplit_once('/').filter(|(parent, _)| !parent.is_empty())
        else {
            return Err(nonsense(Operation::Acquire, "the root has no node"));
        };
        let options = CreateMode::Container.with_acls(self.access());
        let making = |client: Arc<Client>| async move { client.mkdir(parent, &options).await };
        let made = claim.session().ask(Proof::Committed, making).await;
        made.map_err(|failure: Failure| failure.explain(Operation::Acquire))
    }

    /// Looks for the node of a request with an unknown outcome. Returns none, or the lowest of the nodes found together with the
    /// names of all children. Removes the other nodes of the attempt.
    pub(crate) async fn find(&self, claim: &NodeClaim) -> Result<Option<(Node, Vec<String>)>, LockError> {
        self.look_for(claim).await.map_err(|failure| failure.explain(Operation::Acquire))
    }

    async fn look_for(&self, claim: &NodeClaim) -> Result<Option<(Node, Vec<String>)>, Failure> {
        let session = claim.session();
        claim.doubt();
        session.barrier(claim.directory()).await?;
        let children = session.list(claim.directory()).await?;
        let own: Vec<_> = children.iter().filter(|name| claim.mark().is_on(name)).cloned().collect();
        let Some(contender) = contenders(&own, self.accepted).into_iter().next() else {
            claim.created_nothing();
            return Ok(None);
        };
        let children = without_doubles(claim, &contender, children).await?;
        let stat = session.stat(&claim.path_of(&contender.name)).await?;
        let Some(stat) = stat.filter(|stat| stat.ephemeral_owner == session.number) else {
            // The node has gone meanwhile.
            claim.created_nothing();
            return Ok(None);
        };
        claim.made(contender.clone());
        Ok(Some((Node { contender, created_by: Some(stat.czxid), is_alone: false }, children)))
    }
}

/// Removes duplicates of the attempt's own node, and returns the other children of the lock's directory. An attempt that waited
/// for itself would wait for ever.
pub(crate) async fn without_doubles(
    claim: &NodeClaim,
    own: &Contender,
    mut children: Vec<String>,
) -> Result<Vec<String>, Failure> {
    let is_double = |name: &String| claim.mark().is_on(name) && *name != own.name;
    for double in children.iter().filter(|name| is_double(name)) {
        claim.doubt();
        claim.session().delete(&claim.path_of(double)).await?;
    }
    children.retain(|name| !is_double(name));
    Ok(children)
}

/// Reads the result of the transaction.
fn read(results: &[MultiWriteResult]) -> Option<Node> {
    let [.., MultiWriteResult::Create { path, .. }, MultiWriteResult::SetData { stat }] = results else {
        return None;
    };
    let name = path.rsplit('/').next()?;
    let contender = Contender::read(name, Accepted::Curator)?;
    // All changes of a transaction have its id.
    Some(Node { contender, created_by: Some(stat.mzxid), is_alone: stat.num_children == 1 })
}
